"""What the run itself knows, for parameters that a file does not write: by a parameter's name and
type, never by the recipe it belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bayesfed.data import Dataset
from bayesfed.errors import DataError
from bayesfed.federated import Descent, Link, LocalOptions, Sgd
from bayesfed.federated.training.descent import draws_globally
from bayesfed.inference import MaximumLikelihood
from bayesfed.keys import Key
from bayesfed.models import Categorical, Likelihood
from bayesfed.running.experiments.experiment import Place
from bayesfed.running.experiments.names import of_parameter
from bayesfed.trees import Tree, parameters

MISSING: Any = object()


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
    rounds: int = 0
    train: Dataset | None = None
    test: Dataset | None = None
    clients: Sequence[str] = ()
    net: nn.Module | None = None
    link: Link | None = None
    likelihood: Likelihood | None = None
    sizes: int | None = None
    used: set[str] = field(default_factory=set)

    @property
    def rows(self) -> Dataset:
        """Rows to train on."""
        if self.train is None:
            raise DataError("experiment", "data", "none yet", 'data = "digits"')
        return self.train

    @property
    def labels(self) -> Tensor:
        """Classes of the rows to train on."""
        if self.rows.targets.is_floating_point():
            raise DataError(
                "partition by class", "targets that are classes", "real numbers", 'kind = "iid"'
            )
        return self.rows.targets

    @property
    def domains(self) -> Sequence[str]:
        """Domain of each row to train on."""
        if not self.rows.domains:
            hint = 'data that know them, such as { kind = "split_texts", ... }, or kind = "iid"'
            raise DataError("partition by domain", "rows with domains", "none", hint)
        return self.rows.domains

    @property
    def classes(self) -> int:
        """Number of classes, or of numbers in a target."""
        if self.rows.targets.is_floating_point():
            return self.rows.targets[0].numel()
        return 1 + max(
            int(part.targets.max())
            for part in (self.train, self.test)
            if part is not None and len(part)
        )

    @property
    def image(self) -> tuple[int, ...]:
        """Channels, height and width of a row."""
        shape = tuple(self.rows.inputs.shape[1:])
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
        """The network."""
        if self.net is None:
            raise DataError("experiment", "a network", "none", "[net]")
        return self.net

    @property
    def updates(self) -> list[Tree]:
        """Change of the network that sixteen public rows make, as `public_settings` fits it."""
        public = self.public
        objective = MaximumLikelihood(self.network, self.likelihood or Categorical())
        local = Descent(objective, Sgd(), 20, len(public), "delta", draws_globally(self.network))
        return [
            local.fit(
                parameters(self.network), {}, public, Key(self.seed, "public"), LocalOptions()
            ).payload
        ]

    @property
    def observations(self) -> int:
        """Number of rows to train on."""
        return len(self.rows)

    @property
    def sample(self) -> Tensor:
        """Inputs of one row."""
        return self.rows.inputs[:1]

    @property
    def example(self) -> Dataset:
        """Two rows."""
        return self.rows[slice(0, 2)]

    @property
    def public(self) -> Dataset:
        """Sixteen rows that are no secret."""
        return self.rows[slice(0, 16)]

    @property
    def pair(self) -> Tensor:
        """Inputs of two rows, to try a network on."""
        return (
            self.rows.inputs[:2]
            if len(self.rows) > 1
            else torch.cat([self.rows.inputs, self.rows.inputs])
        )


# The property of the scope that a parameter of this name and type is. A file may write those that
# are numbers; then the file's value counts. A key is that of its place: ``Key(seed, "net")``.
_GIVEN: dict[tuple[str, Any], str] = {
    ("net", nn.Module): "net",
    ("link", Link): "link",
    ("key", Key): "seed",
    ("labels", Tensor): "labels",
    ("domains", Sequence[str]): "domains",
    ("domains", Sequence[str | int]): "domains",
    ("rows", int): "observations",
    ("observations", int): "observations",
    ("rounds", int): "rounds",
    ("classes", int): "classes",
    ("image", tuple[int, int, int]): "image",
    ("count", int): "sizes",
    ("clients", Sequence[str]): "clients",
    ("names", Sequence[str]): "clients",
    ("sample", Tensor): "sample",
    ("example", Tensor): "sample",
    ("example", Dataset): "example",
    ("public", Dataset): "public",
    ("updates", Sequence[Mapping[str, Tensor]]): "updates",
}


def is_given(name: str, hint: Any) -> bool:
    """Return whether the run knows a parameter of this name and type."""
    return of_parameter(_GIVEN, name, hint) is not None


def given(scope: Scope, name: str, hint: Any, path: Place, *, optional: bool) -> Any:
    """Return what the run knows of a parameter, or `MISSING`; of optional ones only the link, and
    the keys of networks.
    """
    wanted = not optional or name == "link" or (name == "key" and path[:1] == ("net",))
    if not wanted or (entry := of_parameter(_GIVEN, name, hint)) is None:
        return MISSING
    scope.used.add(name)
    if name == "key":
        return Key(scope.seed, *path)
    found = getattr(scope, entry)
    return MISSING if found is None else found
