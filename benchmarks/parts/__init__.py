"""What the programs of `benchmarks/` are made of, a folder for each, named like it; `shared` and
`peers` are for several of them.

A folder's ``settings.toml`` has the cases of its program. Modules with ``targets(options)`` are
parts that `--only` names: each measures, prints, and yields whether each of its targets is met
(`shared/parts.py`).
"""
