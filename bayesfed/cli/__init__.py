"""The command line: `bayesfed run`, `compare`, `plot`, `report`, `list` and `doctor`, all
on top of what `import bayesfed` offers.
"""
