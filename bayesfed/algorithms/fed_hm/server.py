"""`Refactor`: FedHM's server, which averages whole models and factorises them for the next round
(Yao et al., 2.3).

Its state is the whole network and, as ``svd/PART/LAYER``, the leading singular triplets of every
layer that a client gets factored. They are computed once a round at the largest rank, cut for each
client, and the search of the next round starts from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bayesfed.algorithms.fed_hm.view import Ranks, spectra_of, with_spectra
from bayesfed.federated import Reducer
from bayesfed.federated.aggregation.servers import summed
from bayesfed.federated.clients import one_thread
from bayesfed.federated.core import MODEL, Info, owned
from bayesfed.keys import Key
from bayesfed.models import Unrolling, spectra
from bayesfed.trees import Tree


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

    def start(self, whole: Tree) -> Tree:
        """Return the state before round 0, with exact triplets."""
        with one_thread():
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
        key, last = (Key(0, "refactor", round), spectra_of(state)) if self.warm else (None, None)
        triplets = spectra(whole, self.layers, *self.sizes, key=key, warm=last)
        errors, missed = [0.0], [0.0]
        for name, spectrum in triplets.items():
            norm = max(float(self.layers[name].matrix(whole[f"{name}.weight"]).norm()), 1e-30)
            errors.append(spectrum.rest / norm)
            missed.append(spectrum.residual / norm)
        info = {"svd_error": max(errors), "svd_missed": max(missed)}
        return with_spectra(whole, triplets), info
