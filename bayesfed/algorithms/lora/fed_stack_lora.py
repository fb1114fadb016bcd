"""FedStackLoRA, or FLoRA (Wang et al., "FLoRA: federated fine-tuning large language models with
heterogeneous low-rank adaptations", 2024).

======================  ==============================================
paper                   here
======================  ==============================================
r_k                     one of `ranks`
stacking                `Stack`, the weights on B
W + Delta W             `Merge` and `Merging`: the delta apart from W
new modules each round  `fresh_adapter`, drawn by every client
======================  ==============================================

Stacked adapters are merged into the weights under them, and new adapters begin. The pretrained
weights are never written to. Merges add up in a separate delta, ``(m, n)`` for each layer, which
the server and every client keep. A client that heard the last round gets the stack, ``K (m + n)``
numbers a layer for K slices of all clients together. Other clients get the delta.

With server momentum a merge moves the delta by a velocity, ``v <- momentum v + rate scale B A``.
Clients keep it beside the delta and compute it from the same stacks, so that momentum sends nothing
more to clients that heard the last round; others get the velocity with the delta.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor, nn

from bayesfed.algorithms.composing import compose, weighing
from bayesfed.algorithms.lora.adapting import by_rank
from bayesfed.algorithms.lora.sketches import Slices, leading
from bayesfed.algorithms.lora.stacking import OPTIMISER, Stack, adapter_leaves, stacked
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Codec
from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.federated import (
    Algorithm,
    Capacity,
    FedAvgM,
    Fit,
    Link,
    LocalOptions,
    Model,
    Phase,
    Reducer,
    Sized,
    Training,
)
from bayesfed.federated.core import MODEL, Around, Info, of, owned
from bayesfed.federated.core.owners import owner_of
from bayesfed.federated.core.settings import with_settings
from bayesfed.federated.training.batch_norm import travelling
from bayesfed.keys import Key
from bayesfed.models import Likelihood, adapters
from bayesfed.models.adapters.lora import based
from bayesfed.models.adapters.lora_layers import fresh_adapter, matrix_of
from bayesfed.trees import Tree, besides, leaf_of, only, placed, shapes, to

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
            b, a = fresh_adapter(matrix_of(layer.base), layer.rank, key.child("adapter", name))
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
        phase = replace(phase, server=Merge(clients), local=clients)
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
            model = only(before, rest)
            rest, moments = optimiser.step(model, rest, owned(state, OPTIMISER))
            own = of(OPTIMISER, moments)
        merged = self.clients.merged(state, sent)
        return of(MODEL, rest) | own | merged | sent, {"stacked_slices": slices}


def _of_kinds(tree: Mapping[str, Tensor], *kinds: str) -> Tree:
    """Return the leaves of some owners, by their full names."""
    return {name: leaf for name, leaf in tree.items() if owner_of(name) in kinds}


@recipe(cites=("wang2024flora", "hu2021lora"))
def fed_stack_lora(
    net: nn.Module,
    ranks: Sequence[int],
    capacity: Capacity,
    *,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    by_rows: bool = False,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train new adapters every round and merge all of them, exactly, into the weights under the
    next ones.

    As in the paper, a client that heard the last round gets the slices of all clients, and other
    clients get a whole delta.

    Parameters
    ----------
    net
        A network from `lora` whose adapters are not trained yet. All clients have its scale.
    ranks, capacity
        Numbers of slices of the sizes, falling; and which size a client trains in a round.
    training
        Local work of a round. Default: 50 steps of 16 rows with ``Sgd(0.05)``.
    by_rows
        Weigh clients by their rows. Default: all alike.
    likelihood, codec, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If the network has no adapters of one rank, trained ones, or running statistics, or ranks do
        not fall from at most that to at least 1.

    References
    ----------
    Wang et al., "FLoRA: Federated Fine-Tuning Large Language Models with Heterogeneous Low-Rank
    Adaptations" (2024); Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2021).
    """
    initial = travelling(net, "static", where="fed_stack_lora")
    nets = by_rank(net, ranks, where="fed_stack_lora")
    if trained := [name for name, layer in adapters(net).items() if layer.lora_b.any()]:
        raise ArgumentError(
            "fed_stack_lora", "adapters that are zero", trained, "lora(merged(net), 8, key)"
        )
    layers = tuple(sorted(adapters(net)))
    views = [Slices(leading(layers, k), shapes(initial), stacked=True) for k in ranks]
    idle = {name: leaf for name, leaf in initial.items() if name in adapter_leaves(layers)}

    def model(state: Tree) -> Model:
        return Model(net, idle | owned(state, MODEL) | based(net, owned(state, DELTA)))

    work = training or Training(batch_size=16)
    fits = tuple(work.fitting(made, likelihood, "factors") for made in nets)
    clients = Merging(Sized(fits), tuple(nets))
    return compose(
        "fed_stack_lora",
        net,
        clients,
        Merge(clients),
        training=work,
        initial=of(MODEL, besides(initial, idle)),
        predictor=model,
        view=with_settings(views=views)(lambda turn: views[turn.size]),
        capacity=capacity,
        weight=weighing(by_rows),
        codec=codec,
        link=link,
        reducer=partial(Stack, layers),
        owner="",
    )
