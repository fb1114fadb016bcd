"""Exponential families in natural parameters, where products of posteriors are sums.

``q(z) ∝ exp(<eta, T(z)>)``. Products and quotients of members add and subtract eta, so a product of
experts, a cavity and a site of partitioned variational inference (Ashman et al., 2022) are
additions of trees. Gaussians are written as ``h = precision * mean`` and ``precision``, for
``<eta, T(z)> = h z - precision z^2 / 2``; a Gamma, Beta or Dirichlet as its exponents. The
difference of two members may be no member: eta is then improper, and `parameters` refuses it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from bayesfed.errors import PosteriorError
from bayesfed.trees import Tree

LOG_2_PI_E = 1 + math.log(2 * math.pi)


def _proper(where: str, what: str, *values: Tensor) -> None:
    for value in values:
        if not bool((torch.isfinite(value) & (value > 0)).all()):
            raise PosteriorError(
                where,
                f"positive {what}",
                float(value.min()),
                "half the damping, more local steps, or SummedGradients()",
            )


@dataclass(frozen=True)
class NormalFamily:
    """Independent Gaussians ``loc``, ``scale`` of any shape."""

    leaves: tuple[str, ...] = ("h", "precision")

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

    def bound(self, member: Any, natural: Tree | None) -> Tensor:
        """Return ``sum h loc - precision (loc^2 + scale^2) / 2 + log(scale) + log(2 pi e) / 2``."""
        h, precision = (natural["h"], natural["precision"]) if natural else (None, None)
        apply: Any = _NormalBound.apply
        return cast(Tensor, apply(member.loc, member.scale, h, precision))


@dataclass(frozen=True)
class MultivariateNormalFamily:
    """A Gaussian ``loc`` (D,), ``scale_tril`` (D, D) with full covariance."""

    leaves: tuple[str, ...] = ("h", "precision")

    def natural(self, parameters: Tree) -> Tree:
        """Return ``precision = (L L^T)^-1`` and ``h = precision loc``."""
        precision = torch.cholesky_inverse(parameters["scale_tril"])
        return {"h": precision @ parameters["loc"], "precision": precision}

    def parameters(self, natural: Tree, where: str) -> Tree:
        """Return ``loc`` and ``scale_tril``."""
        precision = (natural["precision"] + natural["precision"].mT) / 2
        _proper(where, "eigenvalues of the precision", torch.linalg.eigvalsh(precision))
        # The inverse of a flipped factor is lower triangular again: no covariance is inverted
        # (Golub and Van Loan, 4.2).
        flipped = torch.linalg.cholesky(precision.flip(-2, -1)).flip(-2, -1)
        tril = torch.linalg.solve_triangular(
            flipped,
            torch.eye(len(precision), dtype=precision.dtype, device=precision.device),
            upper=True,
        ).mT
        return {
            "loc": torch.cholesky_solve(natural["h"][:, None], torch.linalg.cholesky(precision))[
                :, 0
            ],
            "scale_tril": tril,
        }

    def log_factor(self, natural: Tree, value: Tensor) -> Tensor:
        """Return ``h z - z^T precision z / 2``."""
        return value @ natural["h"] - 0.5 * value @ (natural["precision"] @ value)

    def bound(self, member: Any, natural: Tree | None) -> Tensor:
        """Return ``h loc - (loc^T precision loc + tr(L^T precision L)) / 2`` and the entropy."""
        entropy: Tensor = member.entropy().sum()
        if natural is None:
            return entropy
        tril: Tensor = member.scale_tril
        return (
            entropy
            + self.log_factor(natural, member.loc)
            - 0.5 * (tril * (natural["precision"] @ tril)).sum()
        )


@dataclass(frozen=True)
class ExponentFamily:
    """Gamma, Beta and Dirichlet: exponents of ``log`` terms, and a Gamma's rate.

    Parameters
    ----------
    kind
        "gamma" (concentration, rate: exponents of log z and -z), "beta" (concentration1,
        concentration0: of log z and log(1 - z)) or "dirichlet" (concentration: of log z). Eta is
        each concentration less one, and the rate itself.
    """

    kind: str

    @property
    def leaves(self) -> tuple[str, ...]:
        """Names of the natural parameters, the same as those of the usual ones."""
        return {
            "gamma": ("concentration", "rate"),
            "beta": ("concentration1", "concentration0"),
            "dirichlet": ("concentration",),
        }[self.kind]

    def natural(self, parameters: Tree) -> Tree:
        """Return the concentrations less one, and the rate unchanged."""
        return {name: parameters[name] - float(name != "rate") for name in self.leaves}

    def parameters(self, natural: Tree, where: str) -> Tree:
        """Return the concentrations and the rate."""
        usual = {name: natural[name] + float(name != "rate") for name in self.leaves}
        _proper(where, "concentrations and rates", *usual.values())
        return usual

    def log_factor(self, natural: Tree, value: Tensor) -> Tensor:
        """Return the exponents times their logarithms."""
        match self.kind:
            case "gamma":
                return (natural["concentration"] * value.log() - natural["rate"] * value).sum()
            case "beta":
                return (
                    natural["concentration1"] * value.log()
                    + natural["concentration0"] * torch.log1p(-value)
                ).sum()
            case _:
                return (natural["concentration"] * value.log()).sum()

    def bound(self, member: Any, natural: Tree | None) -> Tensor:
        """Return the exponents times the expected logarithms, which are differences of digammas,
        and the entropy.
        """
        entropy: Tensor = member.entropy().sum()
        if natural is None:
            return entropy
        eta = [natural[name] for name in self.leaves]
        match self.kind:
            case "gamma":
                shape, rate = member.concentration, member.rate
                logs = [shape.digamma() - rate.log(), -shape / rate]
            case "beta":
                both = (member.concentration1 + member.concentration0).digamma()
                logs = [getattr(member, name).digamma() - both for name in self.leaves]
            case _:
                shape = member.concentration
                logs = [shape.digamma() - shape.sum(-1, keepdim=True).digamma()]
        return torch.stack(
            [entropy, *((leaf * log).sum() for leaf, log in zip(eta, logs, strict=True))]
        ).sum()


# One exponential family over a block of values of any shape: `leaves`, the names of its natural
# parameters; `natural` and `parameters`, to these from the usual ones and back; `log_factor`,
# ``<eta, T(value)>``; `bound`, ``E <eta, T(z)>`` under a member plus its entropy, eta None for 0.
Family = NormalFamily | MultivariateNormalFamily | ExponentFamily


class _NormalBound(torch.autograd.Function):
    """A Gaussian's bound with its two gradients written out: one node of the autograd graph per
    step instead of fifteen.
    """

    @staticmethod
    def forward(
        ctx: Any, loc: Tensor, scale: Tensor, h: Tensor | None, precision: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(loc, scale, h, precision)
        bound = scale.log().sum() + 0.5 * LOG_2_PI_E * scale.numel()
        if h is None or precision is None:
            return bound
        return bound + (loc * h).sum() - 0.5 * (precision * (loc * loc + scale * scale)).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        (upstream,), (loc, scale, h, precision) = gradients, ctx.saved_tensors
        if h is None:
            return None, upstream / scale, None, None
        return (
            upstream * (h - precision * loc),
            upstream * (1 / scale - precision * scale),
            None,
            None,
        )
