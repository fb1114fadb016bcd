"""A temperature and prediction sets by sums over clients are those of all rows together."""

import math
import statistics

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import bayesfed as bf
from bayesfed.algorithms.after_training.calibration import CalibratedModel
from bayesfed.algorithms.after_training.calibration.recipe import GRID
from bayesfed.errors import ArgumentError, BayesfedError, DataError, UndeterminedWarning
from bayesfed.federated.core.options import LocalOptions
from bayesfed.federated.core.owners import owned
from bayesfed.inference.evaluation import conformal
from bayesfed.keys import Key


def overconfident(rows=2000):
    """Rows with logits that are twice too large."""
    noise = Key(0, "calibrated").generator()
    inputs = 1.5 * torch.randn(rows, 4, generator=noise)
    targets = torch.multinomial(inputs.softmax(1), 1, generator=noise)[:, 0]
    net = nn.Sequential(nn.Linear(4, 4, bias=False))
    with torch.no_grad():
        net[0].weight.copy_(2 * torch.eye(4))
    return net, bf.Dataset(inputs, targets)


def test_temperature_and_sets_are_those_of_all_rows():
    net, data = overconfident()
    held, test = data[:1000], data[1000:]
    result = bf.run(
        bf.calibrated(net, classes=4),
        {"a": held[:300], "b": held[300:], "c": held[:0]},
        rounds=1,
        progress=False,
    )
    model = result.model
    losses = [float(cross_entropy(2 * held.inputs / one, held.targets)) for one in GRID]
    assert model.temperature == pytest.approx(GRID[losses.index(min(losses))])
    assert model.temperature == pytest.approx(2, rel=0.15)
    assert torch.allclose(model(test.inputs), 2 * test.inputs / model.temperature)
    assert model.clients == 2
    covered = model.sets(test.inputs).gather(1, test.targets[:, None]).double().mean()
    assert float(covered) == pytest.approx(0.9, abs=0.03)
    shares = torch.tensor([0.7, 0.1, 0.1, 0.1])
    shifted = bf.data.label_shifted(test, shares, Key(0))
    assert float(
        model.sets(shifted.inputs, shares=shares)
        .gather(1, shifted.targets[:, None])
        .double()
        .mean()
    ) == pytest.approx(0.9, abs=0.05)
    by_class = model.sets(test.inputs, by_class=True)
    for label in range(4):
        assert float(by_class[test.targets == label, label].double().mean()) == pytest.approx(
            0.9, abs=0.06
        )
    with pytest.raises(ArgumentError, match="either shares or by_class"):
        model.sets(test.inputs, shares=shares, by_class=True)
    own = result.clients["a"].model
    assert int(own.histograms.sum()) == 300
    assert own.temperature == model.temperature


@pytest.mark.filterwarnings("error")
def test_a_temperature_at_the_end_of_the_grid_is_said():
    net, data = overconfident()
    for grid, further in (([0.5, 1.0, 1.5], "6"), ([4.0, 8.0, 3.0], "0.75")):
        with pytest.warns(
            UndeterminedWarning,
            match=f"at the end of those that were tried; try temperatures= as far as {further},",
        ):
            bf.run(
                bf.calibrated(net, classes=4, temperatures=grid),
                {"a": data},
                rounds=1,
                progress=False,
            )
    bf.run(bf.calibrated(net, classes=4), {"a": data}, rounds=1, progress=False)


def test_what_does_not_fit_is_refused(net):
    wrong = (
        ({"temperatures": [0.0]}, "temperatures"),
        ({"temperatures": []}, "temperatures"),
        (
            {"temperatures": "auto"},
            "temperatures: expected a sequence, each a number or None, found 'auto'",
        ),
        ({"temperatures": 2.0}, "temperatures"),
        ({"bins": 0}, "bins: expected a whole number >= 1"),
        ({"classes": 3.0}, "classes: expected a whole number >= 1"),
        ({"classes": "a"}, "classes: expected a whole number >= 1"),
        ({"parameters": {"wieght": torch.zeros(3, 4)}}, "found 'wieght'"),
        ({"parameters": {name: leaf[None] for name, leaf in net.named_parameters()}}, "shape"),
        ({"parameters": [1.0]}, "a mapping, each value a Tensor"),
    )
    for arguments, words in wrong:
        with pytest.raises(ArgumentError, match=words):
            bf.calibrated(net, **arguments)
    with pytest.raises(ArgumentError, match="a Module or a Predictor"):
        bf.calibrated("net")
    with pytest.raises(ArgumentError, match="classes=10"):
        bf.calibrated(nn.Sequential(nn.Conv2d(1, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()))


def test_classes_are_those_of_the_network():
    net, data = overconfident(300)
    told, found = (
        bf.run(bf.calibrated(net, **given), {"a": data}, rounds=1, progress=False).model
        for given in ({"classes": 4}, {})
    )
    assert torch.equal(told.histograms, found.histograms)
    assert found.sets(data.inputs, by_class=True).shape == (300, 4)
    for classes in (3, 10):
        with pytest.raises(
            BayesfedError, match=f"a network of {classes} outputs, found 4; try classes=4"
        ):
            bf.run(bf.calibrated(net, classes=classes), {"a": data}, rounds=1, progress=False)
    algorithm = bf.calibrated(net)
    with pytest.raises(DataError, match="labels"):
        algorithm.phases[1].local.fit(
            owned(algorithm.initial, "model"),
            {},
            bf.Dataset(data.inputs[:2], torch.tensor([0, 4])),
            Key(0),
            LocalOptions(),
        )


def test_a_network_of_64_bits_stays_so():
    net, data = overconfident(300)
    wide = bf.Dataset(data.inputs.double(), data.targets)
    model = bf.run(
        bf.calibrated(net.double(), classes=4), {"a": wide}, rounds=1, progress=False
    ).model
    assert model(wide.inputs).dtype == torch.float64
    assert torch.equal(model(wide.inputs), net(wide.inputs) / model.temperature)


def counted(first, second, noise):
    """Histograms of 100 bins, of a class of probabilities 0.9 to 1 and one of 0 to 1."""
    scores = (0.1 * torch.rand(first, generator=noise), torch.rand(second, generator=noise))
    return torch.stack(
        [torch.bincount((100 * one).long(), minlength=100) for one in scores]
    ).double()


@pytest.mark.parametrize(
    ("rows", "shares"),
    [
        ((200, 0), (0.5, 0.5)),
        ((199, 1), (0.5, 0.5)),
        ((190, 10), (0.5, 0.5)),
        ((10, 190), (0.95, 0.05)),
    ],
)
def test_sets_cover_rows_in_other_shares(rows, shares):
    """On average over draws of held-out rows, few or none of a class included; scores of each class
    are uniform, which gives their coverage.
    """
    noise, covered = Key(0, "shifted").generator(), []
    for _ in range(200):
        limits = conformal.shifted_thresholds(counted(*rows, noise), torch.tensor(shares))
        first, second = (limits * torch.tensor([10.0, 1.0])).clamp_max(1).tolist()
        covered.append(shares[0] * first + shares[1] * second)
    assert statistics.fmean(covered) > 0.895
    if rows[1] < 2:
        # One row cannot say where 90 % of its class are, and no row says nothing.
        assert limits[1] == math.inf > limits[0]


def test_shifted_thresholds_are_those_of_the_weighted_rows():
    histograms = counted(60, 140, Key(1, "shifted").generator())
    same = conformal.shifted_thresholds(histograms, histograms.sum(1))
    assert same.tolist() == [conformal.threshold(histograms.sum(0))] * 2
    # By its definition, row by row: weights 0.8 / 0.3 and 0.2 / 0.7.
    weights, total = (0.8 / 0.3, 0.2 / 0.7), 200.0
    for label, limit in enumerate(
        conformal.shifted_thresholds(histograms, torch.tensor([0.8, 0.2])).tolist()
    ):
        rows = sorted(
            (place, weights[one])
            for one in (0, 1)
            for place in range(100)
            for _ in range(int(histograms[one, place]))
        )
        weighed, place = 0.0, -1
        while weighed < 0.9 * (total + weights[label]) - 1e-9:
            weighed, place = weighed + rows[0][1], rows.pop(0)[0]
        assert limit == pytest.approx((place + 1) / 100)
    model = CalibratedModel(nn.Identity(), {}, 1.0, histograms, 1)
    limits = conformal.shifted_thresholds(histograms, torch.tensor([0.8, 0.2]))
    assert torch.equal(model.thresholds(shares=[0.8, 0.2]), limits)


def test_shares_that_are_none_are_refused():
    model = CalibratedModel(
        nn.Identity(), {}, 1.0, counted(60, 140, Key(1, "shifted").generator()), 1
    )
    for shares in (
        [-0.5, 1.5],
        [math.nan, 1.0],
        [math.inf, 1.0],
        [0.0, 0.0],
        [0.2, 0.3, 0.5],
        [[0.5, 0.5]],
        1.0,
        "even",
        [0.5, "a"],
    ):
        for asked in (
            model.thresholds,
            lambda **given: model.sets(torch.zeros(3, 2), **given),
        ):
            with pytest.raises(ArgumentError, match="shares of the classes"):
                asked(shares=shares)
