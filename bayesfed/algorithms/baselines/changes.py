"""Methods whose clients send changes of the model through a codec: FedPAQ, QSGD, UVeQFed and DSSM.

==============  ====================================================================================
recipe          paper and notation
==============  ====================================================================================
`fed_paq`       Reisizadeh et al., "FedPAQ: a communication-efficient federated learning method with
                periodic averaging and quantization", 2020. tau local updates -> `steps`; r of n
                sampled clients -> the engine's sampler, ``fraction(r / n)``; Q(x_{k,tau} - x_k) ->
                changes of the model, stochastically rounded to `bits` bits an entry, sign included
`qsgd`          Alistarh et al., "QSGD: communication-efficient SGD via gradient quantization and
                encoding", 2017, on changes of the model. s -> `levels`; d, the bucket size ->
                `bucket`; Q_s of (3.1) -> `Qsgd`
`uveqfed`       Shlezinger et al., "UVeQFed: universal vector quantization for federated learning",
                2021. L -> `dimension`; R bits a weight -> `bits`; the dither z is drawn from the
                key of round and client, which both ends can build
`dssm`          Ji et al., "Dynamic sampling and selective masking for communication-efficient
                federated learning", 2021. Selective masking is in the recipe: the `share` of each
                leaf's changes that is largest in magnitude. Dynamic sampling is the engine's:
                ``run(..., sampler=decaying(c_0, beta))`` takes ``c_t = c_0 exp(-beta t)`` of the
                clients in round t
==============  ====================================================================================

With `share` below 1 `qsgd` and `uveqfed` quantise only the largest entries: the "QSGD" and the
"UVeQFed" that AnycostFL compares with.
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from bayesfed.algorithms.composing import compose
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import (
    Cast,
    Codec,
    Coded,
    FedPaqQuantiser,
    Float,
    Lattice,
    LeafCodec,
    Qsgd,
    TopK,
)
from bayesfed.compress.lossless.ranges import Range
from bayesfed.errors.checks import whole
from bayesfed.federated import Algorithm, Link, Training
from bayesfed.models import Likelihood


@recipe(cites=("reisizadeh2020fedpaq",), bits=whole(2, "16", 24))
def fed_paq(
    net: nn.Module,
    *,
    bits: int = 16,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train as `fed_avg` does. Clients send changes of the model through an unbiased quantiser.

    Parameters
    ----------
    bits
        Bits of a quantised entry, 2 to 24: ``2^(bits - 1) - 1`` levels on each side of zero, scaled
        by the leaf's largest entry. The levels are sent entropy-coded, which costs less.
    net, likelihood, training, link
        As in `fed_avg`.
    codec
        Codec of the down-link. Default: 16-bit floats.

    Raises
    ------
    ArgumentError
        If a number is outside its domain, or the network has running statistics.

    References
    ----------
    Reisizadeh et al., "FedPAQ: A Communication-Efficient Federated Learning Method with Periodic
    Averaging and Quantization" (2020).
    """
    up = Coded(FedPaqQuantiser(2 ** (bits - 1) - 1, norm="max"))
    return _changes("fed_paq", net, up, likelihood, training, codec, link)


@recipe(cites=("alistarh2017qsgd",))
def qsgd(
    net: nn.Module,
    *,
    levels: int = 7,
    bucket: int | None = 512,
    norm: Literal["l2", "max"] = "max",
    share: float = 1.0,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train as `fed_avg` does. Clients send changes of the model, rounded at random to a few
    levels.

    Parameters
    ----------
    levels, bucket, norm
        Number of levels on each side of zero; number of entries of a bucket, whose norm scales the
        levels (None: one bucket a leaf); and the norm. The theory uses the "l2" norm. The largest
        magnitude is unbiased too, and has far less variance where levels are few.
    share
        Share of a leaf's entries, the largest, that are sent.
    net, likelihood, training, link
        As in `fed_avg`.
    codec
        Codec of the down-link. Default: 16-bit floats.

    Raises
    ------
    ArgumentError
        If a number is outside its domain, or the network has running statistics.

    References
    ----------
    Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding"
    (2017).
    """
    up = _largest(share, Qsgd(levels, bucket, norm))
    return _changes("qsgd", net, up, likelihood, training, codec, link)


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
    net, likelihood, training, link
        As in `fed_avg`.
    codec
        Codec of the down-link. Default: 16-bit floats.

    Raises
    ------
    ArgumentError
        If a number is outside its domain, or the network has running statistics.

    References
    ----------
    Shlezinger et al., "UVeQFed: Universal Vector Quantization for Federated Learning" (2021).
    """
    up = _largest(share, Lattice(bits=bits, dimension=dimension))
    return _changes("uveqfed", net, up, likelihood, training, codec, link)


@recipe(cites=("ji2022dynamic",))
def dssm(
    net: nn.Module,
    *,
    share: float = 0.5,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train as `fed_avg` does; clients send the largest changes of the model as 16-bit floats, and
    where they are.

    Parameters
    ----------
    share
        Share gamma of a leaf's entries that are sent.
    net, likelihood, training, link
        As in `fed_avg`.
    codec
        Codec of the down-link. Default: 16-bit floats.

    Raises
    ------
    ArgumentError
        If a number is outside its domain, or the network has running statistics.

    References
    ----------
    Ji et al., "Dynamic Sampling and Selective Masking for Communication-Efficient Federated
    Learning" (2022).
    """
    up = Coded(TopK(share, Float(16, entropy=Range())))
    return _changes("dssm", net, up, likelihood, training, codec, link)


def _largest(share: float, values: LeafCodec) -> Codec:
    """Return a codec of the largest entries of every leaf, or of all."""
    return Coded(values if share == 1 else TopK(share, values))


def _changes(
    name: str,
    net: nn.Module,
    up: Codec,
    likelihood: Likelihood | None,
    training: Training | None,
    codec: Codec | None,
    link: Link | None,
) -> Algorithm:
    """Return FedAvg with changes that are sent through a codec."""
    work, down = training or Training(), codec or Cast(16)
    local = work.fitting(net, likelihood, "delta")
    return compose(name, net, local, training=work, codec=down, up=up, link=link)
