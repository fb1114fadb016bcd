"""FedProx (Li et al., "Federated optimization in heterogeneous networks", 2020).

Notation: mu -> `strength`; h_k(w; w^t) = F_k(w) + mu/2 ||w - w^t||^2, equation (2), is the negative
ELBO per row of a point posterior under the prior N(w^t, 1/(n_k mu)). With mu = 0 it is FedAvg, bit
for bit.
"""

from __future__ import annotations

from torch import nn

from bayesfed.algorithms.composing import compose
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Codec
from bayesfed.federated import Algorithm, Link, Training
from bayesfed.inference import MaximumLikelihood, Proximal
from bayesfed.models import Categorical, Likelihood


@recipe(cites=("li2020federated",))
def fed_prox(
    net: nn.Module,
    *,
    strength: float,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train as `fed_avg` does, with a quadratic penalty on the distance to the broadcast model.

    Parameters
    ----------
    strength
        Strength mu of ``mu / 2 ||w - w_t||^2`` beside a mean loss; 0 is `fed_avg`, bit for bit.
    net, likelihood, training, codec, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If the strength is negative.

    References
    ----------
    Li et al., "Federated Optimization in Heterogeneous Networks" (2020).
    """
    work = training or Training()
    objective = Proximal(MaximumLikelihood(net, likelihood or Categorical()), strength)
    return compose(
        "fed_prox", net, work.descent(objective, net), training=work, codec=codec, link=link
    )
