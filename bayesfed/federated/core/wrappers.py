"""`Around`: the base of local steps that wrap another local step."""

from __future__ import annotations

from dataclasses import dataclass

from bayesfed.federated.core.options import LocalOptions
from bayesfed.federated.core.protocols import Local
from bayesfed.federated.core.seams import options_of
from bayesfed.federated.core.update import Kind


@dataclass(frozen=True)
class Around:
    """A local step around another, with the same kind of payload, the same options and the same use
    of global randomness.

    Parameters
    ----------
    local
        The wrapped local step.
    """

    local: Local

    @property
    def kind(self) -> Kind:
        """What the payload's numbers mean, as for the wrapped step."""
        return self.local.kind

    @property
    def options(self) -> type[LocalOptions]:
        """The record of options that the wrapped step reads."""
        return options_of(self.local)

    @property
    def uses_global_randomness(self) -> bool:
        """Whether the wrapped step draws from torch's global generator."""
        return self.local.uses_global_randomness
