"""What locals share that let another one do the work."""

from __future__ import annotations

from dataclasses import dataclass

from bayesfed.federated.core.options import LocalOptions, options_of
from bayesfed.federated.core.protocols import Local
from bayesfed.federated.core.update import Kind


@dataclass(frozen=True)
class Around:
    """A local step around another: what it sends means what the other's payload means, and it draws from where the other draws.

    Parameters
    ----------
    local
        The other.
    """

    local: Local

    @property
    def kind(self) -> Kind:
        """That of the local step."""
        return self.local.kind

    @property
    def options(self) -> type[LocalOptions]:
        """Return the record of options that the inner local reads."""
        return options_of(self.local)

    @property
    def uses_global_randomness(self) -> bool:
        """That of the local step."""
        return self.local.uses_global_randomness
