"""`Holding`: clients keep the leaves that they received, so that the server can send only changes."""

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
from bayesfed.trees import Tree, without

# Prefix of the names of held leaves in a client's memory.
HELD = "held/"


@dataclass(frozen=True)
class Holding(Around):
    """A local step that first adds the changes in the message to the leaves that the client holds.

    A leaf ``NAME.change`` is added to the held leaf NAME (masks are combined by exclusive or). The server knows which version each client holds; a
    client whose answer was refused still holds the version from before.

    Parameters
    ----------
    local
        What the client computes; it receives whole leaves.
    held
        Patterns of the names of leaves to keep.
    """

    held: tuple[str, ...] = ("*",)

    def fit(self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions) -> Fit:
        """Complete the message, and run the local step.

        Raises
        ------
        UpdateError
            If the message has a change of a leaf that is not held, or is held in another shape or dtype.
        """
        whole: Tree = {}
        for name, leaf in message.items():
            base = name.removesuffix(CHANGE)
            whole[base] = leaf if base == name else _changed(base, memory.get(HELD + base), leaf)
        fit = self.local.fit(whole, without(memory, HELD), data, key, options)
        kept = {HELD + name: leaf for name, leaf in whole.items() if any(fnmatchcase(name, pattern) for pattern in self.held)}
        return fit._replace(memory=fit.memory | kept)


def _changed(name: str, held: Tensor | None, change: Tensor) -> Tensor:
    if held is None or held.shape != change.shape or held.dtype != change.dtype:
        actual = "nothing" if held is None else f"{held.dtype} of shape {tuple(held.shape)}"
        expected = f"a held leaf of {change.dtype} and shape {tuple(change.shape)}"
        raise UpdateError(complain(f"change of {name!r}", expected=expected, actual=actual, hint="sending the whole leaf"))
    held = held.to(change.device)
    return held ^ change if not change.is_floating_point() else held + change
