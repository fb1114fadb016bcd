"""Helpers for any torch module: evaluation mode inside a block, the classes that other files treat alike, and copies with layers replaced."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

Predicate = Callable[[str, nn.Module], bool]
Dense = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
Looked = nn.Embedding | nn.EmbeddingBag

# Activations that act on each entry by itself, so that a vector with one value per unit can be passed through them.
ELEMENTWISE: tuple[type[nn.Module], ...] = (
    nn.CELU,
    nn.ELU,
    nn.GELU,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.Hardtanh,
    nn.LeakyReLU,
    nn.LogSigmoid,
    nn.Mish,
    nn.ReLU,
    nn.ReLU6,
    nn.SELU,
    nn.Sigmoid,
    nn.SiLU,
    nn.Softplus,
    nn.Softsign,
    nn.Tanh,
)
# Modules that do nothing in evaluation mode.
SILENT: tuple[type[nn.Module], ...] = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Put a network in evaluation mode inside the block: dropout drops nothing, batch norm normalises by its running statistics.

    Every module's own mode is restored when the block ends.
    """
    modes = [(module, module.training) for module in net.modules()]
    try:
        net.eval()
        yield
    finally:
        for module, mode in modes:
            # Not `train`: a module may override it and pass the mode on to its children.
            module.training = mode


def is_plain(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Return whether a module is exactly of one of these classes and has no hooks, so that calling it runs its `forward` and nothing else."""
    hooked = module._forward_hooks or module._forward_pre_hooks
    return type(module) in kinds and not hooked


def weight_matrices(name: str, module: nn.Module) -> bool:
    """Select the weights, not the biases, of linear and convolution layers."""
    return isinstance(module, Dense) and name.rpartition(".")[2] == "weight"


def layer_weights(name: str, module: nn.Module) -> bool:
    """Select every matrix of a layer of torch: linear, (transposed) convolution, recurrent, attention, embedding.

    Biases, norms, scalars, and parameters of modules of one's own (such as learned positions) are not selected.
    """
    known = isinstance(module, Dense | Looked | nn.modules.conv._ConvTransposeNd | nn.RNNBase | nn.RNNCellBase | nn.MultiheadAttention | nn.Bilinear)
    return known and name.rpartition(".")[2].startswith(("weight", "in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"))


def initial_scale(values: Tensor) -> float:
    """Return the root mean square of a layer's values, or that of He et al. (2015), ``sqrt(2 / fan_in)``, where they are all zero."""
    return float(values.detach().double().square().mean().sqrt()) or math.sqrt(2 / values[0].numel())


def as_before(made: nn.Module, layer: nn.Module) -> None:
    """Copy two settings to a new layer from the one it replaces: whether its bias is trained, and its training mode."""
    if isinstance(made.bias, Tensor) and isinstance(layer.bias, Tensor):
        made.bias.requires_grad_(layer.bias.requires_grad)
    made.train(layer.training)


def swapped(net: nn.Module, swaps: Mapping[nn.Module, nn.Module], tensors: Mapping[Tensor, Tensor] | None = None) -> nn.Module:
    """Return a copy of a network in which some modules and tensors are replaced wherever they occur; the replacements are not copied."""
    twin = copy.deepcopy(net, {id(old): new for old, new in (*swaps.items(), *(tensors or {}).items())})
    for path, module in list(twin.named_modules(remove_duplicate=False)):
        if path and module in swaps.values():
            # A PyroModule learns its name when it is added; assigning it would move it behind its siblings.
            parent, _, name = path.rpartition(".")
            twin.get_submodule(parent).add_module(name, module)
    return twin
