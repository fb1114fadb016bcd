"""Which message-passing method serves which graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.inference.sum_product.graphs.flat import Tables
from bayesfed.inference.sum_product.graphs.lowering import edge_list
from bayesfed.inference.sum_product.graphs.recognise import recognise
from bayesfed.inference.sum_product.methods.conditioning import (
    Parts,
    cheap,
    fitting,
    forbids,
    parts_of,
    refuse_part,
    sum_conditioned,
    whole_part,
)
from bayesfed.inference.sum_product.methods.edges.propagation import pass_edges, pass_forest
from bayesfed.inference.sum_product.methods.edges.wiring import placed
from bayesfed.inference.sum_product.methods.exact import sum_grid
from bayesfed.inference.sum_product.methods.grids.checkerboard import holds, pass_checkerboard
from bayesfed.inference.sum_product.methods.junction import (
    build,
    cheap_tree,
    check_possible,
    fitting_tree,
    refuse_size,
    sum_junction,
)
from bayesfed.inference.sum_product.methods.observed import finite, with_observed
from bayesfed.inference.sum_product.methods.outcome import Outcome, Settings
from bayesfed.inference.sum_product.methods.regions.choice import (
    LARGEST,
    RUN_OF_STRIPS,
    blocks,
    cycles,
)
from bayesfed.inference.sum_product.methods.regions.propagation import pass_regions
from bayesfed.inference.sum_product.methods.strips.propagation import pass_strips
from bayesfed.inference.sum_product.methods.structure import structure
from bayesfed.inference.sum_product.methods.tables.propagation import pass_tables, possible_states
from bayesfed.inference.sum_product.methods.tables.schedule import compile_tables
from bayesfed.inference.sum_product.result import Method, Model
from bayesfed.models.random_fields import transfer_matrix as transfer
from bayesfed.models.random_fields.elimination import CliqueTree
from bayesfed.models.random_fields.grid import Grid
from bayesfed.models.random_fields.ising import Ising

Regions = Sequence[Sequence[int]] | None
Run = Callable[[Settings, Tensor | None], Outcome]


def choose(
    model: Model, evidence: Tensor, method: str, regions: Regions = None, rows: int = 4
) -> tuple[Method, Run]:
    """Return the name of the method that serves a model, and a function that runs it.

    Parameters
    ----------
    model
        A flat model.
    evidence
        Log-odds, infinite where a state was observed, or log weights of tables, with any batch
        dimensions.
    method
        The user's choice: a name, or "auto".
    regions
        Regions of "gbp"; None: short cycles.
    rows
        Rows of a strip on a grid of tables.

    Raises
    ------
    ArgumentError
        If there is no such method, or it does not serve the model.
    """
    if isinstance(model, Tables):
        weights = evidence.reshape(-1, *model.unary.shape)
        if method == "gbp":
            return _on_regions(model, weights, regions)
        return _on_tables(model, weights, method, rows)
    if (
        method in ("auto", "exact")
        and bool(evidence.isinf().any())
        and (exact := _observed_bits(model, evidence, method)) is not None
    ):
        return exact
    plain = finite(model, evidence)
    chosen, run = _on_bits(model, plain, method, regions)
    if plain is evidence:
        return chosen, run
    return chosen, lambda settings, state: with_observed(run(settings, state), evidence, plain)


def _observed_bits(model: Grid | Ising, evidence: Tensor, method: str) -> tuple[Method, Run] | None:
    """Return exact sums of what is left of a graph of bits of which some are observed; None if
    another method is to take it as it is.
    """
    if isinstance(model, Grid) and _by_transfer(
        model, len(evidence.reshape(-1, *model.size)), method
    ):
        return None
    ising = placed(model.ising(), evidence.device)
    nodes = evidence.reshape(-1, ising.field.numel())
    if ising.is_forest or cheap_tree(ising, len(nodes)) is not None:
        return None
    if (parts := _parts(ising, nodes, method)) is None:
        return None
    return "exact", lambda settings, state: _as_grid(model, sum_conditioned(ising, nodes, parts))


def _on_bits(
    model: Grid | Ising, evidence: Tensor, method: str, regions: Regions
) -> tuple[Method, Run]:
    """Return the method and its run for finite log-odds."""
    ising = placed(model.ising(), evidence.device)
    nodes = evidence.reshape(-1, ising.field.numel())
    if method == "gbp":
        name, run = _on_regions(ising, nodes, regions)
        return name, lambda settings, state: _as_grid(model, run(settings, state))
    if (
        isinstance(model, Grid)
        and min(model.size) > 1
        and (run_grid := _on_grid(model, evidence.reshape(-1, *model.size), method))
    ):
        return run_grid
    if method in ("auto", "exact", "strip") and ising.is_forest:
        # A grid of a single row or column gets here; every method is exact on it.
        return "exact", lambda settings, state: _as_grid(model, pass_forest(ising, nodes))
    if (tree := _tree(ising, len(nodes), method)) is not None:
        return "exact", lambda settings, state: _as_grid(model, sum_junction(ising, nodes, tree))
    if method == "strip":
        raise _unserved(method, "this graph", "a grid, or method='bp'")
    return "bp", lambda settings, state: _as_grid(model, pass_edges(ising, nodes, settings, state))


def _on_regions(model: Ising | Tables, evidence: Tensor, regions: Regions) -> tuple[Method, Run]:
    if isinstance(model, Tables):
        _check_contradiction(model, evidence)
    taken = (
        cycles(*structure(model)) if regions is None else [frozenset(region) for region in regions]
    )
    return "gbp", lambda settings, state: pass_regions(model, evidence, taken, settings, state)


def _on_tables(model: Tables, evidence: Tensor, method: str, rows: int) -> tuple[Method, Run]:
    if method == "strip" and (size := _size(model)) is not None:
        most, high = max(model.cards.tolist()), min(rows, size[0])
        if most ** (2 * high) > LARGEST:
            raise _unserved(
                method,
                f"{most} states a variable in strips of {high} rows",
                f"strip_rows with {most}^(2 rows) <= {LARGEST}",
            )
        _check_contradiction(model, evidence)
        return "strip", lambda settings, state: pass_regions(
            model, evidence, blocks(size, high), settings, state, RUN_OF_STRIPS
        )
    if method == "strip":
        raise _unserved(method, "a general factor graph", "method='auto'")
    if compile_tables(model, evidence.dtype, evidence.device).forest:
        return "exact", lambda settings, state: pass_tables(model, evidence, settings, state)
    hard = forbids(model, evidence)
    if (
        hard
        and method in ("auto", "exact")
        and cheap_tree(model, len(evidence)) is None
        and (parts := _parts(model, evidence, method)) is not None
    ):
        return "exact", lambda settings, state: sum_conditioned(model, evidence, parts)
    if (tree := _tree(model, len(evidence), method)) is not None:
        return "exact", lambda settings, state: sum_junction(model, evidence, tree)
    return "bp", lambda settings, state: _pass_possible(model, evidence, settings, state)


def _parts(model: Ising | Tables, evidence: Tensor, method: str) -> Parts | None:
    """Return the batch entries with the clique trees of what is free in them; None if "auto" is to
    leave them to belief propagation.

    Raises
    ------
    ArgumentError
        If the method is "exact" and a tree does not fit, or if a variable has no possible state.
    """
    whole = whole_part(model, evidence)
    if method == "exact":
        parts = parts_of(whole, fitting)
        if parts is None:
            raise refuse_part(whole, "method='bp', or method='strip' for grids")
        return parts
    return parts_of(whole, lambda part: cheap(part, len(evidence)))


def _pass_possible(
    model: Tables, evidence: Tensor, settings: Settings, state: Tensor | None
) -> Outcome:
    """Run belief propagation on tables with cycles; where a junction tree is cheap, refuse tables
    that contradict each other.
    """
    _check_sum(model, evidence)
    return pass_tables(model, evidence, settings, state)


def _check_sum(model: Tables, evidence: Tensor) -> bool:
    """Raise `ArgumentError` if a junction tree that is cheap shows that tables and evidence
    contradict each other; return whether something is forbidden and no tree is cheap.
    """
    if not forbids(model, evidence):
        return False
    if (tree := cheap_tree(model, len(evidence))) is None:
        return True
    check_possible(build(model, evidence, tree)[0].log_z())
    return False


def _check_contradiction(model: Tables, evidence: Tensor) -> None:
    """Raise `ArgumentError` if tables and evidence contradict each other, as far as a junction tree
    that is cheap shows it, or zeros that are spread.
    """
    if _check_sum(model, evidence):
        possible_states(model, evidence)


def _tree(model: Ising | Tables, batch: int, method: str) -> CliqueTree | None:
    """Return the clique tree if the junction tree is to run; None if another method is."""
    if method == "exact" and (tree := fitting_tree(model, batch)) is None:
        raise refuse_size(model, batch, "method='bp', or method='strip' for grids")
    return tree if method == "exact" else cheap_tree(model, batch) if method == "auto" else None


def _on_grid(grid: Grid, evidence: Tensor, method: str) -> tuple[Method, Run] | None:
    """Return the method and its run for evidence ``(B, K, M)`` on a grid of at least two rows and
    columns; None: as an edge list.
    """
    if _by_transfer(grid, len(evidence), method):
        return "exact", lambda settings, state: sum_grid(grid, evidence)
    if method == "strip":
        return "strip", lambda settings, state: pass_strips(grid, evidence, settings, state)
    if method in ("auto", "bp") and grid.is_even():
        # Where float32 would clip, float64 is used.
        wide = evidence if holds(grid, evidence) else evidence.double()
        return "bp", lambda settings, state: pass_checkerboard(grid, wide, settings, state)
    return None


def _by_transfer(grid: Grid, batch: int, method: str) -> bool:
    """Return whether the transfer matrix sums a grid exactly."""
    limit = 2**34 if method == "exact" else 2**30
    return (
        method in ("auto", "exact")
        and min(grid.size) > 1
        and transfer.fits(grid, batch, limit=limit)
    )


def _size(model: Tables) -> tuple[int, int] | None:
    """Return the size of a grid of tables; None if the graph is no grid."""
    _, scopes = structure(model)
    if any(len(scope) > 2 for scope in scopes):
        return None
    ends = np.array(scopes, dtype=np.int64).reshape(-1, 2)
    grid = recognise(edge_list(np.zeros(model.cards.numel()), ends, np.ones(len(ends))))
    return None if grid is None else grid.size


def _as_grid(model: Model, outcome: Outcome) -> Outcome:
    """Split the pair tables of a grid that was solved as an edge list into those of row links and
    of column links.
    """
    if not isinstance(model, Grid):
        return outcome
    rows, columns = model.size

    def pairs() -> tuple[Tensor, ...]:
        along, across = outcome.pairs()[0].split(
            [rows * (columns - 1), (rows - 1) * columns], dim=1
        )
        return along.unflatten(1, (rows, columns - 1)), across.unflatten(1, (rows - 1, columns))

    return replace(outcome, pairs=pairs)


def _unserved(method: str, graph: str, hint: str) -> ArgumentError:
    return ArgumentError(f"infer method {method!r}", "a graph it can serve", graph, hint)
