"""Predictions of several networks: `swag` and `mc_dropout` around one run, `ensemble` of several,
`fed_be` and `beta_pred_bayes` of the clients' own.

They are what a posterior has to beat. `langevin` is the local step that draws networks.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
