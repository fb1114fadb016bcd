"""QSGD (Alistarh et al., "QSGD: communication-efficient SGD via gradient quantization and encoding", 2017), on changes of the model.

Notation: s -> `levels`; d, the bucket size -> `bucket`; Q_s of (3.1) -> `Qsgd`. With `share` below 1 only the largest entries are quantised:
the "QSGD" that AnycostFL compares with.
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from bayesfed.algorithms.baselines.fed_avg import average_of
from bayesfed.compress.codecs import Cast, Codec
from bayesfed.compress.coded import Coded
from bayesfed.compress.leaf import LeafCodec
from bayesfed.compress.quantisers.qsgd import Qsgd
from bayesfed.compress.quantisers.sparsify import TopK
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.federated.training.optimisers import Optimiser
from bayesfed.federated.training.schedules import Schedule, constant
from bayesfed.inference.objectives.likelihood import MaximumLikelihood
from bayesfed.models.priors.likelihoods import Categorical, Likelihood


def qsgd(
    net: nn.Module,
    *,
    levels: int = 7,
    bucket: int | None = 512,
    norm: Literal["l2", "max"] = "max",
    share: float = 1.0,
    likelihood: Likelihood | None = None,
    steps: int = 50,
    batch_size: int = 64,
    optimiser: Optimiser | None = None,
    schedule: Schedule = constant,
    codec: Codec | None = None,
) -> Algorithm:
    """Train as `fed_avg` does; clients send changes of the model rounded at random to a few levels.

    Parameters
    ----------
    levels, bucket, norm
        Levels each side of zero, of the norm of each bucket of so many entries (None: of the leaf). The theory has the "l2" norm; the
        largest magnitude is as unbiased, with far less variance where levels are few.
    share
        Share of a leaf's entries that are sent, the largest.
    likelihood, steps, batch_size, optimiser, schedule
        As in `fed_avg`.
    codec
        Of the down-link; default 16-bit floats.
    """
    quantiser = Qsgd(levels, bucket, norm)
    values: LeafCodec = quantiser if share == 1 else TopK(share, quantiser)
    up = Coded(values)
    objective = MaximumLikelihood(net, likelihood or Categorical())
    return average_of("qsgd", net, objective, steps, batch_size, optimiser, schedule, codec or Cast(16), up)
