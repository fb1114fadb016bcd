"""Support priors p(s): which weights may be non-zero, declared without any tensor.

Source: the hidden Markov grid of Xia, Tsang and Lau (D-Turbo-VBI, section II-B). Its prior is the
product of one transition table for each pair of horizontal and of vertical neighbours. On a grid it
is therefore an Ising model with coupling ``J = ln(p / (1 - p)) / 2`` for a stay probability p.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import Role, checked_class, number
from bayesfed.models.random_fields.clusters import Lowered
from bayesfed.models.random_fields.grid import Grid, Link
from bayesfed.models.random_fields.ising import Ising
from bayesfed.models.random_fields.phase_transition import warn_if_density_differs, warn_if_ordering

if TYPE_CHECKING:
    import networkx as nx

Shape = tuple[int, int]


class Support(Protocol):
    """The interface of a support prior: it lowers a declaration to a binary model for one M x N
    weight matrix.
    """

    def lower(self, shape: Shape) -> Lowered:
        """Return the model of the ``(M, N)`` supports of one matrix."""


PROBABILITY, FIELD = number("(0, 1)", "0.6"), number("(-inf, inf)", "0.0")


@checked_class(off=PROBABILITY, on=PROBABILITY)
@dataclass(frozen=True)
class Transition:
    """A Markov chain on {0, 1} that starts in its stationary state.

    Parameters
    ----------
    off, on
        Probability to stay 0 and to stay 1.

    Raises
    ------
    ArgumentError
        If one is not strictly between 0 and 1.
    """

    off: float
    on: float

    def terms(self) -> Link:
        """Return the coupling and the fields of source and target, in nats."""
        l00, l01 = math.log(self.off), math.log1p(-self.off)
        l10, l11 = math.log1p(-self.on), math.log(self.on)
        return Link(l11 + l00 - l10 - l01, l10 - l00, l01 - l00)

    def stationary(self) -> float:
        """Return the chain's long-run share of ones."""
        return (1 - self.off) / (2 - self.off - self.on)

    def start(self) -> float:
        """Return the log-odds of a one in the long run."""
        return math.log1p(-self.off) - math.log1p(-self.on)


@checked_class(probability=PROBABILITY)
@dataclass(frozen=True)
class Independent:
    """A prior of supports in which each weight is active independently of the others.

    Parameters
    ----------
    probability
        Probability that a weight is active, strictly between 0 and 1: the expected density.

    Raises
    ------
    ArgumentError
        If the probability is not in (0, 1).
    """

    probability: float = 0.5

    def lower(self, shape: Shape) -> Ising:
        """Return a model of one variable, with as many copies as there are weights."""
        odds = math.log(self.probability) - math.log1p(-self.probability)
        edges, colours = torch.empty(2, 0, dtype=torch.long), torch.zeros(1, dtype=torch.long)
        return Ising(torch.tensor([odds]), edges, torch.empty(0), shape, colours)


CHAIN = Role(
    lambda chain: isinstance(chain, Transition) or PROBABILITY.fits(chain),
    PROBABILITY.expected,
    PROBABILITY.hint,
)


@checked_class(
    row=CHAIN,
    column=CHAIN,
    field=FIELD,
    patch=Role(lambda patch: min(patch) > 0, "two sides >= 1", "(28, 28)"),
)
@dataclass(frozen=True)
class MarkovGrid:
    """Rows and columns of the weight matrix are Markov chains: active weights come in clusters.

    Parameters
    ----------
    row, column
        Transition along a row (to the next column) and along a column (to the next row): a
        `Transition`, or one stay probability for both states.
    field
        Log-odds added to every weight; negative values make the prior sparser.
    patch
        (K, M): the inputs of each unit are one or more pictures of this size, row by row: the
        (28, 28) pixels of a first layer, the (3, 3) entries of each kernel of a convolution.
        Neighbours are then pixels of one picture, and units are independent. Default: the matrix
        itself is the grid.

    Raises
    ------
    ArgumentError
        If a stay probability is not between 0 and 1, the field is not finite, or a patch is not two
        sides of at least 1.

    Notes
    -----
    Above a stay probability of 2/3 message passing has several fixed points; above 0.7071 the grid
    itself is ordered, and whole layers switch on or off together. `lower` warns of both, and of a
    grid whose density is far from that of the chains. `bayesfed.inference.calibrate` chooses field
    and coupling for a wanted density and cluster size.
    """

    row: float | Transition = 0.6
    column: float | Transition = 0.6
    field: float = 0.0
    patch: tuple[int, int] | None = None

    def transitions(self) -> tuple[Transition, Transition]:
        """Return the row and the column transition."""
        row, column = (
            t if isinstance(t, Transition) else Transition(t, t) for t in (self.row, self.column)
        )
        return row, column

    def lower(self, shape: Shape) -> Grid:
        """Return the grid, described but not built. Warn if its coupling is too strong or its
        density is not that of its chains.

        Warns
        -----
        OrderingWarning
            If both chains run and the mean coupling exceeds the Bethe threshold |J| = 0.3466.
        DensityWarning
            If the grid's density is further than 0.1 from that of its chains.

        Raises
        ------
        ArgumentError
            If the entries of a patch do not divide the number of inputs of a unit.
        """
        size = self.patch or shape
        if shape[1] % (1 if self.patch is None else math.prod(size)):
            raise ArgumentError(
                "MarkovGrid.patch",
                f"{size[0]} x {size[1]} to divide the inputs of a unit",
                shape[1],
                "one patch a layer",
            )
        row, column = self.transitions()
        grid = Grid(
            size, row.terms(), column.terms(), self.field, None if self.patch is None else shape
        )
        warn_if_ordering(grid.strengths())
        if row.off == row.on and column.off == column.on:
            return grid
        warn_if_density_differs(grid, (row.stationary() + column.stationary()) / 2)
        # Each chain starts in its stationary state.
        field = torch.full(size, self.field, dtype=torch.float64)
        field[:, 0] += row.start()
        field[0] += column.start()
        return replace(grid, field=field)


@checked_class(stay=PROBABILITY, field=FIELD)
@dataclass(frozen=True)
class Neighbourhood:
    """The inputs of each unit are the nodes of a networkx graph, and neighbours attract each other
    with one coupling for all edges.

    Parameters
    ----------
    graph
        Simple and undirected, with one node for each input, in the order of the inputs.
    stay
        Probability p that two neighbours are in the same state if there are only these two: the
        coupling is ``2 log(p / (1 - p))``.
    field
        Log-odds added to every weight.

    Raises
    ------
    ArgumentError
        If `stay` is not strictly between 0 and 1 or the field is not finite; from `lower`, if the
        graph is not simple and undirected, or does not have as many nodes as a unit has inputs.
    """

    graph: nx.Graph[Any]
    stay: float = 0.55
    field: float = 0.0

    def lower(self, shape: Shape) -> Ising:
        """Return one copy of the graph for each unit."""
        import networkx as nx

        if (
            len(self.graph) != shape[1]
            or self.graph.is_directed()
            or self.graph.is_multigraph()
            or nx.number_of_selfloops(self.graph)
        ):
            raise ArgumentError(
                "Neighbourhood.graph",
                f"a simple undirected graph of {shape[1]} nodes",
                self.graph,
                f"nx.path_graph({shape[1]})",
            )
        index = {node: i for i, node in enumerate(self.graph)}
        ends = [(index[left], index[right]) for left, right in self.graph.edges]
        edges = torch.tensor(ends, dtype=torch.long).reshape(-1, 2).T.contiguous()
        coupling = 2 * (math.log(self.stay) - math.log1p(-self.stay))
        degree = torch.bincount(edges.reshape(-1), minlength=len(index))
        colour = nx.greedy_color(self.graph, strategy="connected_sequential_bfs")
        colours = torch.tensor([colour[node] for node in self.graph])
        # Each end of an edge gives up half the coupling, so that without a field on and off are
        # equally likely.
        return Ising(
            self.field - coupling / 2 * degree.float(),
            edges,
            torch.full((edges.shape[1],), coupling),
            shape,
            colours,
        )


def neighbour_share(mask: Tensor) -> float:
    """Return the active share of the 4-neighbours of active entries of all masks ``(..., M, N)``;
    NaN if no entry is active.
    """
    grid = mask.bool()
    upper, lower, left, right = grid[..., :-1, :], grid[..., 1:, :], grid[..., :-1], grid[..., 1:]
    both = (upper & lower).sum() + (left & right).sum()
    ends = upper.sum() + lower.sum() + left.sum() + right.sum()
    return float(2 * both / ends) if int(ends) else math.nan
