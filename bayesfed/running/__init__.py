"""Run a method and keep what came out: `run` and `Result`, experiment files, folders of results.

In the order of their imports: `result` and `launch` (`run`), `scores` (of every round),
`experiments` (from a TOML file to the arguments of `run`), `folders` (results on disk),
`comparison` (several folders in one table) and `reporting` (as a page), `trackers` (callbacks).
"""

from bayesfed.errors.names import attached

__getattr__, __dir__, __all__ = attached(__name__, __file__)
