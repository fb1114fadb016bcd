"""`fit_flexible`: learn the map from beta to (rho, L) offline, from a few updates. AnycostFL, end
of section III-C.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from bayesfed.compress.budgets.budgeted import FlexibleMap, Setting, full_bits
from bayesfed.compress.flexible import Flexible
from bayesfed.compress.leaf import Mask, MaskCode, Reader, Writer
from bayesfed.compress.quantisers.entries import energy, entries
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked
from bayesfed.errors.plurals import plural
from bayesfed.keys import Key

SHARES = tuple(2.0 ** (-number / 2) for number in range(18, -1, -1))  # 1/512 to 1
LEVELS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_EXACT = 1e-12  # smaller relative squared errors count as this one


@checked()
def fit_flexible(
    updates: Sequence[Mapping[str, Tensor]],
    key: Key,
    *,
    codec: Flexible | None = None,
    shares: Sequence[float] = SHARES,
    levels: Sequence[int] = LEVELS,
) -> FlexibleMap:
    """Fit the map from beta to (rho, L) on a few updates of the whole model. AnycostFL takes one or
    two, computed on 16 public samples.

    The updates are encoded with every pair of a share and a number of levels, and real sizes and
    expected errors are averaged over the updates. The map is a chain of these pairs along which
    beta rises, the error falls, and rho and L do not fall. Of all such chains it is the one with
    the smallest mean of log error over log beta, across all betas that occurred. This is the lower
    envelope of all pairs, except where rho or L would fall along it. Pairs that are worse than
    sending nothing (error 1) are left out if there are better ones.

    Parameters
    ----------
    updates
        Trees. At least one must have a non-zero entry; trees of zeros are left out of the averages.
    key
        Key of the random rounding.
    codec
        Codec whose kernels and codes are used. Default: `Flexible`.
    shares, levels
        Values of rho and of L to try. The time is about one encoding for every share and a third of
        one for every pair.

    Raises
    ------
    ArgumentError
        If updates, shares or levels are empty, all updates are zero, or a share or a number of
        levels is out of range.
    WireError
        If an update holds NaN or infinity.
    """
    codec, powers = codec or Flexible(), [_power(update) for update in updates]
    useful = [(update, power) for update, power in zip(updates, powers, strict=True) if power > 0]
    if not (useful and shares and levels):
        raise ArgumentError(
            "fit_flexible",
            "some of each",
            f"{plural(len(updates), 'update')}, {len(useful)} of them not zero, "
            f"{plural(len(shares), 'share')}, "
            f"{plural(len(levels), 'level')}",
            "an update after a few local steps",
        )
    settings = []
    for share in shares:
        # The mask depends on the share only.
        trial = replace(codec, share=share, mask=_Remembering(codec.mask))
        for count in levels:
            tried = replace(trial, levels=count)
            betas = [
                8 * len(tried.encode(dict(update), {}, key)) / full_bits(update)
                for update, _ in useful
            ]
            errors = [tried.variance(update) / power for update, power in useful]
            settings.append(
                Setting(float(np.mean(betas)), float(share), int(count), float(np.mean(errors)))
            )
    return FlexibleMap(_best_chain(settings))


class _Remembering:
    """A mask code that codes each mask only once and repeats the bytes."""

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
    return math.fsum(
        energy(entries(leaf, f"leaf {name!r}"))
        for name, leaf in tree.items()
        if leaf.is_floating_point()
    )


def _best_chain(tried: Sequence[Setting]) -> tuple[Setting, ...]:
    """Return the chain with the least area under log error over log beta, a staircase since each
    setting also serves all larger betas.
    """
    tried = sorted(tried)
    betas, shares, levels, errors = (
        np.array(column, np.float64) for column in zip(*tried, strict=True)
    )
    place, height = np.log(betas), np.log(np.maximum(errors, _EXACT))
    # Below its first point a chain sends nothing, which is an error of 1.
    area, before = np.zeros(len(tried)), np.full(len(tried), -1)
    for j in range(len(tried)):
        below = np.flatnonzero(
            (betas < betas[j])
            & (shares <= shares[j])
            & (levels <= levels[j])
            & (errors > errors[j])
        )
        through = area[below] + (place[j] - place[below]) * height[below]
        if through.min(initial=math.inf) < 0:
            area[j], before[j] = through.min(), below[through.argmin()]
    last = int(np.argmin(area + (place[-1] - place) * height))
    chain = [last]
    while before[chain[-1]] >= 0:
        chain.append(int(before[chain[-1]]))
    return tuple(tried[number] for number in reversed(chain))
