"""Linear and convolution layers whose weight matrix is a point ``u s v^T`` of fixed rank: two thin products, and thin gradients.

Parameters are u ``(M, R)``, s ``(R, R)``, v ``(N, R)`` and the bias. A convolution's matrix is ``(out, in * kh * kw)``, one row an output channel:
v convolves into R channels, and ``u s`` is a 1 x 1 convolution of these.

The gradient of u, s and v as they stand is not what descent on the manifold needs: that reads ``G V`` and ``G^T U`` of the weight's gradient G.
A layer gives both through a *probe*, a tangent ``up v^T + u vp^T`` that is added to its weight. The probe lives in two buffers, up ``(M, R)``
and vp ``(N, R)``, which are None unless `torch.func.functional_call` puts tensors there for the length of a call; with zeros that require
gradients, the weight is what it was, and backward leaves ``G V`` in ``up.grad`` and ``G^T U`` in ``vp.grad``. The two products become twice as
wide, ``[u s + up, u] [v, vp]^T``, and no ``M x N`` array is formed on the way. Without a probe nothing of this is computed or stored.
`bayesfed.models.fixed_rank_trees` has the whole step.

The layers are deterministic PyroModules: no sample site, until somebody assigns a `PyroSample`.

References
----------
FedRLR, the federated Riemannian low-rank compression scheme with over-the-air aggregation: the projection (47), here without its dense gradient.
"""

from __future__ import annotations

from math import prod
from typing import Any, Literal

import torch
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.nn import functional

from bayesfed.errors import ArgumentError, complain
from bayesfed.geometry import FixedRank

PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]
Sizes = int | tuple[int, ...]


class FixedRankLayer(PyroModule):
    """What the layers share: the point and the bias as parameters, and the probe.

    Parameters
    ----------
    point
        The weight matrix ``(M, N)``, copied.
    bias
        ``(M,)``, copied; None: no bias.

    Raises
    ------
    ArgumentError
        If the bias does not fit the point.
    """

    up: Tensor | None
    vp: Tensor | None

    def __init__(self, point: FixedRank, bias: Tensor | None = None) -> None:
        super().__init__()
        if bias is not None and (tuple(bias.shape), bias.dtype, bias.device) != ((point.shape[0],), point.u.dtype, point.u.device):
            raise ArgumentError(
                complain(
                    f"{type(self).__name__}, bias",
                    expected=f"shape {(point.shape[0],)} of {point.u.dtype} on {point.u.device}",
                    actual=f"shape {tuple(bias.shape)} of {bias.dtype} on {bias.device}",
                    hint="None",
                )
            )
        # Copies: a point cut from an SVD would keep all of that alive.
        self.u, self.s, self.v = (nn.Parameter(part.detach().clone(memory_format=torch.contiguous_format)) for part in (point.u, point.s, point.v))
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias.detach().clone()))
        # None rather than zeros: running_statistics takes every floating-point buffer for batch norm's, and zeros would store the point twice.
        self.register_buffer("up", None, persistent=False)
        self.register_buffer("vp", None, persistent=False)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Run the layer; as an ordinary module unless it belongs to a PyroModule or has Pyro's attributes."""
        # A PyroModule without a parent writes its parameters to Pyro's global store at every call, under names such as "u" that all layers of
        # an nn.Sequential would share.
        if self._pyro_name or self._pyro_samples or self._pyro_params:
            return super().__call__(*arguments, **named)
        return nn.Module.__call__(self, *arguments, **named)

    @property
    def point(self) -> FixedRank:
        """The weight matrix, its factors as they are."""
        return FixedRank(self.u, self.s, self.v)

    def thin(self) -> tuple[Tensor, Tensor]:
        """Return the weight, probe included, as ``(M, k)`` and ``(N, k)``, whose product it is: k is R, or 2R with a probe."""
        left: Tensor = self.u @ self.s
        right: Tensor = self.v
        if self.up is not None:
            left = left + self.up
        if self.vp is not None:
            left, right = torch.cat([left, self.u], 1), torch.cat([right, self.vp], 1)
        return left, right


class FixedRankLinear(FixedRankLayer):
    """A linear layer ``x X^T + b`` with X of fixed rank.

    Parameters
    ----------
    point
        X ``(M, N)``: N features in, M out. From nothing, `random_point`.
    bias
        ``(M,)``; None: no bias.

    Raises
    ------
    ArgumentError
        If the bias does not fit the point.
    """

    def __init__(self, point: FixedRank, bias: Tensor | None = None) -> None:
        super().__init__(point, bias)
        self.out_features, self.in_features = point.shape
        self.rank = point.rank

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(..., N)`` to ``(..., M)``."""
        left, right = self.thin()
        return functional.linear(x @ right, left, self.bias)

    def extra_repr(self) -> str:
        """Show sizes and rank."""
        return f"in_features={self.in_features}, out_features={self.out_features}, rank={self.rank}, bias={self.bias is not None}"


class FixedRankConv(FixedRankLayer):
    """A convolution of 1, 2 or 3 dimensions whose matrix is of fixed rank; use one of its three classes.

    Parameters
    ----------
    point
        ``(M, N)``: M channels out, and N the channels in times the entries of a kernel.
    kernel_size
        One number for all dimensions, or one each.
    bias
        ``(M,)``; None: no bias.
    stride, dilation
        As the kernel's size.
    padding
        As the kernel's size, or "valid" or "same", the latter at stride 1.
    padding_mode
        What is outside the image.

    Raises
    ------
    ArgumentError
        If a setting is outside what PyTorch's convolutions take, N is not a multiple of the kernel's entries, or the bias does not fit.
    """

    dimensions: int

    def __init__(
        self,
        point: FixedRank,
        kernel_size: Sizes,
        bias: Tensor | None = None,
        *,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        padding_mode: PaddingMode = "zeros",
    ) -> None:
        super().__init__(point, bias)
        self.kernel_size, self.stride, self.dilation = (
            self._sizes(name, value, 1) for name, value in (("kernel_size", kernel_size), ("stride", stride), ("dilation", dilation))
        )
        self.padding = padding if isinstance(padding, str) and padding in ("valid", "same") else self._sizes("padding", padding, 0)
        self.padding_mode = padding_mode
        if padding_mode not in ("zeros", "reflect", "replicate", "circular"):
            raise self._complaint("padding_mode", "'zeros', 'reflect', 'replicate' or 'circular'", padding_mode, "'zeros'")
        if padding == "same" and set(self.stride) != {1}:
            raise self._complaint("padding", "a stride of 1 for 'same'", f"stride {self.stride}", "a number")
        if point.shape[1] % prod(self.kernel_size):
            raise self._complaint("kernel_size", f"entries that divide {point.shape[1]} columns", self.kernel_size, "(in * kernel entries) columns")
        self.out_channels, self.in_channels, self.rank = point.shape[0], point.shape[1] // prod(self.kernel_size), point.rank

    def forward(self, x: Tensor) -> Tensor:
        """Map images ``(..., in, *size)`` to ``(..., out, *size)``, with one batch dimension or none."""
        convolve = (functional.conv1d, functional.conv2d, functional.conv3d)[self.dimensions - 1]
        left, right = self.thin()
        padding = self.padding
        if self.padding_mode != "zeros":
            x, padding = functional.pad(x, self._sides(), mode=self.padding_mode), (0,) * self.dimensions
        kernels = right.mT.reshape(-1, self.in_channels, *self.kernel_size)
        channels: Tensor = convolve(x, kernels, None, self.stride, padding, self.dilation)
        mixed: Tensor = convolve(channels, left.reshape(*left.shape, *(1,) * self.dimensions), self.bias)
        return mixed

    def extra_repr(self) -> str:
        """Show sizes, rank and what is not the default."""
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, rank={self.rank}, stride={self.stride}"
        text += f", padding={self.padding!r}, dilation={self.dilation}"
        return text + f", padding_mode={self.padding_mode!r}, bias={self.bias is not None}"

    def _sides(self) -> list[int]:
        """Return how much to pad before and after, the last dimension first, as `functional.pad` wants it."""
        if not isinstance(self.padding, str):
            return [side for side in reversed(self.padding) for _ in range(2)]
        totals = [(size - 1) * dilation * (self.padding == "same") for size, dilation in zip(self.kernel_size, self.dilation, strict=True)]
        return [side for total in reversed(totals) for side in (total // 2, total - total // 2)]

    def _sizes(self, name: str, value: Any, least: int) -> tuple[int, ...]:
        sizes = (value,) * self.dimensions if isinstance(value, int) else tuple(value) if isinstance(value, tuple | list) else ()
        if len(sizes) != self.dimensions or not all(isinstance(size, int) and size >= least for size in sizes):
            raise self._complaint(name, f"{self.dimensions} whole numbers, {least} or more", repr(value), repr((max(1, least),) * self.dimensions))
        return sizes

    def _complaint(self, name: str, expected: object, actual: object, hint: str) -> ArgumentError:
        return ArgumentError(complain(f"{type(self).__name__}, {name}", expected=expected, actual=actual, hint=hint))


class FixedRankConv1d(FixedRankConv):
    """`FixedRankConv` of ``(B, in, length)``."""

    dimensions = 1


class FixedRankConv2d(FixedRankConv):
    """`FixedRankConv` of ``(B, in, height, width)``."""

    dimensions = 2


class FixedRankConv3d(FixedRankConv):
    """`FixedRankConv` of ``(B, in, depth, height, width)``."""

    dimensions = 3
