"""The log tables of factor nodes, and factors grouped by the shape of their table."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.inference.sum_product.graphs.flat import TableGroup

# Of a table that is given, and of the largest one of a junction tree.
MAX_ENTRIES = 2**24
Attributes = Mapping[str, Any]


@dataclass
class Kind:
    """Factors whose tables have one shape, as they are read.

    Parameters
    ----------
    shape
        The shape.
    distinct
        Bytes of the log tables, each with its number.
    names, which
        Name and table of each factor.
    members
        Variables of all factors, one factor after the other.
    unordered
        Numbers of the factors without a scope: their variables are in the order of the edges.
    """

    shape: tuple[int, ...]
    distinct: dict[bytes, int] = field(default_factory=dict)
    names: list[Hashable] = field(default_factory=list)
    which: list[int] = field(default_factory=list)
    members: list[int] = field(default_factory=list)
    unordered: list[int] = field(default_factory=list)


def log_table(node: Hashable, data: Attributes) -> NDArray[np.float64]:
    """Return the log table of a factor node; numpy warns of weights that are not positive.

    Raises
    ------
    ArgumentError
        If it is no array of 1 to `MAX_ENTRIES` numbers.
    """
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
        raise ArgumentError(
            f"factor {node!r}.{name}",
            f"1 to {MAX_ENTRIES} entries",
            f"{array.size} of shape {array.shape}",
            "an entry for each combination, or several factors over fewer variables",
        )
    return array if name == "factor" else np.log(array)


def group(kind: Kind, cards: NDArray[np.int64], nodes: Mapping[Hashable, Attributes]) -> TableGroup:
    """Return the factors of one kind.

    Parameters
    ----------
    kind
        The factors as read.
    cards
        ``(n,)``, number of states of each variable.
    nodes
        Attributes of all nodes, for errors.

    Raises
    ------
    ArgumentError
        If a table, or the lack of a scope, is not as `FactorGraph.from_networkx` documents.
    """
    tables = np.frombuffer(b"".join(kind.distinct)).reshape(-1, *kind.shape).copy()
    which = np.array(kind.which, dtype=np.int64)
    scope = np.array(kind.members, dtype=np.int64).reshape(len(which), -1)
    if (wrong := np.flatnonzero((cards[scope] != kind.shape).any(1))).size:
        raise refuse_shape(kind.names[wrong[0]], tuple(cards[scope[wrong[0]]].tolist()), kind.shape)
    # A maximum propagates NaN: it is finite only if no entry is NaN or +inf and some entry is
    # possible.
    good = np.isfinite(tables.reshape(len(tables), -1).max(1))
    if not good.all():
        number = int(good[which].argmin())
        _refuse_values(kind.names[number], nodes[kind.names[number]], tables[which[number]])
    if kind.unordered and not (good := _symmetric(tables)[which[kind.unordered]]).all():
        node = kind.names[kind.unordered[int(good.argmin())]]
        raise ArgumentError(
            f"factor {node!r}.scope",
            "the variables in the order of the table's axes",
            "none, and a table that is not symmetric: an undirected edge does not record argument "
            "order",
            "scope=(first, second)",
        )
    return TableGroup(torch.from_numpy(tables), torch.from_numpy(which), torch.from_numpy(scope))


def refuse_shape(
    node: Hashable, expected: tuple[int, ...], shape: tuple[int, ...]
) -> ArgumentError:
    """Return the error for a table whose shape is not that of its variables."""
    return ArgumentError(
        f"factor {node!r}",
        f"a table of shape {expected}",
        shape,
        "one axis a variable, in the order of scope",
    )


def _refuse_values(node: Hashable, data: Attributes, table: NDArray[np.float64]) -> None:
    name = "table" if data.get("factor") is None else "factor"
    where = f"factor {node!r}.{name}"
    if (table == -np.inf).all():
        raise ArgumentError(
            where,
            "a combination that is possible",
            "-inf everywhere" if name == "factor" else "zeros",
            "dropping the factor",
        )
    raise ArgumentError(
        where,
        "finite logs or -inf" if name == "factor" else "non-negative finite weights",
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
