"""QSGD (Alistarh et al., "QSGD: communication-efficient SGD via gradient quantization and
encoding", 2017), on changes of the model.

Notation: s -> `levels`; d, the bucket size -> `bucket`; Q_s of (3.1) -> `Qsgd`. With `share` below
1 only the largest entries are quantised: the "QSGD" that AnycostFL compares with.
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from bayesfed.algorithms.composing import compose
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Cast, Codec, Coded, LeafCodec, Qsgd, TopK
from bayesfed.federated import Algorithm, Link, Training
from bayesfed.models import Likelihood


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
    likelihood, training, link
        As in `fed_avg`.
    codec
        Codec of the down-link. Default: 16-bit floats.
    """
    quantiser = Qsgd(levels, bucket, norm)
    values: LeafCodec = quantiser if share == 1 else TopK(share, quantiser)
    up = Coded(values)
    work = training or Training()
    local = work.fitting(net, likelihood, "delta")
    return compose("qsgd", net, local, training=work, codec=codec or Cast(16), up=up, link=link)
