"""Write a flat model as a networkx graph: every factor is a node that carries its table, and equal
tables are one object.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.inference.sum_product.graphs.flat import TableGroup, Tables
from bayesfed.inference.sum_product.graphs.networks import collector_paused
from bayesfed.models.random_fields.grid import Grid, Link
from bayesfed.models.random_fields.ising import Ising

if TYPE_CHECKING:
    import networkx as nx

MAX_NODES = 2_000_000


def write(model: Grid | Ising | Tables, order: Tensor | None, log_constant: float) -> nx.Graph[int]:
    """Return the graph that `FactorGraph.to_networkx` documents.

    Parameters
    ----------
    model, order, log_constant
        Those of the `FactorGraph`.

    Raises
    ------
    ArgumentError
        If it would have more than two million nodes.
    """
    import networkx as nx

    count = math.prod(model.shape)
    groups = list(_factors(model)) if count <= MAX_NODES else []
    copies = 1 if isinstance(model, Tables) else model.copies
    total = count + copies * sum(len(group.which) for group in groups)
    if total > MAX_NODES:
        raise ArgumentError(
            "to_networkx",
            f"at most {MAX_NODES} nodes",
            f"{total} or more",
            "lower(), whose arrays are much smaller",
        )
    written: nx.Graph[int] = nx.Graph(log_constant=log_constant) if log_constant else nx.Graph()
    with collector_paused():
        cards = model.cards.tolist() if isinstance(model, Tables) else itertools.repeat(2, count)
        written.add_nodes_from(
            (i, {"type": "variable", "card": card}) for i, card in enumerate(cards)
        )
        for group in groups:
            offsets = torch.arange(copies) * (count // copies)
            scope = (group.scope + offsets[:, None, None]).flatten(0, 1)
            scope = scope if order is None else order[scope]
            nodes, tables = range(len(written), len(written) + len(scope)), group.tables.unbind()
            wiring = zip(
                nodes,
                group.which.repeat(copies).tolist(),
                zip(*scope.T.tolist(), strict=True),
                strict=True,
            )
            written.add_nodes_from(
                (node, {"type": "factor", "factor": tables[number], "scope": ends})
                for node, number, ends in wiring
            )
            for ends in scope.T.tolist():
                written.add_edges_from(zip(nodes, ends, strict=True))
    return written


def _factors(model: Grid | Ising | Tables) -> Iterator[TableGroup]:
    """Yield a model's factors; if it has copies, those of the first."""
    if isinstance(model, Tables):
        for card in model.cards.unique().tolist():
            yield from _unary(model.unary[:, :card], model.cards == card)
        yield from model.groups
        return
    if isinstance(model, Ising):
        field = model.field
        yield from _pairs(Link(model.coupling), *model.edges)
    else:
        index = torch.arange(math.prod(model.size)).reshape(model.size)
        field = torch.as_tensor(model.field, dtype=torch.float64).expand(model.size).reshape(-1)
        yield from _pairs(model.row, index[:, :-1], index[:, 1:])
        yield from _pairs(model.column, index[:-1], index[1:])
    yield from _unary(
        torch.stack([torch.zeros_like(field), field], dim=1),
        torch.ones_like(field, dtype=torch.bool),
    )


def _pairs(link: Link, left: Tensor, right: Tensor) -> Iterator[TableGroup]:
    """Yield the factors of one link between variables `left` and `right`; equal tables are
    shared.
    """
    values = [torch.as_tensor(value, dtype=torch.float64) for value in link]
    if left.numel():
        even = all(value.ndim == 0 for value in values)
        flat = torch.stack(
            [value.expand(() if even else left.shape).reshape(-1) for value in values], dim=1
        )
        distinct, which = flat.unique(dim=0, return_inverse=True)
        coupling, source, target = distinct.T
        tables = torch.stack(
            [torch.zeros_like(coupling), target, source, source + target + coupling], dim=1
        ).reshape(-1, 2, 2)
        yield TableGroup(
            tables,
            which.expand(left.numel()),
            torch.stack([left.reshape(-1), right.reshape(-1)], dim=1),
        )


def _unary(weights: Tensor, chosen: Tensor) -> Iterator[TableGroup]:
    """Yield the unary factors of the chosen variables whose log weights ``(n, card)`` are not all
    zero; equal tables are shared.
    """
    scope = (chosen & (weights != 0).any(1)).nonzero()
    if len(scope):
        tables, which = weights[scope[:, 0]].to(torch.float64).unique(dim=0, return_inverse=True)
        yield TableGroup(tables, which, scope)
