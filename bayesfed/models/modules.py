"""Helpers for any torch module: evaluation mode in a block, which layer is last, classes treated
alike elsewhere, copies with layers replaced.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import get_args

import torch
from torch import Tensor, nn

from bayesfed.errors import ArgumentError, DataError
from bayesfed.errors.checks import checked, shown
from bayesfed.models.calling import called
from bayesfed.models.live import untouched
from bayesfed.models.misfits import Looked
from bayesfed.trees import frozen, to, trainable

Predicate = Callable[[str, nn.Module], bool]
Dense = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
DENSE: tuple[type[nn.Module], ...] = get_args(Dense)

# Activations that act on each entry by itself, so that a vector with one value per unit can be
# passed through them.
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
SILENT: tuple[type[nn.Module], ...] = (
    nn.Identity,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Put a network in evaluation mode inside the block: dropout drops nothing, batch norm
    normalises by its running statistics.

    Every module's own mode, and whatever else a pass changes, is put back when the block ends.
    """
    with untouched([net]):
        net.eval()
        yield


def outputs(net: nn.Module, parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """Return the outputs of a network in evaluation mode, without gradients.

    Parameters
    ----------
    net
        Network; never changed.
    parameters
        Parameters and buffers by name; where these lack one, the network's own is used.
    inputs
        ``(B, ...)``.

    Raises
    ------
    DataError
        If the network does not take the inputs.
    """
    if not isinstance(inputs, Tensor):
        hint = "data.inputs, or torch.as_tensor(array)"
        raise DataError("model", "a tensor of inputs (B, ...)", shown(inputs), hint)
    with torch.no_grad(), evaluating(net):
        return called(net, to(parameters, inputs.device), inputs, "model")


@contextmanager
def noting(net: nn.Module, paths: Iterable[str]) -> Iterator[list[tuple[str, Tensor]]]:
    """Note, inside the block, the path and the inputs of some modules whenever one is called; no
    numbers where it is called with none, as a parametrisation is, or by keyword.
    """
    calls: list[tuple[str, Tensor]] = []

    def note(path: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda module, given: calls.append((path, given[0] if given else torch.empty(0)))

    with ExitStack() as hooks:
        for path in paths:
            hooks.enter_context(net.get_submodule(path).register_forward_pre_hook(note(path)))
        yield calls


@contextmanager
def passing(
    net: nn.Module, paths: Iterable[str]
) -> Iterator[dict[str, list[tuple[Tensor, Tensor]]]]:
    """Note, inside the block, inputs and outputs of every call of some modules by their paths; the
    slopes of what follows can be taken at these outputs.
    """
    calls: dict[str, list[tuple[Tensor, Tensor]]] = {path: [] for path in paths}

    def note(path: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        def hook(module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
            calls[path].append((given[0].detach(), output))
            # A copy goes on, since the next module may work in place.
            return output.clone()

        return hook

    with ExitStack() as hooks:
        for path in calls:
            hooks.enter_context(net.get_submodule(path).register_forward_hook(note(path)))
        yield calls


def last_layer(
    net: nn.Module, inputs: Tensor, parameters: Mapping[str, Tensor] | None = None
) -> str:
    """Return the path of the module with parameters of its own that a row comes to last; modules
    without parameters, as a softmax, may follow it. Empty if there is none.

    Parameters
    ----------
    net
        Network, run in evaluation mode.
    inputs
        ``(B, ...)``, at least one row.
    parameters
        Parameters by name; where these lack one, the network's own is used. Default: its own.
    """
    own = [path for path, one in net.named_modules() if any(True for _ in one.parameters(False))]
    with noting(net, own) as calls, torch.no_grad(), evaluating(net):
        # Batch norm without statistics refuses a single row of vectors: it gets the row twice.
        row = inputs[:1].expand(2, *inputs.shape[1:])
        called(net, to(parameters or {}, inputs.device), row)
    return calls[-1][0] if calls else ""


def last_linear(net: nn.Module, where: str, hint: str) -> tuple[str, nn.Linear]:
    """Return path and layer of the linear layer that a network registers last, for methods that
    look at no rows yet; `check_last` is for when they do.

    Parameters
    ----------
    net
        Network.
    where, hint
        Name of the method, and what to try, for the error.

    Raises
    ------
    ArgumentError
        If the network has no linear layer.
    """
    linear = [(path, one) for path, one in net.named_modules() if isinstance(one, nn.Linear)]
    if not linear:
        raise ArgumentError(where, "a network with a linear layer", type(net).__name__, hint)
    return linear[-1]


def check_last(
    net: nn.Module, parameters: Mapping[str, Tensor], name: str, inputs: Tensor, *, where: str
) -> None:
    """Make sure that a layer, the last that a network registers, is its `last_layer`; without rows
    nothing is checked.

    Parameters
    ----------
    net, parameters, inputs
        As in `last_layer`.
    name
        Path of the layer.
    where
        Name of the method, for the error.

    Raises
    ------
    DataError
        If a row comes to another module with parameters after it, or not to the layer at all.
    """
    last = last_layer(net, inputs, parameters) if len(inputs) else name
    if name and last != name and not last.startswith(f"{name}."):
        hint = "a network that registers its output layer last"
        raise DataError(
            where, f"the layer registered last, {name!r}, to be used last", repr(last), hint
        )


def tied(net: nn.Module) -> frozenset[str]:
    """Return the names of the parameters that are one tensor with another, every name of each."""
    named = list(net.named_parameters(remove_duplicate=False))
    owners = Counter(id(value) for _, value in named)
    return frozenset(name for name, value in named if owners[id(value)] > 1)


def constants(net: nn.Module) -> frozenset[str]:
    """Return the names of the parameters that are frozen while others are trained."""
    return frozenset(frozen(net) if trainable(net) else ())


def is_plain(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Return whether a module is exactly of one of these classes and has no hooks, so that calling
    it runs its `forward` and nothing else.
    """
    hooked = module._forward_hooks or module._forward_pre_hooks
    return type(module) in kinds and not hooked


def selected(net: nn.Module, names: Iterable[str], where: Predicate) -> list[str]:
    """Return those of some parameters that a predicate chooses."""
    return [name for name in names if where(name, net.get_submodule(name.rpartition(".")[0]))]


@checked()
def weight_matrices(name: str, module: nn.Module) -> bool:
    """Select the weights, not the biases, of linear and convolution layers."""
    return isinstance(module, Dense) and name.rpartition(".")[2] == "weight"


@checked()
def layer_weights(name: str, module: nn.Module) -> bool:
    """Select every matrix of a layer of torch: linear, (transposed) convolution, recurrent,
    attention, embedding.

    Biases, norms, scalars, and parameters of modules of one's own (such as learned positions) are
    not selected.
    """
    known = isinstance(
        module,
        Dense
        | Looked
        | nn.modules.conv._ConvTransposeNd
        | nn.RNNBase
        | nn.RNNCellBase
        | nn.MultiheadAttention
        | nn.Bilinear,
    )
    return known and name.rpartition(".")[2].startswith(
        ("weight", "in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
    )


def initial_scale(values: Tensor) -> float:
    """Return the root mean square of a layer's values, or that of He et al. (2015),
    ``sqrt(2 / fan_in)``, where they are all zero.
    """
    return float(values.detach().double().square().mean().sqrt()) or math.sqrt(
        2 / values[0].numel()
    )


def swapped(
    net: nn.Module,
    swaps: Mapping[nn.Module, nn.Module],
    tensors: Mapping[Tensor, Tensor] | None = None,
) -> nn.Module:
    """Return a copy of a network in which some modules and tensors are replaced wherever they
    occur; the replacements are not copied.
    """
    twin = copy.deepcopy(
        net, {id(old): new for old, new in (*swaps.items(), *(tensors or {}).items())}
    )
    for path, module in list(twin.named_modules(remove_duplicate=False)):
        if path and module in swaps.values():
            # A PyroModule learns its name when it is added; assigning it would move it behind its
            # siblings.
            parent, _, name = path.rpartition(".")
            twin.get_submodule(parent).add_module(name, module)
    return twin
