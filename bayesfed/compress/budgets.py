"""Messages that keep to a budget: `fit_flexible` learns offline which rho and L a size buys, `Budgeted` makes the message keep to it.

AnycostFL, end of section III-C: rho and L are varied on a few updates, sizes are recorded, and a piecewise-linear function of beta, the
size of the message relative to the update at 32 bits an entry, tells rho and L. Sizes are those of real messages, header and digest
included. An update is not the one that was fitted, so a message may come out larger than planned: it is then encoded again.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from bayesfed.compress.buffer import Reader, Writer
from bayesfed.compress.flexible import Flexible
from bayesfed.compress.leaf import Mask, MaskCode
from bayesfed.compress.quantisers.entries import check_levels, check_share, energy, entries
from bayesfed.compress.quantisers.probabilistic import MOST_LEVELS
from bayesfed.compress.wire import Meta, unseal
from bayesfed.errors import ArgumentError, complain
from bayesfed.keys import Key
from bayesfed.trees import Tree, size

SHARES = tuple(2.0 ** (-number / 2) for number in range(18, -1, -1))  # 1/512 to 1
LEVELS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_EXACT = 1e-12  # a relative squared error that is as good as none
_MARGIN = 0.98  # aimed at after a message that was too large
_CLOSE = 0.95  # of a budget: near enough to stop


class Setting(NamedTuple):
    """One point of the map: relative size, rho, L, and the relative squared error ``E ||Q(u) - u||^2 / ||u||^2`` to expect."""

    beta: float
    share: float
    levels: int
    error: float


@dataclass(frozen=True)
class FlexibleMap:
    """From beta to (rho, L): linear between its points, neither falling. Prints as a table; `to_json` and `from_json` keep it.

    Parameters
    ----------
    settings
        Points of rising beta and falling error whose rho and L do not fall.

    Raises
    ------
    ArgumentError
        If there is no point, one outside the ranges of `Flexible`, or they are out of order.
    """

    settings: tuple[Setting, ...]

    def __post_init__(self) -> None:
        if not self.settings:
            raise ArgumentError(complain("FlexibleMap", expected="one setting or more", actual="none", hint="fit_flexible"))
        for setting in self.settings:
            check_share("FlexibleMap", setting.share)
            check_levels("FlexibleMap", "levels", setting.levels, MOST_LEVELS)
            if not (0 < setting.beta < math.inf and 0 <= setting.error < math.inf):
                raise ArgumentError(complain("FlexibleMap", expected="beta > 0 and error >= 0", actual=setting, hint="fit_flexible"))
        for low, high in zip(self.settings, self.settings[1:], strict=False):
            if not (low.beta < high.beta and low.share <= high.share and low.levels <= high.levels and low.error > high.error):
                expected = "rising beta, falling error, rho and L that do not fall"
                raise ArgumentError(complain("FlexibleMap", expected=expected, actual=f"{low}, then {high}", hint="fit_flexible"))

    @property
    def least(self) -> float:
        """The smallest beta it knows; below it the map is constant."""
        return self.settings[0].beta

    @property
    def most(self) -> float:
        """The largest beta it knows; above it the map is constant, and a message stays below its budget."""
        return self.settings[-1].beta

    def __call__(self, beta: float) -> tuple[float, int]:
        """Return (rho, L) for messages of ``32 beta`` bits an entry; L rounded down.

        Raises
        ------
        ArgumentError
            If `beta` is not a positive number.
        """
        check_beta("FlexibleMap", beta)
        betas, shares, levels, _ = zip(*self.settings, strict=True)
        # The largest share bounds what rounding may do to an interpolation.
        return min(float(np.interp(beta, betas, shares)), shares[-1]), math.floor(float(np.interp(beta, betas, levels)))

    def error(self, beta: float) -> float:
        """Return the relative squared error to expect at `beta`, linear between the points. Raises as a call does."""
        check_beta("FlexibleMap", beta)
        betas, _, _, errors = zip(*self.settings, strict=True)
        return float(np.interp(beta, betas, errors))

    def to_json(self) -> str:
        """Return the points as JSON, one list each."""
        return json.dumps([list(setting) for setting in self.settings])

    @classmethod
    def from_json(cls, text: str) -> FlexibleMap:
        """Read what `to_json` wrote.

        Raises
        ------
        ArgumentError
            If it is something else.
        """
        try:
            return cls(tuple(Setting(float(beta), float(share), levels, float(error)) for beta, share, levels, error in json.loads(text)))
        except (TypeError, json.JSONDecodeError, ValueError) as problem:
            raise ArgumentError(complain("FlexibleMap", expected="JSON of to_json", actual=problem, hint="fit_flexible")) from problem

    def __str__(self) -> str:
        rows = (f"{f'1/{1 / row.beta:.4g}':>10}  {row.share:>8.4g}  {row.levels:>8}  {row.error:>8.4g}" for row in self.settings)
        return "\n".join([f"{'beta':>10}  {'rho':>8}  {'L':>8}  {'error':>8}", *rows])


def fit_flexible(
    updates: Sequence[Mapping[str, Tensor]],
    key: Key,
    *,
    codec: Flexible | None = None,
    shares: Sequence[float] = SHARES,
    levels: Sequence[int] = LEVELS,
) -> FlexibleMap:
    """Fit the map from beta to (rho, L) on a few updates of the whole model: one or two, from 16 public samples in AnycostFL.

    Every pair of a share and a number of levels is encoded, and its real size and expected error are averaged over the updates. Of the
    pairs, the map is the chain of rising beta, falling error, and rho and L that do not fall, whose error is the lowest: its mean, both
    on logarithmic scales, over all betas that were met, is minimal. That is the lower envelope of all pairs except where it would have rho
    or L fall. Pairs that are worse than sending nothing (error 1) are passed over wherever there are better ones.

    Parameters
    ----------
    updates
        Trees, at least one with an entry that is not zero; averages are over those.
    key
        Of the rounding.
    codec
        Its ranking, kernels and codes are kept; default `Flexible`.
    shares, levels
        What is tried. The time is about that of an encoding for every share and a third of it for every pair.

    Raises
    ------
    ArgumentError
        If there is no update, share or number of levels, all updates are zero, or a share or number of levels is out of range.
    WireError
        If an update holds NaN or infinity.
    """
    codec, powers = codec or Flexible(), [_power(update) for update in updates]
    useful = [(update, power) for update, power in zip(updates, powers, strict=True) if power > 0]
    if not (useful and shares and levels):
        actual = f"{len(updates)} updates, {len(useful)} of them not zero, {len(shares)} shares, {len(levels)} levels"
        raise ArgumentError(complain("fit_flexible", expected="some of each", actual=actual, hint="an update after a few local steps"))
    found = []
    for share in shares:
        # A mask depends on the share alone.
        trial = replace(codec, share=share, mask=_Remembering(codec.mask))
        for count in levels:
            tried = replace(trial, levels=count)
            betas = [8 * len(tried.encode(dict(update), {}, key)) / full_bits(update) for update, _ in useful]
            errors = [tried.variance(update) / power for update, power in useful]
            found.append(Setting(float(np.mean(betas)), float(share), int(count), float(np.mean(errors))))
    return FlexibleMap(_best_chain(found))


@dataclass(frozen=True)
class Budgeted:
    """`Flexible` at a planned size: at most ``32 beta`` bits for each entry of the tree it is given, header included, where that can be.

    It first encodes at the map's (rho, L) for beta. A message that is too large is encoded again: in proportion
    lower, then where the line through the last two sizes says, or by bisection if that is out of question, until one keeps to the
    budget, `tries` encodings at most; the last resort is the map's smallest setting. Where that is too large as well, as with a
    model so small that the header is all the budget, it is sent all the same: `overrun_bits` says so. The receiver need not know
    which it was. Everything follows from the tree and the key.

    beta is relative to the tree's own size, so one map serves sub-models of any width: a share alpha of the model costs ``alpha beta S``.

    Parameters
    ----------
    settings
        The map.
    beta
        Planned size, relative to 32 bits an entry; positive. The map's ends are used beyond them.
    codec
        The ranking, kernels and codes; those that the map was fitted with. Its share and levels are not used.
    tries
        Encodings a message may take, 2 to 30.

    Raises
    ------
    ArgumentError
        If a parameter is outside its range.
    WireError
        As `Flexible`.
    """

    settings: FlexibleMap
    beta: float
    codec: Flexible = Flexible()
    tries: int = 8

    def __post_init__(self) -> None:
        check_beta("Budgeted", self.beta)
        if not 2 <= self.tries <= 30:
            raise ArgumentError(complain("Budgeted", expected="2 to 30 tries", actual=self.tries, hint="8"))

    def encode(self, tree: Tree, meta: Meta, key: Key) -> bytes:
        """Write the message, again if it is too large."""
        budget, least, best = self.beta * full_bits(tree), self.settings.least, b""
        aim = high = min(max(self.beta, least), self.settings.most)
        # No bits for an aim of 0 is in proportion; headers and masks make it too steep a guess, which the next points put right.
        low, before = least, (0.0, 0)
        for attempt in range(self.tries):
            if attempt == self.tries - 1 and not best:
                aim = least
            share, levels = self.settings(aim)
            message = replace(self.codec, share=share, levels=levels).encode(tree, meta, key)
            bits = 8 * len(message)
            if bits <= budget:
                # Near enough in proportion; what is found later may be far below.
                if attempt < 2 or bits >= _CLOSE * budget:
                    return message
                best, low = message, aim
            elif aim == least:
                return message
            else:
                high = aim
            before, aim = (aim, bits), _on_line(before, (aim, bits), _MARGIN * budget)
            if attempt == 0:
                aim = max(least, aim)
            elif not low < aim < high:
                aim = math.sqrt(low * high)
        return best

    def decode(self, message: bytes, key: Key) -> tuple[Tree, dict[str, Any]]:
        """Read a message of any rho and L."""
        return self.codec.decode(message, key)

    def overrun_bits(self, message: bytes) -> int:
        """Return how many bits a message is above the budget of the tree that its header promises; 0 if it keeps to it.

        Raises
        ------
        WireError
            If the message is damaged.
        """
        leaves, _ = unseal(message, limit=self.codec.limit)
        return max(0, math.ceil(8 * len(message) - self.beta * 32 * sum(math.prod(leaf.shape) for leaf in leaves)))


def full_bits(tree: Mapping[str, Tensor]) -> int:
    """Return S: the size of a tree at 32 bits an entry, whatever its entries are."""
    return 32 * size(tree)


def check_beta(where: str, beta: float) -> None:
    """Raise `ArgumentError` unless `beta` is a positive number."""
    if not 0 < beta < math.inf:
        raise ArgumentError(complain(where, expected="beta > 0", actual=beta, hint="1 / 50"))


class _Remembering:
    """A mask code that writes the same mask a second time without coding it."""

    def __init__(self, code: MaskCode) -> None:
        self._code, self._known = code, dict[tuple[tuple[int, ...], bytes], bytes]()

    def write(self, mask: Mask, out: Writer) -> None:
        name = mask.shape, hashlib.blake2b(np.packbits(mask).tobytes()).digest()
        if name not in self._known:
            trial = Writer()
            self._code.write(mask, trial)
            self._known[name] = trial.bytes()
        out.raw(self._known[name])

    def read(self, source: Reader, shape: tuple[int, int]) -> Mask:
        return self._code.read(source, shape)


def _power(tree: Mapping[str, Tensor]) -> float:
    return math.fsum(energy(entries(leaf, f"leaf {name!r}")) for name, leaf in tree.items() if leaf.is_floating_point())


def _best_chain(found: Sequence[Setting]) -> tuple[Setting, ...]:
    """Return the chain with the least area under its error, both on logarithmic scales: a staircase, as a setting serves all larger betas."""
    found = sorted(found)
    betas, shares, levels, errors = (np.array(column, np.float64) for column in zip(*found, strict=True))
    place, height = np.log(betas), np.log(np.maximum(errors, _EXACT))
    # Below its first point a chain sends nothing, error 1.
    area, before = np.zeros(len(found)), np.full(len(found), -1)
    for j in range(len(found)):
        below = np.flatnonzero((betas < betas[j]) & (shares <= shares[j]) & (levels <= levels[j]) & (errors > errors[j]))
        through = area[below] + (place[j] - place[below]) * height[below]
        if through.min(initial=math.inf) < 0:
            area[j], before[j] = through.min(), below[through.argmin()]
    last = int(np.argmin(area + (place[-1] - place) * height))
    chain = [last]
    while before[chain[-1]] >= 0:
        chain.append(int(before[chain[-1]]))
    return tuple(found[number] for number in reversed(chain))


def _on_line(first: tuple[float, float], second: tuple[float, float], bits: float) -> float:
    """Return where the line through two (aim, bits) has so many bits; 0 where it is level."""
    rise = (second[1] - first[1]) / (second[0] - first[0])
    return second[0] + (bits - second[1]) / rise if rise else 0.0
