"""The one place for arguments that a file cannot write as they are: what the run itself knows, and what is said in another way.

Both tables go by a parameter's name and type, never by the recipe it belongs to.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from bayesfed.data.dataset import Dataset
from bayesfed.data.partition import Partition
from bayesfed.errors import DataError, complain
from bayesfed.federated.core.options import LocalOptions
from bayesfed.federated.core.protocols import Link
from bayesfed.federated.training.descent import Descent, draws_globally
from bayesfed.federated.training.optimisers import Sgd
from bayesfed.inference.objectives.likelihood import MaximumLikelihood
from bayesfed.inference.variational.program import Runs
from bayesfed.keys import Key
from bayesfed.models.elastic.shares import Share, shrunk_shares
from bayesfed.models.elastic.tracing import channel_graph
from bayesfed.models.priors.bayesian import BayesianNet
from bayesfed.models.priors.likelihoods import Categorical, Likelihood
from bayesfed.trees import Tree, parameters

if TYPE_CHECKING:
    from bayesfed.cli.lines import Path


@dataclass
class Scope:
    """What is known when an argument is asked for; it fills from the top of the file to its bottom.

    Parameters
    ----------
    used
        Names that were asked for: a section that nobody asks for does not belong in the file.
    sizes
        How many sizes of a network the recipe has, once its list of them is read.
    """

    seed: int
    rounds: int
    train: Dataset | None = None
    test: Dataset | None = None
    clients: Sequence[str] = ()
    net: nn.Module | None = None
    link: Link | None = None
    likelihood: Likelihood | None = None
    sizes: int = 0
    used: set[str] = field(default_factory=set)

    @property
    def rows(self) -> Dataset:
        """The rows to train on."""
        if self.train is None:
            raise DataError(complain("experiment", expected="data", actual="none yet", hint='data = "digits"'))
        return self.train

    @property
    def labels(self) -> Tensor:
        """Classes of the rows to train on."""
        if self.rows.targets.is_floating_point():
            raise DataError(complain("partition by class", expected="targets that are classes", actual="real numbers", hint='kind = "iid"'))
        return self.rows.targets

    @property
    def domains(self) -> Sequence[str]:
        """Where the rows to train on are from, row by row."""
        if not self.rows.domains:
            hint = 'data that know them, such as { kind = "split_texts", ... }, or kind = "iid"'
            raise DataError(complain("partition by domain", expected="rows with domains", actual="none", hint=hint))
        return self.rows.domains

    @property
    def classes(self) -> int:
        """How many there are, or how many numbers a target has."""
        if self.rows.targets.is_floating_point():
            return self.rows.targets[0].numel()
        return 1 + max(int(part.targets.max()) for part in (self.train, self.test) if part is not None and len(part))

    @property
    def image(self) -> tuple[int, ...]:
        """Channels, height and width of a row."""
        shape = tuple(self.rows.inputs.shape[1:])
        if len(shape) not in (2, 3):
            raise DataError(complain("net", expected="images (height, width) or (channels, height, width)", actual=f"rows of {shape}", hint="mlp"))
        return shape if len(shape) == 3 else (1, *shape)

    def key(self, path: Path) -> Key:
        """Return the key of a place in the file: of the net it is ``Key(seed, "net")``, as in the README."""
        return Key(self.seed, *path)

    @property
    def updates(self) -> list[Tree]:
        """The change that sixteen public rows make of the network, as `public_settings` finds it."""
        if self.net is None:
            raise DataError(complain("updates", expected="a network", actual="none", hint="[net]"))
        public = self.rows[slice(0, 16)]
        objective = MaximumLikelihood(self.net, self.likelihood or Categorical())
        local = Descent(objective, Sgd(), 20, len(public), "delta", draws_globally(self.net))
        return [local.fit(parameters(self.net), {}, public, Key(self.seed, "public"), LocalOptions()).payload]


MISSING: Any = object()

# What the run knows, by name and type; a file may write those that are numbers, and then that counts.
_GIVEN: dict[tuple[str, Any], Callable[[Scope, Path], Any]] = {
    ("net", nn.Module): lambda scope, path: MISSING if scope.net is None else scope.net,
    ("link", Link): lambda scope, path: MISSING if scope.link is None else scope.link,
    ("key", Key): lambda scope, path: scope.key(path),
    ("labels", Tensor): lambda scope, path: scope.labels,
    ("domains", Sequence[str]): lambda scope, path: scope.domains,
    ("domains", Sequence[str | int]): lambda scope, path: scope.domains,
    ("rows", int): lambda scope, path: len(scope.rows),
    ("observations", int): lambda scope, path: len(scope.rows),
    ("rounds", int): lambda scope, path: scope.rounds,
    ("classes", int): lambda scope, path: scope.classes,
    ("image", tuple[int, int, int]): lambda scope, path: scope.image,
    ("count", int): lambda scope, path: scope.sizes or MISSING,
    ("clients", Sequence[str]): lambda scope, path: scope.clients,
    ("names", Sequence[str]): lambda scope, path: scope.clients,
    ("sample", Tensor): lambda scope, path: scope.rows.inputs[:1],
    ("example", Tensor): lambda scope, path: scope.rows.inputs[:1],
    ("example", Dataset): lambda scope, path: scope.rows[slice(0, 2)],
    ("public", Dataset): lambda scope, path: scope.rows[slice(0, 16)],
    ("updates", Sequence[Mapping[str, Tensor]]): lambda scope, path: scope.updates,
}
# Filled in though there is a default: without them a file's own words would be lost.
_ALWAYS = {"link"}


def _plain(hint: Any) -> Any:
    inner = [one for one in getattr(hint, "__args__", ()) if one is not type(None)]
    return inner[0] if type(None) in getattr(hint, "__args__", ()) and len(inner) == 1 else hint


def is_given(name: str, hint: Any) -> bool:
    """Say whether the run knows a parameter of this name and type."""
    return (name, _plain(hint)) in _GIVEN


def given(scope: Scope, name: str, hint: Any, path: Path, *, optional: bool) -> Any:
    """Return what the run knows of a parameter, or `MISSING`."""
    wanted = name in _ALWAYS or (name == "key" and path[:1] == ("net",))
    if (name, _plain(hint)) not in _GIVEN or (optional and not wanted):
        return MISSING
    scope.used.add(name)
    return _GIVEN[name, _plain(hint)](scope, path)


class Reading(Protocol):
    """What an adapter may ask of the reader of a file."""

    scope: Scope

    def value(self, raw: Any, hint: Any, path: Path) -> Any:
        """Return what a value of the file means as this type."""
        ...

    def call(self, made_by: Callable[..., Any], table: Mapping[str, Any], path: Path, *, left: Sequence[str] = ()) -> Any:
        """Call a function with the keys of a table; with parameters `left` open, return it as a function of these."""
        ...

    def choose(self, raw: Any, found: Mapping[str, Any], path: Path) -> tuple[Any, dict[str, Any]]:
        """Return what ``kind`` names, and the rest of the table."""
        ...


@dataclass(frozen=True)
class Adapter:
    """How a file says what it cannot write: `convert(reader, raw, path)`, and in words what it takes."""

    words: str
    convert: Callable[[Reading, Any, Path], Any]


def _shares(reader: Reading, raw: Any, path: Path) -> tuple[Share, ...]:
    net, sample = reader.scope.net, reader.scope.rows.inputs[:1]
    if net is None:
        raise DataError(complain("sizes", expected="a network", actual="none", hint="[net]"))
    reader.scope.used.add("net")
    return tuple(shrunk_shares(net, channel_graph(net, sample), sample, reader.value(raw, Sequence[float], path)))


def _split(reader: Reading, raw: Any, path: Path) -> Callable[[Tensor, Key], Partition]:
    """Return a partition of a domain's rows: it counts them, or wants their classes."""
    from bayesfed.cli.hints import options

    chosen, table = reader.choose(raw, options(Partition), path)
    by_class = "labels" in inspect.signature(chosen).parameters
    made = reader.call(chosen, table, path, left=("labels" if by_class else "rows", "key"))
    labels = reader.scope.labels if by_class else None
    return lambda rows, key: made(len(rows) if labels is None else labels[rows], key)


def guides() -> dict[str, Any]:
    """Return the guides a file may name: Pyro's automatic ones, and the package's own."""
    from pyro.infer import autoguide

    from bayesfed.models.adapters.slice_normal import SliceNormal

    listed = {name: getattr(autoguide, name) for name in autoguide.__all__}
    kinds = {name: one for name, one in listed.items() if inspect.isclass(one) and issubclass(one, autoguide.AutoGuide)}
    plain = {name: one for name, one in kinds.items() if set(inspect.signature(one).parameters) >= {"model", "init_scale"}}
    return {**plain, "AutoDelta": autoguide.AutoDelta, "SliceNormal": SliceNormal}


def _guide(reader: Reading, raw: Any, path: Path) -> Any:
    chosen, table = reader.choose(raw, guides(), path)
    return reader.call(chosen, table, path, left=("model",))


def _make(reader: Reading, raw: Any, path: Path) -> Any:
    from bayesfed.cli.hints import options

    made = {name: one for name, one in options(nn.Module).items() if "key" in inspect.signature(one).parameters}
    chosen, table = reader.choose(raw, made, path)
    return reader.call(chosen, table, path, left=("key",))


_NETS = 'a network that is built anew from a key, as { kind = "mlp", ... }'
_SPLITS = 'a partition of each domain over clients of its own, as { kind = "iid", clients = 5 }'
_GUIDES = 'a guide such as "AutoNormal", as text or as { kind = ..., init_scale = ... }'
ADAPTERS: dict[tuple[str, Any], Adapter] = {
    ("sizes", tuple[Share, ...]): Adapter("a list of numbers, shares of the network from 1.0 down", _shares),
    ("split", Callable[[Tensor, Key], Partition]): Adapter(_SPLITS, _split),
    ("make", Callable[[Key], nn.Module]): Adapter(_NETS, _make),
    ("model", Runs): Adapter("a Bayesian network, as { prior = ... }", lambda reader, raw, path: reader.value(raw, BayesianNet, path)),
    ("guide", Runs): Adapter(_GUIDES, _guide),
    ("guide", Callable[[BayesianNet], Runs]): Adapter(_GUIDES, _guide),
}


def adapter(name: str, hint: Any) -> Adapter | None:
    """Return how a file says a parameter of this name and type, if it does so in a way of its own."""
    try:
        return ADAPTERS.get((name, hint))
    except TypeError:
        return None


def batch(data: Dataset) -> Tensor:
    """Return two rows' inputs, to try a network on."""
    return data.inputs[:2] if len(data) > 1 else torch.cat([data.inputs, data.inputs])
