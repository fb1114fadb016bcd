"""Local reparameterisation (Kingma, Salimans and Welling, 2015): the noise of a layer's weights,
drawn at its outputs.

For a linear layer the distribution of each row's output is the same as with drawn weights; rows
have independent noise, so that gradients vary less. For convolutions, the distribution is the same
at each position alone: noise is independent between positions, which would share drawn weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import linear

VarianceOf = Callable[[nn.Module, Tensor], Tensor]
"""``(layer, squares of its inputs) -> variances of its outputs``."""


@contextmanager
def sampled_outputs(
    net: nn.Module, variances: Mapping[str, VarianceOf], generator: Generator
) -> Iterator[None]:
    """Add Gaussian noise to the outputs of linear and convolution layers inside the block, as if
    their weights were drawn.

    Parameters
    ----------
    net
        The network.
    variances
        By name of a layer: the variances of its outputs.
    generator
        Generator of the draws, on the device of the network.
    """

    def hook(variance_of: VarianceOf):  # type: ignore[no-untyped-def]
        def add(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            # Clamped: where all inputs of a unit are zero, the square root has no gradient.
            sd = variance_of(layer, inputs[0].square()).clamp_min(1e-12).sqrt()
            return output + sd * torch.randn(
                output.shape, generator=generator, device=output.device, dtype=output.dtype
            )

        return add

    handles = [
        net.get_submodule(name).register_forward_hook(hook(variance_of))
        for name, variance_of in variances.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def through(layer: nn.Module, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the outputs of a linear or convolution layer with another weight and bias in the place
    of its own.
    """
    if isinstance(layer, nn.Linear):
        return linear(inputs, weight, bias)
    result: Tensor = layer._conv_forward(inputs, weight, bias)  # type: ignore[operator]
    return result
