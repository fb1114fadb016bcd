"""Evidence for weights that are switched off, from a client's own rows.

An inactive entry is zero and is not trained, so its own q(w) says nothing of it. Its evidence is
that of the q(w) which it would have: the local negative ELBO at zero, in the entry alone, is to
second order ``F(w) = F(0) - g w + (h + <rho>) w^2 / 2``, with g and h slope and curvature of the
tempered log likelihood of all rows, and its optimum is

    q(w) = N(g sigma^2, sigma^2),    1 / sigma^2 = h + <rho>.

With a slab of variance ``v = 1 / <rho>``, what is gained on a weight at zero is
``log BF = g^2 v / (2 (1 + h v)) - log(1 + h v) / 2 = (g sigma)^2 / 2 - log(v / sigma^2) / 2``,
which grows with the step ``|g| sigma^2``. The guide's own sigma is the one that the client
received: the optimum of the sds has the same form (`bayesfed.inference.turbo.elbo`), so that no
pass for curvatures is needed. From ``E[w^2] = (g sigma^2)^2 + sigma^2`` the evidence follows as for
any other entry, by `support_evidence`, and is in the same units.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bayesfed.data import Dataset
from bayesfed.inference.turbo.elbo import MeanFieldElbo, spread_leaf
from bayesfed.keys import Key
from bayesfed.models.modules import evaluating
from bayesfed.trees import Tree

# Rows of a client from which slopes are computed.
ROWS = 512


def steps_from_zero(
    objective: MeanFieldElbo, message: Tree, data: Dataset, observations: float, key: Key
) -> Tree:
    """Return the mean ``g sigma^2`` that every inactive entry would have, zero at active ones, by
    site, ``(M, N)``; from at most 512 rows, at the means of a message.

    Parameters
    ----------
    objective
        The model and how its posterior is read from a message.
    message
        What the client received.
    data
        The client's rows, at least one.
    observations
        Number of rows for which they stand.
    key
        Key of the rows that are used.
    """
    plain, sites = replace(objective, sample=False), objective.declared.sites
    trained, fixed = plain.start(message)
    # A mask would hide the slopes; inactive means are zero without it.
    masks = {name: fixed.pop(f"mask/{name}") for name in sites if f"mask/{name}" in fixed}
    result = {name: torch.zeros_like(trained[f"mean/{name}"]) for name in sites}
    if not masks:
        return result
    means = [trained[f"mean/{name}"].requires_grad_() for name in masks]
    rows = data[torch.randperm(len(data), generator=key.generator())[:ROWS]]
    with evaluating(plain.declared.net):
        likely = plain.pointwise(trained, fixed, rows, key.generator(rows.inputs.device)).mean()
    slopes = torch.autograd.grad(likely, means, materialize_grads=True)
    for (name, mask), slope in zip(masks.items(), slopes, strict=True):
        variance = (2 * trained[spread_leaf(name, plain.spread)]).exp()
        if variance.ndim:
            # Nobody trained the sds of inactive entries.
            variance = variance[mask > 0].mean()
        step = slope * observations / plain.temperature(fixed) * variance
        result[name] = torch.where(mask > 0, 0.0, step)
    return result


def largest(steps: Tensor, count: int) -> Tensor:
    """Return a tensor without all but its `count` largest entries by magnitude."""
    result = torch.zeros_like(steps)
    chosen = steps.abs().flatten().topk(min(count, steps.numel())).indices
    result.view(-1)[chosen] = steps.flatten()[chosen]
    return result


def ternary(steps: Tensor, count: int) -> Tensor:
    """Return the signs of the `count` largest entries, times the mean of their magnitudes."""
    kept = largest(steps, count)
    return kept.sign() * kept.abs().sum() / kept.count_nonzero().clamp(min=1)
