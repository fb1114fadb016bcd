"""A network's call, whose outputs must be one tensor, and weights that are no parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, func, nn
from torch.nn.utils import parametrize

from bayesfed.data.packed import taken_apart
from bayesfed.errors import ArgumentError, DataError
from bayesfed.errors.checks import shown
from bayesfed.models.misfits import refused
from bayesfed.trees import leaf_of

# What takes a hook of torch away, by the hook's class.
REMOVED = {"WeightNorm": "remove_weight_norm", "SpectralNorm": "remove_spectral_norm"}


def functional_call(
    net: nn.Module,
    values: Mapping[str, Tensor],
    inputs: tuple[Tensor],
    *,
    tie_weights: bool = True,
) -> Any:
    """Call a network as torch's function of this name does, on rows that may be trees: dicts go in
    by keyword, tuples by position. Of outputs by name, as those of transformers, take the logits.
    """
    given, named = taken_apart(inputs[0])
    # Torch's looks for tied weights at every call, which takes as long as a small layer.
    found = (
        func.functional_call(net, dict(values), given, named, tie_weights=tie_weights)
        if values
        else net(*given, **named)
    )
    return found["logits"] if isinstance(found, Mapping) and "logits" in found else found


def called(net: nn.Module, values: Mapping[str, Tensor], inputs: Tensor, where: str = "") -> Tensor:
    """Return the outputs of a network, in its own mode, at values of parameters and buffers by
    name; where these lack one, the network's own is used.

    Raises
    ------
    ArgumentError
        If the outputs are not one tensor.
    DataError
        If the network does not take the inputs and they have another type than its parameters, or
        are one row for batch norm; of every error of the network, if `where` says where it was
        called.
    """
    try:
        found: object = functional_call(net, values, (inputs,))
    except Exception as problem:
        check_norms(problem)
        leaves = (*net.parameters(), *values.values())
        kinds = [leaf.dtype for leaf in leaves if leaf.is_floating_point()]
        if not inputs.is_floating_point() or not kinds or inputs.dtype in kinds:
            if where:
                raise refused(where, inputs, problem) from problem
            raise
        expected = f"inputs of {str(kinds[0]).removeprefix('torch.')}, as its parameters are"
        hint = f"inputs.to({kinds[0]}), or net.to({inputs.dtype})"
        raise DataError("network", expected, shown(inputs), hint) from problem
    if isinstance(found, Tensor):
        return found
    hint = f"a module that returns {_first_tensor(found)}"
    raise ArgumentError("network", "one tensor of outputs", type(found).__name__, hint)


def check_norms(problem: Exception) -> None:
    """Raise `DataError` if an error is that of batch norm about a single row."""
    if "more than 1 value per channel" in str(problem):
        expected = "two rows or more at once, of which batch norm takes the variance"
        hint = "clients and batches of two rows or more, or nn.GroupNorm"
        raise DataError("network", expected, "one row", hint) from problem


def _first_tensor(found: object) -> str:
    """Return how to get at the first tensor in what a network returned."""
    if isinstance(found, tuple | list):
        return "[0]"
    own = vars(found) if hasattr(found, "__dict__") else {}
    parts = found if isinstance(found, Mapping) else own
    name = next((name for name, part in parts.items() if isinstance(part, Tensor)), "logits")
    return f".{name}" if hasattr(found, str(name)) else f"[{name!r}]"


def check_resolved(where: str, net: nn.Module) -> None:
    """Raise `ArgumentError` if a trained weight is not a parameter but computed from others at
    every call, as weight and spectral norm do: a method that reads weights by their names would
    miss it.
    """
    for path, module in net.named_modules():
        trained = any(leaf.requires_grad for leaf in module.parameters())
        # What the hooks of older norms, and pruning, compute lies beside the parameters.
        hooks = [type(hook).__name__ for hook in module._forward_pre_hooks.values()]
        beside = [name for name, one in vars(module).items() if isinstance(one, Tensor)]
        if parametrize.is_parametrized(module):
            (name, *_), call = module.parametrizations, "parametrize.remove_parametrizations"
        elif hooks and beside:
            name, call = beside[0], REMOVED.get(hooks[0], "prune.remove")
        else:
            continue
        if trained:
            actual = f"{leaf_of(path, name)}, which is computed from others"
            hint = f"torch.nn.utils.{call}(net.get_submodule({path!r}), {name!r})"
            raise ArgumentError(where, "weights that are parameters", actual, hint)
