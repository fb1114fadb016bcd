"""bayesfed: Bayesian models learned over many devices, honest about uncertainty and small on the
wire.

>>> import bayesfed as bf
>>> train, test = bf.digits()
>>> clients = bf.federate(train, bf.dirichlet(train.targets, 10, 0.5, bf.Key(0, "partition")))

Rooms, lowest first: `errors`, `keys`, `trees`; `geometry`, `compress`, `data`, `wireless`;
`models`; `inference`; `federated`; `algorithms`, `inspect`; `running`; `flower`, `testing`, `cli`.
A lower room never imports a higher one.
"""

from bayesfed import _names

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = _names.attached(__name__, __file__)
