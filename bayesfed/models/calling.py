"""A network's call, whose outputs must be one tensor, and weights that are no parameters."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, func, nn
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_leaves

from bayesfed.data.packed import taken_apart
from bayesfed.errors import ArgumentError, DataError
from bayesfed.errors.checks import checked, shown
from bayesfed.models.misfits import refused
from bayesfed.trees import leaf_of

# Whether networks are called in bfloat16.
HALF = ContextVar("HALF", default=False)
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
    by keyword, tuples by position. Of what it returns, take the outputs.
    """
    given, named = taken_apart(inputs[0])
    half = HALF.get()
    with torch.autocast(inputs[0].device.type, torch.bfloat16) if half else nullcontext():
        # Torch's looks for tied weights at every call, which takes as long as a small layer.
        found = (
            func.functional_call(net, dict(values), given, named, tie_weights=tie_weights)
            if values
            else net(*given, **named)
        )
    output = taken(found)
    # Losses are taken in 32 bits.
    return output.float() if half and isinstance(output, Tensor) else output


@contextmanager
def bfloat16(half: bool) -> Iterator[None]:
    """Call networks inside the block under `torch.autocast` of bfloat16, or as ever."""
    token = HALF.set(half)
    try:
        yield
    finally:
        HALF.reset(token)


def taken(found: Any) -> Any:
    """Return the outputs among what a network returned: by name the logits, as transformers have
    them, else the only tensor; all of it if there are several.
    """
    if isinstance(found, Tensor):
        return found
    if isinstance(found, Mapping) and "logits" in found:
        return found["logits"]
    tensors = [one for one in tree_leaves(found) if isinstance(one, Tensor)]
    return tensors[0] if len(tensors) == 1 else found


@dataclass(frozen=True)
class Entry:
    """A hook of a network that hands on one entry of what it returns; made by `returning`."""

    output: str | int

    def __call__(self, net: nn.Module, inputs: Any, found: Any) -> Any:
        """Return the entry. Networks with auxiliary outputs have one tensor in evaluation mode."""
        if isinstance(found, Tensor):
            return found
        if self.output not in (parts := _parts(found)):
            raise ArgumentError("returning", f"one of {[*parts]}", repr(self.output), _first(found))
        return parts[self.output]


@checked()
def returning(net: nn.Module, output: str | int) -> nn.Module:
    """Return a copy of a network that returns one entry of what it returned: a tensor.

    Parameters
    ----------
    net
        Network that returns a dict, a tuple or an object; never changed.
    output
        Name of the entry, or its place in a tuple.

    Raises
    ------
    ArgumentError
        When it is called, if there is no such entry.
    """
    twin = copy.deepcopy(net)
    twin.register_forward_hook(Entry(output))
    return twin


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
    if isinstance(found, Tensor) and found.ndim:
        return found
    name = _first(found)
    hint = f"bayesfed.models.returning(net, {name})" if name else "a module that returns outputs"
    expected, actual = "one tensor of outputs (B, ...)", type(found).__name__
    raise ArgumentError("network", expected, actual, hint)


def check_norms(problem: Exception) -> None:
    """Raise `DataError` if an error is that of batch norm about a single row."""
    if "more than 1 value per channel" in str(problem):
        expected = "two rows or more at once, of which batch norm takes the variance"
        hint = "clients and batches of two rows or more, or nn.GroupNorm"
        raise DataError("network", expected, "one row", hint) from problem


def _parts(found: Any) -> Mapping[Any, Any]:
    """Return what a network returned, by name or place."""
    if isinstance(found, tuple | list):
        return dict(enumerate(found))
    own = vars(found) if hasattr(found, "__dict__") else {}
    return found if isinstance(found, Mapping) else own


def _first(found: Any) -> str:
    """Return the name of the first tensor with rows in what a network returned; empty without."""
    parts = _parts(found).items()
    rows = (repr(name) for name, part in parts if isinstance(part, Tensor) and part.ndim)
    return next(rows, "")


def check_resolved(where: str, net: nn.Module, within: str | None = None) -> None:
    """Raise `ArgumentError` if a trained weight is not a parameter but computed from others at
    every call, as weight and spectral norm do: a method that reads weights by their names would
    miss it.

    Parameters
    ----------
    where
        Name of the method, for the error.
    net
        Network.
    within
        Path of the only layer whose weights are read. Default: those of all are.
    """
    for path, module in net.named_modules():
        if within is not None and path != within:
            continue
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
