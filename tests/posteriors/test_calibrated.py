"""A temperature and prediction sets by sums over clients are those of all rows together."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import bayesfed as bf
from bayesfed.algorithms.after_training.calibration.recipe import GRID
from bayesfed.errors import ArgumentError, UndeterminedWarning
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
    result = bf.run(bf.calibrated(net, classes=4), {"a": held[:300], "b": held[300:], "c": held[:0]}, rounds=1, progress=False)
    model = result.model
    losses = [float(cross_entropy(2 * held.inputs / one, held.targets)) for one in GRID]
    assert model.temperature == pytest.approx(GRID[losses.index(min(losses))])
    assert model.temperature == pytest.approx(2, rel=0.15)
    assert torch.allclose(model(test.inputs), 2 * test.inputs / model.temperature)
    assert model.clients == 2
    covered = model.sets(test.inputs).gather(1, test.targets[:, None]).double().mean()
    assert float(covered) == pytest.approx(0.9, abs=0.03)
    shares = torch.tensor([0.7, 0.1, 0.1, 0.1])
    shifted = bf.label_shifted(test, shares, Key(0))
    assert float(model.sets(shifted.inputs, shares=shares).gather(1, shifted.targets[:, None]).double().mean()) == pytest.approx(0.9, abs=0.05)
    by_class = model.sets(test.inputs, by_class=True)
    for label in range(4):
        assert float(by_class[test.targets == label, label].double().mean()) == pytest.approx(0.9, abs=0.06)
    with pytest.raises(ArgumentError, match="either shares or by_class"):
        model.sets(test.inputs, shares=shares, by_class=True)
    own = result.clients["a"].model
    assert int(own.histograms.sum()) == 300
    assert own.temperature == model.temperature


@pytest.mark.filterwarnings("error")
def test_a_temperature_at_the_end_of_the_grid_is_said():
    net, data = overconfident()
    for grid, further in (([0.5, 1.0, 1.5], "6"), ([4.0, 8.0, 3.0], "0.75")):
        with pytest.warns(UndeterminedWarning, match=f"at the end of those that were tried; try temperatures= as far as {further},"):
            bf.run(bf.calibrated(net, classes=4, temperatures=grid), {"a": data}, rounds=1, progress=False)
    bf.run(bf.calibrated(net, classes=4), {"a": data}, rounds=1, progress=False)


def test_what_does_not_fit_is_refused(net):
    for wrong, words in (({"temperatures": [0.0]}, "temperatures"), ({"bins": 0}, "bins >= 1"), ({"temperatures": []}, "temperatures")):
        with pytest.raises(ArgumentError, match=words):
            bf.calibrated(net, **wrong)
    with pytest.raises(ArgumentError, match="a network or a Model"):
        bf.calibrated("net")
