"""Gauss-Newton steps to the maximum of a client's posterior, for a few own parameters.

Where own parameters act through a whole network, gradient steps at the rate of the shared ones
follow too slowly, and the shared ones are trained for a client's parameters of the round before.
With P of them a step costs P + 1 gradients and a ``(P, P)`` system.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bayesfed.algorithms.personal.pooled.posterior import in_widths
from bayesfed.data import Dataset
from bayesfed.inference.laplace.roots import roots
from bayesfed.models import Likelihood
from bayesfed.models.calling import functional_call
from bayesfed.models.likelihoods.rows import temperature_of
from bayesfed.models.modules import evaluating
from bayesfed.trees import Tree, unflat

# Steps, and most that an entry moves in one, in sds of the population.
STEPS, LONGEST = 2, 1.0


def maximum(
    net: nn.Module,
    likelihood: Likelihood,
    shared: Tree,
    own: Tree,
    data: Dataset,
    centre: Tensor,
    sd: Tensor,
) -> Tree:
    """Return own parameters nearer to the maximum of their posterior.

    Parameters
    ----------
    net, likelihood
        Network, and distribution of the targets.
    shared, own
        Shared parameters, and the own ones where the steps begin.
    data
        The client's rows.
    centre, sd
        ``(P,)``, in double precision: mean and widths of the population.
    """
    columns, temperature = roots(likelihood), temperature_of(likelihood)
    # Steps are taken in u with theta = mu + s u, whose prior is N(0, I).
    u = in_widths(own, centre, sd)

    def outputs(u: Tensor) -> Tensor:
        result: Tensor = functional_call(net, shared | unflat(centre + sd * u, own), (data.inputs,))
        return result

    for _ in range(STEPS):
        with evaluating(net), torch.enable_grad():
            at = u.clone().requires_grad_()
            reached = outputs(at)
            # The gradient is linear in the weights of the outputs. Differentiated by them it gives
            # a column of the Jacobian for all rows at once.
            weights = torch.zeros_like(reached, requires_grad=True)
            (weighted,) = torch.autograd.grad(reached, at, weights, create_graph=True)
            rows = torch.stack(
                [torch.autograd.grad(entry, weights, retain_graph=True)[0] for entry in weighted],
                -1,
            ).double()
            reached = reached.detach().double().requires_grad_()
            (slope,) = torch.autograd.grad(
                likelihood.loss(reached, data.targets) * (len(data) / temperature), reached
            )
        root = torch.einsum("bcp,bck->bkp", rows, columns(reached.detach()).double()).flatten(0, 1)
        gradient = torch.einsum("bcp,bc->p", rows, slope) + u
        step = torch.linalg.solve(torch.eye(len(u)).to(root) + root.mT @ root, gradient)
        longest = float(step.abs().max())
        u = u - step * min(1.0, LONGEST / max(longest, LONGEST))
    return unflat(centre + sd * u, own)
