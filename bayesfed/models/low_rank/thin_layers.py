"""Base classes of layers whose weight matrix is a product of thin factors and is never formed:
parameters, calls, two convolutions for one.

A convolution's weight ``(out, in, *kernel)`` becomes a matrix in one of several ways: the last
``tail`` dimensions of the kernel are combined with the output channels, the others with the input
channels. The matrix is then ``L R^T`` with L ``(out * entries of the tail, k)`` and R
``(in * entries of the other dimensions, k)``. R convolves along the first dimensions into k
channels, and L along the last ones out of these. Without a tail, L is a 1 x 1 convolution.

Layers of `bayesfed.models.low_rank.fixed_rank_layers` are on a manifold, ``u s v^T``; those of
`bayesfed.models.low_rank.factored_layers` have two free factors.
"""

from __future__ import annotations

from math import prod
from typing import Any, Literal

import torch
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.nn import functional

from bayesfed.errors import ArgumentError

PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]
Sizes = int | tuple[int, ...]


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
    """A layer whose parameters are factors of a weight and a bias.

    Parameters
    ----------
    outputs
        Number of entries of the bias.
    bias
        ``(outputs,)``, of the factors' dtype and device, copied. None for no bias.
    factors
        Factors by parameter name, copied.

    Raises
    ------
    ArgumentError
        If the bias does not fit.
    """

    def __init__(self, outputs: int, bias: Tensor | None, **factors: Tensor) -> None:
        super().__init__()
        like = next(iter(factors.values()))
        if bias is not None and (tuple(bias.shape), bias.dtype, bias.device) != (
            (outputs,),
            like.dtype,
            like.device,
        ):
            raise ArgumentError(
                f"{type(self).__name__}, bias",
                f"shape {(outputs,)} of {like.dtype} on {like.device}",
                f"shape {tuple(bias.shape)} of {bias.dtype} on {bias.device}",
                "None",
            )
        for name, factor in factors.items():
            # Copies: a view of an SVD's result would keep all of it in memory.
            setattr(
                self,
                name,
                nn.Parameter(factor.detach().clone(memory_format=torch.contiguous_format)),
            )
        self.register_parameter(
            "bias", None if bias is None else nn.Parameter(bias.detach().clone())
        )


class Convolving:
    """The checked settings of a convolution, and the two convolutions in place of it; a layer
    inherits from this and from `ThinLayer`.
    """

    dimensions: int
    in_channels: int
    out_channels: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    padding_mode: PaddingMode

    def _configure(
        self,
        kernel_size: Sizes,
        stride: Sizes,
        padding: Sizes | str,
        dilation: Sizes,
        padding_mode: PaddingMode,
    ) -> None:
        """Store the settings; raise `ArgumentError` if PyTorch's convolutions would not
        accept one.
        """
        self.kernel_size, self.stride, self.dilation = (
            self._sizes(name, value, 1)
            for name, value in (
                ("kernel_size", kernel_size),
                ("stride", stride),
                ("dilation", dilation),
            )
        )
        self.padding = (
            padding
            if isinstance(padding, str) and padding in ("valid", "same")
            else self._sizes("padding", padding, 0)
        )
        self.padding_mode = padding_mode
        if padding_mode not in ("zeros", "reflect", "replicate", "circular"):
            raise self._complaint(
                "padding_mode",
                "'zeros', 'reflect', 'replicate' or 'circular'",
                padding_mode,
                "'zeros'",
            )
        if padding == "same" and set(self.stride) != {1}:
            raise self._complaint(
                "padding", "a stride of 1 for 'same'", f"stride {self.stride}", "a number"
            )

    def _channels(self, rows: int, columns: int, tail: int) -> None:
        """Store the numbers of channels of a matrix ``(rows, columns)``; raise `ArgumentError` if
        the kernel does not divide it.
        """
        cut = self.dimensions - tail
        for sides, length, kernel in (
            ("columns", columns, self.kernel_size[:cut]),
            ("rows", rows, self.kernel_size[cut:]),
        ):
            if length % prod(kernel):
                hint = f"(channels * {' * '.join(map(str, kernel))}) {sides}"
                raise self._complaint(
                    "kernel_size", f"entries that divide {length} {sides}", self.kernel_size, hint
                )
        self.in_channels, self.out_channels = (
            columns // prod(self.kernel_size[:cut]),
            rows // prod(self.kernel_size[cut:]),
        )

    def _convolved(
        self, x: Tensor, left: Tensor, right: Tensor, bias: Tensor | None, tail: int
    ) -> Tensor:
        """Map images ``(..., in, *size)`` to ``(..., out, *size)`` by the convolution whose matrix
        is ``left right^T``.
        """
        convolve = (functional.conv1d, functional.conv2d, functional.conv3d)[self.dimensions - 1]
        padding = self.padding
        if self.padding_mode != "zeros":
            x, padding = (
                functional.pad(x, self._sides(), mode=self.padding_mode),
                (0,) * self.dimensions,
            )
        halves = thin_kernels(left, right, self.kernel_size, tail)
        for kernel, axes, added in zip(halves, self.halves(tail), (None, bias), strict=True):
            # Each convolution strides, pads and dilates along its own dimensions only, so that no
            # position is lost for the other.
            stride, dilation = along(axes, self.stride, 1), along(axes, self.dilation, 1)
            x = convolve(
                x,
                kernel,
                added,
                stride,
                padding if isinstance(padding, str) else along(axes, padding, 0),
                dilation,
            )
        return x

    def halves(self, tail: int) -> tuple[range, range]:
        """Return the dimensions of the first and of the second convolution."""
        cut = self.dimensions - tail
        return range(cut), range(cut, self.dimensions)

    def _sides(self) -> list[int]:
        """Return the padding before and after each dimension, the last dimension first, as
        `functional.pad` takes it.
        """
        if not isinstance(self.padding, str):
            return [side for side in reversed(self.padding) for _ in range(2)]
        totals = [
            (size - 1) * dilation * (self.padding == "same")
            for size, dilation in zip(self.kernel_size, self.dilation, strict=True)
        ]
        return [side for total in reversed(totals) for side in (total // 2, total - total // 2)]

    def _sizes(self, name: str, value: Any, least: int) -> tuple[int, ...]:
        sizes = (
            (value,) * self.dimensions
            if isinstance(value, int)
            else tuple(value)
            if isinstance(value, tuple | list)
            else ()
        )
        if len(sizes) != self.dimensions or not all(
            isinstance(size, int) and size >= least for size in sizes
        ):
            raise self._complaint(
                name,
                f"{self.dimensions} whole numbers, {least} or more",
                repr(value),
                repr((max(1, least),) * self.dimensions),
            )
        return sizes

    def _complaint(self, name: str, expected: object, actual: object, hint: str) -> ArgumentError:
        return ArgumentError(f"{type(self).__name__}, {name}", expected, actual, hint)


def along(axes: range, values: tuple[int, ...], neutral: int) -> tuple[int, ...]:
    """Return a setting of a convolution with its values at the dimensions `axes` and `neutral` at
    the others.
    """
    return tuple(value if axis in axes else neutral for axis, value in enumerate(values))


def thin_kernels(
    left: Tensor, right: Tensor, kernel: tuple[int, ...], tail: int
) -> tuple[Tensor, Tensor]:
    """Return the kernels ``(k, in, *first, 1...)`` and ``(out, k, 1..., *last)`` of the two
    convolutions in place of ``left right^T``.
    """
    cut, rank = len(kernel) - tail, right.shape[1]
    into = right.mT.reshape(rank, -1, *kernel[:cut], *(1,) * tail)
    out = left.reshape(-1, prod(kernel[cut:]), rank).mT.reshape(
        -1, rank, *(1,) * cut, *kernel[cut:]
    )
    return into, out
