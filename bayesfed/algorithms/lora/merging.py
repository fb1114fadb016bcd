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
from bayesfed.federated import FedAvgM, Fit, LocalOptions, Phase, Reducer
from bayesfed.federated.core import MODEL, Around, Info, of, owned
from bayesfed.federated.core.owners import owner_of
from bayesfed.federated.training.batch_norm import constant
from bayesfed.keys import Key
from bayesfed.models import adapters
from bayesfed.models.adapters.lora import based
from bayesfed.models.adapters.lora_layers import fresh_adapter
from bayesfed.trees import Tree, leaf_of, placed, to

# Owners of leaves by layer: merged weights, the last stack as its ``b/LAYER`` and ``a/LAYER``, and
# the velocity of the merged weights.
DELTA, STACK, VELOCITY = "delta", "stack", "velocity"


@dataclass(frozen=True)
class Merging(Around):
    """Merge the server's stack, then let `local` train new adapters over it. The delta is the
    client's memory.

    Parameters
    ----------
    local
        The local step that trains the network of a client's size, of kind "factors".
    nets
        The networks that `local` trains, by size. Their frozen weights are never written to.
    optimiser
        Momentum of the server.
    """

    nets: tuple[nn.Module, ...]
    optimiser: FedAvgM | None = None

    def merged(self, known: Mapping[str, Tensor], tree: Mapping[str, Tensor]) -> Tree:
        """Return the deltas, and with momentum the velocities, after the stacks in a tree were
        merged: ``delta + scale B A``.
        """
        deltas, velocities, stack = owned(known, DELTA), owned(known, VELOCITY), owned(tree, STACK)
        for name, layer in adapters(self.nets[0]).items():
            if f"b/{name}" in stack:
                step = layer.product(stack[f"b/{name}"], stack[f"a/{name}"])
                if self.optimiser:
                    step = self.optimiser.learning_rate * step
                    if name in velocities:
                        step = step + self.optimiser.momentum * velocities[name]
                    velocities[name] = step
                deltas[name] = deltas[name] + step if name in deltas else step
        return of(DELTA, deltas) | of(VELOCITY, velocities)

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Merge, draw new adapters and train them."""
        net, said = self.nets[options.size], _of_kinds(message, DELTA, VELOCITY)
        known = said or to(_of_kinds(memory, DELTA, VELOCITY), data.inputs.device)
        deltas = self.merged(known, message)
        begun = owned(message, MODEL)
        for name, layer in adapters(net).items():
            b, a = fresh_adapter(layer.base.weight, layer.rank, key.child("adapter", name))
            begun |= {leaf_of(name, "lora_b"): b, leaf_of(name, "lora_a"): a}
        own = dict(net.named_parameters())
        with placed(net, own | based(net, owned(deltas, DELTA))):
            fit = self.local.fit(begun, {}, data, key, options)
        return fit._replace(memory=fit.memory | deltas)


@dataclass(frozen=True)
class Merge:
    """Merge the stacked adapters of a round; other leaves become their mean.

    The state holds the other leaves and, after the first round, ``delta/LAYER`` and the last stack.

    Parameters
    ----------
    clients
        The clients' step, which merges as the server does, with its momentum.
    """

    clients: Merging

    def with_momentum(self, phase: Phase, optimiser: FedAvgM, initial: Tree) -> tuple[Phase, Tree]:
        """Return the phase with momentum of the merged weights and of the other leaves, and the
        moments of the latter.
        """
        clients = replace(self.clients, optimiser=optimiser)
        phase = replace(phase, server=Merge(clients), local=constant(clients, clients.nets[0]))
        return phase, of(OPTIMISER, optimiser.initial(owned(initial, MODEL)))

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Publish the last stack to clients that hold the delta before it, and the delta to
        others.
        """
        kinds = (STACK,) if version is not None and version == round - 1 else (DELTA, VELOCITY)
        return _of_kinds(state, MODEL, *kinds)

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Merge; a round of clients without data changes nothing."""
        means = stacked(reducer).mean()
        if means is None:
            # Clients that heard this round hold the delta already: the old stack is not sent again.
            return _of_kinds(state, MODEL, DELTA, VELOCITY, OPTIMISER), {}
        pairs, rest = means
        sent = {
            f"{STACK}/{leaf}/{name}": factor
            for name, pair in pairs.items()
            for leaf, factor in zip("ba", pair, strict=True)
        }
        slices = float(sum(b.shape[1] for b, _ in pairs.values()))
        own, optimiser = Tree(), self.clients.optimiser
        if optimiser:
            before = owned(state, MODEL)
            model = {name: before[name] for name in rest}
            rest, moments = optimiser.step(model, rest, owned(state, OPTIMISER))
            own = of(OPTIMISER, moments)
        merged = self.clients.merged(state, sent)
        return of(MODEL, rest) | own | merged | sent, {"stacked_slices": slices}


def _of_kinds(tree: Mapping[str, Tensor], *kinds: str) -> Tree:
    """Return the leaves of some owners, by their full names."""
    return {name: leaf for name, leaf in tree.items() if owner_of(name) in kinds}
