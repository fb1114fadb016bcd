"""The template of a Flower app, which `bayesfed.flower.new_app` copies: `experiment` and its
`pyproject.toml`.
"""
