"""DSSM (Ji et al., "Dynamic sampling and selective masking for communication-efficient federated
learning", 2021).

Selective masking is in the recipe: the `share` of each leaf's changes that is largest in magnitude.
Dynamic sampling is the engine's: ``run(..., sampler=decaying(c_0, beta))`` takes
``c_t = c_0 exp(-beta t)`` of the clients in round t.
"""

from __future__ import annotations

from torch import nn

from bayesfed.algorithms.composing import compose
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Cast, Codec, Coded, Float, TopK
from bayesfed.compress.lossless.ranges import Range
from bayesfed.federated import Algorithm, Link, Training
from bayesfed.models import Likelihood


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
    likelihood, training, link
        As in `fed_avg`.
    codec
        Codec of the down-link. Default: 16-bit floats.
    """
    up = Coded(TopK(share, Float(16, entropy=Range())))
    work = training or Training()
    local = work.fitting(net, likelihood, "delta")
    return compose("dssm", net, local, training=work, codec=codec or Cast(16), up=up, link=link)
