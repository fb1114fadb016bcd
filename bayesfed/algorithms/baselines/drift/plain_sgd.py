"""Checks that methods against client drift share."""

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


def check_share(participation: float, where: str) -> None:
    """Raise `ArgumentError` unless `participation` is a share of the clients, above 0."""
    if not 0 < participation <= 1:
        raise ArgumentError(
            f"{where}, participation",
            "a share in (0, 1]",
            participation,
            "1.0, or that of `fraction`",
        )
