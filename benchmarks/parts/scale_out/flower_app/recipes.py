"""What benchmarks/parts/scale_out/flower.py runs: three recipes on handwritten digits over three
clients.
"""

from __future__ import annotations

import functools
import os

import bayesfed as bf
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.flower import Experiment

CLIENTS = 3
ROUNDS = int(os.environ.get("PARITY_ROUNDS", "4"))
STEPS, BATCH, RATE = 20, 16, 0.05


@functools.cache
def clients() -> dict[str, bf.Dataset]:
    """Return the digits over three clients."""
    train, _ = bf.digits()
    return bf.federate(train, bf.dirichlet(train.targets, CLIENTS, 0.5, bf.Key(0, "partition")))


def of(algorithm: Algorithm) -> Experiment:
    """Return the experiment of a recipe."""
    return Experiment(algorithm=algorithm, data=lambda client: clients()[client], rounds=ROUNDS)


def fed_avg() -> Experiment:
    """Return plain averaging, float32."""
    training = bf.Training(steps=STEPS, batch_size=BATCH, optimiser=bf.Sgd(RATE))
    return of(
        bf.fed_avg(bf.mlp([64, 64, 10], bf.Key(0, "net")), training=training, codec=bf.Cast(32))
    )


def d_turbo_vbi() -> Experiment:
    """Return the clustered-sparse posterior."""
    declared = bf.declare(
        bf.mlp([64, 64, 10], bf.Key(0, "net")), likelihood=bf.Categorical(temperature=0.2)
    )
    return of(
        bf.d_turbo_vbi(
            declared,
            observations=sum(map(len, clients().values())),
            training=bf.Training(steps=STEPS, batch_size=BATCH),
        )
    )


def fs_lora() -> Experiment:
    """Return sketched adapters of three sizes."""
    net = bf.lora(bf.mlp([64, 64, 10], bf.Key(0, "net")), 4, bf.Key(0, "lora"))
    return of(
        bf.fs_lora(
            net,
            [4, 2, 1],
            bf.federated.dynamic(3),
            training=bf.Training(steps=STEPS, batch_size=BATCH, optimiser=bf.Adam(0.01)),
        )
    )
