"""Exact sums, draws and the most probable state of any factor graph whose clique tree fits: message
passing on the tree, in logs.

A clique's table is the sum of the log tables that it is home to. Upwards, a clique sends its parent
the log sum over the variables that it alone has; downwards, a parent sends each child the log sum
of everything but what came from that child. Nothing is divided, so impossible states (-inf) need no
care, and the message to a variable never depends on the variable's own weights, even by rounding.

Axes are sorted by the order of elimination in every clique, separator first: a message fits its
parent's table without permuting.

References
----------
Shafer and Shenoy, Probability propagation, Ann. Math. Artif. Intell. 2 (1990).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from bayesfed.models.random_fields.clique_tables import CliqueTables, shape_of

# Weights that are looked at together when states are drawn, and from how many on all draws of a
# clique without a separator are made at once: of few draws, these bits are older.
BLOCK, HUGE = 2**22, 2**28


class JunctionTree:
    """The tables of a model with a batch of B unary weights.

    Parameters
    ----------
    cliques
        The tables.
    unary
        For each variable, log weights ``(B or 1, card)``, float64.
    """

    def __init__(self, cliques: CliqueTables, unary: Sequence[Tensor]) -> None:
        self.tree, self.cards, self.home = cliques.tree, cliques.cards, cliques.home
        self.unary = unary
        self.batch = max((len(weights) for weights in unary), default=1)
        self._bases, self._children = cliques.tables, cliques.children
        self._kept = -1, torch.empty(0)

    def _shape(self, variables: Sequence[int], kept: Sequence[int] | None = None) -> list[int]:
        return shape_of(self.cards, variables, kept)

    def _joint_unary(self, variables: Sequence[int]) -> Tensor:
        """Return the sum of unary log weights for each joint state of some variables,
        ``(B or 1, states)``.
        """
        total = self.unary[variables[0]]
        for variable in variables[1:]:
            total = (total[:, :, None] + self.unary[variable][:, None]).flatten(1)
        return total

    def _weigh(self, table: Tensor, number: int) -> Tensor:
        """Add the unary weights of the variables that a clique sums out, the last axes of
        ``(B, ..., *own)``.
        """
        weights = self._joint_unary(self.tree.cliques[number].own)
        weighed = table.reshape(len(table), -1, weights.shape[1]) + weights[:, None]
        return weighed.reshape(len(weighed), *table.shape[1:])

    def _incoming(self, child: int) -> Tensor:
        """Return what a child sends, shaped for its parent's table."""
        clique = self.tree.cliques[child]
        message = self._up[0][child]
        return message.reshape(
            len(message), *self._shape(self.tree.cliques[clique.parent].scope, clique.separator)
        )

    def _upwards(self, reduced: Callable[[Tensor], Tensor]) -> tuple[list[Tensor], Tensor]:
        """Return the messages ``(B, *separator)`` to the parents, and the sum of those of the
        roots, ``(B,)``, for a function that takes the joint states of a clique's own variables, the
        last axis, away.
        """
        sent, total = list[Tensor](), self.unary[0].new_zeros(self.batch)
        for number, clique in enumerate(self.tree.cliques):
            table = self._bases[number]
            for child in self._children[number]:
                shape = self._shape(clique.scope, self.tree.cliques[child].separator)
                table = table + sent[child].reshape(-1, *shape)
            weighed = self._weigh(table, number)
            sent.append(reduced(weighed.reshape(*weighed.shape[: 1 + len(clique.separator)], -1)))
            if clique.parent < 0:
                total = total + sent[-1]
        return sent, total

    @cached_property
    def _up(self) -> tuple[list[Tensor], Tensor]:
        """Messages to the parents, and log Z, ``(B,)``."""
        return self._upwards(lambda weighed: weighed.logsumexp([-1]))

    def log_z(self) -> Tensor:
        """Return log Z, ``(B,)``; -inf where no state is possible."""
        return self._up[1]

    @cached_property
    def _tables(self) -> list[Tensor]:
        """Log tables ``(B, *cards)`` of all cliques with everything that others send, but without
        the unary weights of `own`.
        """
        tables = list(self._bases)
        for number in reversed(range(len(tables))):
            clique, children = self.tree.cliques[number], self._children[number]
            if not children:
                continue
            parts = [self._incoming(child) for child in children]
            # What comes after each child; together with what comes before it, all but the child's
            # own message.
            after = [self._weigh(tables[number], number)]
            for part in reversed(parts[1:]):
                after.append(after[-1] + part)
            before = tables[number].new_zeros(1)
            for child, part, rest in zip(children, parts, reversed(after), strict=True):
                whole, before = rest + before, before + part
                separator = self.tree.cliques[child].separator
                gone = [
                    axis + 1
                    for axis, variable in enumerate(clique.scope)
                    if variable not in separator
                ]
                message = _log_sum(whole, gone)
                tables[child] = tables[child] + message.reshape(
                    *message.shape, *[1] * len(self.tree.cliques[child].own)
                )
            tables[number] = tables[number] + before
        return tables

    def messages(self) -> list[Tensor]:
        """Return for each variable the log weights ``(B, card)`` without its own unary ones, the
        largest 0 (where all is possible).
        """
        sums: list[Tensor] = [torch.empty(0)] * len(self.cards)
        for number, clique in enumerate(self.tree.cliques):
            table = self._tables[number]
            self._split(
                _log_sum(table, list(range(1, 1 + len(clique.separator)))), clique.own, sums
            )
        return [part.expand(self.batch, -1) for part in sums]

    def _split(self, table: Tensor, variables: tuple[int, ...], sums: list[Tensor]) -> None:
        """Write the message to each variable of ``(B, *variables)``, by halves: all of one half
        share the sum over the other.
        """
        if len(variables) == 1:
            top = table.amax(-1, keepdim=True)
            sums[variables[0]] = table - top.masked_fill(torch.isneginf(top), 0.0)
            return
        half = len(variables) // 2
        left, right = (self._joint_unary(part) for part in (variables[:half], variables[half:]))
        matrix = table.reshape(len(table), left.shape[1], right.shape[1])
        for kept, weighed, axis in (
            (variables[:half], matrix + right[:, None], 2),
            (variables[half:], matrix + left[:, :, None], 1),
        ):
            self._split(
                weighed.logsumexp(axis).reshape(len(weighed), *self._shape(kept)), kept, sums
            )

    def joint(self, scope: tuple[int, ...], home: int) -> Tensor:
        """Return the probabilities ``(B, *cards)`` of variables that are together in a clique."""
        clique = self.tree.cliques[home]
        probable = self._probable(home)
        gone = [axis + 1 for axis, variable in enumerate(clique.scope) if variable not in scope]
        summed = probable.sum(gone) if gone else probable
        kept = [variable for variable in clique.scope if variable in scope]
        return summed.permute(0, *(1 + kept.index(variable) for variable in scope)).expand(
            self.batch, *self._shape(scope)
        )

    def _probable(self, number: int) -> Tensor:
        # Only the last clique's probabilities are kept: factors are asked for clique by clique.
        if self._kept[0] != number:
            weighed = self._weigh(self._tables[number], number)
            self._kept = number, weighed.flatten(1).softmax(1).reshape(weighed.shape)
        return self._kept[1]

    def _given(self, number: int) -> Tensor:
        """Return the log weights of a clique's own variables given its separator,
        ``(B, separator states, own states)``.
        """
        clique = self.tree.cliques[number]
        table = self._bases[number]
        for child in self._children[number]:
            table = table + self._incoming(child)
        table = self._weigh(table, number)
        return table.reshape(len(table), math.prod(self._shape(clique.separator)), -1).expand(
            self.batch, -1, -1
        )

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw states ``(count, B, n)`` from the roots down, each independent of the others."""
        drawn = torch.zeros(
            self.batch, count, len(self.cards), dtype=torch.long, device=self.unary[0].device
        )
        for number in reversed(range(len(self.tree.cliques))):
            clique, weights = self.tree.cliques[number], self._given(number)
            states = weights.shape[-1]
            if not clique.separator and count * states > HUGE:
                chosen = torch.multinomial(
                    weights[:, 0].softmax(-1), count, True, generator=generator
                )
            else:
                entry = torch.arange(self.batch, device=drawn.device).repeat_interleave(count)
                rows = entry, self._index(drawn, clique.separator).flatten()
                parts = zip(*(one.split(max(1, BLOCK // states)) for one in rows), strict=True)
                chosen = torch.cat(
                    [
                        torch.multinomial(weights[part].softmax(-1), 1, generator=generator)
                        for part in parts
                    ]
                )
            self._write(drawn, clique.own, chosen.reshape(self.batch, count))
        return drawn.transpose(0, 1)

    def most_probable(self) -> tuple[Tensor, Tensor]:
        """Return a most probable state ``(B, n)`` and its log weight ``(B,)``."""
        choices = list[Tensor]()

        def largest(weighed: Tensor) -> Tensor:
            best = weighed.max(-1)
            choices.append(best.indices.reshape(len(weighed), -1).expand(self.batch, -1))
            return best.values

        _, value = self._upwards(largest)
        state = torch.zeros(self.batch, 1, len(self.cards), dtype=torch.long, device=value.device)
        for number in reversed(range(len(self.tree.cliques))):
            clique = self.tree.cliques[number]
            self._write(
                state, clique.own, choices[number].gather(1, self._index(state, clique.separator))
            )
        return state[:, 0], value

    def _index(self, states: Tensor, variables: Sequence[int]) -> Tensor:
        """Return the number ``(B, count)`` of the joint state of some variables, in states
        ``(B, count, n)``.
        """
        index = torch.zeros_like(states[..., 0])
        for variable in variables:
            index = index * self.cards[variable] + states[..., variable]
        return index

    def _write(self, states: Tensor, variables: Sequence[int], index: Tensor) -> None:
        for variable in reversed(variables):
            states[..., variable] = index % self.cards[variable]
            index = index // self.cards[variable]


def _log_sum(table: Tensor, axes: list[int]) -> Tensor:
    return table.logsumexp(axes) if axes else table
