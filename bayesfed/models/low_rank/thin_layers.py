"""Layers in place of linear layers and convolutions whose weight matrix is a product of thin
factors and is never formed: ``u v^T`` with two free factors, FedHM's low-rank layers, or a point
``u s v^T`` of fixed rank.

If G is the gradient of the matrix, autograd gives ``G V`` for the u of two free factors and
``G^T U`` for v. Columns that are zero in both therefore stay zero, and padding the factors with
zero columns does not change training. A layer runs at whatever rank its tensors have.

Descent on the manifold of fixed rank does not need the gradients of u, s and v themselves, but
``G V`` and ``G^T U``. A `FixedRankLayer` gives both through a *probe*, a tangent
``up v^T + u vp^T`` that is added to its weight. The probe is held in two buffers, up ``(M, R)`` and
vp ``(N, R)``, which are None unless `torch.func.functional_call` puts tensors there for the
duration of a call. With zeros that require gradients the weight is unchanged, and backward leaves
``G V`` in ``up.grad`` and ``G^T U`` in ``vp.grad``. The two products become twice as wide,
``[u s + up, u] [v, vp]^T``. `bayesfed.models.low_rank.fixed_rank` has the whole step.

References
----------
FedHM (Yao et al.), section 2.2 and equation (10). Khodak et al. (2021), Initialization and
regularization of factorized neural layers. FedRLR, the federated Riemannian low-rank compression
scheme with over-the-air aggregation: the projection (47), here without a dense gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import skip_init

from bayesfed.errors import ArgumentError
from bayesfed.geometry import FixedRank
from bayesfed.geometry.thin import check_matrices
from bayesfed.models.low_rank.unrolling import Split, Unrolling
from bayesfed.models.modules import Dense
from bayesfed.trees import shapes

_OF_LINEAR = ("in_features", "out_features")
_OF_CONVOLUTION = (
    "in_channels",
    "out_channels",
    "kernel_size",
    "stride",
    "padding",
    "dilation",
    "padding_mode",
)


class Deterministic(PyroModule):
    """A Pyro module without sample sites; outside a PyroModule it behaves as an ordinary module."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Run the layer, as an ordinary module unless it belongs to a PyroModule or has Pyro's
        attributes.
        """
        # A PyroModule without a parent writes its parameters to Pyro's global store at every call,
        # under names such as "u" that all layers of an nn.Sequential would share.
        if self._pyro_name or self._pyro_samples or self._pyro_params:
            return super().__call__(*arguments, **named)
        return nn.Module.__call__(self, *arguments, **named)


class ThinLayer(Deterministic):
    """A layer whose parameters are factors of a weight, and a bias.

    Parameters
    ----------
    layer
        The linear layer or convolution of one group that it stands for: its settings, its bias,
        copied, and whether these are trained. Its weight is not looked at.
    split
        How a kernel becomes a matrix.
    factors
        Factors by parameter name, copied.

    Raises
    ------
    ArgumentError
        If the factors are not float32 or float64 matrices of one rank, at least 1, whose product is
        the layer's matrix.
    """

    def __init__(self, layer: Dense, split: Split, **factors: Tensor) -> None:
        super().__init__()
        self.kind = type(layer)
        names = _OF_LINEAR if isinstance(layer, nn.Linear) else _OF_CONVOLUTION
        self.settings = {name: getattr(layer, name) for name in names}
        self.unrolling = Unrolling(tuple(layer.weight.shape), split)
        # What padding in other modes than zeros takes.
        self._sides = getattr(layer, "_reversed_padding_repeated_twice", [])
        check_matrices(type(self).__name__, **factors)
        self.factors, found = tuple(factors), shapes(factors)
        rank = factors["u"].shape[1]
        if not rank or found != self.shapes(rank):
            raise ArgumentError(
                type(self).__name__,
                f"shapes {self.shapes(max(1, rank))}",
                found,
                "factors of the layer's matrix",
            )
        for name, factor in factors.items():
            # Copies: a view of an SVD's result would keep all of it in memory.
            own = factor.detach().clone(memory_format=torch.contiguous_format)
            setattr(self, name, nn.Parameter(own, layer.weight.requires_grad))
        bias = layer.bias
        self.register_parameter(
            "bias",
            None if bias is None else nn.Parameter(bias.detach().clone(), bias.requires_grad),
        )
        self.train(layer.training)

    @property
    def rank(self) -> int:
        """R."""
        return int(self.u.shape[1])

    def shapes(self, rank: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the factors at a rank, by name."""
        sides = dict(zip("uv", self.unrolling.size, strict=True))
        return {name: (sides.get(name, rank), rank) for name in self.factors}

    def sides(self, values: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the two factors of the matrix for given parameters."""
        left = values["u"] @ values["s"] if "s" in values else values["u"]
        return left, values["v"]

    def product(self, x: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """Map inputs by the layer whose matrix is ``left right^T``."""
        if self.kind is nn.Linear:
            return functional.linear(x @ right, left, self.bias)
        padding = self.settings["padding"]
        dimensions = len(self.settings["kernel_size"])
        convolve = (functional.conv1d, functional.conv2d, functional.conv3d)[dimensions - 1]
        if self.settings["padding_mode"] != "zeros":
            x = functional.pad(x, self._sides, mode=self.settings["padding_mode"])
            padding = (0,) * dimensions
        kernels = self.unrolling.kernels(left, right)
        halves = self.unrolling.halves
        for kernel, axes, added in zip(kernels, halves, (None, self.bias), strict=True):
            x = convolve(x, kernel, added, **self._along(axes, padding))
        return x

    def _along(self, axes: range, padding: str | tuple[int, ...]) -> dict[str, Any]:
        """Return the settings of a convolution that strides, pads and dilates along some of the
        kernel's dimensions only, so that no position is lost for the other one.
        """
        settings = {
            "stride": (self.settings["stride"], 1),
            "padding": (padding, 0),
            "dilation": (self.settings["dilation"], 1),
        }
        return {
            name: values
            if isinstance(values, str)
            else tuple(value if axis in axes else none for axis, value in enumerate(values))
            for name, (values, none) in settings.items()
        }

    def ordinary(self, left: Tensor, right: Tensor, bias: Tensor | None, thin: bool) -> nn.Module:
        """Return torch's own layer of the matrix ``left right^T``, or two thin ones in an
        `nn.Sequential`.
        """
        changes: list[dict[str, Any]] = [{}]
        if not thin:
            weights = [self.unrolling.weight(left @ right.mT)]
        else:
            weights = list(self.unrolling.kernels(left, right))
            changes = [
                {"in_features": weight.shape[1], "out_features": len(weight)}
                if self.kind is nn.Linear
                else {
                    "in_channels": weight.shape[1],
                    "out_channels": len(weight),
                    "kernel_size": tuple(weight.shape[2:]),
                    **self._along(axes, self.settings["padding"]),
                }
                for weight, axes in zip(weights, self.unrolling.halves, strict=True)
            ]
        made = []
        for number, (weight, change) in enumerate(zip(weights, changes, strict=True), start=1):
            # Without initialisation, which would draw random numbers.
            has_bias, like = bias is not None and number == len(weights), self.u
            settings = {**self.settings, **change, "device": like.device, "dtype": like.dtype}
            one = skip_init(self.kind, **settings, bias=has_bias)
            with torch.no_grad():
                one.weight.copy_(weight).requires_grad_(self.u.requires_grad)
                if bias is not None and self.bias is not None and has_bias:
                    one.bias.copy_(bias).requires_grad_(self.bias.requires_grad)
            made.append(one)
        whole = nn.Sequential(*made) if thin else made[0]
        return whole.train(self.training)

    def extra_repr(self) -> str:
        """Return the rank and the settings, for the string form of a network."""
        text = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        return f"{text}, rank={self.rank}, bias={self.bias is not None}"


class FactoredLayer(ThinLayer):
    """A layer with a weight ``u v^T`` of two free factors.

    Parameters
    ----------
    layer, split
        As in `ThinLayer`.
    u, v
        ``(M, R)`` and ``(N, R)``, copied. R may be more than M or N.
    """

    def __init__(self, layer: Dense, u: Tensor, v: Tensor, split: Split = "spatial") -> None:
        super().__init__(layer, split, u=u, v=v)

    @property
    def weight(self) -> Tensor:
        """The product, for modules that read their layers' weights: torch's encoder layers do."""
        return self.unrolling.weight(self.u @ self.v.mT)

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs as the layer that it stands for would."""
        return self.product(x, self.u, self.v)


class FixedRankLayer(ThinLayer):
    """A layer whose weight matrix is a point of fixed rank, with a probe. A kernel's matrix has one
    row for each output channel.

    Parameters
    ----------
    layer
        As in `ThinLayer`.
    point
        The weight matrix ``(M, N)``, copied.
    """

    up: Tensor | None
    vp: Tensor | None

    def __init__(self, layer: Dense, point: FixedRank) -> None:
        super().__init__(layer, "pufferfish", u=point.u, s=point.s, v=point.v)
        # None, not zeros: `running_statistics` would take floating-point buffers for those of batch
        # norm, and zeros would double a point's memory.
        self.register_buffer("up", None, persistent=False)
        self.register_buffer("vp", None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs as the layer that it stands for would."""
        left, right = self.u @ self.s, self.v
        if self.up is not None:
            left = left + self.up
        if self.vp is not None:
            left, right = torch.cat([left, self.u], 1), torch.cat([right, self.vp], 1)
        return self.product(x, left, right)


def fixed_rank_layers(net: nn.Module) -> dict[str, FixedRankLayer]:
    """Return the layers of fixed rank of a network, by name."""
    return {name: one for name, one in net.named_modules() if isinstance(one, FixedRankLayer)}
