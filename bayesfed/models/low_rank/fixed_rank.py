"""Replacing the dense layers of a network by layers of fixed rank.

    net = mlp([784, 256, 256, 10], key)
    fixed_rank(net, 4)  # the best approximation of rank 4 in every layer
    fixed_rank(net, 1 / 16)  # in each layer, the largest rank with 1/16 of its numbers
    fixed_rank(net, {"0": 8, "2": 4})  # by name; other layers stay as they are

The layers are those of `bayesfed.models.low_rank.thin_layers`;
`bayesfed.models.low_rank.fixed_rank_trees` trains them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

from torch import Tensor, nn

from bayesfed.errors import ArgumentError
from bayesfed.geometry import FixedRank, from_dense, random_point, uniform_ranks
from bayesfed.geometry.thin import check_rank
from bayesfed.keys import Key
from bayesfed.models.low_rank.thin_layers import FixedRankLayer
from bayesfed.models.modules import Dense, Predicate, is_plain, swapped, weight_matrices
from bayesfed.trees import Tree, leaf_of

_KINDS: tuple[type[nn.Module], ...] = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def fixed_rank(
    net: nn.Module,
    rank: int | float | Mapping[str, int],
    *,
    initial: Literal["spectral", "random"] = "spectral",
    key: Key | None = None,
    where: Predicate = weight_matrices,
) -> nn.Module:
    """Return a copy of a network in which the weights of some layers have fixed rank.

    Parameters
    ----------
    net
        Network, never changed. A module that reads the weight of a replaced layer directly fails
        when called, since there is no ``weight``.
    rank
        One rank for all layers. Or a float in (0, 1]: the largest share of a layer's numbers that
        ``R (M + N)`` may take (`uniform_ranks`), not counting cores and biases. Or ranks by the
        layer's name; layers that are not named stay dense.
    initial
        "spectral": the matrix of this rank that is nearest to the layer's own, by an SVD; "random":
        a `random_point` whose entries have the root mean square of the layer's own.
    key
        Random key for "random" only; each layer draws from the child with its name.
    where
        ``(parameter name, owning module) -> bool``; may select weights of `nn.Linear`, `nn.Conv1d`,
        `nn.Conv2d` and `nn.Conv3d`.

    Raises
    ------
    ArgumentError
        If a rank is not from 1 to min(M, N) or the ratio not in (0, 1], a named layer is not among
        the selected ones, there is no key to draw from, a weight is not finite or of half
        precision, or as `layer_matrices`.
    """
    if initial not in ("spectral", "random"):
        raise ArgumentError(
            "fixed_rank, initial", "'spectral' or 'random'", repr(initial), "'spectral'"
        )
    if initial == "random" and key is None:
        raise ArgumentError("fixed_rank, key", "a Key to draw from", None, "Key(0, 'fixed rank')")
    layers = chosen(net, where, rank if isinstance(rank, Mapping) else None)
    matrices = {name: layer.weight.detach().flatten(1) for name, layer in layers.items()}
    sizes = {name: (len(matrix), matrix.shape[1]) for name, matrix in matrices.items()}
    ranks = (
        rank
        if isinstance(rank, Mapping)
        else uniform_ranks(sizes, rank)
        if isinstance(rank, float)
        else dict.fromkeys(sizes, rank)
    )
    # Check every rank first: the SVD of a layer may take minutes.
    for name, size in sizes.items():
        check_rank(f"fixed_rank, layer {name!r}", ranks[name], min(size))

    def point(name: str, matrix: Tensor) -> FixedRank:
        if key is None or initial == "spectral":
            return from_dense(matrix, ranks[name])
        std, own = float(matrix.square().mean().sqrt()), key.child(name)
        like, device = matrix.dtype, matrix.device
        return random_point(*sizes[name], ranks[name], own, std=std, dtype=like, device=device)

    return replaced(
        net,
        layers,
        lambda name, layer: FixedRankLayer(layer, point(name, matrices[name])),
        caller="fixed_rank",
    )


def replaced(
    net: nn.Module,
    layers: Mapping[str, Dense],
    make: Callable[[str, Dense], nn.Module],
    *,
    caller: str,
) -> nn.Module:
    """Return a copy of a network in which layers are replaced by those that a function makes of
    them and their names.

    Raises
    ------
    ArgumentError
        As the function does, with the name of the layer.
    """
    swaps: dict[nn.Module, nn.Module] = {}
    for name, layer in layers.items():
        try:
            swaps[layer] = make(name, layer)
        except ArgumentError as error:
            raise ArgumentError(f"{caller}, layer {name!r}: {error}") from None
    return swapped(net, swaps)


def layer_matrices(net: nn.Module, where: Predicate = weight_matrices) -> Tree:
    """Return the weights that `fixed_rank` would replace, by their layers' names: matrices
    ``(M, N)``, detached, not copied.

    Parameters
    ----------
    net
        Network, never changed.
    where
        As in `fixed_rank`.

    Raises
    ------
    ArgumentError
        If `where` selects nothing, or anything but the weight of an `nn.Linear` or of an ungrouped
        `nn.Conv1d`, `nn.Conv2d` or `nn.Conv3d` of exactly that class, without hooks and not shared
        with another layer.
    """
    return {name: layer.weight.detach().flatten(1) for name, layer in chosen(net, where).items()}


def chosen(
    net: nn.Module,
    where: Predicate,
    named: Collection[str] | None = None,
    *,
    caller: str = "fixed_rank",
    kinds: Sequence[type[nn.Module]] = _KINDS,
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

    Raises
    ------
    ArgumentError
        As `layer_matrices`, or if a named layer is not among the selected ones.
    """
    layers: dict[str, Dense] = {}
    owners: dict[int, int] = {}
    for path, module in net.named_modules():
        for leaf, value in module.named_parameters(recurse=False):
            owners[id(value)] = owners.get(id(value), 0) + 1
            if not where(leaf_of(path, leaf), module) or (named is not None and path not in named):
                continue
            place, hint = (
                f"{caller}, layer {path!r}",
                "a predicate that leaves it out, or ranks by name",
            )
            if leaf != "weight" or not (isinstance(module, Dense) and is_plain(module, *kinds)):
                expected = (
                    f"the weight of an {' or '.join(f'nn.{kind.__name__}' for kind in kinds)} "
                    "itself, without hooks"
                )
                raise ArgumentError(place, expected, f"{leaf} of {type(module).__name__}", hint)
            if not isinstance(module, nn.Linear) and module.groups > 1:
                actual = (
                    f"{module.groups} groups, whose matrix is block diagonal: one product "
                    "would join them"
                )
                raise ArgumentError(place, "a convolution of one group", actual, hint)
            layers[path] = module
    for path, layer in layers.items():
        if owners[id(layer.weight)] > 1:
            hint = f"{caller} on a network that shares whole layers instead"
            raise ArgumentError(
                f"{caller}, layer {path!r}", "a weight of its own", "one of several layers", hint
            )
    if unknown := sorted(set(named or ()) - set(layers)):
        among = sorted(chosen(net, where, caller=caller, kinds=kinds))
        raise ArgumentError(caller, f"layers among {among}", unknown, "layer_matrices(net)")
    if not layers:
        names = [name for name, _ in net.named_parameters()]
        raise ArgumentError(
            caller, "a layer to replace", f"none of {names}", "a predicate that selects some"
        )
    return layers
