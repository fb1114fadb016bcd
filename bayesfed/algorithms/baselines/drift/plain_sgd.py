"""Checks of the local work that methods with equations of their own for its steps share."""

from __future__ import annotations

import math

from bayesfed.errors import ArgumentError
from bayesfed.federated import Sgd, Training


def sgd_of(work: Training, where: str, *, momentum: bool = False) -> Sgd:
    """Return the optimiser of local work, which has to be SGD, not clipped, and
    without momentum unless `momentum` allows it.
    """
    optimiser = work.optimiser or Sgd()
    if (
        not isinstance(optimiser, Sgd)
        or optimiser.clip < math.inf
        or (optimiser.momentum and not momentum)
    ):
        raise ArgumentError(
            f"{where}, optimiser of training",
            "Sgd" if momentum else "Sgd without momentum",
            optimiser,
            "Sgd(0.05): the method's equations hold for its steps",
        )
    return optimiser


def no_prior(work: Training, where: str, hint: str) -> None:
    """Raise `ArgumentError` if local work has a prior, for methods that have one of their own."""
    if work.prior_precision is not None:
        raise ArgumentError(
            where, "the prior of this method alone", "training.prior_precision as well", hint
        )
