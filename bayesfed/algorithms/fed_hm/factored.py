"""FedHM's view, `Factored`, which gives each client layers as factors of its own ranks, and its
server, `Refactor`, which averages whole models and factorises them for the next round (Yao et al.,
2.3).

The state is the whole network and, as ``svd/PART/LAYER``, the leading singular triplets of every
layer that a client gets factored. They are computed once a round at the largest rank, cut for each
client, and the search of the next round starts from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from bayesfed.federated import Kind, Reducer, Update, Whole
from bayesfed.federated.aggregation.servers import summed
from bayesfed.federated.core import MODEL, Info, of, owned
from bayesfed.keys import forked_key
from bayesfed.models import Spectrum, Unrolling, align, factorise, spectra
from bayesfed.trees import Shapes, Tree, check, leaf_of, only, shapes

# Owner of the triplets in a state, and what the names of their parts begin with.
SVD, PARTS, FIGURES = "svd", ("u", "values", "v"), ("rest", "residual")


Ranks = Mapping[str, int]


def spectra_of(state: Tree) -> dict[str, Spectrum]:
    """Return the triplets in a state, by layer."""
    own, found = owned(state, SVD), {}
    for name in owned(own, "values"):
        u, values, v = (own[f"{part}/{name}"] for part in PARTS)
        rest, residual = (float(own[f"{part}/{name}"]) for part in FIGURES)
        found[name] = Spectrum(u, values, v, rest, residual)
    return found


def with_spectra(whole: Tree, found: Mapping[str, Spectrum]) -> Tree:
    """Return the state of a network and its triplets."""
    own = {
        f"{part}/{name}": torch.as_tensor(getattr(spectrum, part), dtype=kind)
        for parts, kind in ((PARTS, None), (FIGURES, torch.float64))
        for name, spectrum in found.items()
        for part in parts
    }
    return of(MODEL, whole) | of(SVD, own)


@dataclass(frozen=True)
class Factored:
    """A view of layers as factors of a client's own ranks. The factors of a payload are multiplied
    out (1).

    Parameters
    ----------
    layers
        Layouts of the factored layers.
    ranks
        Ranks of the factored layers; empty for the whole network.
    expected
        Names and shapes of what a client sends back.
    base
        The state whose factors were sent. With it, the part of a layer that the ranks left out is
        added to the payload, so that a client that trains nothing returns the whole network at any
        rank. Without it, as published, the mean loses that part.
    """

    layers: Mapping[str, Unrolling]
    ranks: Ranks
    expected: Shapes
    base: Tree | None = None

    def restrict(self, tree: Tree) -> Tree:
        """Cut the triplets to these ranks (spectral initialisation)."""
        return factorise(owned(tree, MODEL), self.layers, self.ranks, spectra_of(tree))

    def lift(self, payload: Tree, weight: float, kind: Kind) -> Update:
        """Multiply the factors out, then weigh."""
        check(payload, self.expected, where="payload")
        layouts = only(self.layers, self.ranks)
        full = align(payload, layouts)
        if self.base is not None:
            sent = align(self.restrict(self.base), layouts)
            base = owned(self.base, MODEL)
            full |= {
                leaf: full[leaf] + (base[leaf] - sent[leaf])
                for leaf in (leaf_of(name, "weight") for name in self.ranks)
            }
        full = of(MODEL, full)
        return Whole(shapes(full)).lift(full, weight, kind)


@dataclass(frozen=True)
class Refactor:
    """Average whole models, then compute the triplets for the next round.

    Parameters
    ----------
    layers, sizes
        Layouts of the factored layers, and their ranks for every size.
    warm
        Use subspace iteration from the last round's right vectors, and report what it missed. False
        computes an exact SVD of every layer.
    """

    layers: Mapping[str, Unrolling]
    sizes: tuple[Ranks, ...]
    warm: bool = True

    def start(self, whole: Tree, thin: Ranks | None = None) -> Tree:
        """Return the state before round 0, with exact triplets; with ranks, every layer that has
        one begins as its best approximation of this rank, scaled to the layer's own norm.
        """
        if thin:
            nearest = align(factorise(whole, self.layers, thin), self.layers)
            for leaf in (leaf_of(name, "weight") for name in thin):
                norms = whole[leaf].norm() / nearest[leaf].norm().clamp_min(1e-30)
                nearest[leaf] = nearest[leaf] * norms
            whole = nearest
        return with_spectra(whole, spectra(whole, self.layers, *self.sizes))

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Average values; a round of clients without data changes nothing.

        The report has ``svd_error``, the largest relative error of a layer at its largest rank, and
        ``svd_missed``, the largest relative part of a layer outside the searched space, which is 0
        for exact SVDs.
        """
        total = summed(reducer, "value")
        if not total.weight:
            return state, {}
        whole = owned(total.mean(), MODEL)
        key = forked_key().child("refactor") if self.warm else None
        last = spectra_of(state) if self.warm else None
        triplets = spectra(whole, self.layers, *self.sizes, key=key, warm=last)
        errors, missed = [0.0], [0.0]
        for name, spectrum in triplets.items():
            norm = max(float(self.layers[name].matrix(whole[f"{name}.weight"]).norm()), 1e-30)
            errors.append(spectrum.rest / norm)
            missed.append(spectrum.residual / norm)
        info = {"svd_error": max(errors), "svd_missed": max(missed)}
        return with_spectra(whole, triplets), info
