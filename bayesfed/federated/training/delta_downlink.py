"""`Holding`: a client that keeps what it received, so that the server may send what changed."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import Tensor

from bayesfed.data.dataset import Dataset
from bayesfed.errors import UpdateError, complain
from bayesfed.federated.core.options import LocalOptions
from bayesfed.federated.core.protocols import CHANGE, Fit
from bayesfed.federated.core.wrappers import Around
from bayesfed.keys import Key
from bayesfed.trees import Tree

HELD = "held/"


@dataclass(frozen=True)
class Holding(Around):
    """Put what changed together with what is held, then let `local` work on the whole.

    A leaf ``NAME.change`` is added to the held NAME (masks: exclusive or). The server knows from the version which clients hold what; a
    client whose answer was refused holds nothing new.

    Parameters
    ----------
    local
        What the client computes; it sees whole leaves.
    held
        Patterns of the leaves to keep.
    """

    held: tuple[str, ...] = ("*",)

    def fit(self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions) -> Fit:
        """Complete the message and train.

        Raises
        ------
        UpdateError
            If something is said to have changed that is not held in that shape.
        """
        whole: Tree = {}
        for name, leaf in message.items():
            base = name.removesuffix(CHANGE)
            whole[base] = leaf if base == name else _changed(base, memory.get(HELD + base), leaf)
        fit = self.local.fit(whole, {name: leaf for name, leaf in memory.items() if not name.startswith(HELD)}, data, key, options)
        kept = {HELD + name: leaf for name, leaf in whole.items() if any(fnmatchcase(name, pattern) for pattern in self.held)}
        return fit._replace(memory=fit.memory | kept)


def _changed(name: str, held: Tensor | None, change: Tensor) -> Tensor:
    if held is None or held.shape != change.shape or held.dtype != change.dtype:
        found = "nothing" if held is None else f"{held.dtype} of shape {tuple(held.shape)}"
        expected = f"a held leaf of {change.dtype} and shape {tuple(change.shape)}"
        raise UpdateError(complain(f"change of {name!r}", expected=expected, actual=found, hint="sending the whole leaf"))
    held = held.to(change.device)
    return held ^ change if not change.is_floating_point() else held + change
