"""The measured cost of sub-models, to compare with the share alpha of the whole network that a
shrinking factor stands for.

Matrices between hidden layers shrink by alpha, the first and the last ones by sqrt(alpha), the last
one's biases not at all; widths are rounded to whole channels. Measured shares of the whole network,
in percent (`femnist_cnn` of 1 663 370 parameters and 12.27 M MACs, `vgg9` on (3, 32, 32) of 3 491
530 parameters and 135.4 M MACs; ten classes):

==================  ======  ======  ======  ======  ======
alpha                 3/4     1/2     1/4    1/10   1/100
==================  ======  ======  ======  ======  ======
femnist_cnn, work     75.7    51.5    26.3    10.9    1.32
femnist_cnn, size     74.4    49.8    25.1     9.97    .97
vgg9, work            75.2    50.4    25.2    10.0    1.05
vgg9, size            75.1    50.1    25.1    10.0    1.03
==================  ======  ======  ======  ======  ======

With group norm the steps are coarser, since groups are kept or left out as wholes: half of 16
channels that form one group are still 16.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor, nn

from bayesfed.errors.checks import checked
from bayesfed.models.costs import costs, total_cost
from bayesfed.models.elastic.graph import ChannelGraph
from bayesfed.models.elastic.shrinking import shrunk


class Share(NamedTuple):
    """The cost of one sub-model, as ``table(Share._fields, rows)`` takes it.

    Parameters
    ----------
    alpha
        Shrinking factor.
    macs
        Multiply-accumulates of one forward pass of one example.
    parameters
        Number of entries of all parameters.
    work, size
        MACs and parameters as shares of the whole network's. AnycostFL assumes alpha for both.
    """

    alpha: float
    macs: int
    parameters: int
    work: float
    size: float


@checked()
def shrunk_shares(
    net: nn.Module, graph: ChannelGraph, example: Tensor, alphas: Iterable[float]
) -> list[Share]:
    """Return the measured cost of sub-models, one row for each shrinking factor.

    Parameters
    ----------
    net, graph
        As in `shrunk`.
    example
        ``(B, ...)``, inputs as in `costs`.
    alphas
        Shrinking factors, each in (0, 1].

    Raises
    ------
    ArgumentError
        As `shrunk` and `costs`.

    References
    ----------
    AnycostFL, section III-A: ``W_i = alpha_i W`` and the size of an update in section III-B,
    ``alpha_i S``.
    """
    whole = total_cost(costs(net, example))
    rows = []
    for alpha in alphas:
        cost = total_cost(costs(shrunk(net, graph, alpha), example))
        rows.append(
            Share(
                alpha,
                cost.macs,
                cost.parameters,
                cost.macs / whole.macs,
                cost.parameters / whole.parameters,
            )
        )
    return rows
