"""Linear and convolution layers whose weight matrix is a point ``u s v^T`` of fixed rank: two thin
products, and thin gradients.

Parameters are u ``(M, R)``, s ``(R, R)``, v ``(N, R)`` and the bias. A convolution's matrix is
``(out, in * kh * kw)``, with one row per output channel: v convolves into R channels, and ``u s``
is a 1 x 1 convolution of these.

Descent on the manifold does not need the gradients of u, s and v themselves, but ``G V`` and
``G^T U`` of the weight's gradient G. A layer gives both through a *probe*, a tangent
``up v^T + u vp^T`` that is added to its weight. The probe is held in two buffers, up ``(M, R)`` and
vp ``(N, R)``, which are None unless `torch.func.functional_call` puts tensors there for the
duration of a call. With zeros that require gradients the weight is unchanged, and backward leaves
``G V`` in ``up.grad`` and ``G^T U`` in ``vp.grad``. The two products become twice as wide,
``[u s + up, u] [v, vp]^T``, and no ``M x N`` array is formed. Without a probe nothing of this is
computed or stored. `bayesfed.models.low_rank.fixed_rank_trees` has the whole step.

The layers are deterministic PyroModules: they have no sample site unless a `PyroSample` is
assigned.

References
----------
FedRLR, the federated Riemannian low-rank compression scheme with over-the-air aggregation: the
projection (47), here without a dense gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from bayesfed.geometry import FixedRank
from bayesfed.models.low_rank.thin_layers import Convolving, PaddingMode, Sizes, ThinLayer


class FixedRankLayer(ThinLayer):
    """Base class of layers of fixed rank: the point and the bias as parameters, and the probe.

    Parameters
    ----------
    point
        The weight matrix ``(M, N)``, copied.
    bias
        ``(M,)``, copied. None for no bias.

    Raises
    ------
    ArgumentError
        If the bias does not fit the point.
    """

    up: Tensor | None
    vp: Tensor | None

    def __init__(self, point: FixedRank, bias: Tensor | None = None) -> None:
        super().__init__(point.shape[0], bias, u=point.u, s=point.s, v=point.v)
        # None, not zeros: `running_statistics` would take floating-point buffers for those of batch
        # norm, and zeros would double a point's memory.
        self.register_buffer("up", None, persistent=False)
        self.register_buffer("vp", None, persistent=False)

    @property
    def point(self) -> FixedRank:
        """The weight matrix; its factors are the layer's parameters, not copies."""
        return FixedRank(self.u, self.s, self.v)

    def thin(self) -> tuple[Tensor, Tensor]:
        """Return factors ``(M, k)`` and ``(N, k)`` whose product is the weight, probe included: k
        is R, or 2R with a probe.
        """
        left: Tensor = self.u @ self.s
        right: Tensor = self.v
        if self.up is not None:
            left = left + self.up
        if self.vp is not None:
            left, right = torch.cat([left, self.u], 1), torch.cat([right, self.vp], 1)
        return left, right


def fixed_rank_layers(net: nn.Module) -> dict[str, FixedRankLayer]:
    """Return the layers of fixed rank of a network, by name."""
    return {name: one for name, one in net.named_modules() if isinstance(one, FixedRankLayer)}


class FixedRankLinear(FixedRankLayer):
    """A linear layer ``x X^T + b`` with X of fixed rank.

    Parameters
    ----------
    point
        X ``(M, N)`` for N input and M output features, copied. For a new layer, use `random_point`.
    bias
        ``(M,)``, copied. None for no bias.

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
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"rank={self.rank}, bias={self.bias is not None}"
        )


class FixedRankConv(Convolving, FixedRankLayer):
    """A convolution of 1, 2 or 3 dimensions whose matrix is of fixed rank; use one of its three
    subclasses.

    Parameters
    ----------
    point
        ``(M, N)``, copied: M output channels; N is the number of input channels times the entries
        of a kernel.
    kernel_size
        One number for all dimensions, or one each.
    bias
        ``(M,)``, copied. None for no bias.
    stride, dilation
        One number for all dimensions, or one each.
    padding
        One number for all dimensions, or one each, or "valid", or "same" (at stride 1 only).
    padding_mode
        Values outside the image: "zeros", "reflect", "replicate" or "circular".

    Raises
    ------
    ArgumentError
        If PyTorch's convolutions do not accept a setting, N is not a multiple of the kernel's
        entries, or the bias does not fit.
    """

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
        self._configure(kernel_size, stride, padding, dilation, padding_mode)
        self._channels(*point.shape, tail=0)
        self.rank = point.rank

    def forward(self, x: Tensor) -> Tensor:
        """Map images ``(..., in, *size)`` to ``(..., out, *size)``, with one batch dimension or
        none.
        """
        return self._convolved(x, *self.thin(), self.bias, tail=0)

    def extra_repr(self) -> str:
        """Show sizes, rank and settings."""
        text = (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"rank={self.rank}, stride={self.stride}"
        )
        text += f", padding={self.padding!r}, dilation={self.dilation}"
        return text + f", padding_mode={self.padding_mode!r}, bias={self.bias is not None}"


class FixedRankConv1d(FixedRankConv):
    """`FixedRankConv` of inputs ``(B, in, length)``."""

    dimensions = 1


class FixedRankConv2d(FixedRankConv):
    """`FixedRankConv` of inputs ``(B, in, height, width)``."""

    dimensions = 2


class FixedRankConv3d(FixedRankConv):
    """`FixedRankConv` of inputs ``(B, in, depth, height, width)``."""

    dimensions = 3
