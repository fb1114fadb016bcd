"""Calibration of a Bayesian network on real digits for `fidelity.py`: ten clients of like or unlike
digits beside all rows in one place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from parts.shared.targets import target
from pyro.infer.autoguide import AutoNormal, init_to_value

import bayesfed as bf
from bayesfed.inspect.tables import table

ALPHAS, CLIENTS, STEPS, ROUNDS, SEED = (0.1, 1.0, 100.0), 10, 2, 60, 0
CENTRAL = "centralised"
Scores = Mapping[str, float]


def fitted(alpha: float | str) -> dict[str, float]:
    """Return test scores of an MLP 64-32-10 under N(0, 0.5^2) weights, fitted by summed gradients.

    A round's step of the server averages as many minibatches whether ten clients or one sent them.
    """
    torch.set_num_threads(1)
    train, test = bf.digits()
    net = bf.mlp([64, 32, 10], bf.Key(SEED, "net"))
    start = {name: value.detach() for name, value in net.named_parameters()}
    if isinstance(alpha, str):
        clients, steps = {"all": train}, CLIENTS * STEPS
    else:
        clients, steps = (
            bf.federate(
                train, bf.dirichlet(train.targets, CLIENTS, alpha, bf.Key(SEED, "partition"))
            ),
            STEPS,
        )
    algorithm = bf.federated_svi(
        bf.bayesian(net, bf.Gaussian(0.5)),
        partial(AutoNormal, init_scale=0.05, init_loc_fn=init_to_value(values=start)),
        fusion=bf.SummedGradients(0.03),
        scale="local",
        observations=len(train),
        example=train[:2],
        training=bf.Training(steps=steps, batch_size=64),
    )
    return bf.run(algorithm, clients, rounds=ROUNDS, seed=SEED, progress=False).scores(test)["all"]


def digits(found: Mapping[float | str, Scores], alphas: Sequence[float] = ALPHAS) -> bool:
    """F10: print the scores; at Dirichlet 100 the federated network is the centralised one, within
    a point, 5 % of its NLL and 0.01 of its ECE.
    """
    columns = ("accuracy", "nll", "ece")
    fits: list[float | str] = [*alphas, CENTRAL]
    print(
        table(
            ["digits, Dirichlet", *columns],
            [[str(fit), *(found[fit][name] for name in columns)] for fit in fits],
        )
    )
    alike, central = found[100.0], found[CENTRAL]
    return min(
        [
            target(
                "F10 digits at 100, points of accuracy from the centralised",
                100 * abs(alike["accuracy"] - central["accuracy"]),
                1,
            ),
            target(
                "F10 digits at 100, relative distance of NLL",
                abs(alike["nll"] / central["nll"] - 1),
                0.05,
            ),
            target("F10 digits at 100, distance of ECE", abs(alike["ece"] - central["ece"]), 0.01),
        ]
    )
