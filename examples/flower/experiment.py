"""What examples/flower/run.py runs: handwritten digits over three wards; server and clients load
this file alike.
"""

from __future__ import annotations

import os

import bayesfed as bf
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.flower import Experiment

WARDS = ("ward-a", "ward-b", "ward-c")


def data(client: str) -> bf.Dataset:
    """Return a ward's rows; a real one reads its own files."""
    train, _ = bf.digits()
    return train[
        bf.dirichlet(train.targets, len(WARDS), 0.5, bf.Key(0, "partition"))[WARDS.index(client)]
    ]


def of(algorithm: Algorithm) -> Experiment:
    """Return the experiment of a method."""
    return Experiment(
        algorithm=algorithm,
        data=data,
        rounds=int(os.environ.get("ROUNDS", "5")),
        test=lambda: bf.digits()[1],
    )


def d_turbo_vbi() -> Experiment:
    """Return a clustered-sparse posterior."""
    declared = bf.declare(
        bf.mlp([64, 64, 10], bf.Key(0, "net")), likelihood=bf.Categorical(temperature=0.05)
    )
    return of(
        bf.d_turbo_vbi(
            declared,
            observations=len(bf.digits()[0]),
            training=bf.Training(steps=25, optimiser=bf.Adam(5e-3)),
        )
    )


def fed_avg() -> Experiment:
    """Return plain averaging."""
    return of(
        bf.fed_avg(
            bf.mlp([64, 64, 10], bf.Key(0, "net")),
            training=bf.Training(steps=25, optimiser=bf.Adam(5e-3)),
        )
    )
