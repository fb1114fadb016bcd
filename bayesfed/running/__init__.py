"""Run a method and keep what came out: `run` and `Result`, experiment files, folders of results.

In the order of their imports: `result` and `launch` (`run`), `scores` (of every round),
`experiments` (from a TOML file to the arguments of `run`), `folders` (results on disk),
`comparison` (several folders in one table) and `reporting` (as a page), `trackers` (callbacks).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
