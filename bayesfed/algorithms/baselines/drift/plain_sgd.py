"""The check that methods against client drift share."""

from __future__ import annotations

from bayesfed.errors import ArgumentError
from bayesfed.federated import Sgd, Training


def sgd_of(work: Training, where: str, *, momentum: bool = False) -> Sgd:
    """Return the optimiser of local work, which has to be SGD; without momentum unless `momentum`
    allows it.
    """
    optimiser = work.optimiser or Sgd()
    if not isinstance(optimiser, Sgd) or (optimiser.momentum and not momentum):
        expected = "Sgd" if momentum else "Sgd without momentum"
        hint = "Sgd(0.05): the method's equations hold for its steps"
        raise ArgumentError(f"{where}, optimiser of training", expected, optimiser, hint)
    return optimiser
