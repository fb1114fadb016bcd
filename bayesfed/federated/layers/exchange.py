"""`Exchange`: both ends send how far the model moved, and keep what the compression of a message leaves out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import ClassVar

import torch
from torch import Tensor

from bayesfed.compress.buffer import Reader, Writer
from bayesfed.compress.leaf import LeafCodec
from bayesfed.compress.support import mask_of, moved_active, scatter_active, supports_of
from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.federated.core.layers import Inner, Layer, Moment, Sent, Traits, Visit
from bayesfed.federated.core.owners import of, owned
from bayesfed.federated.core.protocols import Fit, Info
from bayesfed.federated.core.update import Update
from bayesfed.keys import Key
from bayesfed.trees import Tree

# Kinds of leaves: at the server what compression left out, and sums of the last changes; in a message changes, and what
# first values are drawn from; at a client what it holds.
RESIDUAL, SUM, CHANGE, START, HELD = "residual", "sum-of-last-{}", "change", "start", "held"


def dense(model: Tree) -> Tree:
    """Return no mask: every entry of every leaf is active."""
    return {}


@dataclass(frozen=True)
class Holding(Layer):
    """Clients hold leaves that they received, so that the server can send the changes of them.

    A change is added to the leaf that is held; masks are combined by exclusive or. Where the support of a leaf changes,
    the held active entries move with it: what is switched off is dropped, and what returns is zero. The server knows which
    version each client holds; a client whose answer was refused still holds the version from before.

    Parameters
    ----------
    held
        Patterns of the names of leaves to hold.
    """

    owner: str = "exchange"
    held: tuple[str, ...] = ("*",)

    def receive(self, visit: Visit) -> Visit:
        """Complete the message.

        Raises
        ------
        UpdateError
            If there is a change of a leaf that is not held, or is held in another shape or dtype.
        """
        held, changes = self._held(visit), owned(visit.told, CHANGE)
        before, message = supports_of(held), dict(visit.message)
        for name, change in changes.items():
            if change.dtype is torch.bool:
                message[name] = _changed(name, held.get(name), change)
        now = supports_of(message)
        for name, change in changes.items():
            if name not in message:
                leaf = held.get(name)
                moved = leaf if leaf is None else moved_active(name, leaf, before, now)
                message[name] = _changed(name, moved, change)
        return replace(visit, message=message)

    def send(self, visit: Visit, fit: Fit) -> Sent:
        """Hold the message."""
        kept = {
            name: leaf
            for name, leaf in visit.message.items()
            if any(fnmatchcase(name, pattern) for pattern in self.held)
        }
        return Sent(fit, memory=of(HELD, kept))

    def _held(self, visit: Visit) -> Tree:
        return owned(visit.memory, HELD)


@dataclass(frozen=True)
class Exchange(Holding):
    """An exchange of changes in both directions.

    A client sends the change of every leaf that it received. The server compresses their mean, plus what was left out
    before, and steps on the values that follow: those that clients hold, plus the compressed change. What compression
    leaves out is added to the next change. Entries that the core switches off lose what was left out of them.

    Parameters
    ----------
    codec
        Codec of the change of a leaf. The messages need another one that is exact on its results, such as `Sparse`.
    cache
        A client that missed at most this many rounds gets the sum of the changes it missed. Others, and new ones, get the
        values.
    values
        Patterns of the names of leaves that are sent whole.
    masks
        ``model -> masks by site``, where only active entries of a site's leaves are sent. Default: all entries are.
    told
        Leaves from which clients draw in round 0 the values and supports of the leaves that have masks, which are then not
        sent. What they draw is what the state before round 0 has.
    drawn
        Function from those leaves to what the client then holds.

    Raises
    ------
    ArgumentError
        If `cache` is below 1.

    References
    ----------
    Sattler, Wiedemann, Mueller and Samek, "Robust and communication-efficient federated learning from non-IID data"
    (2019), Algorithm 2; Tang et al., "DoubleSqueeze: parallel stochastic gradient descent with double-pass
    error-compensated compression" (2019), for residuals at both ends.
    """

    codec: LeafCodec | None = None
    cache: int = 1
    values: tuple[str, ...] = ()
    masks: Callable[[Tree], Tree] = dense
    told: Tree | None = None
    drawn: Callable[[Tree], Tree] | None = None
    # Where no client was heard, the sums of changes must say so: a client may then have missed a round in which nothing
    # changed.
    traits: ClassVar[Traits] = Traits(
        silent=True, late="as changes", needs="sum", gives={"value": "delta"}
    )
