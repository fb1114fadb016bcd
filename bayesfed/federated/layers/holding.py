"""`Holding`: clients hold what they received and what a codec left out of what they sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import ClassVar

import torch
from torch import Tensor

from bayesfed.compress.support import moved, supports_of
from bayesfed.errors import UpdateError
from bayesfed.federated.core import Fit, Layer, Moment, Sent, Traits, Visit, of, owned
from bayesfed.trees import Tree, besides

# Kinds of leaves: of a message, changes of what is held; of a memory, what is held, and errors.
CHANGE, HELD, ERROR = "change", "held", "error"


def named(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a name is as one of some patterns says."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def nothing(model: Tree) -> Tree:
    """Return no leaf."""
    return {}


@dataclass(frozen=True)
class Holding(Layer):
    """Clients hold leaves that they received, so that the server can send the changes of them.

    A change is added to the leaf that is held; masks are combined by exclusive or. Where the
    support of a leaf changes, held active entries move with it: what is switched off is dropped,
    and what returns is zero. The server knows which version each client holds; a client whose
    answer was refused still holds the version from before.

    Parameters
    ----------
    held
        Patterns of the names of leaves to hold.
    before
        ``model -> masks`` by the names of their leaves, as they were published in the last round. A
        client that heard that round is sent the entries that flipped.
    feedback
        Whether the coding error of a message is added to the next (Seide et al., 2014; Karimireddy
        et al., 2019), for codecs in `ErrorFeedback`. An error stays with its entry.
    """

    owner: str = "held"
    held: tuple[str, ...] = ("*",)
    before: Callable[[Tree], Tree] = nothing
    feedback: bool = False
    traits: ClassVar[Traits] = Traits(holds=True, blind=True)

    def publish(
        self, own: Tree, message: Tree, moment: Moment, version: int | None
    ) -> tuple[Tree, Tree]:
        """Publish the flips of masks to those who heard the last round."""
        if version is None or version != moment.round - 1:
            return message, {}
        flips = {name: message[name] ^ mask for name, mask in self.before(moment.model).items()}
        whole = besides(message, flips)
        return whole, of(CHANGE, flips)

    def receive(self, visit: Visit) -> Visit:
        """Complete the message.

        Raises
        ------
        UpdateError
            If there is a change of a leaf that is not held, or is held in another shape or dtype.
        """
        held, changes = self.holds(visit), owned(visit.told, CHANGE)
        masks = {name: leaf for name, leaf in changes.items() if leaf.dtype is torch.bool}
        message = visit.message | {
            name: _changed(name, held.get(name), leaf) for name, leaf in masks.items()
        }
        before, now = supports_of(held), supports_of(message)
        for name in [name for name in changes if name not in masks]:
            leaf = held.get(name)
            leaf = leaf if leaf is None else moved(name, leaf, before, now)
            message[name] = _changed(name, leaf, changes[name])
        return replace(visit, message=message)

    def send(self, visit: Visit, fit: Fit) -> Sent:
        """Add the errors of the last message, and hold the new one.

        Raises
        ------
        UpdateError
            If an error has another shape than what is sent, because the client's view changed.
        """
        payload, kept = dict(fit.payload), Tree()
        before, now = supports_of(self.holds(visit)), supports_of(visit.message)
        for name, leaf in owned(visit.memory, ERROR).items():
            if name in payload and payload[name].is_floating_point():
                error = moved(name, leaf, before, now)
                if error.shape != payload[name].shape:
                    raise UpdateError(
                        f"residual of {name!r}",
                        f"shape {tuple(payload[name].shape)}",
                        tuple(error.shape),
                        "one view a client",
                    )
                payload[name] = payload[name] + error.to(payload[name])
        for name, leaf in visit.message.items():
            if named(name, self.held):
                kept[name] = leaf
        return Sent(fit._replace(payload=payload), memory=of(HELD, kept))

    def kept(self, memory: Tree, payload: Tree, decoded: Tree) -> Tree:
        """Keep what the codec left out."""
        if not self.feedback:
            return memory
        errors = {
            name: leaf - decoded[name].to(leaf)
            for name, leaf in payload.items()
            if leaf.is_floating_point()
        }
        return memory | of(ERROR, errors)

    def holds(self, visit: Visit) -> Tree:
        """Return what a client holds."""
        return owned(visit.memory, HELD)


def feedback() -> Holding:
    """Return error feedback alone: clients hold nothing but what a codec left out."""
    return Holding("feedback", held=(), feedback=True)


def _changed(name: str, held: Tensor | None, change: Tensor) -> Tensor:
    if held is None or held.shape != change.shape or held.dtype != change.dtype:
        raise UpdateError(
            f"change of {name!r}",
            f"a held leaf of {change.dtype} and shape {tuple(change.shape)}",
            "nothing" if held is None else f"{held.dtype} of shape {tuple(held.shape)}",
            "sending the whole leaf",
        )
    held = held.to(change.device)
    return held ^ change if not change.is_floating_point() else held + change
