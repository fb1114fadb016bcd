"""Experiment files: a TOML file as Python values.

From the file upwards: `lines` (where a key stands), `words` (how a value is said), `names` (what a
file may name), `own` (a user's own files), `scope` (what the run knows), `kinds` and `reader`
(tables by signatures, through pydantic), `experiment` (the keys at the top), `build`.
"""
