"""`DeltaUplink`: clients send how far they moved from what they received. The client's half of an
exchange of changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from bayesfed.federated.core.update import Kind
from bayesfed.federated.training.delta_downlink import Holding
from bayesfed.trees import Tree


@dataclass(frozen=True)
class DeltaUplink(Holding):
    """A `Holding` that sends the change of every leaf that it received, in place of the leaf. The
    server is a `DeltaServer`.

    With the up-link codec `ErrorFeedback`, the client keeps what a message leaves out and adds it
    to its next change, entry by entry: the residual of an entry that is switched off is dropped.

    Parameters
    ----------
    values
        Patterns of the names of leaves that are sent whole: those that are not received, and those
        of which a change costs no less.

    References
    ----------
    Tang et al., "DoubleSqueeze: parallel stochastic gradient descent with double-pass
    error-compensated compression" (2019); Sattler et al., "Robust and communication-efficient
    federated learning from non-IID data" (2019), Algorithm 2.
    """

    values: tuple[str, ...] = ()

    @property
    def kind(self) -> Kind:
        """What the payload's numbers mean: changes, if the wrapped step sends nothing but values,
        else what they mean for the wrapped step.
        """
        return "delta" if self.local.kind == "value" else self.local.kind

    def sent(self, payload: Tree, message: Tree) -> Tree:
        """Return the change of every leaf but `values`."""
        whole = {
            name for name in payload if any(fnmatchcase(name, pattern) for pattern in self.values)
        }
        return {
            name: leaf if name in whole else leaf - message[name] for name, leaf in payload.items()
        }
