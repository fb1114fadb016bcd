"""`LaplacePosterior`: a Gaussian over some parameters of a trained network, and what it
predicts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from bayesfed.errors import PosteriorError
from bayesfed.errors.checks import checked
from bayesfed.inference.ensembles.networks import Networks, figures
from bayesfed.inference.laplace import evidence
from bayesfed.inference.laplace.blocks import Block
from bayesfed.inference.laplace.structures import Structure
from bayesfed.keys import Key
from bayesfed.models.likelihoods.classes import Categorical
from bayesfed.models.likelihoods.rows import temperature_of
from bayesfed.trees import Tree

# Rows of which Jacobians are held at a time.
ROWS = 250


@dataclass(frozen=True, eq=False)
class LaplacePosterior(Networks):
    """N(theta, (H + delta)^-1) over some parameters; the others are fixed.

    Predictions are those of the network linearised in these parameters, for which the GGN is the
    exact Hessian (Immer et al., 2021); in its last layer a network is linear, so that nothing is
    lost there.

    Parameters
    ----------
    parameters
        Parameters, the means of the Gaussian among them; those that are missing are the network's
        own.
    structure
        Form of the GGN.
    means
        Means over rows, as the structure has them.
    rows
        Number of rows.
    nll
        Mean negative log likelihood of these rows at the means.
    precision
        delta, the precision of the prior N(0, 1 / delta).
    """

    parameters: Tree
    structure: Structure
    means: Tree
    rows: float
    nll: float
    precision: float

    @cached_property
    def blocks(self) -> dict[str, Block]:
        """The GGN of all rows."""
        return self.structure.blocks(self.means, self.rows)

    @property
    def centre(self) -> Tree:
        """The means of the Gaussian, by the names of the parameters; frozen ones, which are not
        sent, are the network's own.
        """
        return {
            name: self.parameters[name]
            if name in self.parameters
            else self.net.get_parameter(name).detach()
            for name in self.structure.names
        }

    @property
    def values(self) -> Tensor:
        """All eigenvalues of the GGN, ``(P,)``."""
        return torch.cat([block.values.flatten() for block in self.blocks.values()])

    @property
    def norm(self) -> float:
        """Squared norm of the means."""
        return sum(float(leaf.double().square().sum()) for leaf in self.centre.values())

    @property
    def log_evidence(self) -> float:
        """The Laplace approximation to log p(D | delta), in nats."""
        fit = -self.rows * self.nll / temperature_of(self.likelihood)
        return evidence.log_evidence(self.values, fit, self.norm, self.precision)

    @property
    def determined(self) -> float:
        """Number of parameters that the rows determine."""
        return evidence.determined(self.values, self.precision)

    @property
    def constants(self) -> Tree:
        """Mean and sd of every parameter, as ``NAME.mean`` and ``NAME.sd``."""
        sds = {name: block.sd(self.precision) for name, block in self.blocks.items()}
        return figures(self.centre, self.structure.split(sds, self.centre))

    @checked()
    def draw(self, key: Key) -> Tree:
        """Return one draw of the parameters."""
        noise, centre = key.generator(), self.centre
        parts = {
            name: block.deviation(self.precision, noise) for name, block in self.blocks.items()
        }
        return {
            name: centre[name] + leaf for name, leaf in self.structure.split(parts, centre).items()
        }

    @checked()
    def draw_prior(self, key: Key) -> Tree:
        """Return one draw of the parameters from the prior."""
        noise = key.generator()
        return {
            name: torch.randn(leaf.shape, generator=noise).to(leaf) / math.sqrt(self.precision)
            for name, leaf in self.centre.items()
        }

    @checked()
    def observe(self, draw: Tree, inputs: Tensor, key: Key) -> TorchDistribution:
        """Return the distribution of the targets given one draw, of batch shape ``(B,)``."""
        return self.observe_draws([draw], inputs)[0]

    def observe_draws(self, draws: Sequence[Tree], inputs: Tensor) -> list[TorchDistribution]:
        """Return the distribution of the targets given each of several draws. The Jacobian of a row
        is found once for all of them.
        """
        centre = self.centre.items()
        shifts = [
            self.structure.matrices({name: draw[name].to(leaf) - leaf for name, leaf in centre})
            for draw in draws
        ]
        parts = [self._shifted(shifts, part) for part in inputs.split(ROWS)]
        return [
            self.likelihood.distribution(torch.cat(outputs)) for outputs in zip(*parts, strict=True)
        ]

    @checked()
    def outputs(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean ``(B, C)`` and covariance ``(B, C, C)`` of the network's outputs."""
        parts = [self._gaussian(part) for part in inputs.split(ROWS)]
        mean, covariance = map(torch.cat, zip(*parts, strict=True))
        return mean, covariance

    @checked()
    def probit(self, inputs: Tensor) -> Tensor:
        """Return the probabilities of the classes ``(B, C)``, without draws: softmax of
        ``logits / sqrt(1 + pi / 8 variance)`` (MacKay, 1992).

        It counts the variance that all outputs share, which changes no probability: it is less
        certain than draws.

        Raises
        ------
        PosteriorError
            If the targets are not classes.
        """
        if not isinstance(self.likelihood, Categorical):
            actual = type(self.likelihood).__name__
            raise PosteriorError(
                "LaplacePosterior.probit", "targets that are classes", actual, "outputs(inputs)"
            )
        mean, covariance = self.outputs(inputs)
        return (mean / (1 + math.pi / 8 * covariance.diagonal(dim1=1, dim2=2)).sqrt()).softmax(1)

    def _gaussian(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        outputs, by_block = self.structure.jacobian(self.net, self.parameters, inputs)
        parts = [
            block.covariance(by_block[name], self.precision) for name, block in self.blocks.items()
        ]
        return outputs, torch.stack(parts).sum(0).to(outputs.dtype)

    def _shifted(self, shifts: Sequence[Tree], inputs: Tensor) -> list[Tensor]:
        """Return the outputs ``(B, C)`` of the linearised network at every shift of the
        parameters.
        """
        outputs, by_block = self.structure.jacobian(self.net, self.parameters, inputs)
        # In the precision of the network, in which covariances would lose digits.
        terms = {
            name: (one.inputs.to(outputs), one.gradients.to(outputs), one.last)
            for name, one in by_block.items()
        }
        results = []
        for shift in shifts:
            shifted = outputs
            for name, (rows, gradients, last) in terms.items():
                moved = rows @ shift[name].to(outputs).mT
                shifted = shifted + (
                    moved[:, 0] if last else torch.einsum("bto,kbto->bk", moved, gradients)
                )
            results.append(shifted)
        return results
