"""What `infer` is told from outside the graph, in the form of the flat model.

There are three spellings, and each has one meaning on every graph: `evidence` are log-odds of bits,
`log_weights` are weights of every state, and `observed` are states that were seen, by name. How a
graph is stored, which depends on whether a table has a zero, makes no difference.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.errors.nearness import nearest
from bayesfed.inference.sum_product.graphs.flat import Tables
from bayesfed.models.random_fields.clusters import Clusters
from bayesfed.models.random_fields.grid import Grid
from bayesfed.models.random_fields.ising import Ising

Model = Grid | Ising | Tables
# How many names an error lists.
LISTED = 6
WHERE = {"log_weights": "infer log_weights", "observed": "infer observed"}


@dataclass(frozen=True)
class Evidence:
    """Evidence as message passing takes it.

    Parameters
    ----------
    values
        Pairwise models of bits: log-odds ``(..., *shape)``, infinite where a state was observed.
        Tables: log weights ``(..., n, C)``, -inf for impossible states.
    constant
        What log Z is more than that of these values, 0 or of the batch's shape: log-odds do not
        know how much the state 0 weighs, nor how much one that was observed does.
    """

    values: Tensor
    constant: Tensor | float = 0.0


def read_evidence(
    model: Model | Clusters,
    evidence: Tensor | None,
    log_weights: Tensor | None,
    observed: Mapping[Hashable, Any] | None,
    names: Sequence[Hashable],
) -> Evidence:
    """Return evidence in the form of a model, as `infer` documents its arguments.

    Parameters
    ----------
    model
        The flat model, or clusters of entries.
    evidence, log_weights, observed
        The arguments of `infer`.
    names
        The variables, in the order of the flattened evidence.

    Raises
    ------
    ArgumentError
        If they do not fit the model or each other.
    """
    if evidence is not None and log_weights is not None:
        raise ArgumentError(
            WHERE["log_weights"],
            "log weights or log-odds",
            "both",
            "log_weights alone, with the log-odds added to the weight of state 1",
        )
    cards = model.cards if isinstance(model, Tables) else None
    binary = cards is None or bool((cards == 2).all())
    shape = tuple(model.shape)
    if evidence is not None:
        _check_log_odds(evidence, shape, binary, model)
    if log_weights is not None:
        _check_log_weights(log_weights, shape, binary, model)
    if isinstance(model, Clusters):
        if observed:
            raise ArgumentError(
                WHERE["observed"],
                "a graph whose variables are not clusters of entries",
                "clusters",
                "large log-odds as evidence=, of the shape of the entries",
            )
        if log_weights is not None and bool(log_weights.isinf().any()):
            raise ArgumentError(
                WHERE["log_weights"],
                "finite log weights, for clusters of entries",
                "-inf",
                "large differences",
            )
    seen = _read_states(observed or {}, names, shape, cards)
    if isinstance(model, Tables):
        return _of_tables(model, evidence, log_weights, seen)
    return _of_bits(model, evidence, log_weights, seen)


def _of_tables(
    model: Tables, evidence: Tensor | None, log_weights: Tensor | None, seen: dict[int, int]
) -> Evidence:
    values = log_weights
    if evidence is not None:
        values = torch.stack([torch.zeros_like(evidence), evidence], -1)
    if values is None:
        values = torch.zeros(model.unary.shape, dtype=torch.float64, device=model.unary.device)
    if seen:
        impossible = torch.zeros(values.shape[-2:], dtype=torch.bool)
        for variable, state in seen.items():
            impossible[variable] = True
            impossible[variable, state] = False
        values = values.masked_fill(impossible.to(values.device), -math.inf)
    return Evidence(values)


def _of_bits(
    model: Grid | Ising | Clusters,
    evidence: Tensor | None,
    log_weights: Tensor | None,
    seen: dict[int, int],
) -> Evidence:
    if log_weights is None and not seen:
        return Evidence(_nothing(model) if evidence is None else evidence)
    if log_weights is None:
        odds = _nothing(model) if evidence is None else evidence
        log_weights = torch.stack([torch.zeros_like(odds), odds], -1)
    if seen:
        impossible = torch.zeros(math.prod(model.shape), 2, dtype=torch.bool)
        for variable, state in seen.items():
            impossible[variable, 1 - state] = True
        log_weights = log_weights.masked_fill(
            impossible.reshape(*model.shape, 2).to(log_weights.device), -math.inf
        )
    off, on = log_weights.unbind(-1)
    stuck = (torch.isneginf(off) & torch.isneginf(on)).nonzero()
    if stuck.numel():
        raise ArgumentError(
            "infer",
            "a possible state for every variable",
            f"none at {tuple(stuck[0].tolist())} of the evidence ({len(stuck)} such in all)",
            "softer evidence: it contradicts itself",
        )
    # The weight of state 0, or of the state that was observed, is in no log-odds.
    constant = torch.where(torch.isneginf(off), on, off).double()
    inner = off.ndim - len(model.shape)
    return Evidence(on - off, constant.flatten(inner).sum(-1))


def _nothing(model: Grid | Ising | Clusters) -> Tensor:
    field = (model.model if isinstance(model, Clusters) else model).field
    device = field.device if isinstance(field, Tensor) else "cpu"
    return torch.zeros(model.shape, dtype=torch.float64, device=device)


def _check_log_odds(
    evidence: Tensor, shape: tuple[int, ...], binary: bool, model: Model | Clusters
) -> None:
    where = "infer evidence"
    given = tuple(evidence.shape)
    if not binary:
        most = int(model.unary.shape[1]) if isinstance(model, Tables) else 2
        raise ArgumentError(
            where,
            "log-odds, which only graphs of two-state variables take",
            f"a graph with up to {most} states a variable",
            f"log_weights= of shape (..., {shape[0]}, {most}), or observed={{name: state}}",
        )
    expected = f"finite float32 or float64 log-odds of shape (..., {str(shape)[1:]}"
    fits = evidence.dtype in (torch.float32, torch.float64)
    if given[len(given) - len(shape) :] != shape or not evidence.numel() or not fits:
        hint = "0 where nothing is known"
        if given[len(given) - len(shape) - 1 :] == (*shape, 2):
            hint = "log_weights= for the weights of both states"
        raise ArgumentError(where, expected, f"{evidence.dtype} of shape {given}", hint)
    if not bool(evidence.isfinite().all()):
        raise ArgumentError(
            where,
            expected,
            f"{evidence.dtype} of shape {given}, not all finite",
            "observed={name: state} for a state that was seen, or log_weights= with -inf",
        )


def _check_log_weights(
    log_weights: Tensor, shape: tuple[int, ...], binary: bool, model: Model | Clusters
) -> None:
    states = int(model.unary.shape[1]) if isinstance(model, Tables) else 2
    whole = (*shape, states)
    given = tuple(log_weights.shape)
    expected = f"float32 or float64 log weights below inf of shape (..., {str(whole)[1:]}"
    fits = log_weights.dtype in (torch.float32, torch.float64)
    if given[len(given) - len(whole) :] != whole or not log_weights.numel() or not fits:
        hint = "0 where nothing is known"
        if binary and given[len(given) - len(shape) :] == shape:
            hint = "evidence= for log-odds"
        raise ArgumentError(
            WHERE["log_weights"], expected, f"{log_weights.dtype} of shape {given}", hint
        )
    if not bool((log_weights < math.inf).all()):
        raise ArgumentError(
            WHERE["log_weights"],
            expected,
            f"{log_weights.dtype} of shape {given}, with inf or NaN",
            "-inf for the states that are impossible",
        )


def _read_states(
    observed: Mapping[Hashable, Any],
    names: Sequence[Hashable],
    shape: tuple[int, ...],
    cards: Tensor | None,
) -> dict[int, int]:
    """Return the number and the state of each variable that was observed."""
    if not observed:
        return {}
    place = {name: number for number, name in enumerate(names)}
    sides = shape if isinstance(names, range) and len(shape) == 2 else None
    seen = dict[int, int]()
    for name, state in observed.items():
        number = _number_of(name, place, sides)
        card = 2 if cards is None else int(cards[number])
        try:
            value = operator.index(state)
        except TypeError:
            value = -1
        if not 0 <= value < card:
            raise ArgumentError(
                f"infer observed[{name!r}]",
                f"a state, a whole number from 0 to {card - 1}",
                repr(state),
                f"observed={{{name!r}: 0}}; a state is its place in the tables",
            )
        seen[number] = value
    return seen


def _number_of(name: Hashable, place: Mapping[Hashable, int], sides: tuple[int, ...] | None) -> int:
    """Return the number of a variable; of a grid without names also by row and column."""
    if name in place:
        return place[name]
    if sides is not None and isinstance(name, tuple) and len(name) == 2:
        row, column = name
        if row in range(sides[0]) and column in range(sides[1]):
            return int(row) * sides[1] + int(column)
    known = list(place)[:LISTED]
    near = (
        nearest(name, [one for one in place if isinstance(one, str)])
        if isinstance(name, str)
        else ""
    )
    listed = ", ".join(map(repr, known)) + (", ..." if len(place) > LISTED else "")
    raise ArgumentError(
        "infer observed",
        f"a variable of the graph, one of {listed}",
        repr(name),
        f"{near or known[0]!r}; graph.variables has all names",
    )
