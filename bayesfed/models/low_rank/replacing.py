"""Which layers of a network can be replaced by thin ones, and the copy of a network in which they
are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from itertools import permutations
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import a, check
from bayesfed.geometry.thin import check_rank
from bayesfed.keys import Key
from bayesfed.models.calling import check_resolved
from bayesfed.models.low_rank.thin_layers import ThinLayer
from bayesfed.models.low_rank.unrolling import Split, Unrolling
from bayesfed.models.modules import Dense, Predicate, evaluating, is_plain, swapped
from bayesfed.trees import leaf_of

Initial = Literal["spectral", "random"]
# A module with more linear layers than these is no layer with an adapter.
MOST_FACTORS = 8


def chosen(
    net: nn.Module,
    where: Predicate,
    named: Collection[str] | None = None,
    *,
    caller: str,
    kinds: tuple[type[nn.Module], ...],
    strict: bool = True,
) -> dict[str, Dense]:
    """Return the layers to replace, by name, checked.

    Parameters
    ----------
    net
        Network, never changed.
    where
        ``(parameter name, owning module) -> bool``: selects the weights.
    named
        Names of layers; only these of the selected ones are returned. Default: all.
    caller
        Name of the calling function, for error messages.
    kinds
        Classes of layers that may be selected.
    strict
        Whether a selected weight that cannot be replaced is refused; left out otherwise.

    Raises
    ------
    ArgumentError
        If nothing is left; if anything is selected but the weight of an ungrouped layer of exactly
        these classes, without hooks and not shared with another layer, where that is refused; or if
        a named layer is not among the selected ones.
    """
    check_resolved(caller, net)
    owners = Counter(
        id(value) for module in net.modules() for value in module.parameters(recurse=False)
    )
    layers, among = dict[str, Any](), list[str]()
    for path, module in net.named_modules():
        for leaf, value in module.named_parameters(recurse=False):
            if not where(leaf_of(path, leaf), module):
                continue
            among.append(path)
            if named is not None and path not in named:
                continue
            if leaf != "weight" or not is_plain(module, *kinds):
                allowed = " or ".join(f"nn.{kind.__name__}" for kind in kinds)
                expected = f"the weight of an {allowed} itself, without hooks"
                actual = f"{leaf} of {type(module).__name__}"
            elif getattr(module, "groups", 1) > 1:
                expected = "a convolution of one group"
                actual = f"{module.groups} groups, whose matrix is block diagonal"
            elif owners[id(value)] > 1:
                expected, actual = "a weight of its own", "one of several layers"
            else:
                layers[path] = module
                continue
            if not strict:
                continue
            raise ArgumentError(
                f"{caller}, layer {path!r}",
                expected,
                actual,
                "a predicate that leaves it out" if named is None else "ranks without it",
            )
    by_name = f"ranks by name, {dict.fromkeys(among[:1], 1)}"
    if unknown := sorted(set(named or ()) - set(among)):
        raise ArgumentError(caller, f"layers among {among}", unknown, by_name)
    if not layers:
        names = [name for name, _ in net.named_parameters()]
        hint = "a predicate that selects some" if named is None else by_name
        raise ArgumentError(caller, "a layer to replace", f"none of {names}", hint)
    if factors := sorted(factors_beside(net) & layers.keys()):
        raise ArgumentError(
            f"{caller}, layer {factors[0]!r}",
            "layers of the network itself",
            "a factor of an adapter over frozen weights",
            "a network whose adapters are merged (PEFT's merge_and_unload()), or a predicate that "
            "leaves them out",
        )
    return layers


def factors_beside(net: nn.Module) -> set[str]:
    """Return the names of the linear layers that are factors of an adapter of another library,
    found by looking: a module with frozen weights ``(m, n)`` and two others, ``(r, n)`` and ``(m,
    r)``, which adds their product to the frozen layer's output.
    """
    found = set[str]()
    for path, module in net.named_modules():
        within = {
            name: layer for name, layer in module.named_modules() if is_plain(layer, nn.Linear)
        }
        if len(within) > MOST_FACTORS or module in within.values():
            continue
        for base, down, up in permutations(within, 3):
            wide, first, second = (within[name].weight.shape for name in (base, down, up))
            bridged = (second[0], first[1]) == tuple(wide) and second[1] == first[0]
            frozen = not within[base].weight.requires_grad
            if frozen and bridged and _adds_product(module, within, base, (down, up)):
                found |= {f"{path}.{name}" if path else name for name in (down, up)}
    return found


def _adds_product(
    module: nn.Module, within: Mapping[str, nn.Module], base: str, factors: tuple[str, str]
) -> bool:
    """Return whether a module's output is that of one of its layers plus a multiple of what two
    others make of the input, one after the other.
    """
    generator = Key(0, "factors beside").generator()
    weight = cast(Tensor, within[base].weight)
    drawn = {
        leaf_of(name, "weight"): torch.randn(leaf.shape, generator=generator).to(weight)
        for name in factors
        for leaf in (cast(Tensor, within[name].weight),)
    }
    row = torch.randn((1, weight.shape[1]), generator=generator).to(weight)
    try:
        with torch.no_grad(), evaluating(module):
            found = functional_call(module, drawn, (row,))
            beside = found - within[base](row)
            first, second = drawn.values()
            product = row @ first.mT @ second.mT
            if beside.shape != product.shape or not product.any():
                return False
            factor = (beside * product).sum() / product.square().sum()
            close = torch.allclose(beside, factor * product, rtol=1e-3, atol=1e-4)
            return bool(close and factor.abs() > 1e-6)
    # A module whose forward takes something else than one row.
    except Exception:
        return False


def thinned(
    net: nn.Module,
    layers: Mapping[str, Dense],
    ranks: Mapping[str, int],
    make: Callable[[Dense, Tensor, int, Key | None], ThinLayer],
    *,
    split: Split,
    initial: Initial,
    key: Key | None,
    caller: str,
) -> nn.Module:
    """Return a copy of a network in which layers are replaced by thin ones.

    Parameters
    ----------
    net
        Network, never changed.
    layers
        Layers by name, as `chosen` returns them.
    ranks
        Ranks of the layers to replace, by name.
    make
        ``(layer, its matrix, rank, key of a random start) -> thin layer``; without a key it starts
        at the best approximation of the matrix.
    split
        How a kernel becomes a matrix.
    initial, key
        How the thin layers start; each draws from the child of the key with its name.
    caller
        Name of the calling function, for error messages.

    Raises
    ------
    ArgumentError
        If a rank is not from 1 to the full one, there is no key to draw from, or as `make`, with
        the name of the layer.
    """
    if initial == "random":
        check(f"{caller}, key", key, a(Key, "a Key", "Key(0, 'fixed_rank')"))
    matrices: dict[str, Tensor] = {}
    # Check every rank first: the SVD of a layer may take minutes.
    for name, rank in ranks.items():
        weight = layers[name].weight.detach()
        layout = Unrolling(tuple(weight.shape), split)
        check_rank(f"{caller}, layer {name!r}", rank, layout.full)
        matrices[name] = layout.matrix(weight)
    swaps: dict[nn.Module, nn.Module] = {}
    for name, matrix in matrices.items():
        own = key.child(name) if key and initial == "random" else None
        try:
            swaps[layers[name]] = make(layers[name], matrix, ranks[name], own)
        except ArgumentError as error:
            raise ArgumentError(f"{caller}, layer {name!r}: {error}") from None
    return swapped(net, swaps)
