"""What the run itself knows, for parameters that a file does not write: by a parameter's name and
type, never by the recipe it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bayesfed.data import Dataset
from bayesfed.errors import DataError
from bayesfed.federated import Link, LocalOptions, Training
from bayesfed.keys import Key
from bayesfed.models import Likelihood
from bayesfed.running.experiments.experiment import Place
from bayesfed.running.experiments.names import of_parameter
from bayesfed.trees import Tree, parameters

MISSING: Any = object()
NO_ROWS = Dataset(torch.zeros(0, 1), torch.zeros(0))


@dataclass
class Scope:
    """Values known when an argument is asked for; they are filled in from the top of the file to
    its bottom.

    Parameters
    ----------
    used
        Names that were asked for: a section that nobody asks for does not belong in the file.
    sizes
        Number of sizes of the network, once the recipe's list of them is read.
    """

    seed: int
    rounds: int | None = 0
    train: Dataset = NO_ROWS
    test: Dataset = NO_ROWS
    clients: Sequence[str] = ()
    net: nn.Module | None = None
    link: Link | None = None
    likelihood: Likelihood | None = None
    sizes: int | None = None
    used: set[str] = field(default_factory=set)

    @property
    def labels(self) -> Tensor:
        """Classes of the rows to train on."""
        if self.train.targets.is_floating_point():
            raise DataError(
                "partition by class", "targets that are classes", "real numbers", 'kind = "iid"'
            )
        return self.train.targets

    @property
    def domains(self) -> Sequence[str]:
        """Domain of each row to train on."""
        if not self.train.domains:
            raise DataError(
                "partition by domain",
                "rows with domains",
                "none",
                'data that know them, such as { kind = "split_texts", ... }, or kind = "iid"',
            )
        return self.train.domains

    @property
    def classes(self) -> int:
        """Number of classes, or of numbers in a target."""
        if self.train.targets.is_floating_point():
            return self.train.targets[0].numel()
        return 1 + max(int(part.targets.max()) for part in (self.train, self.test) if len(part))

    @property
    def image(self) -> tuple[int, ...]:
        """Channels, height and width of a row."""
        shape = tuple(self.train.inputs.shape[1:])
        if len(shape) not in (2, 3):
            raise DataError(
                "net",
                "images (height, width) or (channels, height, width)",
                f"rows of {shape}",
                "mlp",
            )
        return shape if len(shape) == 3 else (1, *shape)

    @property
    def network(self) -> nn.Module:
        """The network, for what is worked out of it."""
        self.used.add("net")
        if self.net is None:
            raise DataError("experiment", "a network", "none", '[net] with kind = "mlp"')
        return self.net

    @property
    def updates(self) -> list[Tree]:
        """Change of the network that sixteen public rows make, as `public_settings` fits it."""
        net = self.network
        work = Training(steps=20, batch_size=None).fitting(net, self.likelihood, "delta")
        start, key = parameters(net), Key(self.seed, "public")
        return [work.fit(start, {}, self.train[:16], key, LocalOptions()).payload]


# What a parameter of this name and type is. A file may write those that are numbers; then the
# file's value counts.
_GIVEN: Mapping[tuple[str, Any], Callable[[Scope], Any]] = {
    ("net", nn.Module): lambda scope: scope.net,
    ("link", Link): lambda scope: scope.link,
    ("key", Key): lambda scope: scope.seed,
    ("labels", Tensor): lambda scope: scope.labels,
    ("domains", Sequence[str]): lambda scope: scope.domains,
    ("domains", Sequence[str | int]): lambda scope: scope.domains,
    ("rows", int): lambda scope: len(scope.train),
    ("observations", int): lambda scope: len(scope.train),
    ("rounds", int): lambda scope: scope.rounds,
    ("classes", int): lambda scope: scope.classes,
    ("image", tuple[int, int, int]): lambda scope: scope.image,
    ("count", int): lambda scope: scope.sizes,
    ("clients", Sequence[str]): lambda scope: scope.clients,
    ("names", Sequence[str]): lambda scope: scope.clients,
    ("sample", Tensor): lambda scope: scope.train.inputs[:1],
    ("example", Tensor): lambda scope: scope.train.inputs[:1],
    ("example", Dataset): lambda scope: scope.train[:2],
    ("updates", Sequence[Mapping[str, Tensor]]): lambda scope: scope.updates,
    # Sixteen rows that are no secret.
    ("public", Dataset): lambda scope: scope.train[:16],
}


def is_given(name: str, hint: Any) -> bool:
    """Return whether the run knows a parameter of this name and type."""
    return of_parameter(_GIVEN, name, hint) is not None


def given(scope: Scope, name: str, hint: Any, path: Place, *, optional: bool) -> Any:
    """Return what the run knows of a parameter, or `MISSING`; of optional ones only the link, the
    keys of networks, and the rows of a method, which a network needs.
    """
    of_net, of_method = (name, *path[:1]) == ("key", "net"), path[-1:] != ("training",)
    wanted = (
        not optional
        or name == "link"
        or of_net
        or (name in ("observations", "example") and of_method)
    )
    if not wanted or (known := of_parameter(_GIVEN, name, hint)) is None:
        return MISSING
    scope.used.add(name)
    # A key is that of its place: ``Key(seed, "net")``.
    found = Key(scope.seed, *path) if name == "key" else known(scope)
    return MISSING if found is None else found
