"""`FactorGraph`: read from networkx or generated, and lowered to the flat model that message
passing runs on.

``p(x) = exp(sum over factors t_f(x_f)) / Z``, with log tables t. A generated grid holds a few
numbers, however large it is.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked_class
from bayesfed.errors.plurals import plural
from bayesfed.inference.sum_product.graphs.flat import Tables
from bayesfed.inference.sum_product.graphs.lowering import lower
from bayesfed.inference.sum_product.graphs.networks import collector_paused
from bayesfed.inference.sum_product.graphs.pairwise import read_pairs
from bayesfed.inference.sum_product.graphs.reading import read
from bayesfed.inference.sum_product.graphs.recognise import recognise
from bayesfed.models.random_fields.grid import Grid, Link, Number
from bayesfed.models.random_fields.ising import Ising
from bayesfed.models.random_fields.support_priors import Transition

if TYPE_CHECKING:
    import networkx as nx

Rule = float | Transition | Link


@checked_class()
@dataclass(frozen=True, eq=False)
class FactorGraph:
    """A graph of discrete variables and the factors that couple them, for `infer`. Immutable.

    Make one by `pairwise`, `grid`, `from_networkx` and the like; they keep the names and the order
    of your variables.

    Parameters
    ----------
    model
        The factors: a binary grid, a binary pairwise model, or tables.
    names
        The user's names of the variables; None for the numbers 0 to n - 1.
    log_constant
        In nats: the log partition function of the graph is the model's plus this.

    Raises
    ------
    ArgumentError
        If the names do not fit the model.
    """

    model: Grid | Ising | Tables
    names: tuple[Hashable, ...] | None = None
    log_constant: float = 0.0

    def __post_init__(self) -> None:
        count = math.prod(self.shape)
        if self.names is not None and len(self.names) != count:
            raise ArgumentError(
                "FactorGraph.names",
                f"{plural(count, 'name')}, one a variable",
                len(self.names),
                "names=None",
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the evidence; ``(n,)``, in node order, for graphs from networkx."""
        return self.model.shape

    @property
    def variables(self) -> Sequence[Hashable]:
        """The variables, in the order of the evidence."""
        return range(math.prod(self.shape)) if self.names is None else self.names

    def lower(self) -> Grid | Ising | Tables:
        """Return the flat model."""
        return self.model

    @classmethod
    def from_networkx(cls, graph: nx.Graph[Any]) -> FactorGraph:
        """Read a bipartite graph of variables and factors.

        Parameters
        ----------
        graph
            Nodes carry ``type``, "variable" or "factor". A variable may carry ``card``, its number
            of states, default 2. A factor carries ``factor``, its log table in nats (a tensor, an
            array or nested lists; -inf forbids a combination), or ``table``, the same as
            non-negative weights; and ``scope``, its variables in the order of the table's axes.
            Without a scope the table must be symmetric. The graph itself may carry
            ``log_constant``, in nats, added to every configuration.

        Returns
        -------
        FactorGraph
            Variables in node order. Full binary grids whose variables stand row by row, or column
            by column, are recognised. Tables are copied: they get no gradients.

        Raises
        ------
        ArgumentError
            If the graph is directed, a multigraph or empty, an edge joins two variables or two
            factors, a scope differs from the neighbours or is missing where it matters, a table has
            the wrong shape, more than 2^24 entries, NaN, +inf or negative weights, or a table or a
            variable has no possible state.
        """
        with collector_paused():
            names, cards, groups = read(graph)
        constant = graph.graph.get("log_constant", 0.0)
        if not isinstance(constant, numbers.Real) or not math.isfinite(constant):
            raise ArgumentError("graph.graph['log_constant']", "a finite number", constant, "0.0")
        model, left_out = lower(names, cards, groups)
        return _recognised(model, names, left_out + float(constant))

    @classmethod
    def pairwise(
        cls, graph: nx.Graph[Any], *, coupling: float | None = None, field: float = 0.0
    ) -> FactorGraph:
        """Read a graph of binary variables without factor nodes, where an edge is a pair factor.

        Parameters
        ----------
        graph
            Edges may carry ``coupling``, the log weight in nats of both ends being 1; nodes
            ``field``, their log-odds without neighbours.
        coupling, field
            Values for edges and nodes that carry none.

        Raises
        ------
        ArgumentError
            If the graph is directed, a multigraph or empty, has a self loop, or a coupling or field
            is not a finite number.
        """
        nodes, model = read_pairs(graph, coupling, field)
        return _recognised(model, nodes, 0.0)

    @classmethod
    def grid(
        cls, size: tuple[int, int], row: Rule, column: Rule, *, field: Number = 0.0
    ) -> FactorGraph:
        """Return a K x M grid of bits; nothing of that size is allocated.

        Parameters
        ----------
        size
            (K, M).
        row, column
            Tables of a variable with its right and with its lower neighbour: a stay probability, a
            `Transition`, or a `Link` in nats.
        field
            Log-odds of every variable without neighbours: a number or ``(K, M)``.

        Raises
        ------
        ArgumentError
            If a side is below 1, a probability outside (0, 1), or a tensor not finite or of the
            wrong shape.
        """
        (along, first), (across, second) = _link(row), _link(column)
        model, (rows, columns) = Grid(size, along, across, field), size
        constant = rows * (columns - 1) * first + (rows - 1) * columns * second
        return FactorGraph(model, log_constant=constant)


def _recognised(model: Ising | Tables, nodes: Sequence[Hashable], constant: float) -> FactorGraph:
    plain = all(type(node) is int and node == i for i, node in enumerate(nodes))
    names = None if plain else tuple(nodes)
    grid = recognise(model) if isinstance(model, Ising) else None
    return FactorGraph(model if grid is None else grid, names, constant)


def _link(rule: Rule) -> tuple[Link, float]:
    """Return the link of a rule, and the log weight of two zeros, which links leave out."""
    if isinstance(rule, Link):
        return rule, 0.0
    chain = rule if isinstance(rule, Transition) else Transition(rule, rule)
    return Link(*chain.terms()), math.log(chain.off)
