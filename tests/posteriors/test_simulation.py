"""Simulation-based calibration: it passes right posteriors and no others, and says what a model
lacks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pyro
import pyro.distributions as dist
import pytest
import torch

import bayesfed as bf
from bayesfed.errors import ArgumentError
from bayesfed.inference.evaluation.simulation import Calibration, simulated, simulated_calibration
from bayesfed.inspect import plot_ranks

INPUTS = torch.ones(8, 1)


def line(inputs, targets=None):
    at = pyro.sample("at", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Normal(at.expand(len(inputs), 2), 2.0).to_event(1), obs=targets)


@dataclass
class Known:
    """The posterior of the line, moved by so many sds and of another width."""

    rows: bf.Dataset
    shift: float = 0.0
    width: float = 1.0

    def draw(self, key):
        precision = 1 + len(self.rows) / 4
        mean = self.rows.targets.sum(0) / 4 / precision + self.shift / math.sqrt(precision)
        noise = torch.randn(2, generator=key.generator())
        return {"at": mean + self.width * noise / math.sqrt(precision)}


def ranks(**wrong):
    made = simulated_calibration(
        line, lambda rows: Known(rows, **wrong), INPUTS, simulations=150, draws=39
    )
    return made, made.statistics()


def test_right_posteriors_pass_and_cover():
    made, statistics = ranks()
    assert made.uniform
    assert set(statistics) == {"at[0]", "at[1]"}
    assert 0.85 < made.coverage(0.9) < 0.95
    assert plot_ranks(statistics).get_ylabel()


@pytest.mark.parametrize("wrong", [{"shift": 0.6}, {"width": 0.5}, {"width": 2.0}], ids=str)
def test_moved_narrow_and_wide_ones_do_not(wrong):
    assert not ranks(**wrong)[0].uniform


def test_the_same_seed_gives_the_same_ranks_and_truths_come_from_the_prior():
    assert torch.equal(ranks()[0].ranks["at"], ranks()[0].ranks["at"])
    truths = torch.stack([simulated(line, INPUTS, bf.Key(0, n))[0]["at"] for n in range(200)])
    assert abs(float(truths.std()) - 1) < 0.1


def test_a_model_without_targets_is_refused():
    def closed(inputs, targets=None):
        pyro.sample("at", dist.Normal(torch.zeros(()), 1.0))

    with pytest.raises(ArgumentError, match="one site of targets"):
        simulated(closed, INPUTS, bf.Key(0))
    with pytest.raises(ArgumentError, match="ranks"):
        plot_ranks({})
    with pytest.raises(ArgumentError, match="a number in"):
        Calibration({}, 9).coverage(2.0)
