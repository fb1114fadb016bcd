"""`PooledParts`: a client's steps on shared and own parameters, and the Gaussian that its rows make
of the own ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from bayesfed.algorithms.personal.bayes.objective import MEAN, sds
from bayesfed.algorithms.personal.pooled.newton import maximum
from bayesfed.algorithms.personal.pooled.posterior import flat, in_widths, unflat
from bayesfed.algorithms.personal.pooled.server import SQUARE, VARIANCE
from bayesfed.algorithms.personal.pooled.variational import nearest
from bayesfed.data import Dataset
from bayesfed.federated import Descent, Fit, Kind, LocalOptions
from bayesfed.federated.core import MODEL, of, owned
from bayesfed.inference.laplace.blocks import symmetric
from bayesfed.inference.laplace.layers import jacobian
from bayesfed.inference.laplace.structures import FLAT, Flat, roots, unit
from bayesfed.keys import Key
from bayesfed.models import Categorical, Likelihood
from bayesfed.models.modules import check_last
from bayesfed.models.priors.likelihoods import temperature_of
from bayesfed.trees import Tree, to, under

# Prefix of a client's own leaves in its memory, and the name of the root of its covariance there.
OWN, ROOT = "own/", "covariance/root"
# Entries of Jacobians that are held at a time.
ENTRIES = 10_000_000


@dataclass(frozen=True)
class PooledParts:
    """Steps to the maximum of the own parameters' posterior, a Gaussian approximation of it, and
    then steps on the shared parameters.

    The message has the shared parameters as ``model/NAME``, and the population of the own ones as
    ``mean/NAME`` and ``rho/NAME``. A client's own parameters go on from its memory, or begin at the
    population's mean. They are fitted to the shared parameters of the message, which all clients
    have in common; the shared ones are then trained with the own ones held.

    Parameters
    ----------
    descent
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

    descent: Descent
    net: nn.Module
    likelihood: Likelihood
    structure: Flat
    shared: bool = True
    variational: bool = False
    newton: bool = False
    last: str | None = None
    kind: Kind = "moments"

    @property
    def uses_global_randomness(self) -> bool:
        """Whether the descent draws from torch's global generator."""
        return self.descent.uses_global_randomness

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Send the shared parameters and the moments of the own ones; keep the own ones and the
        root of their covariance.

        Raises
        ------
        DataError
            If the rows do not fit the network, or another layer is the last.
        """
        rows = len(data)
        shared = owned(message, MODEL)
        mean, variance = (
            under(message, MEAN),
            {name: sd.square() for name, sd in sds(message).items()},
        )
        own = mean | {
            name: leaf
            for name, leaf in to(under(memory, OWN), data.inputs.device).items()
            if name in mean
        }
        if self.last is not None:
            check_last(self.net, shared | own, self.last, data.inputs, where="pooled, local='head'")

        def drawn(trained: Tree, rate: float, left: int) -> None:
            _hold(trained, shared)
            # The proximal step of (theta - mu)^2 / (2 n s^2). It is theta = mu for s = 0.
            for name, centre in mean.items():
                trained[name].lerp_(centre, rate / (rate + rows * variance[name]))

        fit = None
        if own:
            fit = self.descent.train(shared | own, data, key.child("own"), options, drawn)
            own = {name: fit.payload[name] for name in own}
            if self.newton and rows:
                own = maximum(
                    self.net,
                    self.likelihood,
                    shared | own,
                    self.structure.names,
                    data,
                    *self.population(mean, variance),
                )
        if fit is None or (self.shared and shared):
            fit = self.descent.train(
                shared | own, data, key, options, partial(_held, own) if own else None
            )
        sent = of(MODEL, {name: fit.payload[name] for name in shared}) | {
            MEAN + name: leaf for name, leaf in own.items()
        }
        if not rows or not own:
            zeros = {
                prefix + name: torch.zeros_like(leaf)
                for name, leaf in own.items()
                for prefix in (SQUARE, VARIANCE)
            }
            return fit._replace(payload=sent | zeros, memory={})
        if self.variational and isinstance(self.likelihood, Categorical):
            own, root = self.nearest(shared | own, data, mean, variance, key.child("nearest"))
            sent |= {MEAN + name: leaf for name, leaf in own.items()}
        else:
            root = self.root(shared | own, data, variance)
        spread = unflat(root.square() if root.ndim == 1 else root.square().sum(1), own)
        sent |= {SQUARE + name: (leaf - mean[name]).square() for name, leaf in own.items()} | {
            VARIANCE + name: leaf for name, leaf in spread.items()
        }
        kept = {OWN + name: leaf for name, leaf in own.items()} | {
            ROOT: root.to(next(iter(own.values())))
        }
        return fit._replace(payload=sent, memory=kept)

    def nearest(
        self, parameters: Tree, data: Dataset, mean: Tree, variance: Tree, key: Key
    ) -> tuple[Tree, Tensor]:
        """Return the means of the Gaussian nearest to the posterior, begun at its maximum, and the
        root of its covariance.
        """
        own = {name: parameters[name] for name in self.structure.names}
        centre, sd = self.population(mean, variance)
        outputs, columns = jacobian(self.net, parameters, self.structure.names, data.inputs, unit)
        begun = in_widths(own, centre, sd)
        u, root = nearest(
            columns.transpose(0, 1) * sd,
            outputs.double(),
            data.targets,
            begun,
            key,
            temperature_of(self.likelihood),
        )
        return unflat(centre + sd * u, own), sd[:, None] * root

    def population(self, mean: Tree, variance: Tree) -> tuple[Tensor, Tensor]:
        """Return means and widths of the population as vectors, in the order of the own
        parameters.
        """
        names = self.structure.names
        return flat({name: mean[name] for name in names}), flat(
            {name: variance[name].sqrt() for name in names}
        )

    def root(self, parameters: Tree, data: Dataset, variance: Tree) -> Tensor:
        """Return the root of the covariance ``(H + 1 / s^2)^-1``, in double precision: its sds
        ``(P,)`` or a matrix ``(P, P)``.
        """
        columns, rows = roots(self.likelihood), len(data)
        step = max(1, ENTRIES // (self.structure.size * 16))
        sums = [
            self.structure.sums(self.net, parameters, data.inputs[start : start + step], columns)[
                1
            ][FLAT]
            for start in range(0, rows, step)
        ]
        total, prior = (
            torch.stack(sums).sum(0),
            flat({name: variance[name] for name in self.structure.names}),
        )
        if self.structure.diagonal:
            return (prior / (1 + prior * total)).sqrt()
        # S (1 + S H S)^-1 S with S = diag(s), which needs no inverse of s.
        sd = prior.sqrt()
        inner = (
            torch.eye(len(sd), dtype=torch.float64, device=sd.device)
            + sd[:, None] * symmetric(total) * sd
        )
        inverse = torch.linalg.solve_triangular(
            torch.linalg.cholesky(inner),
            torch.eye(len(sd), dtype=torch.float64, device=sd.device),
            upper=False,
        )
        root: Tensor = sd[:, None] * inverse.mT
        return root


def _hold(trained: Tree, leaves: Tree) -> None:
    for name, leaf in leaves.items():
        trained[name].copy_(leaf)


def _held(leaves: Tree, trained: Tree, rate: float, left: int) -> None:
    _hold(trained, leaves)
