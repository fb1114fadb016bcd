"""What a guide's parameters mean: which belong to which site, which stay with the client, which
form a Gaussian.

Users declare nothing. The guide is run once with parameters that are all different. If location and
scale of a draw's distribution equal two of them, to the bit, the draw is a *block*: a member of an
exponential family, which rules in natural parameters can serve. A `Delta` at a parameter is a
*point*. All other parameters are *opaque*: only their gradients can be fused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyro.distributions as dist
from torch import Tensor

from bayesfed.inference.variational.families import Family
from bayesfed.inference.variational.program import Pair
from bayesfed.inference.variational.terms import Split
from bayesfed.trees import Tree


class Moments(NamedTuple):
    """Means and sds of the entries of a Gaussian block."""

    mean: Tensor
    sd: Tensor


@dataclass(frozen=True)
class Block:
    """One draw of the guide that belongs to an exponential family.

    Parameters
    ----------
    name
        Name of the site, or of the auxiliary draw that holds several sites.
    node
        Name of the draw in the guide's trace; in automatic guides ``SITE_unconstrained``.
    family
        The exponential family.
    parameters
        Names of the guide's parameters for each of the family's usual ones: one name, or two if the
        usual one is their product.
    """

    name: str
    node: str
    family: Family
    parameters: Mapping[str, tuple[str, ...]]

    @property
    def names(self) -> set[str]:
        """Names of the guide's parameters that it has."""
        return {name for names in self.parameters.values() for name in names}

    def read(self, pair: Pair, tree: Mapping[str, Tensor]) -> Tree:
        """Return the family's usual parameters."""
        read = {
            what: [pair.constrained(name, tree[name]) for name in names]
            for what, names in self.parameters.items()
        }
        return {
            what: values[0] if len(values) == 1 else values[0][:, None] * values[1]
            for what, values in read.items()
        }

    def moments(self, pair: Pair, tree: Mapping[str, Tensor]) -> Moments | None:
        """Return means and sds of a Gaussian; None for other families."""
        usual = self.read(pair, tree)
        if "loc" not in usual:
            return None
        tril = usual.get("scale_tril")
        return Moments(
            usual["loc"], usual["scale"] if tril is None else tril.square().sum(-1).sqrt()
        )

    def write(self, pair: Pair, usual: Tree) -> Tree:
        """Return the guide's unconstrained parameters."""
        result = {}
        for what, names in self.parameters.items():
            value = usual[what]
            if len(names) == 2:
                diagonal = value.diagonal()
                result[names[0]] = pair.unconstrained(names[0], diagonal)
                result[names[1]] = pair.unconstrained(names[1], value / diagonal[:, None])
            else:
                result[names[0]] = pair.unconstrained(names[0], value)
        return result

    def natural(self, pair: Pair, tree: Mapping[str, Tensor]) -> Tree:
        """Return natural parameters, ``LEAF/NAME``."""
        return {
            f"{leaf}/{self.name}": value
            for leaf, value in self.family.natural(self.read(pair, tree)).items()
        }

    def own(self, natural: Mapping[str, Tensor]) -> Tree:
        """Return this block's natural parameters by leaf."""
        return {leaf: natural[f"{leaf}/{self.name}"] for leaf in self.family.leaves}

    def guide_parameters(self, pair: Pair, natural: Mapping[str, Tensor]) -> Tree:
        """Return the guide's parameters for these natural ones."""
        return self.write(
            pair, self.family.parameters(self.own(natural), f"the posterior of {self.name!r}")
        )


@dataclass(frozen=True)
class Layout:
    """The sites of a model and the parameters of its guide.

    Parameters
    ----------
    sites, local_sites, observed
        Latent sites that all clients share, latent sites under the client's plate, and sites that
        observe the rows.
    split
        Whose the log density of each term is.
    blocks
        Draws of the shared sites that belong to an exponential family.
    points
        Shared parameters that are values of sites, or parameters of the model.
    opaque
        Shared parameters whose meaning is unknown.
    local
        Parameters that stay with the client.
    """

    sites: tuple[str, ...]
    local_sites: tuple[str, ...]
    observed: tuple[str, ...]
    split: Split
    blocks: tuple[Block, ...]
    points: tuple[str, ...]
    opaque: tuple[str, ...]
    local: tuple[str, ...]

    @property
    def shared(self) -> tuple[str, ...]:
        """Every parameter that all clients share."""
        of_blocks = set().union(*(block.names for block in self.blocks))
        return tuple(sorted({*of_blocks, *self.points, *self.opaque}))

    def natural(self, pair: Pair, tree: Mapping[str, Tensor]) -> Tree:
        """Return the natural parameters of all blocks."""
        return {
            name: leaf for block in self.blocks for name, leaf in block.natural(pair, tree).items()
        }

    def guide_parameters(self, pair: Pair, natural: Mapping[str, Tensor]) -> Tree:
        """Return the guide's parameters of all blocks for these natural ones."""
        return {
            name: leaf
            for block in self.blocks
            for name, leaf in block.guide_parameters(pair, natural).items()
        }


def is_factor(fn: Any) -> bool:
    """Say whether a site is `pyro.factor`, which has no value to predict."""
    return type(fn).__name__ == "Unit"


def base_of(fn: Any) -> Any:
    """Return the distribution inside `Independent`, `ExpandedDistribution` and
    `MaskedDistribution`.
    """
    while isinstance(fn, dist.Independent | dist.ExpandedDistribution | dist.MaskedDistribution):
        fn = fn.base_dist
    return fn
