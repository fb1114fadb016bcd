"""`infer`: sum-product on any factor graph.

Exact where possible: trees in two passes, grids with a side of at most 12 by the transfer matrix,
other graphs by junction tree wherever that is cheap. Elsewhere belief propagation ("bp"), which is
overconfident where coupling is strong and evidence weak, and on grids "strip", whose errors are 10
to 100 times smaller. `Inferred.trust` says which of these a result is.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import a, checked, number, whole
from bayesfed.inference.sum_product.dispatch import choose
from bayesfed.inference.sum_product.evidence import read_evidence
from bayesfed.inference.sum_product.graphs.factor_graph import FactorGraph
from bayesfed.inference.sum_product.graphs.flat import Tables
from bayesfed.inference.sum_product.methods import outcome as passing
from bayesfed.inference.sum_product.methods.observed import finite
from bayesfed.inference.sum_product.methods.outcome import Settings
from bayesfed.inference.sum_product.methods.strips.propagation import WIDEST
from bayesfed.inference.sum_product.methods.structure import learned
from bayesfed.inference.sum_product.result import Inferred, Model
from bayesfed.inference.sum_product.trust.starts import multistable_share
from bayesfed.inference.sum_product.trust.words import warn_of
from bayesfed.models.random_fields.clusters import Clusters
from bayesfed.models.random_fields.grid import Grid, Link
from bayesfed.models.random_fields.ising import Ising

# Rows that "strip" solves exactly unless told otherwise.
ROWS = 4


@checked(
    graph=a(
        (FactorGraph, Grid, Ising, Clusters, Tables),
        "a FactorGraph or a flat model",
        "FactorGraph.from_networkx(graph), or a support's lower(shape)",
    ),
    evidence=a(
        Tensor,
        "a tensor of log-odds",
        "torch.as_tensor(evidence), or observed={name: state} for states that were seen",
    ),
    log_weights=a(Tensor, "a tensor of log weights", "torch.as_tensor(log_weights)"),
    observed=a(
        Mapping,
        "names of variables with the number of their state",
        "observed={name: 0}; a state is its place in the tables",
    ),
    tol=number("[0, inf)", "1e-4"),
    max_sweeps=whole(1, "1000"),
    damping=number("[0, 1)", "0.5"),
    strip_rows=whole(2, "4", WIDEST),
)
def infer(
    graph: FactorGraph | Model | Clusters,
    evidence: Tensor | None = None,
    *,
    log_weights: Tensor | None = None,
    observed: Mapping[Hashable, Any] | None = None,
    method: Literal["auto", "exact", "bp", "strip", "gbp"] = "auto",
    init: passing.Start = "zero",
    state: Tensor | None = None,
    tol: float = 1e-4,
    max_sweeps: int = 1000,
    damping: float = 0.0,
    strip_rows: int = ROWS,
    regions: Sequence[Sequence[int]] | None = None,
    certify: bool = False,
    progress: bool | None = None,
    warn: bool = True,
) -> Inferred:
    """Return the marginals of every variable.

    Parameters
    ----------
    graph
        A `FactorGraph`, a flat model, or `Clusters`, whose entries get the log-odds of their
        cluster.
    evidence
        Log-odds of the state 1, ``(..., *graph.shape)``, in nats and finite: what is known of each
        variable from outside the graph. Only for graphs whose variables all have two states,
        whatever their tables. Default: none.
    log_weights
        The same as log weights of every state, ``(..., *graph.shape, C)``, C the largest number of
        states, for any graph; instead of `evidence`. -inf for a state that is impossible; entries
        of states that a variable does not have are ignored.
    observed
        Variables whose state was seen, as ``{name: state}`` with the names of `graph.variables` and
        states from 0; in every batch entry, and in addition to the others. Graphs without names
        number their variables in the order of the flattened evidence; a variable of a grid is also
        known as ``(row, column)``.

        Evidence tensors are float32 or float64 on any device, and batch dimensions may come first.
        Tables are summed there; binary pairwise graphs on the CPU, with results on the device of
        the evidence. Results are log-odds of ``graph.shape`` for binary pairwise graphs whose
        tables forbid nothing, else log marginals ``(..., n, C)``; `Inferred.probabilities` has one
        form for all.
    method
        "exact": by transfer matrix (grids with a side of at most 12), in two passes (trees), or by
        junction tree wherever its largest table has at most 2^24 entries, batch included. Where a
        tree is large, variables that were observed or that zeros of tables fix are taken out of the
        graph first, and states that are impossible out of its tables. "bp":
        belief propagation. "strip": grids, of tables too. "gbp": generalised
        belief propagation on `regions`, each of which is summed exactly. "auto": "exact" where it
        takes about 0.1 s or less (a few seconds where states are impossible), else "bp".
    init
        Start from neutral messages ("zero", the only start of "gbp" and of tables), or from the
        largest ("hi") or smallest ("lo") possible ones: with attractive couplings, the last two
        bracket every fixed point of "bp".
    state
        Messages of an earlier result with this graph, method and batch, for a warm start; overrides
        `init`.
    tol, max_sweeps
        Stop when no message changes by more than `tol` nats, or after `max_sweeps` sweeps. float32
        settles to about 1e-5; "exact" and "strip" compute in float64, and so do the others where
        float32 cannot represent the couplings or the evidence.
    damping
        Share of the old message that is kept, in [0, 1). On edge lists, tables and regions it is
        raised to 0.5, 0.75 and 0.9 by itself when the messages make no progress for 100 sweeps, as
        where couplings of both signs frustrate each other.
    strip_rows
        Rows that "strip" solves exactly, 2 to 8: 2 is Kikuchi's approximation on plaquettes, and
        every further row reduces the error by about a third. A grid with no more rows is solved
        exactly.
    regions
        Regions of "gbp", each a sequence of variables, by their place in the flattened evidence;
        default: cliques and cycles of four. Factors and variables in none of them become regions of
        their own.
    certify
        Whether to run also from other starts and report the share of variables on which the runs
        disagree. Attractive binary couplings: from both extremes, which bracket every fixed point.
        Other graphs: from the extremes or from random messages, which prove nothing when they
        agree. Doubles to quintuples the work.
    progress
        Whether to show a progress bar after two seconds; None: where standard error is a terminal.
    warn
        Whether to warn; the result's fields have the same information.

    Returns
    -------
    Inferred
        Marginals, messages, log Z.

    Raises
    ------
    ArgumentError
        If the evidence has another shape, is not finite or contradicts the graph, a variable or
        state that was observed does not exist, the method does not serve the graph or has no use
        for `regions` or `strip_rows`, sums or regions are too large, or the state is not one of
        this graph, method and batch.

    Warns
    -----
    ConvergenceWarning
        If messages had not settled after `max_sweeps` sweeps.
    MultistableWarning
        If `certify` finds that more than 1 % of the variables depend on the start.
    UnverifiedWarning
        If couplings are so strong that nothing vouches for the marginals: `trust` is "unverified"
        and `trust_bound` is at least 1 ("strip": 1.24), or tables that forbid combinations form
        cycles.
    """
    model, constant = (
        (graph.model, graph.log_constant)
        if isinstance(graph, FactorGraph)
        else (graph.model if isinstance(graph, Clusters) else graph, 0.0)
    )
    clusters = graph if isinstance(graph, Clusters) else None
    names = graph.variables if isinstance(graph, FactorGraph) else range(math.prod(graph.shape))
    read = read_evidence(clusters or model, evidence, log_weights, observed, names)
    entries = seen = read.values
    if clusters:
        seen = clusters.sums(entries)
    # What was observed is infinite in `seen`; these log-odds are finite, and differentiable.
    held = seen if isinstance(model, Tables) else finite(model, seen)
    hide_bar = None if progress is None else not progress
    settings = Settings(tol, max_sweeps, damping, init, strip_rows, hide_bar)
    with torch.no_grad():
        # The kernels of pairwise graphs run on the CPU.
        plain = (seen if isinstance(model, Tables) else seen.cpu()).detach().contiguous()
        _check_regions(regions, model)
        for name, given, of in (
            ("regions", regions is not None, "gbp"),
            ("strip_rows", strip_rows != ROWS, "strip"),
        ):
            if given and method != of:
                hint = f"method={of!r}, or no {name}"
                raise ArgumentError(f"infer {name}", f"method {of!r}", repr(method), hint)
        chosen, run = choose(_detached(model), plain, method, regions, strip_rows)
        outcome = run(settings, state)
        if outcome.belief.amax().isnan():
            raise ArgumentError(
                "infer",
                "weights that float64 can hold",
                "NaN beliefs",
                "smaller couplings or tables, or regions that overlap less",
            )
        share = multistable_share(model, chosen, run, settings, outcome) if certify else None
    belief = outcome.belief.reshape(held.shape).to(held)
    inferred = Inferred(
        chosen,
        clusters.spread(belief) if clusters else belief,
        outcome.state,
        outcome.sweeps,
        outcome.residual,
        outcome.residual <= tol,
        share,
        model,
        outcome,
        held,
        plain,
        constant + read.constant,
        clusters,
        entries,
    )
    if warn:
        warn_of(inferred, tol)
    return inferred


def log_z(
    graph: FactorGraph | Model | Clusters, evidence: Tensor | None = None, **options: Any
) -> Tensor:
    """Return log Z with gradients in the evidence and the model's tensors:
    ``pyro.factor("normaliser", -log_z(grid))`` normalises a prior.

    Arguments are those of `infer`.
    """
    return infer(graph, evidence, **options).log_z


def _check_regions(regions: Sequence[Sequence[int]] | None, model: Model) -> None:
    if regions is None:
        return
    count = model.cards.numel() if isinstance(model, Tables) else model.ising().field.numel()
    flat = [variable for region in regions for variable in region]
    if not (regions and all(regions) and all(0 <= variable < count for variable in flat)):
        raise ArgumentError(
            "infer regions",
            f"sequences of variables from 0 to {count - 1}",
            regions,
            "regions=[(0, 1, 2), (2, 3)]",
        )


def _detached(model: Model) -> Model:
    if isinstance(model, Tables) or not learned(model):
        return model
    if isinstance(model, Ising):
        return replace(model, field=model.field.detach(), coupling=model.coupling.detach())

    def plain(value: float | Tensor) -> float | Tensor:
        return value.detach() if isinstance(value, Tensor) else value

    row, column = (Link(*map(plain, link)) for link in (model.row, model.column))
    return replace(model, row=row, column=column, field=plain(model.field))
