"""UVeQFed (Shlezinger et al., "UVeQFed: universal vector quantization for federated learning",
2021).

Notation: L -> `dimension`; R bits a weight -> `bits`; the dither z is drawn from the key of round
and client, which both ends can build. With `share` below 1 only the largest entries are quantised:
the "UVeQFed" that AnycostFL compares with.
"""

from __future__ import annotations

from torch import nn

from bayesfed.algorithms.composing import compose
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Cast, Codec, Coded, Lattice, LeafCodec, TopK
from bayesfed.federated import Algorithm, Link, Training
from bayesfed.models import Likelihood


@recipe(cites=("shlezinger2021uveqfed",))
def uveqfed(
    net: nn.Module,
    *,
    bits: float = 3.0,
    dimension: int = 2,
    share: float = 1.0,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train as `fed_avg` does. Clients send changes of the model as points of a lattice, with
    subtractive dither.

    Parameters
    ----------
    bits, dimension
        Bits an entry that an ideal code would spend on Gaussian changes; and the dimension of the
        lattice, 1 or 2.
    share
        Share of a leaf's entries, the largest, that are sent.
    likelihood, training, link
        As in `fed_avg`.
    codec
        Codec of the down-link. Default: 16-bit floats.
    """
    lattice = Lattice(bits=bits, dimension=dimension)
    values: LeafCodec = lattice if share == 1 else TopK(share, lattice)
    up = Coded(values)
    work = training or Training()
    local = work.fitting(net, likelihood, "delta")
    return compose("uveqfed", net, local, training=work, codec=codec or Cast(16), up=up, link=link)
