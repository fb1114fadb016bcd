"""The posterior grid: weights sent as coarsely as their posterior is wide."""

import math

import pytest
import torch

import bayesfed as bf
from bayesfed.compress import PosteriorGrid
from bayesfed.compress.wire import unseal
from bayesfed.errors import ArgumentError, WireError
from bayesfed.testing import check_codec

SIDES = torch.Generator().manual_seed(3)
MEAN = torch.randn(200, 100, generator=SIDES)
SD = (0.05 * torch.randn(200, 100, generator=SIDES)).exp() * 0.1


def trip(codec, tree, key=None):
    key = key or bf.Key(0, "grid")
    message = codec.encode(tree, {"round": 1}, key)
    return codec.decode(message, key)[0], message


@pytest.mark.parametrize("sd", [torch.tensor(0.1), SD])
@pytest.mark.parametrize("nats", [0.003, 0.03])
def test_the_expected_divergence_is_the_budget(sd, nats):
    back, _ = trip(PosteriorGrid(nats), {"mean/a": MEAN, "sd/a": sd})
    cost = ((back["mean/a"] - MEAN) ** 2 / (2 * sd**2)).mean()
    # 20,000 uniform errors: the mean of squares is within 1 % at two standard deviations. Rounded
    # sds add a share of twice their own budget.
    assert float(cost) == pytest.approx(nats * (1 + 2 * nats * bool(sd.ndim)), rel=0.05)
    if sd.ndim:
        assert float((back["sd/a"].log() - sd.log()).square().mean()) == pytest.approx(
            nats, rel=0.05
        )
    else:
        assert torch.equal(back["sd/a"], sd)


@pytest.mark.slow
def test_it_is_unbiased_and_independent_of_the_mean():
    codec, tree = (
        PosteriorGrid(0.1),
        {"mean/a": torch.tensor([0.0, 0.01, 0.13, -2.0]), "shared/sd": torch.tensor(0.1)},
    )
    errors = torch.stack(
        [
            trip(codec, tree, bf.Key(0, number))[0]["mean/a"] - tree["mean/a"]
            for number in range(2000)
        ]
    )
    step = 0.1 * math.sqrt(24 * 0.1)
    assert float(errors.mean(0).abs().max()) < 5 * step / math.sqrt(12 * 2000)
    assert errors.std(0).tolist() == pytest.approx([step / math.sqrt(12)] * 4, rel=0.06)
    assert float(errors.abs().max()) <= step / 2 + 1e-6


def test_the_cost_is_near_the_entropy_of_the_grid():
    """A Gaussian of sd s on a grid of step d costs log2(s sqrt(2 pi e) / d) bits an entry."""
    sd, nats = torch.tensor(0.2), 0.01
    _, message = trip(PosteriorGrid(nats), {"mean/a": MEAN, "shared/sd": sd})
    bits = math.log2(math.sqrt(2 * math.pi * math.e) / (0.2 * math.sqrt(24 * nats)))
    assert 8 * len(message) / MEAN.numel() == pytest.approx(bits, rel=0.02)


def test_a_wide_posterior_is_cheap():
    sizes = [
        len(trip(PosteriorGrid(0.01), {"mean/a": MEAN, "shared/sd": torch.tensor(sd)})[1])
        for sd in (1e-3, 1e-2, 1e-1)
    ]
    assert sizes[0] > 1.3 * sizes[1] > 1.6 * sizes[2]


def test_the_laws_hold_where_there_is_no_mean():
    check_codec(PosteriorGrid(), tolerance=2**-10)


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"mean/a": MEAN}, "'sd/a' or 'shared/sd' beside it"),
        ({"mean/a": MEAN, "shared/sd": torch.tensor(0.0)}, "standard deviations above 0"),
        ({"mean/a": MEAN, "shared/sd": torch.tensor(float("nan"))}, "standard deviations above 0"),
        ({"mean/a": MEAN.log(), "shared/sd": torch.tensor(0.1)}, "larger ones or NaN"),
        ({"mean/a": MEAN, "shared/sd": torch.tensor(1e-30)}, "larger ones or NaN"),
        ({"mean/a": MEAN, "sd/a": SD[:5]}, r"shape \(5, 100\)"),
    ],
)
def test_what_cannot_be_put_on_a_grid_is_refused(tree, words):
    with pytest.raises(WireError, match=words):
        trip(PosteriorGrid(), tree)


def test_budgets_are_positive():
    with pytest.raises(ArgumentError, match=r"nats: expected a number in \(0, inf\)"):
        PosteriorGrid(0.0)


def test_a_message_of_another_codec_is_refused():
    """A grid's numbers must be integers, and an sd that is coded must be."""
    plain = bf.Cast(32).encode({"mean/a": MEAN[:3], "sd/a": SD[:3]}, {}, bf.Key(0))
    with pytest.raises(WireError):
        PosteriorGrid().decode(plain, bf.Key(0))
    leaves, _ = unseal(
        PosteriorGrid().encode({"mean/a": MEAN, "shared/sd": torch.tensor(0.1)}, {}, bf.Key(0))
    )
    assert [leaf.dtype for leaf in leaves] == ["i8", "f4"]
