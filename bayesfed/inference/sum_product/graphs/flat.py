"""Flat general factor graphs: variables of any cardinality, factors of any arity, grouped by the
shape of their table.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class TableGroup:
    """F factors whose tables have one shape.

    Parameters
    ----------
    tables
        ``(T, *cards)``, distinct log tables, shared by the factors. ``-inf`` forbids a combination.
    which
        ``(F,)``, the table of each factor.
    scope
        ``(F, arity)``, the variables of each factor, in the order of the table's axes.
    """

    tables: Tensor
    which: Tensor
    scope: Tensor


@dataclass(frozen=True)
class Tables:
    """A factor graph over n variables of cardinality at most C.

    Parameters
    ----------
    cards
        ``(n,)``, number of states of each variable.
    unary
        ``(n, C)``, log weights; ``-inf`` in states that a variable does not have.
    groups
        Factors of two or more variables.
    """

    cards: Tensor
    unary: Tensor
    groups: tuple[TableGroup, ...]

    @property
    def shape(self) -> tuple[int]:
        """Shape of one number per variable: ``(n,)``."""
        return (len(self.cards),)
