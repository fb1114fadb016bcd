"""`DropoutPosterior`: passes of a trained network with its dropout on (Gal and Ghahramani,
2016).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor, nn

from bayesfed.errors import PosteriorError
from bayesfed.errors.checks import checked
from bayesfed.inference.ensembles.networks import Networks
from bayesfed.keys import Key, forked
from bayesfed.models.calling import functional_call
from bayesfed.models.live import drawing
from bayesfed.models.modules import evaluating
from bayesfed.trees import Tree, to


@dataclass(frozen=True, eq=False)
class DropoutPosterior(Networks):
    """A trained network of which every pass drops other units, of every row others.

    The masks are drawn where targets are predicted, so that all draws are the same parameters.

    Parameters
    ----------
    parameters
        The trained parameters.
    """

    parameters: Tree
    _drawing: list[nn.Module] = field(default_factory=list, init=False, repr=False)

    @checked()
    def draw(self, key: Key) -> Tree:
        """Return the parameters."""
        return dict(self.parameters)

    def observe(self, draw: Tree, inputs: Tensor, key: Key) -> TorchDistribution:
        """Return the distribution of the targets given masks that the key names, of batch shape
        ``(B,)``.
        """
        placed = to(draw, inputs.device)
        with torch.no_grad(), evaluating(self.net), forked(key):
            for module in self._drawing or self._look(placed, inputs):
                module.training = True
            outputs: Tensor = functional_call(self.net, placed, (inputs,))
        return self.likelihood.distribution(outputs)

    def _look(self, placed: Tree, inputs: Tensor) -> list[nn.Module]:
        found = drawing(self.net, placed, inputs)
        if not found:
            actual = f"{type(self.net).__name__}, which draws nothing"
            hint = "nn.Dropout(0.2) between its layers"
            raise PosteriorError("mc_dropout", "a network with dropout", actual, hint)
        # In evaluation mode, layers of transformers take a fast path, which has no dropout.
        layers = nn.TransformerEncoderLayer | nn.TransformerDecoderLayer
        self._drawing.extend(
            module
            for module in self.net.modules()
            if module in found
            or (isinstance(module, layers) and not {*found}.isdisjoint(module.modules()))
        )
        return self._drawing
