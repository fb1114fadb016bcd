"""`ToDensity`: how many weights stay active after a round, and what is done when a network has lost
what it had learned.

A field, log-odds that are added to the prior of every support, is solved for in each round so that
the share of active weights falls to a target, at most by 15 % of what is left at a time. The
evidence of a round decides which weights go, and nothing goes while the local fit still improves
fast. A network that nobody tuned for therefore neither collapses in its first round nor stays
dense.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import COUNT, check, checked, checked_class, number, whole
from bayesfed.trees import Tree

SHARE = number("(0, 1]", "0.3")
# Log-odds beyond which a field decides alone.
MOST = 60.0
# Share of active weights at first up to which a start is sparse.
SPARSE = 0.03
# q(s) = 0.9: the log-odds of an entry that is held active against its evidence.
HELD = math.log(9.0)


def no_field(round: int) -> float:
    """Add nothing to the declared prior."""
    return 0.0


@checked(rounds=COUNT)
def ramp(to: float, rounds: int) -> Callable[[int], float]:
    """Return a field that grows linearly from 0 to `to` log-odds over `rounds` and then stays
    there.

    Hard pruning from round 0 removes weights before the data can support them.
    """
    return lambda round: to * min(1.0, round / rounds)


def is_sparse(start: float | None) -> bool:
    """Return whether a share of active weights at first is that of a sparse start."""
    return start is not None and start <= SPARSE


@checked_class(
    {}, target=SHARE, keep=SHARE, floor=SHARE, settle=SHARE, patience=whole(0, "8"), fall=SHARE
)
@dataclass(frozen=True)
class ToDensity:
    """Let the share of active weights fall to a target, gradually, once the network has learned
    something, with a floor for every layer.

    Parameters
    ----------
    target
        Share of all weights under the prior that are active at the end.
    keep
        Share of the active weights that stay active in a round, at the least.
    floor
        Share of a layer's weights that stay active. At least as many as the layer has rows stay
        active, if that is fewer than all.
    settle
        Weights are switched off from the first round on in which the fit of the model that clients
        receive gains no more than this share of all that it has gained since round 0.
    patience
        Weights are switched off after this many rounds in any case. 0 where `d_turbo_vbi` is given
        a number as its density, and starts from at most 3 % of the weights.
    fall
        A round whose clients receive a model of which the negative log likelihood has risen by this
        share of all that it had fallen since round 0 undoes what was switched off before it.

    Raises
    ------
    ArgumentError
        If a share is outside (0, 1], or the floor above the target.
    """

    target: float = 0.33
    keep: float = 0.85
    floor: float = 0.02
    settle: float = 0.3
    patience: int = 8
    fall: float = 0.3

    def __post_init__(self) -> None:
        if self.floor > self.target:
            raise ArgumentError(
                "ToDensity",
                "floor <= target",
                f"{self.floor} > {self.target}",
                f"floor={self.target / 4:g}",
            )

    @staticmethod
    def of(density: float | ToDensity | None, start: float | None = None) -> ToDensity:
        """Return the policy for a density, of a support that starts from a share of the weights;
        the floor of a layer is at most a quarter of the density.

        A few weights that were drawn from a key have no fit that is worth waiting for: nothing is
        switched off but what others take the place of.
        """
        if density is None or isinstance(density, ToDensity):
            return density or ToDensity()
        check("density", density, SHARE)
        patience = 0 if is_sparse(start) else ToDensity.patience
        return ToDensity(density, floor=min(0.02, density / 4), patience=patience)

    def least(self, rows: int, entries: int) -> int:
        """Return the number of entries of a layer that stay active."""
        return min(entries, max(rows, math.ceil(self.floor * entries)))

    def wanted(self, supports: Tree, keep: float) -> tuple[int, dict[str, int]]:
        """Return the number of entries of all sites that stay active, and that of each site that
        stay active in any case.

        Parameters
        ----------
        supports
            Which entries of every site were active before this round, ``(M, N)``.
        keep
            Share of the active entries that stay active.
        """
        active = {name: int(support.sum()) for name, support in supports.items()}
        entries = {name: support.numel() for name, support in supports.items()}
        total = math.ceil(max(self.target * sum(entries.values()), keep * sum(active.values())))
        # No layer loses much more than its share in a round, as one would whose weights all have
        # the same evidence.
        least = {
            name: max(
                self.least(len(support), entries[name]),
                math.ceil(keep**2 * active[name])
                if active[name] > self.target * entries[name]
                else 0,
            )
            for name, support in supports.items()
        }
        return max(total, sum(least.values())), least


def smallest(count: Callable[[float], int], wanted: int, start: float, *, within: int) -> float:
    """Return about the smallest field under which `count` is at least `wanted`: by interpolation in
    a bracket, until it is at most `within` above.

    Where the count jumps, the field above the jump is returned. Beyond ``MOST`` log-odds the search
    ends.
    """
    low = high = start
    reach = 0.25
    while count(high) < wanted and high < MOST:
        low, high, reach = high, min(MOST, high + reach), 3 * reach
    reach = 0.25
    while low == high or (count(low) >= wanted and low > -MOST):
        if wanted <= count(low) <= wanted + within:
            return low
        high, low, reach = low, max(-MOST, low - reach), 3 * reach
    for turn in range(30):
        below, above = count(low), count(high)
        if high - low < 1e-3 or above - wanted <= within:
            break
        # Half of what is allowed above, so that a straight line between the ends lands inside; by
        # halves every other time, for jumps.
        share = (
            min(0.95, max(0.05, (wanted + within / 2 - below) / (above - below)))
            if turn % 3 < 2
            else 0.5
        )
        middle = low + share * (high - low)
        low, high = (middle, high) if count(middle) < wanted else (low, middle)
    return high
