"""The local negative ELBO of a declared model: analytic KL, local reparameterisation.

Source: D-Turbo-VBI (21). With q(rho, s) fixed during the round, the divergence of q(w) is, up to a
constant, ``sum_n <rho_n> (mu_n^2 + sigma_n^2) / 2 - ln sigma_n`` over the active entries. The
expected likelihood is sampled at the layers' outputs rather than at their weights (Kingma, Salimans
and Welling, 2015): the distribution is the same, and a draw for every row costs one more matrix
product instead of a weight matrix for every row. (For convolutions, the distribution is the same at
each position alone: noise is independent between positions, which would share drawn weights.)

Means follow the optimiser. A standard deviation that n active weights share has the optimum
``1 / sigma^2 = (sum <rho> + tr H / T) / n``, with the expected Hessian H of the summed loss and the
temperature T. The gradient tells how far it is, ``dF / d ln sigma = n (sigma^2 / optimum^2 - 1)``:
after each step the precision goes a share of the way there (a natural-gradient step; Khan and Lin,
2017), at any rate of the means.

An inactive entry is exactly zero here: it adds no noise, gets no gradient and is not sent back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Generator, Tensor

from bayesfed.compress import gather_active, scatter_active
from bayesfed.data import Dataset
from bayesfed.inference.objectives.likelihood import Terms, check_data
from bayesfed.inference.objectives.sampled_outputs import sampled_outputs
from bayesfed.inference.turbo.blocks import Blocks, Structured
from bayesfed.inference.turbo.noise import Noise
from bayesfed.models import Declared, SiteBelief
from bayesfed.models.calling import functional_call
from bayesfed.models.likelihoods.rows import temperature_of
from bayesfed.models.modules import tied
from bayesfed.trees import Tree, under

Spread = Literal["shared", "layer", "weight"]
# Kinds of the names of leaves, ``KIND/NAME``: so no name of a parameter meets one of ours.
SHARED, POINT = "shared/sd", "point"
# Share of the way to its optimum that a precision goes after each step, and the longest step of its
# logarithm. A larger share lets sds grow to those of the prior before the first rounds have found
# any curvature, from which networks with convolutions do not recover.
RATE, LONGEST = 0.01, 0.5
# The leaf of a message with the temperature, where it changes from round to round.
TEMPERATURE = "run/temperature"


def spread_leaf(site: str, spread: Spread) -> str:
    """Return the name of the leaf that holds a site's posterior sd."""
    return SHARED if spread == "shared" else f"sd/{site}"


def spread_leaves(sites: Iterable[str], spread: Spread) -> tuple[str, ...]:
    """Return the names of the leaves that hold the posterior sds of all sites."""
    return tuple(dict.fromkeys(spread_leaf(name, spread) for name in sites))


def encode_inclusion(inclusion: Tensor, levels: int = 256) -> Tensor:
    """Return probabilities in [1/2, 1] as bytes.

    Parameters
    ----------
    inclusion
        Probabilities, of any shape.
    levels
        Number of byte values in use, 2 to 256: fewer cost fewer bits where bytes are entropy-coded.
    """
    code = ((inclusion - 0.5) * 2 * (levels - 1)).round().clamp(0, levels - 1)
    return (code * (255 / (levels - 1))).round().to(torch.uint8)


def decode_inclusion(code: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the probabilities that bytes stand for: the inverse of `encode_inclusion`, up to
    rounding.
    """
    return code.to(dtype) / 510 + 0.5


@dataclass(frozen=True)
class MeanFieldElbo:
    """Train q(w) = N(mu, sigma^2) of a declared model; other parameters are points.

    The received message has, for each site NAME: ``mean/NAME`` and ``inclusion/NAME`` (one byte
    each) of the active entries, ``support/NAME`` (booleans), and the sd. With ``prior/NAME`` (one
    number, log-odds) in place of ``inclusion/NAME``, q(s) follows from that and from the means.
    With neither, active entries are active with certainty. The message sent back has the active
    means, the sd (``sd/NAME``, or ``shared/sd``) and the points, ``point/NAME``. A message with
    the leaf ``run/temperature`` has that of its round in
    place of the likelihood's.

    Parameters
    ----------
    declared
        The model: network, sites and likelihood.
    spread
        "shared": one sd for all weights; "layer": one per layer; "weight": one per weight.
    blocks
        How q(rho) follows from q(w) and q(s): clients compute it instead of receiving it.
    use_prior
        Whether the loss includes the divergence; False: the likelihood alone.
    sample
        Whether weights are drawn; False: the likelihood at the mean.
    """

    declared: Declared
    spread: Spread = "shared"
    blocks: Blocks = Structured()
    use_prior: bool = True
    sample: bool = True

    def start(self, message: Tree) -> tuple[Tree, Tree]:
        """Rebuild dense means, masks and precisions; train means, log sds and points."""
        trained, fixed = {}, {}
        for name, site in self.declared.sites.items():
            mask = message[f"support/{name}"]
            mean = scatter_active(message[f"mean/{name}"], mask)
            trained[f"mean/{name}"] = mean
            if not mask.all():
                fixed[f"mask/{name}"] = mask.to(mean.dtype)
            fixed[f"active/{name}"] = mask.sum().to(mean.dtype)
            leaf = spread_leaf(name, self.spread)
            sd = message[leaf]
            if self.spread == "weight":
                sd = torch.where(mask, scatter_active(sd, mask), 1.0)
            trained[leaf] = sd.log()
            belief = SiteBelief(
                mean, sd, torch.full_like(mean, math.inf), *2 * [mean.new_ones(2, 1, 1)]
            )
            if (inclusion := message.get(f"inclusion/{name}")) is not None:
                odds = torch.logit(decode_inclusion(inclusion, mean.dtype))
                belief = replace(belief, log_odds=scatter_active(odds, mask))
            elif (prior := message.get(f"prior/{name}")) is not None:
                # An active entry has q(s) of at least a half.
                own = self.blocks.update(
                    self.blocks.start(belief, site.precision), prior.expand_as(mean), site.precision
                )
                belief = replace(belief, log_odds=own.log_odds.clamp(min=0.0).to(mean))
            precision = self.blocks.start(belief, site.precision).expected_precision
            fixed[f"precision/{name}"] = torch.where(mask, precision, 0.0)
            fixed[f"total/{name}"] = fixed[f"precision/{name}"].sum()
        if TEMPERATURE in message:
            fixed[TEMPERATURE] = message[TEMPERATURE]
        points = {n: leaf.clone() for n, leaf in message.items() if n.startswith(f"{POINT}/")}
        return trained | points, fixed

    def loss(
        self, trained: Tree, fixed: Tree, batch: Dataset, observations: float, noise: Generator
    ) -> Terms:
        """Return the tempered negative ELBO per observation, up to a constant that depends on
        q(rho) and q(s).
        """
        output = self._output(trained, fixed, batch.inputs, noise)
        nll = self.declared.likelihood.loss(output, batch.targets)
        if not self.use_prior:
            return Terms(nll, nll)
        return Terms(
            nll + self.temperature(fixed) / observations * self.divergence(trained, fixed), nll
        )

    def pointwise(self, trained: Tree, fixed: Tree, rows: Dataset, noise: Generator) -> Tensor:
        """Return the log density of every row's target at one draw, ``(B,)``, at temperature 1."""
        return self.declared.likelihood.pointwise(
            self._output(trained, fixed, rows.inputs, noise), rows.targets
        )

    def held(self, trained: Tree) -> AbstractContextManager[None]:
        """Hold nothing: every step makes the weights from means and masks."""
        return nullcontext()

    def divergence(self, trained: Tree, fixed: Tree) -> Tensor:
        """Return ``sum <rho> (mu^2 + sigma^2) / 2 - ln sigma`` over the active entries: the first
        term of (19) up to a constant.
        """
        parts = []
        for name in self.declared.sites:
            mean, log_sd = trained[f"mean/{name}"], trained[spread_leaf(name, self.spread)]
            mask, precision = fixed.get(f"mask/{name}"), fixed[f"precision/{name}"]
            squares, variance = precision.flatten() @ mean.square().flatten(), (2 * log_sd).exp()
            if log_sd.ndim:
                second = (precision * variance).sum()
                logs = (log_sd if mask is None else log_sd * mask).sum()
            else:
                second = fixed[f"total/{name}"] * variance
                logs = log_sd * fixed[f"active/{name}"]
            parts.append((squares + second) / 2 - logs)
        return torch.stack(parts).sum()

    def moved_apart(self, trained: Tree) -> frozenset[str]:
        """Move log sds here, unless they have no optimum: without a prior, or without noise."""
        return (
            frozenset(spread_leaves(self.declared.sites, self.spread))
            if self.use_prior and self.sample
            else frozenset()
        )

    def move(self, trained: Tree, fixed: Tree, observations: float) -> None:
        """Move every precision a share of the way to its optimum; with gradients of a loss that is
        divided by the number of observations.
        """
        owners: dict[str, list[str]] = {}
        for site in self.declared.sites:
            owners.setdefault(spread_leaf(site, self.spread), []).append(site)
        for name in self.moved_apart(trained):
            log_sd = trained[name]
            if (gradient := log_sd.grad) is None:
                continue
            count = (
                1
                if self.spread == "weight"
                else max(1.0, sum(float(fixed[f"active/{site}"]) for site in owners[name]))
            )
            # Target over present precision, less 1. A step in logarithms keeps the sd positive and
            # has no bias by the noise of the draws.
            excess = gradient * observations / (self.temperature(fixed) * count)
            log_sd.sub_((RATE * excess).clamp(-LONGEST, LONGEST) / 2)
            log_sd.grad = None

    def finish(self, trained: Tree, fixed: Tree) -> Tree:
        """Send active means, sds and points."""
        masks = {
            name: fixed[f"mask/{name}"].bool()
            for name in self.declared.sites
            if f"mask/{name}" in fixed
        }
        spreads = spread_leaves(self.declared.sites, self.spread)
        tree = {name: leaf.exp() if name in spreads else leaf for name, leaf in trained.items()}
        for name, site in self.declared.sites.items():
            masks.setdefault(
                name, torch.ones(site.matrix, dtype=torch.bool, device=tree[f"mean/{name}"].device)
            )
        return gather_active(tree, masks)

    def check(self, trained: Tree, fixed: Tree, data: Dataset) -> None:
        """Check the data against the network at its mean."""
        check_data(
            self.declared.net, self.declared.likelihood, self._weights(trained, fixed)[0], data
        )

    def temperature(self, fixed: Tree) -> float | Tensor:
        """Return the likelihood's temperature in this round."""
        return (
            fixed[TEMPERATURE] if TEMPERATURE in fixed else temperature_of(self.declared.likelihood)
        )

    def _output(self, trained: Tree, fixed: Tree, inputs: Tensor, noise: Generator) -> Tensor:
        weights, spreads = self._weights(trained, fixed)
        layers = {
            name: noise
            for name, noise in spreads.items()
            if self.sample and name not in self._shared and noise.at_outputs(self.declared.net)
        }
        for name in (one for one in spreads if self.sample and one not in layers):
            weights[name] = weights[name] + spreads[name].draw(noise)
        with sampled_outputs(
            self.declared.net, {one.site.module: one.variance_of for one in layers.values()}, noise
        ):
            output: Tensor = functional_call(
                self.declared.net, weights, (inputs,), tie_weights=self._tied
            )
        return output

    def _weights(self, trained: Tree, fixed: Tree) -> tuple[Tree, Mapping[str, Noise]]:
        weights, spreads = under(trained, f"{POINT}/"), {}
        for name, site in self.declared.sites.items():
            mean, mask = trained[f"mean/{name}"], fixed.get(f"mask/{name}")
            weights[name] = (mean if mask is None else mean * mask).view(site.shape)
            spreads[name] = Noise(site, trained[spread_leaf(name, self.spread)], mask)
        return weights, spreads

    @cached_property
    def _tied(self) -> bool:
        return bool(self._shared)

    @cached_property
    def _shared(self) -> frozenset[str]:
        return tied(self.declared.net)
