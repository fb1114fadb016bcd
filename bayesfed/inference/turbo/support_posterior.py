"""`DeclaredPosterior`, the posterior of a declared model after a run: draws and predictions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pyro import poutine
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.nn.functional import logsigmoid

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import check, checked, one_of
from bayesfed.keys import Key, forked
from bayesfed.models import Belief, Declared, guide
from bayesfed.models.calling import functional_call
from bayesfed.models.modules import evaluating
from bayesfed.models.random_fields.clusters import spread
from bayesfed.models.random_fields.whole import reads
from bayesfed.trees import Tree, to


@dataclass(frozen=True)
class DeclaredPosterior:
    """``q(w) q(s) q(rho | s)`` of every site, and the points.

    Draws come from the whole guide. Predictions use the transmitted model: an entry with q(s) <=
    1/2 is zero, as it was in training.

    Parameters
    ----------
    declared
        The model: network, sites and likelihood.
    belief
        Belief by site.
    points
        Parameters that belong to no site, by name.
    """

    declared: Declared
    belief: Belief
    points: Tree

    @checked()
    def draw(self, key: Key) -> Tree:
        """Return one draw of every site: ``SITE.w``, ``SITE.s``, ``SITE.rho``, each ``(M, N)``."""
        return self._values(self._trace(key))

    def draw_with_densities(self, key: Key) -> tuple[Tree, Tree]:
        """Return a draw, and ``log_q`` in nats. The prior's density is known up to the constant of
        coupled supports only.
        """
        trace = self._trace(key)
        return self._values(trace), {"log_q": trace.log_prob_sum()}

    def _trace(self, key: Key) -> Any:
        with forked(key):
            return poutine.trace(guide).get_trace(self.belief)

    def _values(self, trace: Any) -> Tree:
        values: dict[str, Any] = {
            name: node["value"] for name, node in trace.nodes.items() if node["type"] == "sample"
        }
        return values

    @checked()
    def predict(self, draw: Tree, inputs: Tensor) -> Tensor:
        """Return the network's outputs at one draw, in evaluation mode.

        Raises
        ------
        ArgumentError
            If the draw is no mapping of tensors, or the inputs are no tensor.
        """
        weights = {
            name: torch.where(site.active, draw[f"{name}.w"], 0.0).view(
                self.declared.sites[name].shape
            )
            for name, site in self.belief.items()
        }
        with torch.no_grad(), evaluating(self.declared.net):
            output: Tensor = functional_call(
                self.declared.net, to({**self.points, **weights}, inputs.device), (inputs,)
            )
        return output

    @checked()
    def draw_prior(self, key: Key) -> Tree:
        """Return an empty tree: draws of coupled supports would need a Markov chain."""
        return {}

    def observe(self, draw: Tree, inputs: Tensor, key: Key) -> TorchDistribution:
        """Return the distribution of the targets at one draw, temperature 1, batch ``(B,)``."""
        return self.declared.likelihood.distribution(self.predict(draw, inputs))

    @checked()
    def inputs(self, names: Sequence[str] = (), *, site: str = "") -> dict[str, float]:
        """Return the posterior probability that each input of a layer is used: that one of the
        weights that read it is active, at least.

        With `Inputs` as support, all of an input's weights share one variable, whose probability
        this is. Other supports have as many chances for an input as it has weights, so that nearly
        all inputs are likely to be used.

        Parameters
        ----------
        names
            Names of the inputs, in their order. Default: their numbers, "0", "1", ....
        site
            Name of the layer's weight, as in `belief`. Default: that of the first layer.

        Raises
        ------
        ArgumentError
            If there is no such site, or not one name for each input.
        """
        site = site or next(iter(self.belief))
        check("inputs, site", site, one_of(sorted(self.belief)))
        of = self.declared.sites[site]
        unit = reads(self.declared.net.get_submodule(of.module), of.shape)
        count = math.prod(of.matrix) // math.prod(unit)
        names = names or [str(number) for number in range(count)]
        if not len({*names}) == len(names) == count:
            found, hint = f"{len({*names})} of {len(names)}", "no names, or a list of the columns'"
            raise ArgumentError("inputs, names", f"{count}, all distinct", found, hint)
        index = spread(torch.arange(count), unit, of.matrix).flatten()
        # The entries of an input that share a variable count as one.
        variable = torch.arange(len(index))
        if of.clusters:
            variable = spread(variable[: of.clusters.count], of.clusters.unit, of.matrix).flatten()
        _, pair, many = torch.unique(
            index * len(index) + variable, return_inverse=True, return_counts=True
        )
        off = logsigmoid(-self.belief[site].log_odds.double().flatten().cpu()) / many[pair]
        unused = off.new_zeros(count).index_add(0, index, off)
        return dict(zip(names, (-torch.expm1(unused)).tolist(), strict=True))

    @property
    def constants(self) -> Tree:
        """Inclusion probabilities, ``SITE.inclusion``."""
        return {f"{name}.inclusion": site.inclusion for name, site in self.belief.items()}

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """Names of the axes of every leaf: ``SITE.unit`` and ``SITE.input``."""
        return {
            f"{name}.{leaf}": (f"{name}.unit", f"{name}.input")
            for name in self.belief
            for leaf in ("w", "rho", "s", "inclusion")
        }
