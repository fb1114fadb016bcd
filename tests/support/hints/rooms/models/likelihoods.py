"""Messages of `bayesfed.models.likelihoods`."""

from dataclasses import dataclass

import pyro.distributions as dist
import torch
from torch import nn

import bayesfed as bf
from bayesfed import models

COMPLETE = ("bayesfed/models/likelihoods",)
OUT, LABELS = torch.tensor([[0.0, 1.0, 3.0]] * 4), torch.tensor([0, 1, 2, 0])
targets, NUMBERS = LABELS.float(), torch.zeros(4, 1)
classes, numbers = bf.Categorical().check, bf.Normal().check
COUNTS, PAIRS = torch.ones(4, 1), torch.ones(4, 2)
poisson, exposed = models.Poisson().check, models.Poisson(exposure=True).check
weighted = models.Weighted(models.Poisson()).check
pair = models.Several((bf.Categorical(), bf.Normal()), (2, 1)).check
TAGGED, TAGS = torch.zeros(4, 5, 3), LABELS[:, None].expand(4, 5)
by_place = bf.models.Labels().check
BOTH = torch.cat([LABELS[:, None] > 0, NUMBERS], 1)


def with_ones(targets):
    """Return targets with a column of ones."""
    return torch.cat([targets.reshape(len(targets), -1), torch.ones(len(targets), 1)], 1)


@dataclass(frozen=True)
class Bare(models.RowLikelihood):
    """A likelihood without a distribution."""

    temperature: float | None = None


class Made(Bare):
    """The same with what the hint says."""

    made = staticmethod(lambda eta, more, known: dist.Normal(eta, 1.0))


CASES = [
    (
        lambda: Bare().check(OUT, OUT),
        "made = staticmethod(lambda eta, more, known: dist.Normal(eta, 1.0))",
        lambda: Made().check(OUT, OUT),
    ),
    (
        lambda: classes(OUT.softmax(1), LABELS),
        "the network without its last softmax",
        lambda: classes(OUT, LABELS),
    ),
    (lambda given: classes(OUT, given), targets),
    (
        lambda: classes(OUT, LABELS[:, None]),
        "targets[:, 0]",
        lambda: classes(OUT, LABELS[:, None][:, 0]),
    ),
    (
        lambda: classes(OUT, LABELS[:, None].float()),
        "targets[:, 0].long()",
        lambda: classes(OUT, LABELS[:, None].float()[:, 0].long()),
    ),
    (
        lambda: classes(OUT, torch.eye(3)[LABELS]),
        "targets.argmax(1), since they are one-hot",
        lambda: classes(OUT, torch.eye(3)[LABELS].argmax(1)),
    ),
    (
        lambda: classes(OUT[:, :1], NUMBERS[:, 0] + 0.5),
        "likelihood=Normal() for numbers",
        lambda: numbers(OUT[:, :1], NUMBERS + 0.5),
    ),
    (
        lambda: classes(OUT[:, :1], NUMBERS + 0.5),
        "likelihood=Normal() for numbers",
        lambda: numbers(OUT[:, :1], NUMBERS + 0.5),
    ),
    (lambda: classes(OUT, LABELS[:2]), "one label a row, (B,)", lambda: classes(OUT, LABELS)),
    (
        lambda: classes(OUT[:, :, None], LABELS),
        "a network with one row of outputs for each row of inputs",
        lambda: classes(OUT, LABELS),
    ),
    (
        lambda: classes(OUT[:, :2] + 1, LABELS),
        "a last layer with 3 outputs",
        lambda: classes(OUT, LABELS),
    ),
    (
        lambda: classes(OUT, LABELS - 1),
        "labels.unique(return_inverse=True)[1]",
        lambda: classes(OUT, (LABELS - 1).unique(return_inverse=True)[1]),
    ),
    (
        lambda: numbers(LABELS[:, None].float(), LABELS[:, None]),
        "targets.float()",
        lambda: numbers(LABELS[:, None].float(), LABELS[:, None].float()),
    ),
    (lambda: numbers(OUT, LABELS), "Categorical() for labels", lambda: classes(OUT, LABELS)),
    (
        lambda: numbers(NUMBERS, NUMBERS[:, 0]),
        "targets.reshape(-1, 1)",
        lambda: numbers(NUMBERS, NUMBERS[:, 0].reshape(-1, 1)),
    ),
    (
        lambda: numbers(OUT, NUMBERS),
        "a network with as many outputs as there are targets",
        lambda: numbers(OUT[:, :1], NUMBERS),
    ),
    # Temperatures.
    (
        lambda: models.Normal(None).check(OUT, NUMBERS),
        "a last layer with 2 outputs",
        lambda: models.Normal(None).check(OUT[:, :2], NUMBERS),
    ),
    (
        lambda: models.Weibull(1.0).check(OUT, PAIRS),
        "a last layer with 1 output",
        lambda: models.Weibull(1.0).check(OUT[:, :1], PAIRS),
    ),
    (
        lambda: exposed(OUT[:, :1], COUNTS),
        "torch.cat([targets.reshape(len(targets), -1), torch.ones(len(targets), 1)], 1)",
        lambda: exposed(OUT[:, :1], with_ones(COUNTS)),
    ),
    (
        lambda: poisson(OUT, COUNTS),
        "a network with as many outputs as there are targets",
        lambda: poisson(OUT[:, :1], COUNTS),
    ),
    (
        lambda: poisson(OUT[:, :1], COUNTS - 2),
        "rows[rows that fit], or another likelihood",
        lambda: numbers(OUT[:, :1], COUNTS - 2),
    ),
    (
        lambda: weighted(OUT[:, :1], COUNTS),
        "torch.cat([targets.reshape(len(targets), -1), torch.ones(len(targets), 1)], 1)",
        lambda: weighted(OUT[:, :1], with_ones(COUNTS)),
    ),
    (
        lambda: by_place(TAGGED.mT, TAGS),
        "likelihood=bayesfed.models.Labels(axis=1)",
        lambda: models.Labels(axis=1).check(TAGGED.mT, TAGS),
    ),
    (
        lambda: by_place(TAGGED, TAGS - 1),
        "ignored=-1",
        lambda: models.Labels(ignored=-1).check(TAGGED, TAGS - 1),
    ),
    (lambda: by_place(TAGGED, TAGS.float()), "targets.long()", lambda: by_place(TAGGED, TAGS)),
    (
        lambda: bf.bayesian(nn.Linear(3, 3))(TAGGED, TAGS),
        "likelihood=bayesfed.models.Labels()",
        lambda: bf.bayesian(nn.Linear(3, 3), likelihood=models.Labels())(TAGGED, TAGS),
    ),
    (
        lambda: models.Weighted(bf.Normal(1.0, 2.0)),
        "Weighted(..., temperature=1.0)",
        lambda: models.Weighted(bf.Normal(1.0), temperature=1.0),
    ),
    (
        lambda: models.Several((bf.Normal(), bf.Normal()), (1,)),
        "outputs=(1,) * 2",
        lambda: models.Several((bf.Normal(), bf.Normal()), outputs=(1,) * 2),
    ),
    (
        lambda: pair(OUT[:, :2], BOTH),
        "a last layer with 3 outputs",
        lambda: pair(OUT + 1, BOTH),
    ),
    (
        lambda: pair(OUT + 1, NUMBERS),
        "torch.cat of the columns of all outcomes, labels as one",
        lambda: pair(OUT + 1, BOTH),
    ),
    (
        lambda: pair(OUT + 1, BOTH + 0.5),
        "another likelihood",
        lambda: models.Several((bf.Normal(), bf.Normal()), (1, 1)).check(OUT[:, :2], BOTH + 0.5),
    ),
    (
        lambda: bf.Categorical(weights=(1.0,)).check(OUT, LABELS),
        "weights=(1.0,) * 3",
        lambda: bf.Categorical(weights=(1.0,) * 3).check(OUT, LABELS),
    ),
]
