"""Random effects with learned loadings: a layer that differs between clients along a few
directions, which all clients share.

===========================================  =======================================================
notation                                     here
===========================================  =======================================================
W + sum_j z_kj U_j, the weight of client k   `FactorLayer`; its bias likewise
W, U_j: fixed effects and loadings           shared parameters, ``weight``, ``weight_loadings``, the
                                             same for ``bias``
z_k ~ N(mu, s^2), the factors of client k    its own parameters, ``factors``
===========================================  =======================================================

With the U_j all entries of a layer have a prior covariance of rank d, learned from all clients,
where independent widths would have a diagonal one (factor-analytic random effects: Meyer, 2009). In
multi-task learning a task's weights are such a combination (Kumar and Daume, 2012).
"""

from __future__ import annotations

import math
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bayesfed.errors import ArgumentError
from bayesfed.keys import Key
from bayesfed.models.calling import check_resolved
from bayesfed.models.modules import Dense, swapped

# Leaf of a layer with the client's own numbers, and what the names of loadings end with.
FACTORS, LOADINGS = "factors", "_loadings"


class FactorLayer(nn.Module):
    """A linear or convolution layer whose weight and bias move with the factors.

    The factors begin at 0, where the layer is the one that it was made of.

    Parameters
    ----------
    layer
        The layer; its parameters are taken over.
    factors
        d, the number of factors.
    key
        Source of the first loadings. They have the spread of torch's first weights, so that factors
        of 1 change the layer as much as a new beginning.
    """

    def __init__(self, layer: nn.Module, factors: int, key: Key) -> None:
        super().__init__()
        # In a tuple: the layer says how its parameters are used, it has none of its own here.
        self._layer = (layer,)
        parameters = dict(layer.named_parameters())
        bound, noise = 1 / math.sqrt(parameters["weight"][0].numel()), key.generator()
        for name, value in parameters.items():
            uniform = (
                2 * torch.rand(factors, *value.shape, generator=noise, dtype=torch.float64) - 1
            )
            self.register_parameter(name, value)
            self.register_parameter(name + LOADINGS, nn.Parameter((bound * uniform).to(value)))
        self.register_parameter(
            FACTORS, nn.Parameter(parameters["weight"].detach().new_zeros(factors))
        )
        self._names = tuple(parameters)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs of the layer at its factors."""
        # Not `get_parameter`: a functional call puts plain tensors in the parameters' places.
        factors = getattr(self, FACTORS)
        leaves = {
            name: (getattr(self, name), getattr(self, name + LOADINGS)) for name in self._names
        }
        moved = {
            name: value + torch.tensordot(factors, loadings, 1)
            for name, (value, loadings) in leaves.items()
        }
        outputs: Tensor = functional_call(self._layer[0], moved, (inputs,))
        return outputs


def is_factor(name: str, module: nn.Module) -> bool:
    """Return whether a parameter holds a client's factors; that of another layer may have the same
    name.
    """
    return isinstance(module, FactorLayer) and name.rpartition(".")[2] == FACTORS


def with_factors(net: nn.Module, factors: int, key: Key) -> nn.Module:
    """Return a copy of a network whose first trained linear or convolution layer has factors.

    Raises
    ------
    ArgumentError
        If the number is below 1, or the network has no such layer, or another module has its
        parameters too.
    """
    check_resolved("pooled, local='factors'", net)
    layers = (module for module in net.modules() if isinstance(module, Dense))
    first = next((layer for layer in layers if layer.weight.requires_grad), None)
    weights = [value for module in net.modules() for value in module.parameters(recurse=False)]
    if first is None or sum(value is first.weight for value in weights) > 1:
        raise ArgumentError(
            "pooled, local='factors'",
            "a trained linear or convolution layer whose weight no other module uses",
            type(net).__name__,
            "local='offsets'",
        )
    return swapped(net, {first: FactorLayer(deepcopy(first), factors, key)})
