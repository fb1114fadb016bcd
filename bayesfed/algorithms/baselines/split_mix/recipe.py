"""Split-Mix (Hong, Wang, Wang and Zhou, "Efficient split-mix federated learning for on-demand and
in-situ customization", 2022).

======================  ==============================================
paper                   here
======================  ==============================================
base models             `count` copies of `net`, a narrow network, each initialised by itself
budget of a client      `nets_of`: how many of them a client of each size trains a round
mixing                  `Ensemble`: the mean of their outputs
======================  ==============================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from bayesfed.algorithms.baselines.split_mix.ensembles import EachNet, Ensemble, Nets, joined
from bayesfed.algorithms.composing import Turn, compose
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Codec
from bayesfed.errors import ArgumentError
from bayesfed.errors.plurals import plural
from bayesfed.federated import Algorithm, Capacity, Link, Training
from bayesfed.federated.core.settings import with_settings
from bayesfed.federated.training.batch_norm import travelling
from bayesfed.keys import Key
from bayesfed.models import Likelihood
from bayesfed.trees import Tree, shapes


@recipe(cites=("hong2022efficient",))
def split_mix(
    make: Callable[[Key], nn.Module],
    nets_of: Sequence[int],
    capacity: Capacity,
    *,
    key: Key,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    masked: bool = False,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train several narrow networks. A device trains as many as it can afford, and a strong device
    averages the outputs of several.

    Parameters
    ----------
    make
        ``key -> network``, which builds one narrow network. Frozen layers are those of the first
        one for all.
    nets_of
        Number of networks that clients of each size train, falling; the first is the number of all
        networks. FedHM compares 9, 3, 2 and 1.
    capacity
        Which size a client has in a round. The networks that it gets are drawn anew each round, so
        that all are trained alike.
    key
        Key of the initial parameters.
    likelihood
        Default: `Categorical()`.
    training
        Local work of a round for each network. Default: 50 steps of 64 rows with ``Sgd(0.05)``.
    masked
        Train with the logits of classes that a client has no rows of set to zero, as in `fed_avg`.
    codec, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If the numbers do not fall to 1 or more, or the network has running statistics.

    References
    ----------
    Hong et al., "Efficient Split-Mix Federated Learning for On-Demand and In-Situ Customization"
    (2022).
    """
    if not nets_of or min(nets_of) < 1 or list(nets_of) != sorted(nets_of, reverse=True):
        raise ArgumentError(
            "split_mix, nets_of", "falling numbers >= 1", list(nets_of), "[9, 3, 2, 1]"
        )
    net, count, work = make(key.child(0)), nets_of[0], training or Training()
    initial = joined(
        {
            number: travelling(make(key.child(number)), "static", where="split_mix")
            for number in range(count)
        }
    )

    @with_settings(count=count, initial=initial, nets_of=nets_of)
    def view(turn: Turn) -> Nets:
        chosen = torch.randperm(count, generator=turn.key.child("nets").generator())[
            : nets_of[turn.size]
        ].tolist()
        return Nets(chosen, shapes(initial))

    def model(able: int, state: Tree) -> Ensemble:
        return Ensemble(net, Nets(range(able), shapes(initial)).restrict(state))

    return compose(
        "split_mix",
        net,
        EachNet(work.fitting(net, likelihood, masked=masked)),
        training=work,
        initial=initial,
        predictor=partial(model, count),
        sizes={f"{plural(able, 'net')}": partial(model, able) for able in nets_of},
        view=view,
        capacity=capacity,
        codec=codec,
        link=link,
    )
