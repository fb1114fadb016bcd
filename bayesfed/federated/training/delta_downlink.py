"""`Holding`: clients keep the leaves that they received, so that the server can send only
changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from bayesfed.compress.feedback import RESIDUAL
from bayesfed.compress.support import SUPPORT, move_active
from bayesfed.data.dataset import Dataset
from bayesfed.errors import UpdateError
from bayesfed.federated.core.options import LocalOptions
from bayesfed.federated.core.protocols import CHANGE, START, Fit
from bayesfed.federated.core.wrappers import Around
from bayesfed.keys import Key
from bayesfed.trees import Tree, under, without

# Prefix of the names of held leaves in a client's memory.
HELD = "held/"


@dataclass(frozen=True)
class Holding(Around):
    """A local step that first adds the changes in the message to the leaves that the client holds.

    A leaf ``NAME.change`` is added to the held leaf NAME (masks are combined by exclusive or).
    Where a support ``SITE.support`` is another than the held one, the held leaves ``SITE.*`` of
    active entries move with it, and so do residuals of error feedback: what is switched off is
    dropped, and what returns is zero. The server knows which version each client holds; a client
    whose answer was refused still holds the version from before.

    Parameters
    ----------
    local
        What the client computes; it receives whole leaves.
    held
        Patterns of the names of leaves to keep.
    start
        Function from the leaves ``start/*`` of a first message to what the client then holds, for
        methods whose first values are drawn from a key.
    """

    held: tuple[str, ...] = ("*",)
    start: Callable[[Tree], Tree] | None = None

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Complete the message, and run the local step.

        Raises
        ------
        UpdateError
            If the message has a change of a leaf that is not held, or is held in another shape or
            dtype; or leaves to draw first values from that this client cannot read.
        """
        whole, residuals = self._completed(message, memory)
        fit = self.local.fit(whole, without(memory, HELD), data, key, options)
        kept = {
            HELD + name: leaf
            for name, leaf in whole.items()
            if any(fnmatchcase(name, pattern) for pattern in self.held)
        }
        return fit._replace(
            payload=self.sent(fit.payload, whole), memory=fit.memory | residuals | kept
        )

    def sent(self, payload: Tree, message: Tree) -> Tree:
        """Return what is sent of the local step's payload: all of it, as it is."""
        return payload

    def _completed(self, message: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """Return the message in whole leaves, and the residuals of error feedback that moved with a
        support.
        """
        held = (
            self._first(under(message, START))
            if any(name.startswith(START) for name in message)
            else under(memory, HELD)
        )
        masks, whole = dict[str, Tensor](), Tree()
        for name, leaf in message.items():
            if (base := name.removesuffix(CHANGE)).endswith(SUPPORT):
                masks[base.removesuffix(SUPPORT)] = (
                    leaf if base == name else _changed(base, held.get(base), leaf)
                )
        for name, leaf in without(message, START).items():
            base = name.removesuffix(CHANGE)
            if base.endswith(SUPPORT):
                whole[base] = masks[base.removesuffix(SUPPORT)]
            else:
                whole[base] = (
                    leaf
                    if base == name
                    else _changed(base, _moved(base, held.get(base), held, masks), leaf)
                )
        moved = {
            name: _moved(name, leaf, held, masks) for name, leaf in under(memory, RESIDUAL).items()
        }
        return whole, {
            RESIDUAL + name: leaf
            for name, leaf in moved.items()
            if leaf is not None and leaf is not memory[RESIDUAL + name]
        }

    def _first(self, told: Tree) -> Tree:
        if self.start is None:
            raise UpdateError(
                "first message",
                "values",
                f"{sorted(told)} to draw them from",
                "the server's own method",
            )
        return self.start(told)


def _moved(name: str, leaf: Tensor | None, held: Tree, masks: Tree) -> Tensor | None:
    """Return a held leaf of active entries at the entries that are active now, and any other leaf
    as it is.
    """
    site = name.rpartition(".")[0]
    before, after = held.get(site + SUPPORT), masks.get(site)
    if (
        leaf is None
        or before is None
        or after is None
        or leaf.ndim != 1
        or before.shape != after.shape
    ):
        return leaf
    before, after = before.to(leaf.device), after.to(leaf.device)
    if torch.equal(before, after) or len(leaf) != int(before.sum()):
        return leaf
    return move_active(leaf, before, after)


def _changed(name: str, held: Tensor | None, change: Tensor) -> Tensor:
    if held is None or held.shape != change.shape or held.dtype != change.dtype:
        actual = "nothing" if held is None else f"{held.dtype} of shape {tuple(held.shape)}"
        expected = f"a held leaf of {change.dtype} and shape {tuple(change.shape)}"
        raise UpdateError(f"change of {name!r}", expected, actual, "sending the whole leaf")
    held = held.to(change.device)
    return held ^ change if not change.is_floating_point() else held + change
