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
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import nn

from bayesfed.algorithms.composing import compose, weighing
from bayesfed.algorithms.lora.adapting import by_rank
from bayesfed.algorithms.lora.merging import DELTA, Merge, Merging
from bayesfed.algorithms.lora.sketch_view import Slices, leading
from bayesfed.algorithms.lora.stacking import Stack, adapter_leaves
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Codec
from bayesfed.errors import ArgumentError
from bayesfed.federated import Algorithm, Capacity, Link, Model, Sized, Training
from bayesfed.federated.core import MODEL, of, owned
from bayesfed.federated.training.batch_norm import travelling
from bayesfed.models import Likelihood, adapters
from bayesfed.models.adapters.lora import based
from bayesfed.trees import Tree, shapes


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

    Raises
    ------
    ArgumentError
        If the network has no adapters of one rank, trained ones, or running statistics, or ranks do
        not fall from at most that to at least 1.
    """
    initial = travelling(net, "static", where="fed_stack_lora")
    nets = by_rank(net, ranks, where="fed_stack_lora")
    if trained := [name for name, layer in adapters(net).items() if bool(layer.lora_b.any())]:
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
        initial=of(MODEL, {name: leaf for name, leaf in initial.items() if name not in idle}),
        predictor=model,
        view=lambda turn: views[turn.size],
        capacity=capacity,
        weight=weighing(by_rows),
        codec=codec,
        link=link,
        reducer=partial(Stack, layers),
        owner="",
    )
