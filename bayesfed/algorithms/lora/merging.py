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

from bayesfed.algorithms.lora.stacking import OPTIMISER, moments_of, stacked
from bayesfed.data.dataset import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.federated.aggregation.server_optimisers import MOMENTUM, FedAvgM
from bayesfed.federated.core.algorithm import Phase
from bayesfed.federated.core.options import LocalOptions
from bayesfed.federated.core.owners import of
from bayesfed.federated.core.protocols import Fit, Info
from bayesfed.federated.core.update import Reducer
from bayesfed.federated.core.wrappers import Around
from bayesfed.federated.training.model_sizes import Sized
from bayesfed.keys import Key
from bayesfed.models.adapters.lora import adapters
from bayesfed.models.adapters.lora_layers import fresh_adapter
from bayesfed.trees import Tree, leaf_of, placed, without

DELTA, STACK = "delta/", "stack/"
VELOCITY = OPTIMISER + MOMENTUM + DELTA


def base_weights(net: nn.Module, tree: Mapping[str, Tensor]) -> Tree:
    """Return the base weights plus the deltas in a tree, by their names in the network. Layers
    without a delta are left out.
    """
    return {
        leaf_of(name, "base.weight"): layer.base.weight.detach()
        + tree[DELTA + name].to(layer.base.weight)
        for name, layer in adapters(net).items()
        if DELTA + name in tree
    }


def merge(
    net: nn.Module,
    deltas: Mapping[str, Tensor],
    tree: Mapping[str, Tensor],
    optimiser: FedAvgM | None = None,
) -> Tree:
    """Return the deltas, and with momentum the velocities, after the stacks in a tree were merged:
    ``delta + scale B A``.
    """
    merged = {name: leaf for name, leaf in deltas.items() if name.startswith((DELTA, VELOCITY))}
    for name, layer in adapters(net).items():
        if f"{STACK}{name}/b" in tree:
            b, a = tree[f"{STACK}{name}/b"], tree[f"{STACK}{name}/a"]
            before, step = merged.get(DELTA + name), (b * layer.scale) @ a
            if optimiser:
                last = merged.get(VELOCITY + name)
                step = optimiser.learning_rate * step
                step = merged[VELOCITY + name] = (
                    step if last is None else step + optimiser.momentum * last
                )
            merged[DELTA + name] = step if before is None else before + step
    return merged


@dataclass(frozen=True)
class Merge:
    """Merge the stacked adapters of a round; other leaves become their mean.

    The state holds the other leaves and, after the first round, ``delta/NAME`` and the last stack.

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
        return phase, of("optimiser", optimiser.initial(initial))

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Publish the last stack to clients that hold the delta before it, and the delta to
        others.
        """
        if version is not None and version == round - 1:
            return without(without(state, DELTA), OPTIMISER)
        return {
            name: leaf
            for name, leaf in state.items()
            if not name.startswith((STACK, OPTIMISER)) or name.startswith(VELOCITY)
        }

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Merge; a round of clients without data changes nothing."""
        stack = stacked(reducer)
        # Clients that heard this round hold the delta already: the old stack is not sent again.
        if not (stack.total and stack.total.number()):
            return without(state, STACK), {}
        pairs, rest = stack.mean()
        sent = {
            f"{STACK}{name}/{leaf}": factor
            for name, pair in pairs.items()
            for leaf, factor in zip("ba", pair, strict=True)
        }
        slices = float(sum(b.shape[1] for b, _ in pairs.values()))
        if self.optimiser:
            model = {name: state[name] for name in rest}
            rest, moments = self.optimiser.step(model, rest, moments_of(state, rest))
            rest = rest | of("optimiser", moments)
        return rest | merge(self.net, state, sent, self.optimiser) | sent, {
            "stacked_slices": slices
        }


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
        said = {name: leaf for name, leaf in message.items() if name.startswith((DELTA, VELOCITY))}
        known = said or {
            name: leaf.to(data.inputs.device)
            for name, leaf in memory.items()
            if name.startswith((DELTA, VELOCITY))
        }
        deltas = merge(self.net, known, message, self.optimiser)
        begun = {
            name: leaf
            for name, leaf in message.items()
            if not name.startswith((DELTA, STACK, VELOCITY))
        }
        for name, layer in adapters(self.net).items():
            b, a = fresh_adapter(layer.base.weight, layer.rank, key.child("adapter", name))
            begun |= {leaf_of(name, "lora_b"): b, leaf_of(name, "lora_a"): a}
        own = dict(self.net.named_parameters())
        with placed(self.net, own | base_weights(self.net, deltas)):
            fit = self.local.fit(begun, {}, data, key, options)
        return fit._replace(memory=fit.memory | deltas)
