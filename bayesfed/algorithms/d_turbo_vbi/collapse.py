"""What the server does when a network falls apart: it takes a round back, and warns of layers that
have no active weights.
"""

from __future__ import annotations

import warnings

import torch

from bayesfed.algorithms.d_turbo_vbi.density import HELD
from bayesfed.algorithms.d_turbo_vbi.totals import active_in, density_of
from bayesfed.errors import CollapseWarning
from bayesfed.federated.core import Info
from bayesfed.trees import Tree


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
        Share of what the fit had gained that is lost.
    """
    returned = {name: before[name] & ~support for name, support in now.items()}
    log_odds = {
        f"log_odds/{name}": torch.where(back, HELD, state[f"log_odds/{name}"])
        for name, back in returned.items()
    }
    count = active_in(returned)
    text = (
        f"d_turbo_vbi: the model sent last lost {risen:.0%} of what the fit had gained; "
        f"{count} weights are active again, and fewer are switched off"
    )
    warnings.warn(text, CollapseWarning, stacklevel=2)
    return log_odds, {
        "density": density_of({name: now[name] | back for name, back in returned.items()}, state),
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
