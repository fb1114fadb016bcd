"""Exact sums of what hard evidence and zeros leave of a graph.

A variable of which one state is possible needs no axis, and a state that is impossible needs no
entry: the tables are cut down to the possible states before an elimination order is chosen, so that
width and size are those of what is left. Which states are possible follows from the evidence, from
the weights of single variables, and from the zeros of tables, applied until nothing changes (arc
consistency). A table that no longer depends on a variable loses that axis.

Batch entries are summed together where that is cheap enough. Otherwise those in which the same
variables are fixed are, and otherwise those with the same possible states.

The extrinsic part of an observed variable, what all others say about it, is not in sums that take
the variable out. It is summed on demand, with that variable free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.inference.sum_product.graphs.flat import Tables
from bayesfed.inference.sum_product.methods.junction import (
    LARGEST,
    MANY,
    PER_TABLE,
    check_possible,
    too_large,
)
from bayesfed.inference.sum_product.methods.outcome import Outcome
from bayesfed.inference.sum_product.methods.structure import (
    by_group,
    log_tables,
    structure,
    unary_weights,
)
from bayesfed.inference.sum_product.methods.tables.propagation import (
    possible_states,
    without_contradictions,
)
from bayesfed.models.random_fields.clique_tables import CliqueTables, Factor
from bayesfed.models.random_fields.elimination import CliqueTree, clique_tree
from bayesfed.models.random_fields.ising import Ising
from bayesfed.models.random_fields.junction_tree import JunctionTree

Scope = tuple[int, ...]
# Elimination orders that are remembered: those of the last graphs.
REMEMBERED = 32
# "auto" sums what hard evidence leaves up to this cost, in the units of `CHEAP`: belief propagation
# is further off where states are forbidden.
CHEAP_SEEN = 2**24
_plan = lru_cache(REMEMBERED)(clique_tree)


@dataclass(frozen=True)
class Cut:
    """The tables of a part, cut down to its free variables; scopes are numbers of these.

    Parameters
    ----------
    factors
        Those that depend on two or more free variables, ``(1 or b, *states)``.
    unary
        The log weights ``(b, states)`` of each free variable, with its evidence.
    merged
        What tables of several variables have become for a free variable, ``(1 or b, states)``.
    constant
        ``(b,)``, the log weight of what is fixed.
    """

    factors: list[Factor]
    unary: list[Tensor]
    merged: list[Tensor]
    constant: Tensor


@dataclass(frozen=True)
class Part:
    """Batch entries that are summed together.

    Parameters
    ----------
    model
        The model of n variables.
    evidence
        Log-odds ``(b, n)``, infinite where a state was observed, or log weights ``(b, n, C)``.
    rows
        ``(b,)``, the numbers of these entries in the whole batch.
    possible
        ``(b, n, C)``, whether each state is possible in each entry.
    """

    model: Ising | Tables
    evidence: Tensor
    rows: Tensor
    possible: Tensor

    @cached_property
    def free(self) -> Scope:
        """The variables of which some entry leaves more than one state possible."""
        several = (self.possible.sum(-1) > 1).any(0)
        return tuple(several.nonzero().flatten().tolist())

    @cached_property
    def place(self) -> dict[int, int]:
        """The number of each free variable among the free ones."""
        return {variable: number for number, variable in enumerate(self.free)}

    @cached_property
    def states(self) -> list[Tensor]:
        """For each free variable, the states that are possible in some entry."""
        allowed = self.possible.any(0)
        return [allowed[variable].nonzero().flatten() for variable in self.free]

    @cached_property
    def cards(self) -> tuple[int, ...]:
        """The number of these states."""
        return tuple(len(states) for states in self.states)

    @cached_property
    def fixed(self) -> Tensor:
        """``(b, n)``, the first possible state of each variable: the only one unless it is free."""
        return self.possible.to(torch.uint8).argmax(-1)

    @cached_property
    def _same(self) -> list[bool]:
        same: list[bool] = (self.fixed == self.fixed[:1]).all(0).tolist()
        return same

    @cached_property
    def weights(self) -> tuple[list[Tensor], list[Tensor]]:
        """The log weights ``(1 or b, card)`` of every variable with its evidence, and those of the
        model alone, ``(1, card)``.
        """
        return unary_weights(self.model, self.evidence)

    @cached_property
    def observed(self) -> list[bool]:
        """Whether the evidence forbids a state of a variable that the model alone allows."""
        return [
            bool((torch.isneginf(both) & ~torch.isneginf(own)).any())
            for both, own in zip(*self.weights, strict=True)
        ]

    def within(self, scope: Scope) -> Scope:
        """Return the numbers of the free variables of a scope."""
        return tuple(self.place[variable] for variable in scope if variable in self.place)

    def index(self, scope: Scope, rows: int) -> tuple[Tensor, ...]:
        """Return the indices of the possible states in a table ``(*cards)``: what they pick is
        ``(rows, *states of the free variables)``, with `rows` 1 or b.
        """
        axes = len(self.within(scope))
        indices = list[Tensor]()
        axis = 0
        for variable in scope:
            shape = [1] * (1 + axes)
            if variable in self.place:
                axis += 1
                shape[axis] = -1
                indices.append(self.states[self.place[variable]].reshape(shape))
            else:
                shape[0] = -1
                indices.append(self.fixed[:rows, variable].reshape(shape))
        return tuple(indices)

    @cached_property
    def cut(self) -> Cut:
        """The tables of the free variables."""
        count, device = len(self.rows), self.evidence.device
        constant = torch.zeros(count, dtype=torch.float64, device=device)
        unary = list[Tensor]()
        for variable, weights in enumerate(self.weights[0]):
            every = weights.expand(count, -1)
            if variable in self.place:
                unary.append(every[:, self.states[self.place[variable]]])
            else:
                constant = constant + every.gather(1, self.fixed[:, variable, None])[:, 0]
        merged = [torch.zeros_like(weights[:1]) for weights in unary]
        factors = list[Factor]()
        _, scopes = structure(self.model)
        for scope, table in zip(scopes, log_tables(self.model, device), strict=True):
            same = all(self._same[one] for one in scope if one not in self.place)
            rows = 1 if same else count
            axes = list(self.within(scope))
            values = table[self.index(scope, rows)].reshape(
                rows, *(self.cards[axis] for axis in axes)
            )
            for axis in reversed(range(len(axes))):
                first = values.narrow(1 + axis, 0, 1)
                if bool((values == first).all()):
                    values = first.squeeze(1 + axis)
                    del axes[axis]
            if len(axes) > 1:
                factors.append(Factor(tuple(axes), values))
            elif axes:
                merged[axes[0]] = merged[axes[0]] + values
            else:
                constant = constant + values
        return Cut(factors, unary, merged, constant)

    def tree(self, limit: int, also: Sequence[Scope] = ()) -> CliqueTree | None:
        """Return the clique tree of the free variables, or None if its largest table has more than
        `limit` entries. The variables of each of `also` are in a clique too.
        """
        scopes = {factor.scope for factor in self.cut.factors} | set(also)
        return _plan(self.cards, tuple(sorted(scopes)), limit)

    def sums(self, tree: CliqueTree) -> JunctionTree | None:
        """Return the junction tree of the free variables; None if none is free."""
        if not self.free:
            return None
        cut = self.cut
        like = torch.zeros(0, dtype=torch.float64, device=self.evidence.device)
        unary = [own + more for own, more in zip(cut.unary, cut.merged, strict=True)]
        return JunctionTree(CliqueTables.of(tree, self.cards, cut.factors, like), unary)

    def chosen(self, rows: Tensor) -> Part:
        """Return the part of these entries, numbers within this part."""
        return Part(self.model, self.evidence[rows], self.rows[rows], self.possible[rows])


Parts = list[tuple[Part, CliqueTree]]
# From a part to a clique tree that is small enough, or None.
Fits = Callable[[Part], CliqueTree | None]


def forbids(model: Ising | Tables, evidence: Tensor) -> bool:
    """Return whether the evidence, a table or a weight of a variable forbids a state."""
    if isinstance(model, Ising):
        return bool(evidence.isinf().any())
    states = torch.arange(model.unary.shape[1], device=evidence.device)
    real = states < model.cards.to(evidence.device)[:, None]
    return (
        any(bool(torch.isneginf(group.tables).any()) for group in model.groups)
        or bool((torch.isneginf(model.unary.to(evidence.device)) & real).any())
        or bool((torch.isneginf(evidence) & real).any())
    )


def whole_part(model: Ising | Tables, evidence: Tensor) -> Part:
    """Return all batch entries as one part.

    Raises
    ------
    ArgumentError
        If a variable has no possible state.
    """
    rows = torch.arange(len(evidence), device=evidence.device)
    if isinstance(model, Tables):
        return Part(model, evidence, rows, possible_states(model, evidence))
    unary, _ = unary_weights(model, evidence)
    return Part(model, evidence, rows, torch.stack(unary, dim=1) > -torch.inf)


def fitting(part: Part) -> CliqueTree | None:
    """Return the clique tree of a part, or None if its largest table is too large."""
    return part.tree(LARGEST // len(part.rows))


def cheap(part: Part, batch: int) -> CliqueTree | None:
    """Return the clique tree of a part of a batch if its share of the time is small enough for
    "auto", else None.
    """
    if len(part.free) > MANY:
        return None
    budget = CHEAP_SEEN * len(part.rows) // batch
    tree = part.tree(budget // len(part.rows))
    if tree is None:
        return None
    price = tree.total * len(part.rows) + PER_TABLE * len(tree.cliques)
    return tree if price <= budget else None


def refuse_part(part: Part, hint: str) -> ArgumentError:
    """Return the error for a part whose clique tree does not fit."""
    gone = part.possible.shape[1] - len(part.free)
    scopes = sorted({factor.scope for factor in part.cut.factors})
    return too_large(part.cards, scopes, len(part.rows), hint, gone)


def split(part: Part, fits: Fits) -> Parts | None:
    """Return a part, or the parts that it falls into, each with a clique tree that fits; None if
    one of them has none.
    """
    for pieces in _ways(part):
        trees = [fits(piece) for piece in pieces]
        if all(tree is not None for tree in trees):
            return [
                (piece, tree) for piece, tree in zip(pieces, trees, strict=True) if tree is not None
            ]
    return None


def parts_of(whole: Part, fits: Fits) -> Parts | None:
    """Return the parts of a batch with their clique trees, as `split` does; where zeros of tables
    leave a tree too large, states that contradict all others are looked for and taken out.

    Raises
    ------
    ArgumentError
        If no state of all variables is possible in an entry.
    """
    if (parts := split(whole, fits)) is not None or not isinstance(whole.model, Tables):
        return parts
    sharper = torch.stack(
        [without_contradictions(whole.model, possible) for possible in whole.possible]
    )
    # A variable without a state: nothing is possible.
    check_possible(torch.where((sharper.sum(-1) > 0).all(-1), 0.0, -torch.inf))
    if torch.equal(sharper, whole.possible):
        return None
    return split(Part(whole.model, whole.evidence, whole.rows, sharper), fits)


def _ways(part: Part) -> Iterator[list[Part]]:
    """Yield the part as it is, by which variables are fixed, and by the possible states."""
    yield [part]
    before = 1
    for key in (part.possible.sum(-1) == 1, part.possible.flatten(1)):
        kinds, kind = torch.unique(key.to(torch.uint8), dim=0, return_inverse=True)
        if len(kinds) > before:
            before = len(kinds)
            yield [part.chosen((kind == number).nonzero()[:, 0]) for number in range(before)]


class ConditionedSums:
    """Exact sums, draws and the most probable state of a batch, part by part.

    Parameters
    ----------
    model
        The model of n variables.
    evidence
        Log-odds ``(B, n)``, infinite where a state was observed, or log weights ``(B, n, C)``.
    parts
        The entries of the batch, each part with its clique tree.
    """

    def __init__(self, model: Ising | Tables, evidence: Tensor, parts: Parts) -> None:
        self.model = model
        self.evidence = evidence
        self.cards, self._scopes = structure(model)
        self._parts = [(part, tree, part.sums(tree)) for part, tree in parts]

    def log_z(self) -> Tensor:
        """Return log Z, ``(B,)``; -inf where no state is possible."""
        total = torch.empty(len(self.evidence), dtype=torch.float64, device=self.evidence.device)
        for part, _, junction in self._parts:
            total[part.rows] = part.cut.constant + (0.0 if junction is None else junction.log_z())
        return total

    def beliefs(self) -> tuple[Tensor, Tensor]:
        """Return log weights ``(B, n, C)``: the beliefs, -inf where a state is impossible, and the
        same without the evidence of each variable, NaN for a variable of which the evidence forbids
        a state.
        """
        shape = (len(self.evidence), len(self.cards), max(self.cards))
        belief = self.evidence.new_full(shape, -torch.inf, dtype=torch.float64)
        extrinsic = belief.clone()
        for part, _, junction in self._parts:
            _, own = part.weights
            sent = [] if junction is None else junction.messages()
            rows = part.rows[:, None]
            for variable in range(len(self.cards)):
                if variable in part.place:
                    number = part.place[variable]
                    states = part.states[number][None]
                    message = sent[number] + part.cut.merged[number]
                    belief[rows, variable, states] = message + part.cut.unary[number]
                    extrinsic[rows, variable, states] = message + own[variable][:, states[0]]
                else:
                    states = part.fixed[:, variable, None]
                    belief[rows, variable, states] = 0.0
                    extrinsic[rows, variable, states] = 0.0
                if part.observed[variable]:
                    extrinsic[part.rows, variable] = torch.nan
        return belief, extrinsic

    def complete(self, extrinsic: Tensor) -> Tensor:
        """Return the extrinsic log weights ``(B, n, C)`` of `beliefs` with those of the observed
        variables, each from sums in which that variable is free.

        Raises
        ------
        ArgumentError
            If the clique tree with such a variable does not fit.
        """
        extrinsic = extrinsic.clone()
        for part, _, _ in self._parts:
            for variable, observed in enumerate(part.observed):
                if not observed:
                    continue
                evidence = part.evidence.clone()
                evidence[:, variable] = 0.0
                whole = whole_part(self.model, evidence)
                if (parts := parts_of(whole, fitting)) is None:
                    raise refuse_part(whole, "marginals, which do not need that variable free")
                alone, _ = ConditionedSums(self.model, evidence, parts).beliefs()
                extrinsic[part.rows, variable] = alone[:, variable]
        return extrinsic

    def pairs(self) -> tuple[Tensor, ...]:
        """Return the probabilities of the factors' joint states, ``(B, F, *cards)`` for each group;
        Ising: ``(B, E, 2, 2)``.
        """
        tables = [
            self.evidence.new_zeros(
                len(self.evidence), *(self.cards[one] for one in scope), dtype=torch.float64
            )
            for scope in self._scopes
        ]
        for part, tree, junction in self._parts:
            free = [part.within(scope) for scope in self._scopes]
            # Tables that have lost an axis are in no clique of their own.
            lost = {one for one in free if len(one) > 1 and not _together(tree, one)}
            kept = [number for number, one in enumerate(free) if one not in lost]
            _write_pairs(part, tree, junction, self._scopes, tables, kept)
            for scopes in _groups(part, lost):
                wider = _fitting_or_refuse(part, "the marginals of single variables", scopes)
                taken = [number for number, one in enumerate(free) if one in scopes]
                _write_pairs(part, wider, part.sums(wider), self._scopes, tables, taken)
        return by_group(self.model, tables, self.evidence)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw states ``(count, B, n)``, each independent of the others."""
        drawn = self._fixed().repeat(count, 1, 1)
        for part, _, junction in self._parts:
            if junction is not None:
                drawn[:, part.rows] = _placed(
                    part, drawn[:, part.rows], junction.sample(count, generator)
                )
        return drawn

    def most_probable(self) -> tuple[Tensor, Tensor]:
        """Return a most probable state ``(B, n)`` and its log weight ``(B,)``."""
        state = self._fixed()
        weight = torch.empty(len(state), dtype=torch.float64, device=state.device)
        for part, _, junction in self._parts:
            weight[part.rows] = part.cut.constant
            if junction is not None:
                best, value = junction.most_probable()
                weight[part.rows] += value
                state[part.rows] = _placed(part, state[part.rows], best)
        return state, weight

    def _fixed(self) -> Tensor:
        shape = (len(self.evidence), len(self.cards))
        state = torch.empty(shape, dtype=torch.long, device=self.evidence.device)
        for part, _, _ in self._parts:
            state[part.rows] = part.fixed
        return state


def _groups(part: Part, scopes: set[Scope]) -> list[list[Scope]]:
    """Return scopes that are added to a clique tree together: all of them if that fits, else each
    by itself.
    """
    if not scopes:
        return []
    whole = sorted(scopes)
    fits = part.tree(LARGEST // len(part.rows), also=whole) is not None
    return [whole] if fits else [[scope] for scope in whole]


def _fitting_or_refuse(part: Part, hint: str, also: Sequence[Scope] = ()) -> CliqueTree:
    tree = part.tree(LARGEST // len(part.rows), also)
    if tree is None:
        raise refuse_part(part, hint)
    return tree


def _write_pairs(
    part: Part,
    tree: CliqueTree,
    junction: JunctionTree | None,
    scopes: Sequence[Scope],
    tables: Sequence[Tensor],
    numbers: Sequence[int],
) -> None:
    """Write the probabilities of some scopes in a part into tables ``(B, *cards)``."""
    entries = len(part.rows)
    free = {number: part.within(scopes[number]) for number in numbers}
    homes = {number: tree.clique_of(one) if one else -1 for number, one in free.items()}
    # By clique, each of which is normalised once.
    for number in sorted(numbers, key=homes.__getitem__):
        within, table = free[number], tables[number]
        joint = (
            junction.joint(within, homes[number])
            if junction is not None and within
            else table.new_ones(entries)
        )
        entry = part.rows.reshape(-1, *[1] * len(within))
        table[(entry, *part.index(scopes[number], entries))] = joint


def _together(tree: CliqueTree, scope: Scope) -> bool:
    """Return whether the clique that takes a factor has all of its variables."""
    return set(scope) <= set(tree.cliques[tree.clique_of(scope)].scope)


def _placed(part: Part, states: Tensor, drawn: Tensor) -> Tensor:
    """Return states ``(..., n)`` with those of the free variables, drawn as numbers of their
    possible states.
    """
    states = states.clone()
    for number, variable in enumerate(part.free):
        states[..., variable] = part.states[number][drawn[..., number]]
    return states


def sum_conditioned(model: Ising | Tables, evidence: Tensor, parts: Parts) -> Outcome:
    """Sum exactly what hard evidence and zeros leave of a model, in float64.

    Parameters
    ----------
    model
        The model.
    evidence
        Log-odds ``(B, n)``, infinite where a state was observed, or log weights ``(B, n, C)``.
    parts
        The batch entries, with their clique trees.

    Raises
    ------
    ArgumentError
        If the model allows no state together with an entry of the evidence.
    """
    sums = ConditionedSums(model, evidence, parts)
    log_z = sums.log_z()
    check_possible(log_z)
    belief, extrinsic = sums.beliefs()

    def form(weights: Tensor) -> Tensor:
        if isinstance(model, Ising):
            return weights[..., 1] - weights[..., 0]
        return weights.log_softmax(-1)

    def later() -> Tensor:
        return form(sums.complete(extrinsic))

    return Outcome(
        form(belief),
        form(extrinsic),
        evidence.new_zeros(0),
        1,
        0.0,
        sums.pairs,
        lambda: log_z,
        later=later if bool(extrinsic.isnan().any()) else None,
    )
