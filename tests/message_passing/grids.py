"""Grids for tests of message passing: evidence, couplings, and sums over every state."""

import itertools
import math

import torch

from bayesfed.keys import Key
from bayesfed.models import Grid, Link


def normal(*shape, name="evidence", scale=2.0):
    return scale * torch.randn(*shape, generator=Key(0, name).generator(), dtype=torch.float64)


def stay(p):
    coupling = 2 * math.log(p / (1 - p))
    return Link(coupling, -coupling / 2, -coupling / 2)


def enumerate_all(model, evidence):
    """Return exact log Z, probabilities and the probability that each ordered pair of variables is
    on, by summing over every state.
    """
    count = evidence.numel()
    states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=count)), dtype=torch.float64)
    logs = model.energy(states.reshape(-1, *model.shape)).double() + states @ evidence.reshape(-1)
    weights = torch.softmax(logs, 0)
    return (
        torch.logsumexp(logs, 0),
        (weights @ states).reshape(evidence.shape),
        torch.einsum("s,si,sj->ij", weights, states, states),
    )


def uneven(size):
    return Grid(
        size,
        Link(1.3, 0.2, -0.5),
        Link(normal(size[0] - 1, size[1], name="columns", scale=1.0)),
        normal(*size, name="field", scale=0.5),
    )
