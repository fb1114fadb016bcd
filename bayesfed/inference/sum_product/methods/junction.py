"""Exact sums over any graph whose clique tree fits, by a junction tree; which trees fit, and which
are cheap.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from bayesfed.errors import ArgumentError
from bayesfed.inference.sum_product.graphs.flat import Tables
from bayesfed.inference.sum_product.graphs.grouping import MAX_ENTRIES
from bayesfed.inference.sum_product.methods.outcome import Outcome
from bayesfed.inference.sum_product.methods.structure import (
    by_group,
    learned,
    log_tables,
    structure,
    unary_weights,
)
from bayesfed.models.random_fields.clique_tables import CliqueTables, Factor
from bayesfed.models.random_fields.elimination import CliqueTree, clique_tree
from bayesfed.models.random_fields.ising import Ising
from bayesfed.models.random_fields.junction_tree import JunctionTree

# Most entries of the largest table, over the whole batch: 128 MiB of float64.
LARGEST = MAX_ENTRIES
# "auto" takes the junction tree up to this cost, about 0.1 s on one core: entries of all tables
# times batch entries, and a table's fixed cost.
CHEAP, PER_TABLE = 2**20, 2**11
# Entries of the largest table below which one thread is faster: torch's exp wakes threads for a
# hundred entries, which takes longer than the sums.
ALONE = 2**16
# Beyond this, "auto" does not look for a tree at all.
MANY = 4000
# Largest table that a refusal looks for, to say it.
SAID = 2**40


_TABLES: WeakKeyDictionary[Ising | Tables, dict[torch.device, CliqueTables]] = WeakKeyDictionary()
# What was found, and up to which limit. Pairwise: by the tensor of edges, since a model whose
# couplings are learned is a new one at every call, with the same edges.
Plans = MutableMapping[Any, tuple[CliqueTree | None, int]]
_EDGE_PLANS: Plans = WeakTensorKeyDictionary()
_TABLE_PLANS: Plans = WeakKeyDictionary()


def fitting_tree(model: Ising | Tables, batch: int, limit: int = LARGEST) -> CliqueTree | None:
    """Return the clique tree of a model, or None if its largest table has more than `limit` entries
    over a batch. Found once for each model.
    """
    plans, key = (_EDGE_PLANS, model.edges) if isinstance(model, Ising) else (_TABLE_PLANS, model)
    tree, tried = plans.get(key, (None, 0))
    if tree is None and tried < limit:
        tree = clique_tree(*structure(model), limit)
        plans[key] = tree, limit
    return tree if tree is not None and tree.largest * batch <= limit else None


def cheap_tree(model: Ising | Tables, batch: int) -> CliqueTree | None:
    """Return the clique tree of a model if it is cheap enough for "auto", else None."""
    if (model.field.numel() if isinstance(model, Ising) else model.cards.numel()) > MANY:
        return None
    tree = fitting_tree(model, batch, CHEAP)
    return (
        tree
        if tree is not None and tree.total * batch + PER_TABLE * len(tree.cliques) <= CHEAP
        else None
    )


def refuse_size(model: Ising | Tables, batch: int, hint: str) -> ArgumentError:
    """Return the error for a graph whose clique tree does not fit, with what it would need."""
    return too_large(*structure(model), batch, hint)


def too_large(
    cards: Sequence[int], scopes: Sequence[Sequence[int]], batch: int, hint: str, gone: int = 0
) -> ArgumentError:
    """Return the error for variables and factors whose clique tree does not fit.

    Parameters
    ----------
    cards, scopes
        Number of states of each variable, and variables of each factor.
    batch
        Number of batch entries.
    hint
        What to do instead.
    gone
        Number of variables that evidence and zeros fix, and that are not among these.
    """
    copies = f" for {batch} batch entries" if batch > 1 else ""
    tree = clique_tree(cards, scopes, SAID) if len(cards) <= MANY else None
    found = "a larger table in every elimination order that was tried"
    if tree is not None:
        width = max(len(clique.scope) for clique in tree.cliques) - 1
        found = f"one of {tree.largest:.1e} in the best order that was tried (width {width})"
    if gone:
        found += f", after {gone} variables whose state is known were taken out"
    return ArgumentError(
        "junction tree",
        "a tree, a grid with a side of at most 12, or a clique tree whose largest "
        f"table has at most {LARGEST} entries{copies}",
        found,
        hint,
    )


def sum_junction(model: Ising | Tables, evidence: Tensor, tree: CliqueTree) -> Outcome:
    """Sum a model exactly, in float64.

    Parameters
    ----------
    model
        The model.
    evidence
        Log-odds ``(B, n)``, or for tables log weights ``(B, n, C)``, which may be ``-inf``.
    tree
        Its clique tree.

    Raises
    ------
    ArgumentError
        If the model allows no state together with an entry of the evidence.
    """
    alone = 1 if evidence.device.type == "cpu" and tree.largest * len(evidence) < ALONE else None
    with _threads(alone):
        junction, prior = build(model, evidence, tree)
        log_z = junction.log_z()
        check_possible(log_z)
        messages = [message + own for message, own in zip(junction.messages(), prior, strict=True)]
        if isinstance(model, Ising):
            extrinsic = torch.stack([message[:, 1] - message[:, 0] for message in messages], dim=1)
            belief = evidence.double() + extrinsic
        else:
            extrinsic = evidence.new_full(evidence.shape, -torch.inf, dtype=torch.float64)
            for variable, message in enumerate(messages):
                extrinsic[:, variable, : message.shape[1]] = message
            belief = torch.where(
                torch.isneginf(extrinsic), extrinsic, extrinsic + evidence
            ).log_softmax(-1)
            extrinsic = extrinsic.log_softmax(-1)

    def pairs() -> tuple[Tensor, ...]:
        with _threads(alone):
            return _pairs(model, junction, evidence)

    return Outcome(belief, extrinsic, evidence.new_zeros(0), 1, 0.0, pairs, lambda: log_z)


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Let torch use so many threads inside the block; None: as many as before."""
    before = torch.get_num_threads()
    if count is None or count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check_possible(log_z: Tensor) -> None:
    """Raise `ArgumentError` if a log Z is -inf."""
    impossible = torch.isneginf(log_z).nonzero()
    if impossible.numel():
        entry, count = int(impossible[0]), len(impossible)
        raise ArgumentError(
            "infer",
            "a state of all variables that is possible",
            "none" if len(log_z) == 1 else f"none in batch entry {entry} ({count} such in all)",
            "softer tables or evidence: they contradict each other",
        )


def build(
    model: Ising | Tables, evidence: Tensor, tree: CliqueTree
) -> tuple[JunctionTree, list[Tensor]]:
    """Return the junction tree of a model with evidence ``(B, n)`` or ``(B, n, C)``, and the
    model's own unary log weights ``(1, card)``.
    """
    unary, own = unary_weights(model, evidence)
    return JunctionTree(_tables(model, tree, evidence.device), unary), own


def _tables(model: Ising | Tables, tree: CliqueTree, device: torch.device) -> CliqueTables:
    """Return the model's tables; kept with the model if they are small and cannot be changed by
    training.
    """
    known = _TABLES.setdefault(model, {})
    if device in known and known[device].tree is tree:
        return known[device]
    cards, scopes = structure(model)
    factors = [
        Factor(scope, table[None])
        for scope, table in zip(scopes, log_tables(model, device), strict=True)
    ]
    cliques = CliqueTables.of(
        tree, cards, factors, torch.zeros(0, dtype=torch.float64, device=device)
    )
    if tree.total <= ALONE and not learned(model):
        known[device] = cliques
    return cliques


def _pairs(model: Ising | Tables, junction: JunctionTree, evidence: Tensor) -> tuple[Tensor, ...]:
    """Return the probabilities of the factors' joint states, ``(B, F, *cards)`` for each group;
    Ising: ``(B, E, 2, 2)``.
    """
    _, scopes = structure(model)
    tables: list[Tensor] = [torch.empty(0)] * len(scopes)
    # By clique, each of which is normalised once.
    for number in sorted(range(len(scopes)), key=junction.home.__getitem__):
        tables[number] = junction.joint(scopes[number], junction.home[number])
    return by_group(model, tables, evidence)
