"""A recipe in a file of one's own: FedProx from its parts. `my_prox.toml` names it as ``kind = "my_prox.py:my_prox"``."""

from dataclasses import replace

from torch import nn

import bayesfed as bf
from bayesfed.federated import Algorithm, Descent, Optimiser
from bayesfed.inference import MaximumLikelihood, Proximal


def my_prox(net: nn.Module, *, strength: float, steps: int = 25, optimiser: Optimiser | None = None) -> Algorithm:
    """Train as `fed_avg` does, held to the broadcast model by ``strength / 2 ||w - w_t||^2``."""
    objective = Proximal(MaximumLikelihood(net, bf.Categorical()), strength)
    local = Descent(objective, optimiser or bf.Sgd(0.05), steps, 64)
    plain = bf.fed_avg(net)
    return replace(plain, name="my_prox", phases=tuple(replace(phase, local=local) for phase in plain.phases))
