"""What tests of FedRLR share: runs, dense states, points, a local step."""

import torch

import bayesfed as bf
from bayesfed.algorithms.fed_rlr import RiemannianSgd
from bayesfed.algorithms.fed_rlr.local import free
from bayesfed.federated import rounds
from bayesfed.federated.core.owners import owned
from bayesfed.geometry import (
    metric_retraction,
    orthographic_retraction,
    to_dense,
)
from bayesfed.models.low_rank.fixed_rank import points

WORK = bf.Training(steps=3, batch_size=16, optimiser=bf.Sgd(0.05))


ALL = [
    bf.algorithms.Tangents(),
    bf.algorithms.Tangents(orthographic_retraction),
    bf.algorithms.Factors(),
    bf.algorithms.Factors("orthogonal"),
    bf.algorithms.Factors("none"),
    bf.algorithms.Points(),
]


def doubled(clients):
    return {name: bf.Dataset(data.inputs.double(), data.targets) for name, data in clients.items()}


def full_ranks(net):
    return {
        name: min(weight.shape[0], weight[0].numel()) for name, weight in dense_weights(net).items()
    }


def dense_weights(net):
    return {
        name.removesuffix(".weight"): value
        for name, value in net.named_parameters()
        if value.ndim > 1
    }


def dense_state(state):
    state = owned(state, "model")
    return {name: to_dense(point) for name, point in points(state).items()} | free(state)


def final(algorithm, clients, count=2, **run):
    pool = clients if isinstance(clients, bf.InProcess) else bf.InProcess(clients)
    return list(rounds(algorithm, pool, rounds=count, **run))[-1]


class Spy:
    """The metric retraction, which writes down where it was asked to go."""

    def __init__(self):
        self.asked = []

    def __call__(self, point, tangent):
        self.asked.append((point, tangent))
        return metric_retraction(point, tangent)


def rlr_local(net, retraction=metric_retraction, **changes):
    arguments = {
        "transmission": bf.algorithms.Tangents(),
        "learning_rate": 0.1,
        "steps": 1,
        "batch_size": 16,
        "reset": False,
    }
    return RiemannianSgd(net, bf.Categorical(), **{**arguments, **changes}, retraction=retraction)


def regressions(count=4, rows=40):
    found = {}
    for number in range(count):
        generator = bf.Key(number, "regression").generator()
        x, w = (
            torch.randn(rows, 12, generator=generator).double(),
            torch.randn(12, 8, generator=generator).double(),
        )
        found[f"c{number}"] = bf.Dataset(
            x, x @ w + 0.1 * torch.randn(rows, 8, generator=generator).double()
        )
    return found


def regression_net():
    return bf.mlp([12, 8], bf.Key(0, "net")).double()


SETTINGS = {
    "default": {},
    "paper": {"transmission": bf.algorithms.Factors(), "reset": False, "consensus": 0.1},
    "paper on the air": {
        "transmission": bf.algorithms.Factors("orthogonal"),
        "reset": False,
        "consensus": 0.1,
        "link": bf.OverTheAir(bf.wireless.Gbma("product"), snr_db=25.0),
    },
    "own tangents": {"reset": False, "consensus": 0.1},
    "points": {"transmission": bf.algorithms.Points(), "reset": False},
    "air": {"link": bf.OverTheAir(snr_db=25.0, estimate_variance=0.1)},
}
