"""Exponential families in natural parameters: where products of posteriors are sums.

``q(z) ∝ exp(<eta, T(z)>)``. Products and quotients of members add and subtract eta, so a product of experts, a cavity and a site
of partitioned variational inference (Ashman et al., 2022) are additions of trees. Gaussians are written as ``h = precision * mean`` and
``precision``, for ``<eta, T(z)> = h z - precision z^2 / 2``; a Gamma, Beta or Dirichlet as its exponents. A difference of two members need
not be one: eta is then improper, and `parameters` refuses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bayesfed.errors import PosteriorError, complain
from bayesfed.trees import Tree


class Family(Protocol):
    """One exponential family over a block of values of any shape."""

    @property
    def leaves(self) -> tuple[str, ...]:
        """Names of the natural parameters."""
        ...

    def natural(self, parameters: Tree) -> Tree:
        """Return natural parameters of the usual ones."""
        ...

    def parameters(self, natural: Tree, where: str) -> Tree:
        """Return the usual parameters.

        Raises
        ------
        PosteriorError
            If no distribution has these natural parameters; `where` says whose they are.
        """
        ...

    @property
    def usual(self) -> tuple[str, ...]:
        """Names of the usual parameters, attributes of Pyro's distribution."""
        ...

    def log_factor(self, natural: Tree, value: Tensor) -> Tensor:
        """Return ``<eta, T(value)>``, a scalar."""
        ...

    def expected(self, natural: Tree, parameters: Tree) -> Tensor:
        """Return ``E <eta, T(z)>`` under the member with these usual parameters, a scalar."""
        ...


def _proper(where: str, what: str, *values: Tensor) -> None:
    for value in values:
        if not bool((torch.isfinite(value) & (value > 0)).all()):
            raise PosteriorError(
                complain(where, expected=f"positive {what}", actual=float(value.min()), hint="damping such as 1 / clients, or more local steps")
            )


@dataclass(frozen=True)
class NormalFamily:
    """Independent Gaussians ``loc``, ``scale`` of any shape."""

    leaves: tuple[str, ...] = ("h", "precision")
    usual: tuple[str, ...] = ("loc", "scale")

    def natural(self, parameters: Tree) -> Tree:
        """Return ``h = loc / scale^2`` and ``precision = 1 / scale^2``."""
        precision = parameters["scale"].square().reciprocal()
        return {"h": precision * parameters["loc"], "precision": precision}

    def parameters(self, natural: Tree, where: str) -> Tree:
        """Return ``loc`` and ``scale``."""
        _proper(where, "precisions", natural["precision"])
        return {"loc": natural["h"] / natural["precision"], "scale": natural["precision"].rsqrt()}

    def log_factor(self, natural: Tree, value: Tensor) -> Tensor:
        """Return ``sum h z - precision z^2 / 2``."""
        return (value * (natural["h"] - 0.5 * natural["precision"] * value)).sum()

    def expected(self, natural: Tree, parameters: Tree) -> Tensor:
        """Return ``sum h loc - precision (loc^2 + scale^2) / 2``."""
        return (natural["h"] * parameters["loc"] - 0.5 * natural["precision"] * (parameters["loc"].square() + parameters["scale"].square())).sum()


@dataclass(frozen=True)
class MultivariateNormalFamily:
    """A Gaussian ``loc`` (D,), ``scale_tril`` (D, D) with full covariance."""

    leaves: tuple[str, ...] = ("h", "precision")
    usual: tuple[str, ...] = ("loc", "scale_tril")

    def natural(self, parameters: Tree) -> Tree:
        """Return ``precision = (L L^T)^-1`` and ``h = precision loc``."""
        precision = torch.cholesky_inverse(parameters["scale_tril"])
        return {"h": precision @ parameters["loc"], "precision": precision}

    def parameters(self, natural: Tree, where: str) -> Tree:
        """Return ``loc`` and ``scale_tril``."""
        precision = (natural["precision"] + natural["precision"].mT) / 2
        _proper(where, "eigenvalues of the precision", torch.linalg.eigvalsh(precision))
        # The inverse of a flipped factor is lower triangular again: no covariance is inverted (Golub and Van Loan, 4.2).
        flipped = torch.linalg.cholesky(precision.flip(-2, -1)).flip(-2, -1)
        tril = torch.linalg.solve_triangular(flipped, torch.eye(len(precision), dtype=precision.dtype, device=precision.device), upper=True).mT
        return {"loc": torch.cholesky_solve(natural["h"][:, None], torch.linalg.cholesky(precision))[:, 0], "scale_tril": tril}

    def log_factor(self, natural: Tree, value: Tensor) -> Tensor:
        """Return ``h z - z^T precision z / 2``."""
        return value @ natural["h"] - 0.5 * value @ (natural["precision"] @ value)

    def expected(self, natural: Tree, parameters: Tree) -> Tensor:
        """Return ``h loc - (loc^T precision loc + tr(L^T precision L)) / 2``."""
        tril = parameters["scale_tril"]
        return self.log_factor(natural, parameters["loc"]) - 0.5 * (tril * (natural["precision"] @ tril)).sum()


@dataclass(frozen=True)
class ExponentFamily:
    """Gamma, Beta and Dirichlet: exponents of ``log`` terms, and a Gamma's rate.

    Parameters
    ----------
    kind
        "gamma" (concentration, rate: exponents of log z and -z), "beta" (concentration1, concentration0: of log z and log(1 - z)) or
        "dirichlet" (concentration: of log z). Eta is each concentration less one, and the rate itself.
    """

    kind: str

    @property
    def leaves(self) -> tuple[str, ...]:
        """Names of the natural parameters, those of the usual ones."""
        return {"gamma": ("concentration", "rate"), "beta": ("concentration1", "concentration0"), "dirichlet": ("concentration",)}[self.kind]

    @property
    def usual(self) -> tuple[str, ...]:
        """The same names."""
        return self.leaves

    def natural(self, parameters: Tree) -> Tree:
        """Return concentrations less one, and a rate as it is."""
        return {name: parameters[name] - float(name != "rate") for name in self.leaves}

    def parameters(self, natural: Tree, where: str) -> Tree:
        """Return concentrations and a rate."""
        found = {name: natural[name] + float(name != "rate") for name in self.leaves}
        _proper(where, "concentrations and rates", *found.values())
        return found

    def log_factor(self, natural: Tree, value: Tensor) -> Tensor:
        """Return the exponents times their logarithms."""
        match self.kind:
            case "gamma":
                return (natural["concentration"] * value.log() - natural["rate"] * value).sum()
            case "beta":
                return (natural["concentration1"] * value.log() + natural["concentration0"] * torch.log1p(-value)).sum()
            case _:
                return (natural["concentration"] * value.log()).sum()

    def expected(self, natural: Tree, parameters: Tree) -> Tensor:
        """Return the exponents times the expected logarithms, which are differences of digammas."""
        match self.kind:
            case "gamma":
                shape, rate = parameters["concentration"], parameters["rate"]
                return (natural["concentration"] * (shape.digamma() - rate.log()) - natural["rate"] * shape / rate).sum()
            case "beta":
                both = (parameters["concentration1"] + parameters["concentration0"]).digamma()
                return sum(((natural[name] * (parameters[name].digamma() - both)).sum() for name in self.leaves), both.new_zeros(()))
            case _:
                shape = parameters["concentration"]
                return (natural["concentration"] * (shape.digamma() - shape.sum(-1, keepdim=True).digamma())).sum()
