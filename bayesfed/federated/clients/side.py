"""`ClientSide`: the client's half of a phase, that is, the local step and the layers around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from torch import nn

from bayesfed.data import Dataset
from bayesfed.errors import DataError
from bayesfed.errors.checks import shown
from bayesfed.federated.core import (
    Algorithm,
    Fit,
    Kind,
    Layer,
    Local,
    LocalOptions,
    Phase,
    Scope,
    Visit,
    options_of,
    unwired,
    wired,
)
from bayesfed.keys import Generator, Key
from bayesfed.models.live import generators_in, networks_in
from bayesfed.trees import Tree


class Opened(NamedTuple):
    """A client's turn as the core gets it: message, memory, rows, options, and each layer's own
    look at it.
    """

    message: Tree
    memory: Tree
    data: Dataset
    options: LocalOptions
    visits: tuple[Visit, ...]


@dataclass(frozen=True)
class ClientSide:
    """A local step with the layers around it; a `Local` on messages and memories whose names have
    owners.

    Parameters
    ----------
    core
        The local step.
    layers
        Layers around it, outermost first.
    scope
        Which leaves of the client's memory are this phase's.
    """

    core: Local
    layers: tuple[Layer, ...] = ()
    scope: Scope = Scope()

    @classmethod
    def of(cls, phase: Phase) -> ClientSide:
        """Return the client's half of a phase."""
        return cls(phase.local, phase.layers, phase.scope)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What the numbers mean that each layer is given, and last what the core sends; the first
        is what is sent.
        """
        kinds = [self.core.kind]
        for layer in reversed(self.layers):
            kinds.append(layer.traits.gives.get(kinds[-1], kinds[-1]))
        return tuple(reversed(kinds))

    @property
    def kind(self) -> Kind:
        """What the payload's numbers mean."""
        return self.kinds[0]

    @property
    def options(self) -> type[LocalOptions]:
        """The record of options that the core reads."""
        return options_of(self.core)

    @cached_property
    def networks(self) -> list[nn.Module]:
        """Every module that the step or a layer has."""
        return networks_in((self.core, self.layers))

    @cached_property
    def generators(self) -> list[Generator]:
        """Every generator that the step or a layer draws from, but the global ones."""
        return generators_in((self.core, self.layers))

    def __getstate__(self) -> dict[str, object]:
        # Another process has generators of its own under the same global names.
        return {name: value for name, value in vars(self).items() if name != "generators"}

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Open the message layer by layer, run the local step, and close its result likewise."""
        return self.run(self.opened(message, memory, data, key, options), memory, key)

    def run(self, opened: Opened, memory: Tree, key: Key) -> Fit:
        """Run the local step on a turn that is open, and close its result."""
        fit = self.core.fit(opened.message, opened.memory, opened.data, key, opened.options)
        self._check(fit)
        return self.closed(opened, fit, memory)

    def opened(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Opened:
        """Return the turn as the core gets it."""
        core, told = unwired(message) if self.layers else (message, {})
        visits = list[Visit]()
        own, kept = self.scope.parted(memory)
        for layer, kind in zip(self.layers, self.kinds[1:], strict=True):
            said = told.get(layer.owner, {})
            visit = Visit(core, said, kept[layer.owner], data, key, options, kind)
            visits.append(layer.receive(visit))
            core, data, options = visits[-1].message, visits[-1].data, visits[-1].options
        return Opened(core, own, data, options, tuple(visits))

    def closed(self, opened: Opened, fit: Fit, memory: Tree) -> Fit:
        """Return the result of a turn, given the core's: payload and memory of all owners."""
        kept, own = dict[str, Tree](), fit.memory
        for layer, visit in reversed(list(zip(self.layers, opened.visits, strict=True))):
            fit, after = layer.send(visit, fit)
            kept[layer.owner] = visit.memory if after is None else after
        memory = self.scope.joined(memory, own, kept)
        payload = wired(fit.payload, {}) if self.layers else fit.payload
        return fit._replace(payload=payload, memory=memory)

    def coded(self, memory: Tree, payload: Tree, decode: Callable[[], Tree]) -> Tree:
        """Return the memory, once a payload is coded; it is decoded only if a layer asks for it."""
        asking = [layer for layer in self.layers if type(layer).kept is not Layer.kept]
        if not asking:
            return memory
        (sent, _), (decoded, _) = unwired(payload), unwired(decode())
        own, kept = self.scope.parted(memory)
        kept |= {layer.owner: layer.kept(kept[layer.owner], sent, decoded) for layer in asking}
        return self.scope.joined(memory, own, kept)

    def _check(self, fit: object) -> None:
        if isinstance(fit, Fit) and isinstance(fit.payload, dict) and isinstance(fit.memory, dict):
            return
        actual = shown(fit)
        if isinstance(fit, Fit):
            actual = f"payload {shown(fit.payload)}, memory {shown(fit.memory)}"
        raise DataError(
            f"{type(self.core).__name__}.fit",
            "Fit(payload, memory, info) of dictionaries",
            actual,
            "Fit(tree, {}, {})",
        )


def sides_of(algorithm: Algorithm) -> dict[str, ClientSide]:
    """Return the client's half of every phase, by the phase's name."""
    return {phase.name: ClientSide.of(phase) for phase in algorithm.phases}


Sides = Mapping[str, ClientSide]
"""The client's half of every phase, by the phase's name."""
