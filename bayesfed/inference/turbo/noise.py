"""`Noise`: the noise of one site's weights, drawn with them or at the outputs of their layer."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn

from bayesfed.inference.objectives.sampled_outputs import through
from bayesfed.models import Site
from bayesfed.models.modules import Dense


class Noise(NamedTuple):
    """The noise on one site's weights.

    Parameters
    ----------
    site
        The site.
    log_sd
        Scalar or ``(M, N)``.
    mask
        ``(M, N)``, 1 at active entries; None if all are active.
    """

    site: Site
    log_sd: Tensor
    mask: Tensor | None

    def at_outputs(self, net: nn.Module) -> bool:
        """Whether outputs of the site's layer can be sampled instead of its weights."""
        return isinstance(net.get_submodule(self.site.module), Dense)

    def draw(self, generator: Generator) -> Tensor:
        """Return one draw of the noise on the weight itself, for layers of other kinds."""
        unit = torch.randn(
            self.site.matrix,
            generator=generator,
            device=self.log_sd.device,
            dtype=self.log_sd.dtype,
        )
        scaled = unit * self.log_sd.exp()
        return (scaled if self.mask is None else scaled * self.mask).view(self.site.shape)

    def variance_of(self, layer: nn.Module, squares: Tensor) -> Tensor:
        """Return the variance of the layer's outputs, given the squares of its inputs."""
        variance = (2 * self.log_sd).exp()
        if self.log_sd.ndim:
            spread = variance if self.mask is None else variance * self.mask
            return through(layer, squares, spread.view(self.site.shape))
        if self.mask is not None:
            return variance * through(layer, squares, self.mask.view(self.site.shape))
        if isinstance(layer, nn.Linear):
            total = squares.sum(dim=-1, keepdim=True)
            return variance * total.expand(*squares.shape[:-1], layer.out_features)
        return variance * through(layer, squares, squares.new_ones(self.site.shape))
