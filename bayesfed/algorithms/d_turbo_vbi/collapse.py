"""What the server does when a network falls apart: it takes a round back, and warns of layers that
have no active weights.
"""

from __future__ import annotations

import warnings

import torch

from bayesfed.algorithms.d_turbo_vbi.density import HELD
from bayesfed.algorithms.d_turbo_vbi.totals import density_of
from bayesfed.errors import CollapseWarning
from bayesfed.federated.core import Info
from bayesfed.trees import Tree


def active_in(supports: Tree) -> int:
    """Return the number of active entries of all supports."""
    return sum(int(support.sum()) for support in supports.values())


def taken_back(state: Tree, before: Tree, now: Tree, risen: float) -> tuple[Tree, Info]:
    """Return the log-odds with which what was switched off since the last round but one is active
    again, as leaves of the state, and the figures of the round.

    Parameters
    ----------
    state
        The state of the server.
    before, now
        Supports by site, of the last round but one and of the last one.
    risen
        Share of what the local fit had gained that the round lost.
    """
    returned = {name: before[name] & ~support for name, support in now.items()}
    log_odds = {
        f"log_odds/{name}": torch.where(back, HELD, state[f"log_odds/{name}"])
        for name, back in returned.items()
    }
    count, entries = active_in(returned), sum(back.numel() for back in returned.values())
    text = (
        f"d_turbo_vbi: a round lost {risen:.0%} of what the local fit had gained; "
        f"{count} weights are active again, and fewer are switched off"
    )
    warnings.warn(text, CollapseWarning, stacklevel=2)
    return log_odds, {
        "density": density_of(active_in(now) + count, entries, state),
        "reactivated": float(count),
        "switched_off": 0.0,
        "taken_back": 1.0,
    }


def warn_of_empty_layers(before: Tree, now: Tree) -> None:
    """Warn of the sites of which no weight is active any more."""
    if empty := [name for name in now if before[name].any() and not now[name].any()]:
        text = (
            f"d_turbo_vbi: no weight of {', '.join(empty)} is active any more; try "
            "density=..., which keeps a floor, or a lower temperature"
        )
        warnings.warn(text, CollapseWarning, stacklevel=2)
