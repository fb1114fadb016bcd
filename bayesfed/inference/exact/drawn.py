"""Draws of the prior, where it can be drawn from: no site is improper, and it has no other terms
than sites.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import biject_to

from bayesfed.inference.exact.asking import SINGULAR, finite
from bayesfed.inference.exact.refusals import Wide
from bayesfed.inference.exact.traced import Doubled, Traced, doubled
from bayesfed.inference.variational.terms import Node
from bayesfed.keys import Key, forked

# How many draws tell the quantiles of the prior.
MANY = 16


def drawn(made: Traced, key: Key) -> Mapping[str, Any]:
    """Return the latent sites' nodes of a draw of the prior; empty if it cannot be drawn from."""
    if made.prior - made.slots.keys():
        return {}
    try:
        with doubled(), Wide(), forked(key), Doubled():
            rows = made.rows.inputs, made.rows.targets
            nodes = poutine.trace(made.model).get_trace(*rows).nodes
    except (NotImplementedError, SINGULAR):
        return {}
    return {name: nodes[name] for name in made.slots}


def spread(made: Traced) -> Tensor | None:
    """Return sorted unconstrained values of every coordinate, ``(n, d)``, of draws of the prior;
    None if it cannot be drawn from.
    """
    values = list[Tensor]()
    for number in range(MANY):
        nodes = drawn(made, Key(5, "starts", number))
        values += [unconstrained(nodes.values())] if nodes else []
    return torch.stack(values).sort(0).values if values else None


def unconstrained(nodes: Iterable[Node]) -> Tensor:
    """Return the unconstrained values of sites, one after the other, ``(d,)``."""
    values = [biject_to(node["fn"].support).inv(node["value"]).reshape(-1) for node in nodes]
    return finite(torch.cat(values))
