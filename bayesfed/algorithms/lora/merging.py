"""The rounds of FedStackLoRA (Wang et al., 2024): stacked adapters are merged into the weights
under them, and new adapters begin.

The pretrained weights are never written to. Merges add up in a separate delta, ``(m, n)`` for each
layer, which the server and every client keep. A client that heard the last round gets the stack,
``K (m + n)`` numbers a layer for K slices of all clients together. Other clients get the delta.

With server momentum a merge moves the delta by a velocity, ``v <- momentum v + rate scale B A``.
Clients keep it beside the delta and compute it from the same stacks, so that momentum sends nothing
more to clients that heard the last round; others get the velocity with the delta.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn

from bayesfed.algorithms.lora.stacking import OPTIMISER, stacked
from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.federated import FedAvgM, Fit, LocalOptions, Phase, Reducer, Sized
from bayesfed.federated.core import MODEL, Around, Info, of, owned
from bayesfed.federated.core.owners import owner_of
from bayesfed.keys import Key
from bayesfed.models import adapters
from bayesfed.models.adapters.lora_layers import fresh_adapter
from bayesfed.trees import Tree, leaf_of, placed, to

# Owners of leaves by layer: merged weights, the last stack as its ``b/LAYER`` and ``a/LAYER``, and
# the velocity of the merged weights.
DELTA, STACK, VELOCITY = "delta", "stack", "velocity"


def base_weights(net: nn.Module, tree: Mapping[str, Tensor]) -> Tree:
    """Return the base weights plus the deltas in a tree, by their names in the network. Layers
    without a delta are left out.
    """
    deltas = owned(tree, DELTA)
    return {
        leaf_of(name, "base.weight"): layer.base.weight.detach()
        + deltas[name].to(layer.base.weight)
        for name, layer in adapters(net).items()
        if name in deltas
    }


def merge(
    net: nn.Module,
    known: Mapping[str, Tensor],
    tree: Mapping[str, Tensor],
    optimiser: FedAvgM | None = None,
) -> Tree:
    """Return the deltas, and with momentum the velocities, after the stacks in a tree were merged:
    ``delta + scale B A``.
    """
    deltas, velocities, stack = owned(known, DELTA), owned(known, VELOCITY), owned(tree, STACK)
    for name, layer in adapters(net).items():
        if f"b/{name}" in stack:
            b, a = stack[f"b/{name}"], stack[f"a/{name}"]
            before, step = deltas.get(name), (b * layer.scale) @ a
            if optimiser:
                last = velocities.get(name)
                step = optimiser.learning_rate * step
                step = step if last is None else step + optimiser.momentum * last
                velocities[name] = step
            deltas[name] = step if before is None else before + step
    return of(DELTA, deltas) | of(VELOCITY, velocities)


@dataclass(frozen=True)
class Merge:
    """Merge the stacked adapters of a round; other leaves become their mean.

    The state holds the other leaves and, after the first round, ``delta/LAYER`` and the last stack.

    Parameters
    ----------
    net
        The network with adapters, for their scale.
    optimiser
        Momentum of the server. None: merges are not carried on.
    """

    net: nn.Module
    optimiser: FedAvgM | None = None

    def with_momentum(self, phase: Phase, optimiser: FedAvgM, initial: Tree) -> tuple[Phase, Tree]:
        """Return the phase with momentum of the merged weights and of the other leaves, and the
        moments of the latter.
        """
        if not isinstance(phase.local, Sized) or not all(
            isinstance(local, Merging) for local in phase.local.locals
        ):
            actual = type(phase.local).__name__
            raise ArgumentError(
                "momentum of merges", "clients that merge", actual, "fed_stack_lora"
            )
        locals = tuple(
            replace(local, optimiser=optimiser)
            for local in phase.local.locals
            if isinstance(local, Merging)
        )
        phase = replace(phase, server=replace(self, optimiser=optimiser), local=Sized(locals))
        return phase, of(OPTIMISER, optimiser.initial(owned(initial, MODEL)))

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Publish the last stack to clients that hold the delta before it, and the delta to
        others.
        """
        kinds = (STACK,) if version is not None and version == round - 1 else (DELTA, VELOCITY)
        return _of_kinds(state, MODEL, *kinds)

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Merge; a round of clients without data changes nothing."""
        stack = stacked(reducer)
        # Clients that heard this round hold the delta already: the old stack is not sent again.
        if not (stack.total and stack.total.number()):
            return _of_kinds(state, MODEL, DELTA, VELOCITY, OPTIMISER), {}
        pairs, rest = stack.mean()
        sent = {
            f"{STACK}/{leaf}/{name}": factor
            for name, pair in pairs.items()
            for leaf, factor in zip("ba", pair, strict=True)
        }
        slices = float(sum(b.shape[1] for b, _ in pairs.values()))
        own, merged = Tree(), merge(self.net, state, sent, self.optimiser)
        if self.optimiser:
            before = owned(state, MODEL)
            model, moments = {name: before[name] for name in rest}, owned(state, OPTIMISER)
            rest, moments = self.optimiser.step(model, rest, moments)
            own = of(OPTIMISER, moments)
        return of(MODEL, rest) | own | merged | sent, {"stacked_slices": slices}


@dataclass(frozen=True)
class Merging(Around):
    """Merge the server's stack, then let `local` train new adapters over it. The delta is the
    client's memory.

    Parameters
    ----------
    local
        The local step that trains the network, of kind "factors".
    net
        The network that `local` trains. Its frozen weights are never written to.
    optimiser
        Momentum of the server.
    """

    net: nn.Module
    optimiser: FedAvgM | None = None

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Merge, draw new adapters and train them."""
        said = _of_kinds(message, DELTA, VELOCITY)
        known = said or to(_of_kinds(memory, DELTA, VELOCITY), data.inputs.device)
        deltas = merge(self.net, known, message, self.optimiser)
        begun = owned(message, MODEL)
        for name, layer in adapters(self.net).items():
            b, a = fresh_adapter(layer.base.weight, layer.rank, key.child("adapter", name))
            begun |= {leaf_of(name, "lora_b"): b, leaf_of(name, "lora_a"): a}
        own = dict(self.net.named_parameters())
        with placed(self.net, own | base_weights(self.net, deltas)):
            fit = self.local.fit(begun, {}, data, key, options)
        return fit._replace(memory=fit.memory | deltas)


def _of_kinds(tree: Mapping[str, Tensor], *kinds: str) -> Tree:
    """Return the leaves of some owners, by their full names."""
    return {name: leaf for name, leaf in tree.items() if owner_of(name) in kinds}
