"""Trees: flat dictionaries from dotted names to tensors, the shape of every model and message.

Flat and ordered by name, so two trees line up by their keys and a sum over clients is
one loop. Nothing here knows what the leaves mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from bayesfed.errors import ArgumentError, UpdateError

Tree = dict[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]
Value = TypeVar("Value")


def parameters(module: nn.Module) -> Tree:
    """Return a detached copy of every parameter of `module`, by name."""
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def trainable(module: nn.Module) -> Tree:
    """Return a detached copy of every parameter that requires a gradient, by name: what a client
    trains and what travels.

    Frozen ones (``requires_grad=False``: the base under adapters) stay where they are, in the one
    module that all clients share.

    Raises
    ------
    ArgumentError
        If one of them is complex.
    """
    for name, value in module.named_parameters():
        if value.requires_grad and value.is_complex():
            hint = f"torch.view_as_complex of a real parameter (..., 2) in place of {name!r}"
            raise ArgumentError("network", "real parameters", f"{name!r} of {value.dtype}", hint)
    return {
        name: value.detach().clone()
        for name, value in module.named_parameters()
        if value.requires_grad
    }


def frozen(module: nn.Module) -> Tree:
    """Return the parameters that require no gradient by name, not copied: constants of the
    network.
    """
    return {
        name: value.detach() for name, value in module.named_parameters() if not value.requires_grad
    }


@contextmanager
def placed(
    module: nn.Module,
    tree: Mapping[str, Tensor],
    kind: Literal["parameters", "buffers"] = "parameters",
) -> Iterator[None]:
    """Let `module` use the tree's tensors as its parameters, or its buffers, inside the block: a
    functional call held open for many calls.

    Tied parameters stay tied, shared buffers shared. A frozen parameter that the tree lacks is the
    module's own. What a forward pass counts in place, it counts in the tree's buffers. The module's
    own are all back when the block ends.
    """
    named = getattr(module, f"named_{kind}")
    names = {id(value): name for name, value in named()}
    slots = [
        (
            getattr(module.get_submodule(name.rpartition(".")[0]), f"_{kind}"),
            name.rpartition(".")[2],
            value,
        )
        for name, value in named(remove_duplicate=False)
    ]
    try:
        for slot, leaf, value in slots:
            name = names[id(value)]
            if kind == "buffers" or value.requires_grad or name in tree:
                slot[leaf] = tree[name]
        yield
    finally:
        for slot, leaf, value in slots:
            slot[leaf] = value


def running_statistics(module: nn.Module, *, certain: bool = False) -> list[str]:
    """Name the floating-point buffers that a forward pass in training mode may change.

    A buffer that is not saved with its module (``persistent=False``, such as the frequencies of
    rotary embeddings) is a constant.

    Parameters
    ----------
    module
        Any module.
    certain
        Leave out buffers that only a look at a forward pass can tell from constants: name those of
        PyTorch's batch and instance norm in training mode. A frozen norm of another class has
        buffers of the same names, and they are constants.
    """
    names = []
    for path, owner in module.named_modules():
        for leaf, value in owner.named_buffers(recurse=False):
            norm = isinstance(owner, _NormBase)
            # In evaluation mode norms leave their statistics as they are.
            known = norm and owner.training
            saved = leaf not in owner._non_persistent_buffers_set
            if value.is_floating_point() and (known if certain else norm or saved):
                names.append(leaf_of(path, leaf))
    shared = {name for name, _ in module.named_buffers()}
    return [name for name in names if name in shared]


def has_ties(module: nn.Module) -> bool:
    """Say whether two names share a parameter; a functional call need not look for ties where there
    are none.
    """
    return len(list(module.named_parameters(remove_duplicate=False))) != len(
        list(module.named_parameters())
    )


def shapes(tree: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every leaf."""
    return {name: tuple(leaf.shape) for name, leaf in tree.items()}


def size(tree: Mapping[str, Tensor]) -> int:
    """Count the entries of all leaves."""
    return sum(leaf.numel() for leaf in tree.values())


def wide(tree: Mapping[str, Tensor]) -> bool:
    """Return whether any leaf is of double precision."""
    return any(leaf.dtype == torch.float64 for leaf in tree.values())


def only(tree: Mapping[str, Value], names: Iterable[str]) -> dict[str, Value]:
    """Return the leaves of these names, in their order."""
    return {name: tree[name] for name in names}


def besides(tree: Mapping[str, Value], names: Container[str]) -> dict[str, Value]:
    """Return the leaves of other names."""
    return {name: leaf for name, leaf in tree.items() if name not in names}


def zeros_like(tree: Mapping[str, Tensor]) -> Tree:
    """Return zeros in the shapes, types and places of all leaves."""
    return {name: torch.zeros_like(leaf) for name, leaf in tree.items()}


def flat(tree: Mapping[str, Tensor]) -> Tensor:
    """Return the entries of all leaves as one vector."""
    return torch.cat([leaf.flatten() for leaf in tree.values()])


def unflat(vector: Tensor, like: Mapping[str, Tensor]) -> Tree:
    """Return the parts of a vector, in the shapes, types and places of the leaves of `like`."""
    parts = vector.split([leaf.numel() for leaf in like.values()])
    return {
        name: part.view(leaf.shape).to(leaf)
        for (name, leaf), part in zip(like.items(), parts, strict=True)
    }


def zip_map(function: Callable[[Tensor, Tensor], Tensor], left: Tree, right: Tree) -> Tree:
    """Apply `function` leaf by leaf to two trees of equal names and shapes.

    Raises
    ------
    UpdateError
        If names or shapes differ; nothing is broadcast.
    """
    check_shapes(right, shapes(left), where="tree")
    return {name: function(leaf, right[name]) for name, leaf in left.items()}


def check(tree: Mapping[str, Tensor], expected: Shapes, *, where: str) -> None:
    """Raise unless `tree` has exactly the expected names and shapes and only finite real numbers.

    Raises
    ------
    UpdateError
        Naming the first leaf that is missing, unexpected, of another shape, complex or not finite.
    """
    check_shapes(tree, expected, where=where)
    for name, leaf in tree.items():
        if leaf.is_complex():
            raise UpdateError(
                f"{where}, leaf {name!r}",
                "real numbers",
                leaf.dtype,
                "its real part",
                field="dtype",
            )
        if not is_finite(leaf):
            count = int((~torch.isfinite(leaf)).sum())
            raise UpdateError(
                f"{where}, leaf {name!r}",
                "finite values",
                f"{count} NaN or Inf",
                "a smaller learning rate",
                field="values",
            )


def check_shapes(tree: Mapping[str, Tensor], expected: Shapes, *, where: str) -> None:
    """Raise `UpdateError` unless `tree` has exactly the expected names and shapes."""
    for name in sorted(expected.keys() ^ tree.keys()):
        raise UpdateError(
            f"{where}, leaf {name!r}",
            f"leaves {sorted(expected)}",
            "no such leaf" if name in expected else "an extra leaf",
            "leaves of these names",
            field="leaves",
        )
    for name, shape in expected.items():
        if tree[name].shape != tuple(shape):
            raise UpdateError(
                f"{where}, leaf {name!r}",
                f"shape {tuple(shape)}",
                tuple(tree[name].shape),
                "a leaf of this shape",
                field="shape",
            )


def is_finite(leaf: Tensor) -> bool:
    """Say whether a leaf holds neither NaN nor infinity, without a mask."""
    if not leaf.is_floating_point() or not leaf.numel():
        return True
    # A sum takes a fourth of the time, and is finite only if all are; finite ones may overflow.
    return math.isfinite(leaf.detach().sum()) or all(map(math.isfinite, leaf.detach().aminmax()))


def to(tree: Mapping[str, Tensor], device: torch.device | str) -> Tree:
    """Return the tree with every leaf on `device`."""
    return {name: leaf.to(device) for name, leaf in tree.items()}


def under(tree: Mapping[str, Tensor], prefix: str) -> Tree:
    """Return the leaves whose names begin with `prefix`, by the rest of their names."""
    return {
        name.removeprefix(prefix): leaf for name, leaf in tree.items() if name.startswith(prefix)
    }


def without(tree: Mapping[str, Tensor], prefix: str) -> Tree:
    """Return the leaves whose names do not begin with `prefix`."""
    return {name: leaf for name, leaf in tree.items() if not name.startswith(prefix)}


def leaf_of(name: str, leaf: str) -> str:
    """Return the name of a layer's leaf; a layer that is the whole network is called ""."""
    return f"{name}.{leaf}" if name else leaf
