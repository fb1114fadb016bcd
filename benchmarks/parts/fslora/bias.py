"""What a sketch costs and what it biases, by measurement and by shape: parts of `fslora.py` on
images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from parts.fslora.image_runs import Place, Settings, adapted, task_of
from torch import Tensor, nn

import bayesfed as bf
from bayesfed.algorithms.lora.sketches import Slices
from bayesfed.federated import Profile
from bayesfed.federated.core import MODEL, owned
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.models import Drawn, adapters, resized
from bayesfed.trees import Tree, shapes

SMALL, PARTITIONS, BEGUN = 8, 8, 4
# By shape: a BERT-base, queries and values adapted.
LAYERS, WIDTH, WORDS = 12, 768, 30522


@dataclass(frozen=True)
class Figure:
    """A figure of a client with few slices and of one with all; `counts` if there is a target on
    the ratio.
    """

    small: float
    whole: float
    counts: bool

    @property
    def ratio(self) -> float:
        """The small client's share."""
        return self.small / self.whole

    def row(self, name: str) -> list[str | float | int]:
        """Return a line of a table."""
        return [name, f"{self.small:,.4g}", f"{self.whole:,.4g}", f"{self.ratio:.3f}"]


def biases(settings: Settings, place: Place) -> Iterator[tuple[str | float | int, ...]]:
    """Yield mode, optimiser, steps, and distance, cosine and length of the mean update against that
    of whole adapters.

    The client's batches are the same in all fits. Sets of slices are the parts of random
    partitions, so that every slice is drawn equally often, and what is left is no sampling error.
    """
    task = task_of(settings, place)
    clients = task.clients(settings, 0)
    net = adapted(settings, 0, task.net)
    work = bf.Training(
        settings["steps"], settings["batch_size"], bf.Adam(settings["learning_rate"])
    )
    begun = bf.run(bf.fed_lora(net, training=work), clients, rounds=BEGUN, progress=False)
    state = owned(begun.snapshot.state, MODEL)
    data = max(clients.values(), key=len)
    for anchored in (False, True):
        for name, optimiser in (
            ("SGD", bf.Sgd(0.01)),
            ("Adam", bf.Adam(settings["learning_rate"])),
        ):
            for steps in (1, settings["steps"]):
                training = bf.Training(steps, settings["batch_size"], optimiser)
                make = partial(
                    bf.fs_lora,
                    net,
                    capacity=lambda profile, round, key: 0,
                    training=training,
                    anchored=anchored,
                    sampling="uniform",
                    broadcast=True,
                )
                whole = _update(make([settings["rank"]]), state, data, None)
                parts = [
                    _update(make([SMALL]), state, data, view)
                    for view in _views(net, state, named=anchored)
                ]
                mean = torch.stack(parts).mean(0)
                along = mean @ whole / (mean @ mean)
                distance, cosine = (
                    (along * mean - whole).norm() / whole.norm(),
                    mean @ whole / (mean.norm() * whole.norm()),
                )
                figures = [
                    f"{float(value):.3f}"
                    for value in (distance, cosine, mean.norm() / whole.norm())
                ]
                yield ("anchored" if anchored else "printed", name, steps, *figures)


def _views(net: nn.Module, state: Tree, *, named: bool) -> Iterator[Slices]:
    layers = sorted(adapters(net))
    rank = adapters(net)[layers[0]].rank
    for number in range(PARTITIONS):
        orders = {
            name: torch.randperm(rank, generator=bf.Key(0, "partition", number, name).generator())
            for name in layers
        }
        for part in range(rank // SMALL):
            chosen = {
                name: order[part * SMALL : (part + 1) * SMALL].sort().values
                for name, order in orders.items()
            }
            drawn = {name: Drawn(indices, torch.ones(SMALL)) for name, indices in chosen.items()}
            yield Slices(drawn, shapes(state), broadcast=True, named=named)


def _update(algorithm: Algorithm, state: Tree, data: bf.Dataset, view: Slices | None) -> Tensor:
    """Return a client's change of the adapters, zeros where it has no slices, as one vector."""
    phase, profile = algorithm.phases[0], Profile("client", len(data))
    own: Any = phase.assign(state, 0, profile, bf.Key(0, "assign"))
    sent = view or own.view
    fit = phase.local.fit(
        sent.restrict(state),
        {},
        data,
        bf.Key(0, "fit"),
        bf.federated.LocalOptions(),
    )
    change = view.lift(fit.payload, 1.0, "delta").total if view else fit.payload
    return torch.cat(
        [leaf.flatten() for name, leaf in sorted(change.items()) if "lora" in name]
    ).double()


def shares(settings: Settings, place: Place) -> dict[str, Figure]:
    """Return what clients of the task hold and compute."""
    return _figures(adapted(settings, 0, task_of(settings, place).net), "196-256-256-10")


def large(settings: Settings) -> dict[str, Figure]:
    """Return what clients of a network of 10^8 parameters hold and compute."""
    block = {
        "query": (WIDTH, WIDTH),
        "key": (WIDTH, WIDTH),
        "value": (WIDTH, WIDTH),
        "output": (WIDTH, WIDTH),
    }
    block |= {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    layers = [
        nn.ModuleDict({name: nn.Linear(*sizes) for name, sizes in block.items()})
        for _ in range(LAYERS)
    ]
    net = nn.Sequential(nn.Embedding(WORDS, WIDTH), *layers, nn.Linear(WIDTH, 2))
    count = sum(leaf.numel() for leaf in net.parameters())
    made = bf.lora(
        net, settings["rank"], bf.Key(0, "lora"), where=_query_or_value, head=[str(len(layers) + 1)]
    )
    return _figures(made, f"{count / 1e6:.0f} million parameters", head=True)


def _query_or_value(name: str, module: nn.Module) -> bool:
    return name.split(".")[-2] in ("query", "value") and name.endswith("weight")


def _figures(whole: nn.Module, said: str, *, head: bool = False) -> dict[str, Figure]:
    """Return figures of adapters; those with the head count where it is small beside them."""
    small = resized(whole, SMALL)

    def pair(figure: str, counts: bool, of: Callable[[nn.Module], float]) -> dict[str, Figure]:
        return {f"{said}, {figure}": Figure(of(small), of(whole), counts)}

    def macs(net: nn.Module) -> float:
        return float(
            sum(layer.lora_b.numel() + layer.lora_a.numel() for layer in adapters(net).values())
        )

    def trained(net: nn.Module) -> float:
        return float(sum(leaf.numel() for leaf in net.parameters() if leaf.requires_grad))

    # 32-bit weights, gradients, and Adam's two moments.
    return {
        **pair("adapters' multiply-accumulates a row", True, macs),
        **pair(
            "weights, gradients and moments of adapters, MB", True, lambda net: 16 * macs(net) / 1e6
        ),
        **pair("the same with the head, MB", head, lambda net: 16 * trained(net) / 1e6),
        **pair("up a round, MB", head, lambda net: 4 * trained(net) / 1e6),
    }
