"""Pairwise binary models on any graph: the form that a support prior is lowered to if it is not a
grid.

``log p(s) = sum_i field_i s_i + sum_(i,j) coupling_ij s_i s_j - log Z``,  s in {0, 1}^n.

Any finite 2 x 2 table of log weights has this form up to a constant, so asymmetric Markov chains
need no other kernel. In the spin notation of physics the coupling here is 4 J.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesfed.errors import ArgumentError


def pairs(left: Tensor, right: Tensor) -> Tensor:
    """Return edges ``(2, E)`` between the entries of two index tensors of the same shape."""
    return torch.stack([left.reshape(-1), right.reshape(-1)])


def components(
    count: int, left: NDArray[np.int64], right: NDArray[np.int64]
) -> tuple[int, NDArray[np.int64]]:
    """Return the number of connected components of a graph of `count` nodes, and the component
    ``(count,)`` of each node.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    number, label = connected_components(
        coo_array((np.ones(len(left), np.int8), (left, right)), shape=(count, count)),
        directed=False,
    )
    return int(number), label.astype(np.int64)


def breadth_first(
    count: int, ends: NDArray[np.int64], roots: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Walk a graph with edges ``(2, E)`` from one root of each component.

    Returns
    -------
    The nodes ``(n,)`` in the order of the walk, the parent ``(n,)`` of each node, -1 for roots, and
    its distance ``(n,)`` from its root.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order

    # One more node above all roots joins the components into one.
    left, right = np.concatenate([ends, [np.full_like(roots, count), roots]], axis=1)
    joined = coo_array((np.ones(len(left)), (left, right)), shape=(count + 1, count + 1))
    walk = breadth_first_order(joined, count, directed=False)
    order, parent = (nodes.astype(np.int64) for nodes in walk)
    up = parent.copy()
    up[count] = count
    depth = (np.arange(count + 1) != count).astype(np.int64)
    # Every round doubles how far up a node points.
    while (up != count).any():
        depth += depth[up]
        up = up[up]
    return order[1:], np.where(parent[:-1] == count, -1, parent[:-1]), depth[:-1] - 1


def check_arrangement(support: Tensor, shape: tuple[int, ...]) -> None:
    """Raise `ArgumentError` unless the last dimensions of a support are `shape`."""
    if tuple(support.shape[support.ndim - len(shape) :]) != tuple(shape):
        raise ArgumentError(
            "energy",
            f"supports of shape (..., {str(tuple(shape))[1:]}",
            tuple(support.shape),
            "the model's shape",
        )


# Compared by identity, because results computed for a model are cached with it.
@dataclass(frozen=True, eq=False)
class Ising:
    """A pairwise binary model over n variables, or several independent copies of one, arranged as
    ``shape``.

    Parameters
    ----------
    field
        ``(n,)`` log-odds of each variable if its neighbours are 0.
    edges
        ``(2, E)`` integer pairs of variables; each pair at most once, no self loops.
    coupling
        ``(E,)`` log weight, in nats, added when both ends are 1.
    shape
        Arrangement of the variables; its product is n times the number of copies.
    colours
        ``(n,)`` a proper colouring, in which neighbours differ. Messages are sent by one colour at
        a time.

    Raises
    ------
    ArgumentError
        If shapes do not fit, an edge is no pair of variables or is there twice, field or coupling
        is not finite, or neighbours have one colour.
    """

    field: Tensor
    edges: Tensor
    coupling: Tensor
    shape: tuple[int, ...]
    colours: Tensor

    def __post_init__(self) -> None:
        count = self.field.numel()
        good = (
            self.field.shape == (count,)
            and count > 0
            and self.edges.shape == (2, self.coupling.numel())
            and self.colours.shape == (count,)
            and math.prod(self.shape) % count == 0
        )
        if not good:
            raise ArgumentError(
                "Ising",
                f"shapes (n,), (2, E), (E,), (n,) where n divides prod{self.shape}",
                tuple(
                    map(
                        tuple,
                        (
                            self.field.shape,
                            self.edges.shape,
                            self.coupling.shape,
                            self.colours.shape,
                        ),
                    )
                ),
                "flat tensors",
            )
        left, right = self.edges
        if left.is_floating_point() or (
            left.numel() and not ((self.edges >= 0) & (self.edges < count)).all()
        ):
            raise ArgumentError(
                "Ising.edges", f"integers from 0 to {count - 1}", self.edges, "variables by number"
            )
        if not all(torch.isfinite(values.detach()).all() for values in (self.field, self.coupling)):
            raise ArgumentError(
                "Ising",
                "finite field and coupling",
                "NaN or infinite ones",
                "tables of finite weights",
            )
        keys = torch.minimum(left, right) * count + torch.maximum(left, right)
        if len(keys.unique()) < len(keys):
            raise ArgumentError(
                "Ising.edges", "each pair at most once", "a pair twice", "adding their couplings"
            )
        if self.coupling.numel() and (self.colours[left] == self.colours[right]).any():
            raise ArgumentError(
                "Ising", "neighbours of different colours", "equal ones", "a proper colouring"
            )

    @property
    def copies(self) -> int:
        """Number of independent models in the arrangement."""
        return math.prod(self.shape) // self.field.numel()

    def ising(self) -> Ising:
        """Return the model itself; `Grid.ising` returns a grid in this form."""
        return self

    @cached_property
    def is_forest(self) -> bool:
        """Whether the graph has no cycle."""
        left, right = self.edges.cpu().numpy()
        return len(left) == self.field.numel() - components(self.field.numel(), left, right)[0]

    def symmetric_field(self) -> Tensor:
        """Return the field ``(n,)``, float64, of the same model written with agreement tables: each
        end of an edge takes half its coupling.
        """
        (left, right), half = self.edges, self.coupling.double() / 2
        return self.field.double().clone().index_add_(0, left, half).index_add_(0, right, half)

    def energy(self, support: Tensor) -> Tensor:
        """Return the unnormalised log probability of supports ``(..., *shape)`` as ``(...)``."""
        check_arrangement(support, self.shape)
        batch = support.shape[: support.ndim - len(self.shape)]
        flat = support.to(self.field.dtype).reshape(*batch, self.copies, -1)
        left, right = self.edges
        return (
            flat @ self.field + (flat[..., left] * flat[..., right]) @ self.coupling.to(flat.dtype)
        ).sum(-1)

    def strength(self) -> float:
        """Return the largest coupling in spin units, |J| = |coupling| / 4."""
        return float(self.coupling.detach().abs().max()) / 4 if self.coupling.numel() else 0.0

    def attractive(self) -> bool:
        """Whether neighbours never repel each other."""
        return bool((self.coupling >= 0).all())
