"""N, the number of rows of all clients: that of the pool, and a check of one that is given by
hand.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

from bayesfed.errors import ArgumentError, complain
from bayesfed.federated.core import Algorithm, Conditions, Profile
from bayesfed.federated.training.held_out_scores import EVERY


def all_rows(given: int | None, profile: Profile) -> int:
    """Return N for a client's turn: what was given, else the rows of the pool."""
    return given or profile.pool or profile.samples


def counting(algorithm: Algorithm, observations: int | None) -> Algorithm:
    """Return a method that checks, when a run begins, the N that it was given."""
    if observations is None:
        return algorithm
    return replace(algorithm, checks=(*algorithm.checks, Counted(observations)))


@dataclass(frozen=True)
class Counted:
    """A check that N is the number of rows of the pool. Up to a tenth apart, which clients may
    hold out, it warns.

    Parameters
    ----------
    observations
        N as it was given.
    """

    observations: int

    def __call__(self, run: Conditions) -> None:
        """Raise `ArgumentError`, or warn."""
        if self.observations == run.rows:
            return
        parts = "observations", f"{run.rows}, the rows of the pool", self.observations
        hint = f"observations={run.rows}"
        if abs(self.observations - run.rows) * EVERY > run.rows:
            raise ArgumentError(*parts, hint)
        if not run.round:
            warnings.warn(complain(*parts, hint), stacklevel=2)
