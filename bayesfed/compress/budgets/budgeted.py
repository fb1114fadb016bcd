"""`Budgeted`: a codec whose messages keep to a planned size."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from bayesfed.compress.budgets.flexible_map import FlexibleMap, check_beta, full_bits
from bayesfed.compress.flexible import Flexible
from bayesfed.compress.wire import Meta, unseal
from bayesfed.errors import ArgumentError
from bayesfed.keys import Key
from bayesfed.trees import Tree

_MARGIN = 0.98  # share of the budget to aim at after a message that was too large
_CLOSE = 0.95  # share of the budget that is close enough to stop


@dataclass(frozen=True)
class Budgeted:
    """`Flexible` at a planned size: at most ``32 beta`` bits for each entry of the tree, header
    included, if that is possible.

    The tree is first encoded with the map's (rho, L) for beta. If the message is too large, the
    tree is encoded again: first with beta lowered in proportion, then at the beta given by the line
    through the last two sizes, or by bisection if that beta is outside the bracket. This ends when
    a message keeps to the budget, or after `tries` encodings with the smallest setting of the map.
    A message of the smallest setting is sent even if it is too large, for example if the header
    alone exceeds the budget; `overrun_bits` reports it. The receiver need not know the setting. The
    message depends on the tree and the key only.

    beta is relative to the size of the tree itself, so one map serves sub-models of any width: a
    share alpha of the model costs ``alpha beta S``.

    Parameters
    ----------
    settings
        The fitted map.
    beta
        Planned size relative to 32 bits an entry, above 0. Outside the range of the map its first
        or last setting is used.
    codec
        Codec that the map was fitted with, for its kernels and codes; its share and levels
        are not used.
    tries
        Most encodings of a message, 2 to 30.

    Raises
    ------
    ArgumentError
        If a parameter is outside its range.
    WireError
        On encoding or decoding, as `Flexible`.
    """

    settings: FlexibleMap
    beta: float
    codec: Flexible = Flexible()
    tries: int = 8

    def __post_init__(self) -> None:
        check_beta("Budgeted", self.beta)
        if not 2 <= self.tries <= 30:
            raise ArgumentError("Budgeted", "2 to 30 tries", self.tries, "8")

    def encode(self, tree: Tree, meta: Meta, key: Key) -> bytes:
        """Write the message, more than once if it is too large."""
        budget, least, best = self.beta * full_bits(tree), self.settings.least, b""
        aim = high = min(max(self.beta, least), self.settings.most)
        # The first line is through the origin. Headers and masks make it too steep; the next points
        # correct that.
        low, before = least, (0.0, 0)
        for attempt in range(self.tries):
            if attempt == self.tries - 1 and not best:
                aim = least
            share, levels = self.settings(aim)
            message = replace(self.codec, share=share, levels=levels).encode(tree, meta, key)
            bits = 8 * len(message)
            if bits <= budget:
                # Early messages that fit are close to the budget in proportion; later ones may be
                # far below it.
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
        """Return by how many bits a message exceeds the budget of the tree in its header; 0 if it
        keeps to it.

        Raises
        ------
        WireError
            If the message is damaged.
        """
        leaves, _ = unseal(message, limit=self.codec.limit)
        return max(
            0,
            math.ceil(
                8 * len(message) - self.beta * 32 * sum(math.prod(leaf.shape) for leaf in leaves)
            ),
        )


def _on_line(first: tuple[float, float], second: tuple[float, float], bits: float) -> float:
    """Return the aim at which the line through two points (aim, bits) has that many bits; 0 if the
    line is level.
    """
    rise = (second[1] - first[1]) / (second[0] - first[0])
    return second[0] + (bits - second[1]) / rise if rise else 0.0
