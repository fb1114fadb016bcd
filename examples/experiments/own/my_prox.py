"""A recipe in a file of one's own: FedProx from its parts. `my_prox.toml` names it as
``kind = "my_prox.py:my_prox"``.
"""

from torch import nn

import bayesfed as bf
from bayesfed.federated import Algorithm, Link
from bayesfed.inference import MaximumLikelihood, Proximal


@bf.recipe(cites=("li2020federated",))
def my_prox(
    net: nn.Module,
    *,
    strength: float,
    training: bf.Training | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train as `fed_avg` does, with the penalty ``strength / 2 ||w - w_t||^2`` on the distance to
    the broadcast model.
    """
    work = training or bf.Training(steps=25)
    objective = Proximal(MaximumLikelihood(net, bf.Categorical()), strength)
    return bf.compose("my_prox", net, work.descent(objective, net), training=work, link=link)
