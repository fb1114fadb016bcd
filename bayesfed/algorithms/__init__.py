"""Federated methods: each folder or file holds one method whole, its recipe and the views, locals
and servers that only it has.

`composing` (the helper `compose`) and `registry` (the decorator `recipe`) are what recipes are
written with; `baselines`, `federated_svi`, `d_turbo_vbi`, `fed_rlr`, `fed_hm`, `anycost_fl`,
`lora`, `personal` and `after_training` are methods; `wrappers` turn a method into another.
"""

from bayesfed.errors.names import attached

__getattr__, __dir__, __all__ = attached(__name__, __file__)
