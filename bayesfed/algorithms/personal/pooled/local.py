"""`PooledParts`: a client's steps on shared and own parameters, and the Gaussian that its rows make
of the own ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from bayesfed.algorithms.personal.bayes.objective import MEAN, OWN, sds
from bayesfed.algorithms.personal.pooled.newton import maximum
from bayesfed.algorithms.personal.pooled.posterior import in_widths
from bayesfed.algorithms.personal.pooled.server import SQUARE, VARIANCE
from bayesfed.algorithms.personal.pooled.variational import nearest
from bayesfed.algorithms.surveys import curvature
from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.federated import Descent, Fit, LocalOptions
from bayesfed.federated.core import MODEL, Around, of, owned
from bayesfed.federated.training.descent import holding
from bayesfed.inference.laplace.blocks import symmetric
from bayesfed.inference.laplace.layers import jacobian
from bayesfed.inference.laplace.roots import unit
from bayesfed.inference.laplace.structures import FLAT, Flat
from bayesfed.keys import Key
from bayesfed.models import Categorical, Likelihood
from bayesfed.models.likelihoods.rows import temperature_of
from bayesfed.models.modules import check_last
from bayesfed.trees import Tree, flat, only, to, unflat, zeros_like

# The root of a client's covariance in its memory, beside its own leaves.
ROOT = "covariance/root"
# Most own parameters of a posterior with all covariances, by default and at all: each client keeps
# their root.
LEAST, LARGEST = 700, 2_000
# Entries of Jacobians that are held at a time.
ENTRIES = 10_000_000

Covariance = Literal["full", "diagonal"]


@dataclass(frozen=True)
class PooledParts(Around):
    """Steps to the maximum of the own parameters' posterior, a Gaussian approximation of it, and
    then steps on the shared parameters.

    The message has the shared parameters as ``model/NAME``, and the population of the own ones as
    ``mean/NAME`` and ``rho/NAME``. A client's own parameters go on from its memory, or begin at the
    population's mean. They are fitted to the shared parameters of the message, which all clients
    have in common; the shared ones are then trained with the own ones held.

    Parameters
    ----------
    local
        Steps of plain SGD, as many on the own parameters as on the shared ones. The normal prior of
        the own ones is a proximal step after each, which is stable at any width.
    net, likelihood
        Network, and distribution of the targets.
    structure
        The GGN of the own parameters: all of it, or its diagonal.
    shared
        Whether the shared parameters are trained. If not, they stay as they are.
    variational
        Whether a client of classes has the Gaussian nearest to its posterior, instead of Laplace's.
    newton
        Whether the own parameters go on by Gauss-Newton steps (`newton.py`).
    last
        Path of the layer that must be the network's last; None if none must.
    """

    local: Descent
    net: nn.Module
    likelihood: Likelihood
    structure: Flat
    shared: bool = True
    variational: bool = False
    newton: bool = False
    last: str | None = None

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Send the shared parameters and the moments of the own ones; keep the own ones and the
        root of their covariance.

        Raises
        ------
        DataError
            If another layer is the last.
        """
        rows, shared = len(data), owned(message, MODEL)
        centres, widths = owned(message, MEAN), sds(message)
        mean = only(centres, self.structure.names)
        variance = {name: widths[name].square() for name in mean}
        kept = owned(memory, OWN)
        own = to({name: kept.get(name, leaf) for name, leaf in mean.items()}, data.inputs.device)
        if self.last is not None:
            check_last(self.net, shared | own, self.last, data.inputs, where="pooled, local='head'")

        held = holding(shared)

        def drawn(trained: Tree, rate: float, left: int) -> None:
            held(trained, rate, left)
            # The proximal step of (theta - mu)^2 / (2 n s^2). It is theta = mu for s = 0.
            for name, centre in mean.items():
                trained[name].lerp_(centre, rate / (rate + rows * variance[name]))

        fit = None
        if own:
            fit = self.local.train(shared | own, data, key.child("own"), options, drawn)
            own = only(fit.payload, own)
            if self.newton and rows:
                own = maximum(
                    self.net, self.likelihood, shared, own, data, *_population(mean, variance)
                )
        if fit is None or (self.shared and shared):
            fit = self.local.train(shared | own, data, key, options, holding(own))
        sent = of(MODEL, only(fit.payload, shared))
        if not rows or not own:
            zeros = zeros_like(own)
            sent |= of(MEAN, own) | of(SQUARE, zeros) | of(VARIANCE, zeros)
            return fit._replace(payload=sent, memory={})
        if self.variational and isinstance(self.likelihood, Categorical):
            population = _population(mean, variance)
            own, root = self._nearest(shared, own, data, *population, key.child("nearest"))
        else:
            root = self._root(shared | own, data, flat(variance).double())
        squares = {name: (leaf - mean[name]).square() for name, leaf in own.items()}
        spread = unflat(root.square() if root.ndim == 1 else root.square().sum(1), own)
        sent |= of(MEAN, own) | of(SQUARE, squares) | of(VARIANCE, spread)
        return fit._replace(
            payload=sent, memory=of(OWN, own) | {ROOT: root.to(own[self.structure.names[0]])}
        )

    def _nearest(
        self, shared: Tree, own: Tree, data: Dataset, centre: Tensor, sd: Tensor, key: Key
    ) -> tuple[Tree, Tensor]:
        """Return the means of the Gaussian nearest to the posterior, begun at its maximum, and the
        root of its covariance.
        """
        parameters, names = shared | own, self.structure.names
        outputs, columns = jacobian(self.net, parameters, names, data.inputs, unit)
        u, root = nearest(
            columns.transpose(0, 1) * sd,
            outputs.double(),
            data.targets,
            in_widths(own, centre, sd),
            key,
            temperature_of(self.likelihood),
        )
        return unflat(centre + sd * u, own), sd[:, None] * root

    def _root(self, parameters: Tree, data: Dataset, variance: Tensor) -> Tensor:
        """Return the root of the covariance ``(H + 1 / s^2)^-1``, in double precision: its sds
        ``(P,)``, if entries are independent, else ``(P, P)``.
        """
        step = max(1, ENTRIES // (self.structure.size * 16))
        sums = curvature(self.structure, self.net, parameters, data, self.likelihood, step)
        total = sums[FLAT]
        if self.structure.diagonal:
            return (variance / (1 + variance * total)).sqrt()
        # S (1 + S H S)^-1 S with S = diag(s), which needs no inverse of s.
        sd, eye = variance.sqrt(), torch.eye(len(variance)).to(variance)
        factor = torch.linalg.cholesky(eye + sd[:, None] * symmetric(total) * sd)
        inverse: Tensor = torch.linalg.solve_triangular(factor, eye, upper=False)
        return sd[:, None] * inverse.mT


def _population(mean: Tree, variance: Tree) -> tuple[Tensor, Tensor]:
    """Return means and widths of the population as vectors."""
    return flat(mean).double(), flat(variance).sqrt().double()


def diagonal_of(count: int, covariance: Covariance | None, variational: bool) -> bool:
    """Return whether the entries of a posterior of so many own parameters are independent.

    Raises
    ------
    ArgumentError
        If they have to be and must not, or are too many not to be.
    """
    diagonal = count > LEAST if covariance is None else covariance == "diagonal"
    if diagonal and variational:
        raise ArgumentError(
            "pooled, approximation='variational'",
            "covariance='full'",
            f"{covariance!r} for {count:,} own parameters",
            "covariance='full'" if count <= LARGEST else "approximation='laplace'",
        )
    if not diagonal and count > LARGEST:
        raise ArgumentError(
            "pooled, covariance='full'",
            f"at most {LARGEST:,} own parameters",
            f"{count:,}",
            "covariance='diagonal'" + ", approximation='laplace'" * variational,
        )
    return diagonal
