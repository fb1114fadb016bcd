"""Networks of unlike rank around one whole model: the view `Factored`, and the server `Refactor` (FedHM, Yao et al., 2.3).

The server's state is the whole network and, under ``svd/``, the leading singular triplets of every layer that somebody gets factored: found once a
round at the largest rank, cut for each client, and where the next round's search begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bayesfed.algorithms.fed_hm.view import Ranks, spectra_of, with_spectra
from bayesfed.federated.aggregation.servers import summed
from bayesfed.federated.clients.turn import one_thread
from bayesfed.federated.core.protocols import Info
from bayesfed.federated.core.update import Reducer
from bayesfed.keys import Key
from bayesfed.models.low_rank.factored_layers import Unrolling
from bayesfed.models.low_rank.factored_spectra import spectra
from bayesfed.trees import Tree


@dataclass(frozen=True)
class Refactor:
    """Average whole models, then find the triplets for the next round.

    Parameters
    ----------
    layers, sizes
        Layouts, and the ranks of every size.
    warm
        Subspace iteration from last round's right vectors; False: an exact SVD a layer. What the search missed is reported.
    """

    layers: Mapping[str, Unrolling]
    sizes: tuple[Ranks, ...]
    warm: bool = True

    def start(self, whole: Tree) -> Tree:
        """Return the state before round 0, its triplets exact."""
        with one_thread():
            return with_spectra(whole, spectra(whole, self.layers, *self.sizes))

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Average values; a round of clients without data changes nothing.

        The report has ``svd_error``, the largest relative error of a layer at its largest rank, and ``svd_missed``, the largest relative
        part of a layer outside of the space searched, 0 for exact SVDs.
        """
        total = summed(reducer, "value")
        if not total.weight:
            return state, {}
        whole = total.mean()
        if self.warm:
            found = spectra(whole, self.layers, *self.sizes, key=Key(0, "refactor", round), warm=spectra_of(state))
        else:
            found = spectra(whole, self.layers, *self.sizes)
        norms = {name: max(float(self.layers[name].matrix(whole[f"{name}.weight"]).norm()), 1e-30) for name in found}
        info = {
            "svd_error": max((spectrum.rest / norms[name] for name, spectrum in found.items()), default=0.0),
            "svd_missed": max((spectrum.residual / norms[name] for name, spectrum in found.items()), default=0.0),
        }
        return with_spectra(whole, found), info
