"""k-hat where it is known, in both generations of ArviZ."""

import math
import sys
import types

import arviz_base
import arviz_stats
import numpy as np
import pytest
import torch
import xarray

from bayesfed.errors import ArgumentError
from bayesfed.inspect import k_hat
from bayesfed.inspect.compat import build
from bayesfed.keys import Key


@pytest.fixture(params=["arviz", "arviz_stats"], autouse=True)
def arviz(request, monkeypatch):
    """ArviZ as installed, and what ArviZ 1.x computes with."""
    if request.param == "arviz_stats":
        monkeypatch.setitem(sys.modules, "arviz", arviz_stats)


def gaussian(sd, dimensions=1, draws=4000):
    """Return log weights of proposals N(0, sd² I) for a target N(0, I); their tail has k = 1 - sd²
    in one dimension, if sd < 1.
    """
    standard = torch.randn(
        draws, dimensions, generator=Key(0, "psis", dimensions).generator(), dtype=torch.float64
    )
    return ((1 - sd**2) * standard**2 / 2 + math.log(sd)).sum(1)


def test_a_proposal_that_is_the_target_has_no_tail():
    assert k_hat(gaussian(1.0)) == 0
    rounding = 1e-6 * torch.randn(1000, generator=Key(0, "rounding").generator())
    assert k_hat(rounding - 12_345.0) == 0


def test_wide_is_good_and_narrow_is_not():
    assert k_hat(gaussian(2.0)) < 0.1
    assert k_hat(gaussian(0.9)) < 0.5
    assert k_hat(gaussian(0.25)) > 0.7
    assert k_hat(gaussian(0.6, dimensions=30)) > 0.7
    assert k_hat(gaussian(0.8, dimensions=1000)) > 2


@pytest.mark.parametrize("k", [0.2, 0.5, 0.9])
def test_k_of_pareto_weights_is_found(k):
    uniform = torch.rand(20_000, generator=Key(0, "pareto").generator(), dtype=torch.float64)
    assert k_hat(-k * uniform.log()) == pytest.approx(k, abs=0.1)


def test_neither_a_constant_nor_the_order_nor_32_bits_matters():
    weights = gaussian(0.5)
    found = k_hat(weights)
    assert k_hat(weights.flip(0) + 1e5) == pytest.approx(found, abs=1e-6)
    assert k_hat(weights.float().requires_grad_()) == pytest.approx(found, abs=1e-3)


def test_weights_that_vanish_beside_the_largest_are_the_worst_case():
    weights = -5000 - 1000 * torch.rand(
        500, generator=Key(0, "vanishing").generator(), dtype=torch.float64
    )
    weights[7] = 0.0
    assert k_hat(weights) == math.inf
    ties = torch.zeros(500, dtype=torch.float64)
    ties[:3] = 1.0
    assert k_hat(ties) == math.inf
    # Bounded weights, the bound reached by every draw of the tail.
    assert k_hat(torch.arange(500.0).remainder(2)) == 0


def test_both_generations_of_arviz_agree(monkeypatch):
    for weights in (
        gaussian(0.5),
        gaussian(2.0),
        gaussian(0.8, dimensions=100),
        gaussian(0.8, draws=100),
    ):
        found = k_hat(weights)
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "arviz", arviz_stats)
            assert k_hat(weights) == pytest.approx(found, abs=0.1)


def test_an_arviz_that_answers_to_old_names_is_still_the_new_one(monkeypatch):
    """ArviZ 1.3 has a module's `__getattr__` that gives xarray's DataTree for InferenceData."""
    newer = types.ModuleType("arviz")
    newer.__dict__.update(vars(arviz_base), __getattr__=lambda name: xarray.DataTree)
    assert newer.InferenceData is xarray.DataTree
    groups = {"posterior": {"w": np.zeros((1, 5))}}
    monkeypatch.setitem(sys.modules, "arviz", newer)
    assert isinstance(build(groups, {}, {}, {}), xarray.DataTree)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (torch.zeros(99), r"log weights \(S,\), at least 100, found \(99,\)"),
        (torch.zeros(200, 2), r"found \(200, 2\)"),
        (torch.zeros(200, dtype=torch.long), "torch.int64"),
        (
            torch.zeros(200).index_fill(0, torch.tensor([3, 5]), math.nan),
            "finite log weights, found 2 that are not",
        ),
        (torch.zeros(200).index_fill(0, torch.tensor([3]), -math.inf), "found 1 that are not"),
    ],
)
def test_bad_weights_are_refused(weights, words):
    with pytest.raises(ArgumentError, match=words):
        k_hat(weights)
