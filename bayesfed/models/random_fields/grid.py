"""Binary grids: variables on a K x M lattice, coupled to their right and lower neighbours,
described in O(1) memory.

``log p(s) = sum_i f_i s_i + sum_rows k_row s_ij s_i,j+1 + sum_columns k_col s_ij s_i+1,j - log Z``
with s in {0, 1}.

No tensor of size K M exists until `fields` or `ising` is called.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import ITSELF, checked_class
from bayesfed.models.random_fields.ising import Ising, check_arrangement, pairs

Number = float | Tensor


class Link(NamedTuple):
    """The log weights of a pair, in nats: ``coupling`` is added if both ends are 1, ``source`` and
    ``target`` if that end is 1.
    """

    coupling: Number = 0.0
    source: Number = 0.0
    target: Number = 0.0


# Compared by identity, because results computed for a model are cached with it.
@checked_class(row=ITSELF, column=ITSELF)
@dataclass(frozen=True, eq=False)
class Grid:
    """A K x M grid of binary variables, or several independent copies of one.

    Parameters
    ----------
    size
        (K, M).
    row, column
        Table of a variable with its right and with its lower neighbour. Each entry is a number or,
        if it differs from place to place, a tensor of shape ``(K, M - 1)`` for `row` and
        ``(K - 1, M)`` for `column`.
    field
        Log-odds of every variable by itself: a number or ``(K, M)``.
    arrangement
        Shape of the evidence, default (K, M). Its product may be a multiple of K M, for several
        copies, each K M long in row-major order.

    Raises
    ------
    ArgumentError
        If a side is not a positive integer, the sides do not divide the arrangement, or an entry is
        not finite or of another shape.
    """

    size: tuple[int, int]
    row: Link = Link()
    column: Link = Link()
    field: Number = 0.0
    arrangement: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        (rows, columns), entries = self.size, math.prod(self.shape)
        if min(self.size) < 1 or not entries or entries % (rows * columns):
            raise ArgumentError(
                "Grid",
                "sides >= 1 that divide the arrangement",
                (self.size, self.shape),
                "Grid((784, 256))",
            )
        for name, link in (("row", self.row), ("column", self.column)):
            if not isinstance(link, Link):
                raise ArgumentError(
                    f"Grid.{name}",
                    "a Link",
                    link,
                    "Link(0.8), or FactorGraph.grid for probabilities",
                )
        for name, values, expected in (
            ("row", self.row, (rows, columns - 1)),
            ("column", self.column, (rows - 1, columns)),
            ("field", (self.field,), (rows, columns)),
        ):
            for value in values:
                shape = tuple(value.shape) if isinstance(value, Tensor) else ()
                if (
                    not isinstance(value, int | float | Tensor)
                    or shape not in ((), expected)
                    or not torch.isfinite(torch.as_tensor(value)).all()
                ):
                    raise ArgumentError(
                        f"Grid.{name}",
                        f"finite numbers, or tensors of shape {expected}",
                        shape or value,
                        "Link(0.8)",
                    )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the evidence."""
        return self.size if self.arrangement is None else self.arrangement

    @property
    def copies(self) -> int:
        """Number of independent grids in the arrangement."""
        return math.prod(self.shape) // (self.size[0] * self.size[1])

    def fields(
        self, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu"
    ) -> Tensor:
        """Return the log-odds ``(K, M)`` of each variable if its neighbours are 0, the links'
        `source` and `target` included.
        """

        def tensor(value: Number) -> Tensor:
            return torch.as_tensor(value, dtype=dtype, device=device)

        result = torch.zeros(self.size, dtype=dtype, device=device) + tensor(self.field)
        ends = (result[:, :-1], result[:, 1:], result[:-1], result[1:])
        for end, value in zip(ends, (*self.row[1:], *self.column[1:]), strict=True):
            end.add_(tensor(value))
        return result

    def couplings(
        self, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu"
    ) -> tuple[Tensor, Tensor]:
        """Return couplings of row neighbours ``(K, M - 1)`` and of column neighbours
        ``(K - 1, M)``, expanded.
        """
        rows, columns = self.size
        row = torch.as_tensor(self.row.coupling, dtype=dtype, device=device).expand(
            rows, columns - 1
        )
        return row, torch.as_tensor(self.column.coupling, dtype=dtype, device=device).expand(
            rows - 1, columns
        )

    def is_even(self) -> bool:
        """Return whether each direction has the same link everywhere."""
        return all(
            torch.as_tensor(value).ndim == 0 for link in (self.row, self.column) for value in link
        )

    def ising(self) -> Ising:
        """Return the same model as an edge list, in float64; computed once."""
        return self._edge_list

    @cached_property
    def _edge_list(self) -> Ising:
        index = torch.arange(self.size[0] * self.size[1]).reshape(self.size)
        edges = torch.cat([pairs(index[:, :-1], index[:, 1:]), pairs(index[:-1], index[1:])], dim=1)
        coupling = torch.cat([value.reshape(-1) for value in self.couplings()])
        rows, columns = torch.meshgrid(
            torch.arange(self.size[0]), torch.arange(self.size[1]), indexing="ij"
        )
        return Ising(
            self.fields().reshape(-1),
            edges,
            coupling,
            self.shape,
            ((rows + columns) % 2).reshape(-1),
        )

    def energy(self, support: Tensor) -> Tensor:
        """Return the unnormalised log probability ``(...)`` of supports ``(..., *shape)``, in their
        own dtype if floating, else in float64.
        """
        check_arrangement(support, self.shape)
        dtype = support.dtype if support.is_floating_point() else torch.float64
        batch = support.shape[: support.ndim - len(self.shape)]
        on = support.to(dtype).reshape(*batch, self.copies, *self.size)
        row, column = self.couplings(dtype, support.device)
        along = (on[..., :, :-1] * on[..., :, 1:] * row).sum((-3, -2, -1))
        across = (on[..., :-1, :] * on[..., 1:, :] * column).sum((-3, -2, -1))
        return (on * self.fields(dtype, support.device)).sum((-3, -2, -1)) + along + across

    def inner_field(self) -> float:
        """Return the field of the last variable, at which no chain starts."""
        return float(torch.as_tensor(self.field).expand(self.size)[-1, -1])

    def strengths(self) -> tuple[float, float]:
        """Return the largest |J| = |coupling| / 4 (spin units) of the row and of the column links;
        0 where there is no link.
        """
        rows, columns = self.size
        return _largest(self.row.coupling) if columns > 1 else 0.0, _largest(
            self.column.coupling
        ) if rows > 1 else 0.0

    def strength(self) -> float:
        """Return the largest coupling in spin units."""
        return max(self.strengths())

    def attractive(self) -> bool:
        """Return whether no coupling is negative."""
        return all((torch.as_tensor(link.coupling) >= 0).all() for link in (self.row, self.column))


def _largest(coupling: Number) -> float:
    return float(torch.as_tensor(coupling).detach().abs().max()) / 4
