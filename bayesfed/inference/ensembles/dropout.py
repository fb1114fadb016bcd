"""`DropoutPosterior`: passes of a trained network with its dropout on (Gal and Ghahramani,
2016).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.dropout import _DropoutNd

from bayesfed.errors.checks import checked
from bayesfed.inference.ensembles.networks import Networks
from bayesfed.keys import Key, forked
from bayesfed.models.modules import evaluating
from bayesfed.trees import Tree, to


def drops(module: nn.Module) -> bool:
    """Whether a module draws dropout of its own while it trains."""
    if isinstance(module, _DropoutNd):
        return module.p > 0
    if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
        # In evaluation they take a fast path, which has no dropout.
        return any(drops(inner) for inner in module.children())
    return isinstance(module, nn.MultiheadAttention | nn.RNNBase) and module.dropout > 0


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

    @checked()
    def draw(self, key: Key) -> Tree:
        """Return the parameters."""
        return dict(self.parameters)

    def observe(self, draw: Tree, inputs: Tensor, key: Key) -> TorchDistribution:
        """Return the distribution of the targets given masks that the key names, of batch shape
        ``(B,)``.
        """
        with torch.no_grad(), evaluating(self.net), forked(key):
            for module in self.net.modules():
                if drops(module):
                    module.training = True
            outputs: Tensor = functional_call(self.net, to(draw, inputs.device), (inputs,))
        return self.likelihood.distribution(outputs)
