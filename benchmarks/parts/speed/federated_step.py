"""What a federated SVI step costs beside Pyro's own `SVI.step`, with the same AutoNormal, model,
rows and optimiser.

    python benchmarks/speed.py --only federated_step [--check]

A client's whole `fit` of 100 steps, tilting, parameter scoping, averaging and all, against 100
calls of `SVI.step`; one thread. The regression has 8 weights and 400 rows, so that nothing but
overhead is measured; the network is an MLP 64-32-10 under Gaussian priors, 64 rows.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from functools import partial

import pyro
import torch
from parts.fidelity.problems import linear, linear_model, pooled
from parts.shared.targets import interleaved, ratio, target
from pyro import optim
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal

import bayesfed as bf
from bayesfed.federated import published
from bayesfed.inference.variational.fusion import Fusion

STEPS, RATE = 100, 0.01
RULES: dict[str, Fusion] = {
    "plain": bf.inference.MeanParameters(),
    "summed gradients": bf.SummedGradients(),
    "PVI": bf.PVI(damping=0.5),
}


def targets(options: argparse.Namespace) -> Iterator[bool]:
    """Measure and print; yield whether each target is met."""
    check = options.check
    torch.set_num_threads(1)
    train, _ = bf.digits()
    net = bf.bayesian(bf.mlp([64, 32, 10], bf.Key(0, "net")), bf.Gaussian(0.5))
    for name, model, data in (
        ("regression", linear_model, pooled(linear(0, 1, "iid"))),
        ("network", net, train[:64]),
    ):
        work: dict[str, Callable[[], object]] = {"Pyro": own(model, data)} | {
            rule: federated(model, data, fusion) for rule, fusion in RULES.items()
        }
        seconds = interleaved(work, 15 if check else 60)
        for rule, values in seconds.items():
            print(
                f"{name:<11} {rule:<17} median "
                f"{1e3 * statistics.median(values) / STEPS:6.3f} ms a step"
            )
        for rule in RULES:
            yield target(
                f"{name}, {rule} / Pyro's SVI step", ratio(seconds[rule], seconds["Pyro"]), 1.1
            )


def own(model: Callable[..., object], data: bf.Dataset) -> Callable[[], None]:
    """Return 100 of Pyro's steps."""
    pyro.clear_param_store()
    svi = SVI(
        model, AutoNormal(model), optim.PyroOptim(torch.optim.Adam, {"lr": RATE}), Trace_ELBO()
    )

    def steps() -> None:
        for _ in range(STEPS):
            svi.step(data.inputs, data.targets)

    return steps


def federated(
    model: Callable[..., object], data: bf.Dataset, fusion: Fusion
) -> Callable[[], object]:
    """Return a client's round, its cavity in place: the client holds half of the
    federation's rows.
    """
    algorithm = bf.federated_svi(
        model,
        AutoNormal,
        fusion=fusion,
        scale="local",
        observations=2 * len(data) if fusion.adds else len(data),
        example=data[:3],
        training=bf.Training(steps=STEPS, batch_size=None, optimiser=bf.Adam(RATE)),
    )
    phase = algorithm.phases[0]
    core, _ = phase.scope.parted(algorithm.initial)
    message = published(phase.server, core, 0, None)
    share = 0.5 if fusion.adds else 1.0
    return partial(
        phase.local.fit,
        message,
        {},
        data,
        bf.Key(0, "step"),
        bf.federated.LocalOptions(share=share),
    )
