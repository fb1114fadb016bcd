"""Runs over a real network by Flower (extra ``flower``): a pool over its grid, the two apps, a worker beside a node, a cluster on loopback.

Flower carries bytes and knows which nodes are there; everything else is the engine's. `bayesfed.flower.pool` is the pool, `experiment` what both
sides load, `site` one client, `server_app` and `client_app` what Flower starts, `worker` a client that stays alive, `loopback` all on one machine.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayesfed.flower.experiment import Experiment as Experiment
    from bayesfed.flower.loopback import Loopback as Loopback
    from bayesfed.flower.pool import Flower as Flower
    from bayesfed.flower.site import Site as Site
    from bayesfed.flower.starting import new_app as new_app

# A client app that only hands bytes on to its worker must start fast: nothing is imported that is not used.
_HOME = {"Experiment": "experiment", "Flower": "pool", "Loopback": "loopback", "Site": "site", "new_app": "starting"}
__all__ = sorted(_HOME)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'bayesfed.flower' has no attribute {name!r}; it has {', '.join(sorted(_HOME))}")
    return getattr(importlib.import_module(f"bayesfed.flower.{_HOME[name]}"), name)
