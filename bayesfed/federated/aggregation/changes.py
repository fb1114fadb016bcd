"""A client's change as one vector: its norm, and clipping it.

A payload of kind "delta" is the change itself. For kind "value" the change is the difference from
the server's state at the beginning of the round. Norms are Euclidean, over all leaves together, in
double precision.
"""

from __future__ import annotations

import math
from dataclasses import replace

from bayesfed.errors import UpdateError
from bayesfed.federated.core import Kind, Update
from bayesfed.trees import Tree

# Kinds whose payloads are vectors, so that each one may be measured, sorted and clipped.
VECTORS: tuple[Kind, ...] = ("delta", "value")


def change(update: Update, state: Tree) -> Tree:
    """Return a client's change in double precision: its payload, minus the state if it sends
    values.

    Parameters
    ----------
    update
        Lifted payload of one client.
    state
        The server's state at the beginning of the round; not read for kind "delta".

    Raises
    ------
    UpdateError
        If its weight is not a number above 0, or values have other names or shapes than the state.
    """
    weight = update.number()
    if not weight > 0:
        raise UpdateError("a client's change", "a weight above 0", weight, "a client with data")
    own = {name: leaf.double() / weight for name, leaf in update.total.items()}
    if update.kind == "delta":
        return own
    if strange := [
        name for name, leaf in own.items() if name not in state or state[name].shape != leaf.shape
    ]:
        raise UpdateError(
            "a client's change",
            "values of the state's leaves",
            strange,
            "a method that sends changes",
        )
    return {name: leaf - state[name].double() for name, leaf in own.items()}


def norm(tree: Tree) -> float:
    """Return the Euclidean norm of all leaves together."""
    return math.sqrt(math.fsum(float(leaf.double().square().sum()) for leaf in tree.values()))


def clipped(update: Update, state: Tree, longest: float) -> Update:
    """Return an update whose change has a norm of at most `longest`. One within the bound is
    returned as it is, bit for bit.

    Parameters
    ----------
    update
        Lifted payload of one client.
    state
        The server's state at the beginning of the round.
    longest
        Largest norm.

    Raises
    ------
    UpdateError
        As `change`, and if the change is not finite.
    """
    moved = change(update, state)
    if (length := norm(moved)) <= longest:
        return update
    if not math.isfinite(length):
        hint = "on_client_error='drop', which leaves the client out"
        raise UpdateError("a client's change", "a finite norm", length, hint)
    # Slightly shorter than the bound, because of the rounding to the precision of the leaves.
    share, weight = (longest / length) * (1 - 1e-6), update.number()
    while True:
        kept = {
            name: share * leaf + (state[name].double() if update.kind == "value" else 0.0)
            for name, leaf in moved.items()
        }
        shorter = replace(
            update,
            total={
                name: (weight * leaf).to(update.total[name].dtype) for name, leaf in kept.items()
            },
        )
        # Beside large values, rounding alone can be longer than the bound. At share 0 nothing is
        # left of the change.
        if not share or norm(change(shorter, state)) <= longest:
            return shorter
        share = share / 2 if share > 1e-30 else 0.0
