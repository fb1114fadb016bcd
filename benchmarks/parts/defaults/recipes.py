"""Every recipe of README's table that trains, with nothing but the arguments that it cannot do
without, on digits and on a table of numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

import bayesfed as bf
from bayesfed import algorithms as shipped
from bayesfed.algorithms.wrappers.on_devices import Planner
from bayesfed.compress.budgets import fit_flexible
from bayesfed.federated.aggregation.server_optimisers import FedAvgM
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.models import channel_graph, shrunk_shares
from bayesfed.trees import parameters
from bayesfed.wireless.devices import Device


class Problem(NamedTuple):
    """Clients, each one's held-out rows, and how long methods train."""

    clients: Mapping[str, bf.Dataset]
    scored: Mapping[str, bf.Dataset]
    rounds: int
    seed: int

    @property
    def key(self) -> bf.Key:
        """Names what is drawn."""
        return bf.Key(self.seed, "defaults")

    @property
    def rows(self) -> int:
        """How many rows are trained on."""
        return sum(map(len, self.clients.values()))

    @property
    def example(self) -> bf.Dataset:
        """A few rows of a client, for methods that look at what a network takes."""
        return next(iter(self.clients.values()))[:3]

    def net(self, width: int = 64, number: int = 0, dropout: float = 0.0) -> nn.Module:
        """Return a perceptron of three hidden layers."""
        features = self.example.inputs[0].numel()
        classes = 1 + max(int(part.targets.max()) for part in self.clients.values())
        widths = [features, width, width, width, classes]
        return bf.mlp(widths, self.key.child(number), dropout=dropout)

    def capacity(self) -> bf.federated.Capacity:
        """Return two sizes, dealt once."""
        return bf.fixed(sorted(self.clients), 2)


# Those that begin with a network that is trained already.
ADAPTERS = ("fed_lora", "ffa_lora", "hetero_lora", "flex_lora", "fed_stack_lora", "fs_lora")


def recipes(given: Problem, trained: nn.Module) -> dict[str, Callable[[], Algorithm]]:
    """Return what makes each.

    Parameters
    ----------
    given
        The problem.
    trained
        The network after FedAvg's rounds, for adapters.
    """
    net, capacity = given.net, given.capacity()
    fed_avg = bf.fed_avg(net())
    plain = [
        *("fed_avg", "scaffold", "fed_nova", "fed_pa", "stc", "qsgd", "fed_paq", "uveqfed"),
        *("dssm", "fed_mid", "fed_l1", "fed_prune", "fed_be", "beta_pred_bayes", "fed_per"),
        *("fed_babu", "p_fed_bayes", "pooled"),
    ]
    found: dict[str, Callable[[], Algorithm]] = {
        name: partial(getattr(shipped, name), net()) for name in plain
    }
    found |= {
        name: partial(getattr(shipped, name), net(), strength=strength)
        for name, strength in (("fed_prox", 0.01), ("fed_dyn", 0.01), ("ditto", 0.1))
    }
    adapted = bf.lora(trained, 8, given.key.child("lora"))
    for name in ADAPTERS:
        unlike = {} if name in ADAPTERS[:2] else {"ranks": [8, 4], "capacity": capacity}
        found[name] = partial(getattr(shipped, name), adapted, **unlike)
    looked: dict[str, Any] = {"observations": given.rows, "example": given.example}
    sample = given.example.inputs[:1]
    return found | {
        "federated_svi": lambda: bf.federated_svi(bf.bayesian(net()), **looked),
        "d_turbo_vbi": lambda: bf.d_turbo_vbi(bf.declare(net()), observations=given.rows),
        "laplace": lambda: bf.laplace(fed_avg),
        "ensemble": lambda: bf.ensemble([bf.fed_avg(net(number=one)) for one in range(2)]),
        "swag": lambda: bf.swag(fed_avg, begin=given.rounds // 2),
        "mc_dropout": lambda: bf.mc_dropout(bf.fed_avg(net(dropout=0.1))),
        "server_optimised": lambda: bf.server_optimised(fed_avg, FedAvgM()),
        "fed_hm": lambda: bf.fed_hm(net(), [1, 1 / 8], capacity),
        "hetero_fl": lambda: shipped.hetero_fl([net(), net(32)], capacity),
        "split_mix": lambda: shipped.split_mix(
            lambda key: given.net(32, int(torch.randint(99, (), generator=key.generator()))),
            [3, 1],
            capacity,
            key=given.key,
        ),
        "anycost_fl": lambda: bf.anycost_fl(net(), sample, deadline_s=5.0),
        "on_devices": lambda: bf.on_devices(bf.stc(net()), planner(given)),
        "fed_hq": lambda: shipped.fed_hq(
            net(), planner(given), fit_flexible([parameters(net())], given.key, shares=(1.0,))
        ),
        "fed_rlr": lambda: bf.fed_rlr(net(), {"1": 8, "3": 8, "5": 8}),
        "personalised": lambda: bf.personalised(fed_avg),
        "robust": lambda: bf.robust(fed_avg, bf.federated.Median()),
    }


def planner(given: Problem) -> Planner:
    """Return one of the whole network, and of a quarter of the bits."""
    net, sample = given.net(), given.example.inputs[:1]
    shares = shrunk_shares(net, channel_graph(net, sample), sample, [1.0])
    return Planner(tuple(shares), 5.0, (1 / 15, 1.0))


def devices(given: Problem) -> Mapping[str, Device]:
    """Return the fleet of AnycostFL's paper."""
    return bf.fleet(sorted(given.clients), given.key)
