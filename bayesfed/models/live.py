"""What a network has besides its parameters: modes, buffers, attributes, hooks and random numbers.

A run lends a network and gives it back as it was (`untouched`). Which parts are in evaluation mode
is said where a network is handed over (`check_modes`). What draws is found by looking (`drawing`).
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bayesfed.keys import Generator, Key, alone, forked, streams
from bayesfed.models.calling import functional_call

Holder = dict[Any, Any] | list[Any] | set[Any] | deque[Any]
HOLDERS = dict, list, set, deque
# How many modules a warning names.
NAMED = 4


@contextmanager
def untouched(nets: Iterable[nn.Module]) -> Iterator[list[str]]:
    """Put back what a block changes in networks: modes, buffers, attributes, hooks, and what lists
    and dictionaries among the attributes hold. Parameters are not looked at; other threads wait.

    The list has, after the block, the names of the saved buffers that were changed or replaced.
    """
    with alone():
        held = [
            (path, module, holder, holder.copy())
            for module, path in _paths(nets).items()
            for holder in (vars(module), *vars(module).values())
            if isinstance(holder, HOLDERS)
        ]
        tensors = [
            (value, value.detach().clone())
            for _, module, holder, _ in held
            if holder is not module._parameters
            for value in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(value, Tensor) and not (value.is_meta or is_lazy(value))
        ]
        changed = list[str]()
        try:
            yield changed
        finally:
            with torch.no_grad():
                other = {
                    id(value)
                    for value, begun in tensors
                    if not _same(value, begun) and value.copy_(begun) is value
                }
            for path, module, holder, begun in held:
                if isinstance(begun, dict) and holder is module._buffers:
                    changed += [
                        f"{path}.{name}".lstrip(".")
                        for name, value in begun.items()
                        if (id(value) in other or holder.get(name) is not value)
                        and name not in module._non_persistent_buffers_set
                    ]
                if (holder or begun) and [*map(id, _flat(holder))] != [*map(id, _flat(begun))]:
                    holder.clear()
                    (holder.update if isinstance(holder, dict | set) else holder.extend)(begun)


def _paths(nets: Iterable[nn.Module]) -> dict[nn.Module, str]:
    """Return every module of some networks with its path in the first that has it."""
    paths = dict[nn.Module, str]()
    for net in nets:
        for path, module in () if net in paths else net.named_modules():
            paths.setdefault(module, path)
    return paths


def _same(value: Tensor, begun: Tensor) -> bool:
    return bool(((value == begun) | (value.isnan() & begun.isnan())).all())


def _flat(holder: Holder | tuple[object, ...]) -> list[object]:
    return [*holder, *holder.values()] if isinstance(holder, dict) else [*holder]


def networks_in(value: object) -> list[nn.Module]:
    """Return the modules that a value is made of: its attributes, entries, and what its functions
    close over.
    """
    return [one for one in _parts(value) if isinstance(one, nn.Module)]


def generators_in(value: object) -> list[Generator]:
    """Return the generators that a value draws from beside the global ones: among its parts, and
    those that its functions and the methods of its modules find as globals.
    """
    parts = _parts(value)
    found = {id(one): one for one in parts if isinstance(one, Generator)}
    modules = (type(one) for one in parts if isinstance(one, nn.Module))
    for kind in {kind: None for module in modules for kind in module.__mro__}:
        for method in vars(kind).values():
            if isinstance(method, FunctionType):
                found |= {id(one): one for one in _globals(method) if isinstance(one, Generator)}
    return [*found.values()]


def _globals(function: FunctionType) -> list[object]:
    """Return the values of the global names that a function has, and what tuples, lists and
    dictionaries among them hold.
    """
    found = [function.__globals__.get(name) for name in function.__code__.co_names]
    held = [_flat(one) for one in found if isinstance(one, dict | list | tuple)]
    return [*found, *chain.from_iterable(held)]


def _parts(value: object) -> list[object]:
    seen, todo = dict[int, object](), [value]
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen[id(one)] = one
        if isinstance(one, dict):
            todo += one.values()
        elif isinstance(one, list | tuple | set | frozenset):
            todo += one
        elif isinstance(one, partial):
            todo += (one.func, one.args, one.keywords)
        elif isinstance(one, MethodType):
            todo += (one.__self__, one.__func__)
        elif isinstance(one, FunctionType):
            # The cells of a function that is not yet all made are empty.
            todo += [cell.cell_contents for cell in one.__closure__ or () if cell != CellType()]
            todo += [used for used in _globals(one) if isinstance(used, nn.Module | Generator)]
        elif not isinstance(one, type | ModuleType | Tensor) and hasattr(one, "__dict__"):
            todo += vars(one).values()
    return [*seen.values()]


def check_modes(value: object, where: str) -> None:
    """Warn of parts of the networks of a value that are in evaluation mode and would do something
    else in training mode. A part all of whose parameters are frozen is so on purpose.
    """
    paths = _paths(networks_in(value))
    frozen = {
        inner
        for module in paths
        if not any(one.requires_grad for one in module.parameters())
        and any(True for _ in module.parameters())
        for inner in module.modules()
    }
    found = [
        path or type(module).__name__
        for module, path in paths.items()
        if not module.training and module not in frozen and reads_mode(module)
    ]
    if found:
        more = f" and {len(found) - NAMED} more" if found[NAMED:] else ""
        names = ", ".join(found[:NAMED]) + more
        warnings.warn(
            f"{where}: expected a network in training mode, found {names} in evaluation mode, so "
            "that clients train without dropout and with the statistics of norms as they are; try "
            "net.train(), or requires_grad_(False) on a part that stays as it is",
            stacklevel=2,
        )


def reads_mode(module: nn.Module) -> bool:
    """Return whether the `forward` of a module, or a method that it calls, asks for its mode."""
    kinds = type(module).__mro__
    methods = {
        name: one
        for kind in reversed(kinds[: kinds.index(nn.Module)])
        for name, one in vars(kind).items()
        if isinstance(one, FunctionType)
    }
    todo, known = {"forward"}, set[str]()
    while todo := {*methods} & todo - known:
        known |= todo
        todo = {used for name in todo for used in methods[name].__code__.co_names}
        if "training" in todo:
            return True
    return False


def drawing(
    net: nn.Module, parameters: Mapping[str, Tensor], inputs: Tensor, *, training: bool = True
) -> list[nn.Module]:
    """Return the modules that draw random numbers of their own while they train, found by looking
    at the global generators while one row goes through the network.

    Parameters
    ----------
    net
        Network; never changed.
    parameters
        Parameters by name; where these lack one, the network's own is used.
    inputs
        ``(B, ...)``, at least one row.
    training
        False: those that draw in evaluation mode, as dropout does not.
    """
    found, running = dict[nn.Module, None](), list[nn.Module]()
    with ExitStack() as stack, torch.no_grad():
        stack.enter_context(untouched([net]))
        stack.enter_context(forked(Key(0, "drawing")))
        last = [streams()]

        def look() -> None:
            if (now := streams()) != last[0]:
                found[running[-1]], last[0] = None, now

        def enter(module: nn.Module, given: object) -> None:
            look()
            running.append(module)

        def leave(module: nn.Module, given: object, output: object) -> None:
            look()
            running.pop()

        for module in net.train(training).modules():
            module.register_forward_pre_hook(enter)
            module.register_forward_hook(leave)
        # Batch norm in training mode refuses a single row of vectors: it gets the row twice.
        functional_call(net, dict(parameters), (inputs[:1].expand(2, *inputs.shape[1:]),))
    return [*found]


def drawing_weights(
    net: nn.Module, parameters: Mapping[str, Tensor], inputs: Tensor
) -> dict[str, tuple[str, str]]:
    """Return the modules that draw their own weights, each with the names of two of its trained
    parameters of one shape, such as a mean and a logarithm of an sd: those that draw in evaluation
    mode too and have two such parameters.

    Parameters
    ----------
    net, parameters, inputs
        As of `drawing`.
    """
    pairs = {path: pair for path, module in net.named_modules() if (pair := _alike(module))}
    # Most networks have no such layer, and are not run.
    drawn = drawing(net, parameters, inputs, training=False) if pairs else []
    modules = {path: module for path, module in net.named_modules() if module in drawn}
    return {
        path or type(module).__name__: pairs[path]
        for path, module in modules.items()
        if path in pairs
    }


def may_draw_weights(net: nn.Module) -> bool:
    """Return whether a module of a network has two trained parameters of one shape."""
    return any(_alike(module) for module in net.modules())


def _alike(module: nn.Module) -> tuple[str, str] | None:
    """Return the names of two of a module's own trained parameters of one shape, if there are."""
    by_shape = dict[torch.Size, list[str]]()
    for name, leaf in module.named_parameters(recurse=False):
        if leaf.requires_grad and not is_lazy(leaf):
            by_shape.setdefault(leaf.shape, []).append(name)
    pair = next((names for names in by_shape.values() if len(names) > 1), None)
    return None if pair is None else (pair[0], pair[1])
