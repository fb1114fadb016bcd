"""FedAvg (McMahan et al., "Communication-efficient learning of deep networks from decentralized
data", 2017).

Notation: K clients, n_k rows of client k, E local epochs -> `steps` local steps, B -> `batch_size`,
eta -> the optimiser.
"""

from __future__ import annotations

from torch import nn

from bayesfed.algorithms.composing import compose
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Codec
from bayesfed.federated import Algorithm, Buffers, Link, Training
from bayesfed.models import Likelihood


@recipe(cites=("mcmahan2017communication",))
def fed_avg(
    net: nn.Module,
    *,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    codec: Codec | None = None,
    link: Link | None = None,
    buffers: Buffers = "static",
    masked: bool = False,
) -> Algorithm:
    """Train `net` by local SGD and weighted averages, starting from its own parameters.

    Parameters
    ----------
    net
        The network, any module. Its parameters are the model before round 0; it is not changed.
    likelihood
        Likelihood of the targets. Default: `Categorical()`.
    training
        Local work of a round. Default: 50 steps of 64 rows with ``Sgd(0.05)``.
    codec
        Codec of both directions. Default: 32-bit floats.
    link
        How models reach the server. Default: `Digital()`.
    buffers
        Policy of running statistics (`bayesfed.federated.training.batch_norm`). "static" refuses
        networks that have any. "mean" averages them with the parameters. "local" leaves each client
        its own; the predictor then normalises by the batch it is given, see `batch_statistics`.
    masked
        Train with the logits of classes that a client has no rows of set to zero (HeteroFL's masked
        cross-entropy): they get no gradient, but still count as 1 in the softmax's sum. Targets
        must be classes.

    Raises
    ------
    ArgumentError
        If the network has running statistics and `buffers` is "static", or there is no such policy.

    References
    ----------
    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data"
    (2017).
    """
    work = training or Training()
    local = work.fitting(net, likelihood, masked=masked, buffers=buffers)
    return compose("fed_avg", net, local, training=work, codec=codec, link=link, buffers=buffers)
