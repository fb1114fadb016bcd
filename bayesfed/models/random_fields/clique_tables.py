"""The log tables of a clique tree: each the sum of the factors that live in its clique."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from bayesfed.models.random_fields.elimination import CliqueTree


@dataclass(frozen=True)
class Factor:
    """Log weights ``(1 or B, *cards)`` over a few variables; axes in the order of `scope`."""

    scope: tuple[int, ...]
    table: Tensor


@dataclass(frozen=True)
class CliqueTables:
    """The tables of a clique tree, without unary weights.

    Parameters
    ----------
    tree
        The clique tree.
    cards
        Number of states of each variable.
    home
        The clique of each factor.
    tables
        For each clique the sum of its factors' log tables, ``(1 or B, *cards)``, float64; axes in
        the order of the clique's `scope`.
    children
        For each clique, those that send to it.
    """

    tree: CliqueTree
    cards: tuple[int, ...]
    home: tuple[int, ...]
    tables: tuple[Tensor, ...]
    children: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(
        tree: CliqueTree, cards: Sequence[int], factors: Sequence[Factor], like: Tensor
    ) -> CliqueTables:
        """Add up factors over two or more variables, float64; `like` gives dtype and device."""
        home = tuple(tree.clique_of(factor.scope) for factor in factors)
        inside: list[list[Factor]] = [[] for _ in tree.cliques]
        for factor, number in zip(factors, home, strict=True):
            # As in the cliques: sorted by the order of elimination, the last first.
            places = [-tree.rank[variable] for variable in factor.scope]
            order = sorted(range(len(places)), key=places.__getitem__)
            inside[number].append(
                Factor(
                    tuple(factor.scope[axis] for axis in order),
                    factor.table.permute(0, *(1 + axis for axis in order)),
                )
            )
        tables = [
            _grown(clique.scope, cards, part, like)
            for clique, part in zip(tree.cliques, inside, strict=True)
        ]
        children: list[list[int]] = [[] for _ in tree.cliques]
        for number, clique in enumerate(tree.cliques):
            if clique.parent >= 0:
                children[clique.parent].append(number)
        return CliqueTables(tree, tuple(cards), home, tuple(tables), tuple(map(tuple, children)))


def _grown(
    scope: tuple[int, ...], cards: Sequence[int], factors: list[Factor], like: Tensor
) -> Tensor:
    """Return the sum of log tables over a clique ``(1 or B, *cards)``. It grows axis by axis: a
    factor is added before the axes that it does not have.
    """
    total = like.new_zeros(max((len(factor.table) for factor in factors), default=1))
    for number, variable in enumerate(scope):
        total = total[..., None].expand(*total.shape, cards[variable])
        last = [factor for factor in factors if factor.scope[-1] == variable]
        if last:
            total = total.clone()
        for factor in last:
            shape = shape_of(cards, scope[: number + 1], factor.scope)
            total += factor.table.reshape(-1, *shape)
    return total.contiguous()


def shape_of(
    cards: Sequence[int], variables: Sequence[int], kept: Sequence[int] | None = None
) -> list[int]:
    """Return the cards of variables, 1 for those that are not in `kept`."""
    return [cards[variable] if kept is None or variable in kept else 1 for variable in variables]
