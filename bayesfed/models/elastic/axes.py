"""Axes of channels while a network is traced, and which of them are the same.

This is a union-find whose sets may be coarser than their members: the 3136 inputs of a matrix
behind a flattened (64, 7, 7) are 64 channels of 49 entries each, whatever else uses them. An axis
that must not change, because the caller sees it, is `None`; axes tied to it must not change either.
"""

from __future__ import annotations

from typing import NamedTuple

from bayesfed.errors import ArgumentError
from bayesfed.errors.plurals import plural


class Axis(NamedTuple):
    """The channels of a set, each with `inner` consecutive entries."""

    channels: int
    inner: int


Axes = tuple[Axis | None, ...]


class Ties:
    """Numbered sets of channels, which are joined as axes are found to be the same."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._parents: list[Axis | None] = []
        self._kept: set[int] = set()
        self._atoms: dict[int, int] = {}

    def new(self, size: int) -> Axis:
        """Return an axis with a new set of channels."""
        self.sizes.append(size)
        self._parents.append(None)
        return Axis(len(self.sizes) - 1, 1)

    def root(self, axis: Axis | None) -> Axis | None:
        """Return an axis in terms of the set that it now belongs to; None if the axis must not
        change.
        """
        if axis is None:
            return None
        while (parent := self._parents[axis.channels]) is not None:
            axis = Axis(parent.channels, parent.inner * axis.inner)
        return None if axis.channels in self._kept else axis

    def atom(self, channels: int) -> int:
        """Return how many consecutive channels of a set stay together."""
        return self._atoms.get(channels, 1)

    def keep(self, axis: Axis | None) -> None:
        """Mark that an axis, and every axis tied to it, must not change."""
        if (root := self.root(axis)) is not None:
            self._kept.add(root.channels)

    def tie(self, left: Axis | None, right: Axis | None, where: str) -> None:
        """Make two axes of one length the same.

        Raises
        ------
        ArgumentError
            If neither axis consists of whole channels of the other, both are the same set with
            different numbers of entries, or the groups of their norms differ.
        """
        coarse, fine = self.root(left), self.root(right)
        if coarse == fine:
            return
        if coarse is None or fine is None:
            self.keep(coarse or fine)
            return
        if coarse.inner < fine.inner:
            coarse, fine = fine, coarse
        if coarse.inner % fine.inner or coarse.channels == fine.channels:
            raise ArgumentError(
                where,
                "channels that line up",
                f"channels of {coarse.inner} and of {plural(fine.inner, 'entry')} side by side",
                "one layout for both",
            )
        factor, atom = coarse.inner // fine.inner, self.atom(fine.channels)
        self._parents[fine.channels] = Axis(coarse.channels, factor)
        self.join(Axis(coarse.channels, 1), atom, factor, where)

    def join(self, axis: Axis | None, block: int, inner: int, where: str) -> None:
        """Keep the channels within each `block` of consecutive entries together, where a channel of
        the axis's set has `inner` entries.

        Raises
        ------
        ArgumentError
            If blocks split channels, or differ from earlier blocks of the same channels.
        """
        root = self.root(axis)
        if root is None or inner % block == 0:
            return
        atom = block // inner
        if block % inner or self.atom(root.channels) not in (1, atom):
            raise ArgumentError(
                where,
                "norms of the same channels with the same groups",
                f"groups of {block / inner:g} channels beside some of {self.atom(root.channels)}",
                "one number of groups",
            )
        self._atoms[root.channels] = atom
