"""STC (Sattler et al., "Robust and communication-efficient federated learning from non-IID data",
2019): sparse and ternary, both ways.

Notation: p -> `share`; client residual A_i -> `ErrorFeedback`, in the client's memory; server
residual R, the broadcast change and the cached sums P^(s) -> `DeltaServer`.
"""

from __future__ import annotations

from torch import nn

from bayesfed.algorithms.composing import compose
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Coded, Sparse, Ternary
from bayesfed.federated import Algorithm, Exchange, Link, Training
from bayesfed.models import Likelihood


@recipe(cites=("sattler2020robust",))
def stc(
    net: nn.Module,
    *,
    share: float = 0.1,
    cache: int = 2,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Send the largest changes as signs and one magnitude in both directions, with residuals at the
    clients and at the server.

    Parameters
    ----------
    share
        Share of a leaf's entries that a message changes. Every entry is sent about once in
        ``1 / share`` rounds: the default suits runs of tens of rounds, the paper's 1 / 400
        thousands of rounds of one step.
    cache
        A client that missed at most this many rounds gets the sum of the changes it missed; others
        get the model in 32-bit floats.
    training
        Local work of a round. Default: 50 steps of 64 rows with ``Sgd(0.05)``; the paper takes one
        step, ``Training(steps=1)``.
    net, likelihood, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If a number is outside its domain, or the network has running statistics.

    References
    ----------
    Sattler et al., "Robust and Communication-Efficient Federated Learning from Non-IID Data"
    (2020).
    """
    work = training or Training()
    return compose(
        "stc",
        net,
        work.fitting(net, likelihood),
        training=work,
        codec=Coded(Sparse()),
        up=Coded(Ternary(share)),
        link=link,
        layers=(Exchange(codec=Ternary(share), cache=cache),),
    )
