"""Evidence for weights that are switched off, from a client's own rows.

An inactive entry is zero and is not trained, so its own q(w) says nothing of it. Its evidence is
that of the q(w) which it would have. In the entry alone, the local negative ELBO at zero is, to
second order and up to a constant, ``-g w + (h + 1 / v) w^2 / 2`` under a slab of variance v, with g
and h slope and curvature of the tempered log likelihood of all rows, so that

    log BF = g^2 v / (2 (1 + h v)) - log(1 + h v) / 2

speaks for the slab. Its first term is ``z^2 / 2`` with ``z = g / sqrt(h + 1 / v)``, which without
a prior is the score statistic. Under the guide, where active entries have an sd sigma, one with
mean mu has ``mu^2 / (2 sigma^2)`` in its place. An inactive entry is therefore judged as one with
the mean ``z sigma``, by `support_evidence` as any other, and in the same units. Where sigma is the
entry's own optimum, ``1 / sigma^2 = h + 1 / v``, this is the optimum ``g sigma^2`` there.

h is the sum of squared slopes of rows (the empirical Fisher information). A linear layer has it
without a slope for each row, as the squares of its inputs times those of the slopes at its outputs;
for convolutions positions count apart. Other layers take ``h + 1 / v = 1 / sigma^2``.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bayesfed.data import Dataset
from bayesfed.inference.objectives.sampled_outputs import through
from bayesfed.inference.turbo.elbo import MeanFieldElbo, spread_leaf
from bayesfed.keys import Key
from bayesfed.models.modules import evaluating, passing
from bayesfed.trees import Tree

# Rows of a client from which slopes are computed.
ROWS = 512


def steps_from_zero(
    objective: MeanFieldElbo, message: Tree, data: Dataset, observations: float, key: Key
) -> Tree:
    """Return the mean ``z sigma`` that stands for the evidence of every inactive entry, zero at
    active ones, by site, ``(M, N)``; from at most 512 rows, at the means of a message.

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
    net, means = plain.declared.net, [trained[f"mean/{name}"].requires_grad_() for name in masks]
    rows = data[torch.randperm(len(data), generator=key.generator())[:ROWS]]
    paths = {name: sites[name].module for name in masks if sites[name].rows_are_outputs(net)}
    with evaluating(net), passing(net, paths.values()) as seen:
        likely = plain.pointwise(trained, fixed, rows, key.generator(rows.inputs.device)).sum()
    dense = {name: seen[path][0] for name, path in paths.items() if len(seen[path]) == 1}
    outputs = [output for _, output in dense.values()]
    slopes = torch.autograd.grad(likely, [*means, *outputs], materialize_grads=True)
    scale = observations / len(rows) / plain.temperature(fixed)
    at_outputs = dict(zip(dense, slopes[len(means) :], strict=True))
    for (name, mask), slope in zip(masks.items(), slopes, strict=False):
        site, sd = sites[name], trained[spread_leaf(name, plain.spread)].exp()
        # Nobody trained the sds of inactive entries.
        sd = sd[mask > 0].mean() if sd.ndim else sd
        width = sd
        if name in dense:
            layer, (inputs, _) = net.get_submodule(paths[name]), dense[name]
            unit = torch.zeros(site.shape).to(slope).requires_grad_()
            variance = through(layer, inputs.square(), unit)
            (squares,) = torch.autograd.grad(variance, unit, at_outputs[name].square())
            slab = site.precision.shapes[1] / site.precision.rates[1]
            width = (scale * squares.view(site.matrix) + slab).rsqrt()
        result[name] = torch.where(mask > 0, 0.0, scale * slope * width * sd)
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
