"""From factor nodes to flat models: group factors by the shape of their table, and make binary
pairs an edge list.

A finite table over two binary variables is ``t(s, s') = c + A s + B s' + k s s'`` with ``c = t00``,
``A = t10 - t00``, ``B = t01 - t00`` and ``k = t11 + t00 - t01 - t10``: pairwise binary graphs need
no tables. The constants c are added up separately.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.inference.sum_product.graphs.flat import TableGroup, Tables
from bayesfed.inference.sum_product.graphs.reading import MAX_ENTRIES, Attributes, Nodes
from bayesfed.inference.sum_product.graphs.recognise import colours
from bayesfed.models.random_fields.ising import Ising


def group(nodes: Nodes, cards: Tensor) -> list[TableGroup]:
    """Return factors grouped by the shape of their table; equal tables are shared.

    Parameters
    ----------
    nodes
        Factor nodes as read.
    cards
        ``(n,)``, number of states of each variable.

    Raises
    ------
    ArgumentError
        If a table, or the lack of a scope, is not as `FactorGraph.from_networkx` documents.
    """
    return list(_group(nodes, cards.numpy()))


def _group(nodes: Nodes, cards: NDArray[np.int64]) -> Iterator[TableGroup]:
    distinct: dict[tuple[int, ...], dict[bytes, int]] = {}
    shapes: dict[tuple[int, ...], int] = {}
    place = np.empty((len(nodes.tables), 2), dtype=np.int64)
    # Zero weights become -inf and negative ones NaN, which `_check_values` looks for in all tables
    # of a shape at once.
    with np.errstate(divide="ignore", invalid="ignore"):
        for number, (node, data) in enumerate(nodes.tables):
            array = _log_table(node, data)
            values = distinct.setdefault(array.shape, {})
            place[number] = (
                shapes.setdefault(array.shape, len(shapes)),
                values.setdefault(array.tobytes(), len(values)),
            )
    group, local = place[nodes.which].T
    starts = np.cumsum(nodes.arities) - nodes.arities
    for shape, number in shapes.items():
        rows = np.flatnonzero(group == number)
        tables = np.frombuffer(b"".join(distinct[shape])).reshape(-1, *shape).copy()
        if (wrong := rows[nodes.arities[rows] != len(shape)]).size:
            _refuse_shape(nodes, wrong[0], shape, cards)
        scope = nodes.members[starts[rows, None] + np.arange(len(shape))]
        if (wrong := rows[(cards[scope] != shape).any(1)]).size:
            _refuse_shape(nodes, wrong[0], shape, cards)
        which = local[rows]
        _check_values(nodes, rows, which, tables)
        if (wrong := rows[nodes.unordered[rows] & ~_symmetric(tables)[which]]).size:
            actual, hint = (
                (
                    "none, and a table that is not symmetric: an undirected edge does not "
                    "record argument order"
                ),
                "scope=(first, second)",
            )
            raise ArgumentError(
                f"factor {nodes.factors[wrong[0]]!r}.scope",
                "the variables in the order of the table's axes",
                actual,
                hint,
            )
        yield TableGroup(torch.from_numpy(tables), torch.from_numpy(which), torch.from_numpy(scope))


def _log_table(node: Hashable, data: Attributes) -> NDArray[np.float64]:
    name = "table" if data.get("factor") is None else "factor"
    value = data[name]
    try:
        array = (
            value.detach().to("cpu", torch.float64).numpy()
            if isinstance(value, Tensor)
            else np.asarray(value, dtype=np.float64)
        )
    except (TypeError, ValueError) as problem:
        raise ArgumentError(
            f"factor {node!r}.{name}",
            "a table of numbers",
            value,
            "a tensor, an array or nested lists",
        ) from problem
    if not 0 < array.size <= MAX_ENTRIES:
        hint = "several factors over fewer variables"
        raise ArgumentError(
            f"factor {node!r}.{name}",
            f"1 to {MAX_ENTRIES} entries",
            f"{array.size} of shape {array.shape}",
            hint,
        )
    return array if name == "factor" else np.log(array)


def _refuse_shape(
    nodes: Nodes, row: int, shape: tuple[int, ...], cards: NDArray[np.int64]
) -> NoReturn:
    start = int(nodes.arities[:row].sum())
    expected = tuple(cards[nodes.members[start : start + int(nodes.arities[row])]].tolist())
    raise ArgumentError(
        f"factor {nodes.factors[row]!r}",
        f"a table of shape {expected}",
        shape,
        "one axis a variable, in the order of scope",
    )


def _check_values(
    nodes: Nodes, rows: NDArray[np.int64], which: NDArray[np.int64], tables: NDArray[np.float64]
) -> None:
    # A maximum propagates NaN: it is finite only if no entry is NaN or +inf and some entry is
    # possible.
    good = np.isfinite(tables.reshape(len(tables), -1).max(1))
    if good.all():
        return
    row = int(rows[~good[which]][0])
    table = tables[which[rows == row][0]]
    _, data = nodes.tables[nodes.which[row]]
    name = "table" if data.get("factor") is None else "factor"
    where = f"factor {nodes.factors[row]!r}.{name}"
    if (table == -np.inf).all():
        raise ArgumentError(
            where,
            "a combination that is possible",
            "-inf everywhere" if name == "factor" else "zeros",
            "dropping the factor",
        )
    expected = "finite logs or -inf" if name == "factor" else "non-negative finite weights"
    raise ArgumentError(
        where,
        expected,
        data[name],
        "table= for weights, factor= for their logarithms",
    )


def _symmetric(tables: NDArray[np.float64]) -> NDArray[np.bool_]:
    # Swaps of neighbouring axes generate all permutations.
    if len(set(tables.shape[1:])) > 1:
        return np.zeros(len(tables), dtype=bool)
    same = np.ones(len(tables), dtype=bool)
    for axis in range(1, tables.ndim - 1):
        same &= (tables == tables.swapaxes(axis, axis + 1)).reshape(len(tables), -1).all(1)
    return same


def lower(
    names: Sequence[Hashable], cards: Tensor, groups: Sequence[TableGroup]
) -> tuple[Ising | Tables, float]:
    """Return the flat model of factors, and the log constant that it leaves out.

    Parameters
    ----------
    names
        Names of the variables, for errors.
    cards
        ``(n,)``, number of states of each variable.
    groups
        The factors.

    Raises
    ------
    ArgumentError
        If the unary factors of a variable allow no state.
    """
    if bool((cards == 2).all()) and all(
        group.tables.ndim <= 3 and bool(torch.isfinite(group.tables).all()) for group in groups
    ):
        return _lower_pairs(len(cards), groups)
    most = int(cards.max())
    unary = torch.zeros(len(cards), most, dtype=torch.float64).masked_fill_(
        torch.arange(most) >= cards[:, None], -torch.inf
    )
    for group in groups:
        if group.scope.shape[1] == 1:
            unary[:, : group.tables.shape[1]].index_add_(
                0, group.scope[:, 0], group.tables[group.which]
            )
    impossible = (unary == -torch.inf).all(1)
    if bool(impossible.any()):
        node = names[int(impossible.nonzero()[0])]
        raise ArgumentError(
            f"variable {node!r}",
            "a state that its unary factors allow",
            "none",
            "unary tables that do not contradict",
        )
    return Tables(cards, unary, tuple(group for group in groups if group.scope.shape[1] > 1)), 0.0


def _lower_pairs(count: int, groups: Sequence[TableGroup]) -> tuple[Ising, float]:
    field, constant = np.zeros(count), 0.0
    pairs = [(np.empty((0, 2), dtype=np.int64), np.empty(0))]
    # In numpy: on busy machines, torch's threads wait for each other at each of these small steps.
    for group in groups:
        table, which, scope = group.tables.numpy(), group.which.numpy(), group.scope.numpy()
        origin = table[:, 0] if scope.shape[1] == 1 else table[:, 0, 0]
        alone = [table[:, 1]] if scope.shape[1] == 1 else [table[:, 1, 0], table[:, 0, 1]]
        for ends, one in zip(scope.T, alone, strict=True):
            field += np.bincount(ends, (one - origin)[which], count)
        constant += float(origin[which].sum())
        if scope.shape[1] == 2:
            pairs.append(
                (scope, (table[:, 1, 1] + origin - table[:, 0, 1] - table[:, 1, 0])[which])
            )
    scope, coupling = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    return edge_list(field, scope, coupling), constant


def edge_list(
    field: NDArray[np.float64], ends: NDArray[np.int64], coupling: NDArray[np.float64]
) -> Ising:
    """Return the pairwise model of an edge list: edges sorted, the smaller end first, parallel
    edges added up.

    Parameters
    ----------
    field
        ``(n,)``, log-odds.
    ends
        ``(E, 2)``, variables.
    coupling
        ``(E,)``, in nats.
    """
    count = len(field)
    key, place = np.unique(
        ends.min(1, initial=count) * count + ends.max(1, initial=0), return_inverse=True
    )
    edges = torch.from_numpy(np.stack(np.divmod(key, count)))
    total = torch.from_numpy(np.bincount(place, coupling, len(key)).astype(np.float64))
    return Ising(torch.from_numpy(field), edges, total, (count,), colours(count, edges))
