"""FedPAQ (Reisizadeh et al., "FedPAQ: a communication-efficient federated learning method with
periodic averaging and quantization", 2020).

Notation: tau local updates -> `steps`; r of n sampled clients -> the engine's sampler,
``fraction(r / n)``; Q(x_{k,tau} - x_k) -> changes of the model, stochastically rounded to `bits`
bits an entry, sign included.
"""

from __future__ import annotations

from torch import nn

from bayesfed.algorithms.composing import compose
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Cast, Codec, Coded, FedPaqQuantiser
from bayesfed.errors.checks import Role, check
from bayesfed.federated import Algorithm, Link, Training
from bayesfed.models import Likelihood


@recipe(cites=("reisizadeh2020fedpaq",))
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
    likelihood, training, link
        As in `fed_avg`.
    codec
        Codec of the down-link. Default: 16-bit floats.
    """
    check(
        "fed_paq, bits",
        bits,
        Role(
            lambda count: isinstance(count, int) and 2 <= count <= 24,
            "a whole number from 2 to 24",
            "16",
        ),
    )
    up = Coded(FedPaqQuantiser(2 ** (bits - 1) - 1, norm="max"))
    work = training or Training()
    local = work.fitting(net, likelihood, "delta")
    return compose("fed_paq", net, local, training=work, codec=codec or Cast(16), up=up, link=link)
