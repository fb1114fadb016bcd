"""Runs over a real network with Flower (extra ``flower``). Flower carries bytes and knows the
nodes; everything else is done by the engine.

From the bottom: `experiment`, what both sides load; `letters` and `messages`, what is sent; `site`,
one client, with `sockets` and `worker` for a client that stays alive; `roster` and `pool`, the
clients as the engine sees them; `client_app` and `server_app`, what Flower starts; `starting`, a
new app; `certificates` and `loopback`, a cluster on one machine.
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

# A client app that only forwards bytes to its worker must start fast, so nothing is imported before
# it is used.
_HOME = {
    "Experiment": "experiment",
    "Flower": "pool",
    "Loopback": "loopback",
    "Site": "site",
    "new_app": "starting",
}
__all__ = sorted(_HOME)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(
            f"module 'bayesfed.flower' has no attribute {name!r}; it has {', '.join(sorted(_HOME))}"
        )
    return getattr(importlib.import_module(f"bayesfed.flower.{_HOME[name]}"), name)
