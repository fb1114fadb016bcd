"""Experiment files: a TOML file as Python values.

From the file upwards: `own` (a user's own files), `regressions` (by formula), `experiment` (the
keys at the top, and where each stands), `names` (what a file may name), `scope` (what the run
knows), `kinds` (what a file may write for a type), `words` (how a value is said, and what is wrong
with it), `reader` (tables by signatures), `build`, `sweeps`
and `reopened`.
"""
