"""`Feedback`: the coding error of one message is added to the next (Seide et al., 2014; Karimireddy et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bayesfed.compress.support import moved_active, supports_of
from bayesfed.errors import UpdateError
from bayesfed.federated.core.layers import Layer, Sent, Visit
from bayesfed.federated.core.owners import of, owned
from bayesfed.federated.core.protocols import Fit
from bayesfed.trees import Tree

ERROR, SUPPORT = "error", "support"


@dataclass(frozen=True)
class Feedback(Layer):
    """Error feedback at clients: the innermost layer of a method whose up-link codec is `ErrorFeedback`.

    A client keeps the difference between what it sent and what the server decodes, leaf by leaf. Where only the active
    entries of a leaf are sent, an error stays with its entry: that of an entry that is switched off is dropped.
    """

    owner: str = "feedback"

    def send(self, visit: Visit, fit: Fit) -> Sent:
        """Add the errors of the last message.

        Raises
        ------
        UpdateError
            If an error has another shape than the payload, because the client's view has changed.
        """
        before, now = owned(visit.memory, SUPPORT), supports_of(visit.message)
        payload = dict(fit.payload)
        for name, leaf in owned(visit.memory, ERROR).items():
            if name in payload and payload[name].is_floating_point():
                error = moved_active(name, leaf, before, now)
                payload[name] = self._corrected(name, payload[name], error)
        return Sent(fit._replace(payload=payload), memory=of(SUPPORT, now))

    def kept(self, memory: Tree, payload: Tree, decoded: Tree) -> Tree:
        """Keep what the codec left out."""
        errors = {
            name: leaf - decoded[name].to(leaf)
            for name, leaf in payload.items()
            if leaf.is_floating_point()
        }
        return memory | of(ERROR, errors)

    def _corrected(self, name: str, leaf: Tensor, error: Tensor) -> Tensor:
        if error.shape != leaf.shape:
            where, expected = f"residual of {name!r}", f"shape {tuple(leaf.shape)}"
            raise UpdateError(where, expected, tuple(error.shape), "one view a client")
        return leaf + error.to(leaf)
