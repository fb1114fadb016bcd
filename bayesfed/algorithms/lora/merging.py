"""The rounds of FedStackLoRA (Wang et al., 2024): stacked adapters are merged into the weights under them, and new adapters begin.

The pretrained weights are never written to. Merges add up in a separate delta, ``(m, n)`` for each layer, which the server and every client keep.
A client that heard the last round gets the stack, ``K (m + n)`` numbers a layer for K slices of all clients together. Other clients get the delta.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from bayesfed.algorithms.lora.stacking import stacked
from bayesfed.data.dataset import Dataset
from bayesfed.federated.core.options import LocalOptions
from bayesfed.federated.core.protocols import Fit, Info
from bayesfed.federated.core.update import Reducer
from bayesfed.federated.core.wrappers import Around
from bayesfed.keys import Key
from bayesfed.models.adapters.lora import adapters
from bayesfed.models.adapters.lora_layers import fresh_adapter
from bayesfed.trees import Tree, leaf_of, placed, without

DELTA, STACK = "delta/", "stack/"


def base_weights(net: nn.Module, tree: Mapping[str, Tensor]) -> Tree:
    """Return the base weights plus the deltas in a tree, by their names in the network. Layers without a delta are left out."""
    return {
        leaf_of(name, "base.weight"): layer.base.weight.detach() + tree[DELTA + name].to(layer.base.weight)
        for name, layer in adapters(net).items()
        if DELTA + name in tree
    }


def merge(net: nn.Module, deltas: Mapping[str, Tensor], tree: Mapping[str, Tensor]) -> Tree:
    """Return the deltas after the stacks in a tree were merged: ``delta + scale B A``."""
    merged = {name: leaf for name, leaf in deltas.items() if name.startswith(DELTA)}
    for name, layer in adapters(net).items():
        if f"{STACK}{name}/b" in tree:
            b, a = tree[f"{STACK}{name}/b"], tree[f"{STACK}{name}/a"]
            before, product = merged.get(DELTA + name), (b * layer.scale) @ a
            merged[DELTA + name] = product if before is None else before + product
    return merged


@dataclass(frozen=True)
class Merge:
    """Merge the stacked adapters of a round; other leaves become their mean.

    The state holds the other leaves and, after the first round, ``delta/NAME`` and the last stack.

    Parameters
    ----------
    net
        The network with adapters, for their scale.
    """

    net: nn.Module

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Publish the last stack to clients that hold the delta before it, and the delta to others."""
        left_out = DELTA if version is not None and version == round - 1 else STACK
        return without(state, left_out)

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Merge; a round of clients without data changes nothing."""
        stack = stacked(reducer)
        # Clients that heard this round hold the delta already: the old stack is not sent again.
        if not (stack.total and stack.total.number()):
            return without(state, STACK), {}
        pairs, rest = stack.mean()
        sent = {f"{STACK}{name}/{leaf}": factor for name, pair in pairs.items() for leaf, factor in zip("ba", pair, strict=True)}
        slices = float(sum(b.shape[1] for b, _ in pairs.values()))
        return rest | merge(self.net, state, sent) | sent, {"stacked_slices": slices}


@dataclass(frozen=True)
class Merging(Around):
    """Merge the server's stack, then let `local` train new adapters over it. The delta is the client's memory.

    Parameters
    ----------
    local
        The local step that trains the network, of kind "factors".
    net
        The network that `local` trains. Its frozen weights are never written to.
    """

    net: nn.Module

    def fit(self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions) -> Fit:
        """Merge, draw new adapters and train them."""
        said = {name: leaf for name, leaf in message.items() if name.startswith(DELTA)}
        known = said or {name: leaf.to(data.inputs.device) for name, leaf in memory.items() if name.startswith(DELTA)}
        deltas = merge(self.net, known, message)
        begun = without(without(message, DELTA), STACK)
        for name, layer in adapters(self.net).items():
            b, a = fresh_adapter(layer.base.weight, layer.rank, key.child("adapter", name))
            begun |= {leaf_of(name, "lora_b"): b, leaf_of(name, "lora_a"): a}
        own = dict(self.net.named_parameters())
        with placed(self.net, own | base_weights(self.net, deltas)):
            fit = self.local.fit(begun, {}, data, key, options)
        return fit._replace(memory=fit.memory | deltas)
