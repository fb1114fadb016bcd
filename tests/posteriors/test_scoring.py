"""Scores, calibration, coverage, uncertainty and ranks: against torchmetrics, and against loops
nobody would run twice.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import binom, entropy

from bayesfed.errors import ArgumentError, DataError
from bayesfed.inference.evaluation.ranks import ecdf_band, rank_statistics
from bayesfed.inference.evaluation.scoring import (
    brier,
    calibration_bins,
    coverage,
    expected_calibration_error,
    mutual_information,
    nll,
    predictive_entropy,
)
from bayesfed.keys import Key


def predictions(rows=500, classes=10, draws=None, sharpness=2.0, dtype=torch.float32):
    generator = Key(0, "scoring", rows, classes).generator()
    size = (rows, classes) if draws is None else (draws, rows, classes)
    probabilities = torch.softmax(sharpness * torch.randn(size, generator=generator), -1).to(dtype)
    return probabilities, torch.randint(0, classes, (rows,), generator=generator)


def test_nll_is_that_of_the_mean_of_draws():
    from torchmetrics.functional.text import perplexity

    probabilities, targets = predictions(draws=7)
    scores = probabilities.gather(2, targets.expand(7, -1)[..., None])[..., 0].log()
    slow = np.mean([math.log(7) - logsumexp(scores[:, row].double()) for row in range(500)])
    assert float(nll(scores)) == pytest.approx(slow, abs=1e-5)
    assert float(nll(scores)) == pytest.approx(float(-scores.exp().mean(0).log().mean()), abs=1e-5)
    assert float(nll(scores)) < float(-scores.mean())
    assert float(nll(scores[:1])) == pytest.approx(
        float(perplexity(probabilities[:1].log(), targets[None]).log()), abs=1e-5
    )


def test_nll_neither_underflows_nor_hides_a_zero():
    assert float(nll(torch.full((3, 2), -5000.0))) == 5000
    assert float(nll(torch.tensor([[0.0], [-math.inf]]))) == pytest.approx(math.log(2))
    assert float(nll(torch.full((2, 1), -math.inf))) == math.inf


def test_brier_is_the_squared_error_of_all_classes():
    from torchmetrics.functional import mean_squared_error

    probabilities, targets = predictions()
    slow = np.mean(
        [
            sum((float(p) - (c == int(y))) ** 2 for c, p in enumerate(row))
            for row, y in zip(probabilities, targets, strict=True)
        ]
    )
    right = torch.eye(10)[targets]
    assert float(brier(probabilities, targets)) == pytest.approx(slow, abs=1e-6)
    assert float(brier(probabilities, targets)) == pytest.approx(
        10 * float(mean_squared_error(probabilities.contiguous(), right)), abs=1e-6
    )
    assert float(brier(right, targets)) == 0
    assert float(brier(right.roll(1, 1), targets)) == 2


@pytest.mark.parametrize("bins", [1, 3, 10, 15, 100])
@pytest.mark.parametrize("sharpness", [0.3, 2.0, 200.0])
def test_calibration_error_is_torchmetrics(bins, sharpness):
    from torchmetrics.classification import MulticlassCalibrationError

    probabilities, targets = predictions(rows=2000, sharpness=sharpness)
    expected = MulticlassCalibrationError(10, n_bins=bins, norm="l1")(probabilities, targets)
    assert float(expected_calibration_error(probabilities, targets, bins)) == pytest.approx(
        float(expected), abs=1e-6
    )
    assert float(
        expected_calibration_error(probabilities.double(), targets, bins)
    ) == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize("bins", [2, 5, 10, 15])
def test_calibration_error_is_torchmetrics_on_the_edges_of_bins(bins):
    from torchmetrics.classification import MulticlassCalibrationError

    confidence = torch.linspace(0, 1, bins + 1)[(bins + 1) // 2 :].repeat(40)
    for nudged in (
        confidence,
        torch.nextafter(confidence, torch.tensor(0.0)),
        torch.nextafter(confidence, torch.tensor(2.0)).clamp(max=1.0),
    ):
        probabilities = torch.stack([nudged, 1 - nudged], dim=1)
        targets = torch.randint(0, 2, (len(nudged),), generator=Key(bins, "edges").generator())
        expected = MulticlassCalibrationError(2, n_bins=bins, norm="l1")(probabilities, targets)
        assert float(expected_calibration_error(probabilities, targets, bins)) == pytest.approx(
            float(expected), abs=1e-6
        )


def test_bins_hold_what_a_loop_finds():
    probabilities, targets = predictions(rows=300, dtype=torch.float64)
    found = calibration_bins(probabilities, targets, 7)
    assert found.edges.shape == (8,)
    assert found.confidence.shape == found.accuracy.shape == found.count.shape == (8,)
    rows = [
        (float(p.max()), int(p.argmax()) == int(y))
        for p, y in zip(probabilities, targets, strict=True)
    ]
    error = 0.0
    for number in range(7):
        inside = [row for row in rows if number / 7 <= row[0] < (number + 1) / 7]
        assert int(found.count[number]) == len(inside)
        if not inside:
            assert found.confidence[number].isnan()
            assert found.accuracy[number].isnan()
            continue
        confidence, accuracy = np.mean(inside, axis=0)
        assert float(found.confidence[number]) == pytest.approx(confidence, abs=1e-6)
        assert float(found.accuracy[number]) == pytest.approx(accuracy, abs=1e-6)
        error += len(inside) / 300 * abs(confidence - accuracy)
    assert float(found.error) == pytest.approx(error, abs=1e-6)
    assert int(found.count[7]) == 0
    assert int(calibration_bins(torch.eye(3), torch.tensor([0, 1, 0]), 7).count[7]) == 3


def test_labels_drawn_from_the_predictions_are_calibrated():
    probabilities, _ = predictions(rows=20_000)
    targets = torch.multinomial(probabilities, 1, generator=Key(1, "labels").generator())[:, 0]
    assert float(expected_calibration_error(probabilities, targets)) < 0.015
    assert (
        float(expected_calibration_error(torch.softmax(3 * probabilities.log(), 1), targets)) > 0.1
    )


def test_coverage_is_that_of_a_loop():
    generator = Key(0, "coverage").generator()
    draws, targets = (
        torch.randn(40, 300, generator=generator),
        1.3 * torch.randn(300, generator=generator),
    )
    levels = [0.25, 0.5, 0.8, 0.95]
    slow = []
    for level in levels:
        low, high = np.quantile(
            draws.numpy(), [(1 - level) / 2, (1 + level) / 2], axis=0, method="weibull"
        )
        slow.append(np.mean((low <= targets.numpy()) & (targets.numpy() <= high)))
    assert coverage(draws, targets, levels).tolist() == pytest.approx(slow, abs=1e-6)
    assert coverage(draws, targets, torch.tensor(levels)).shape == (4,)
    assert coverage(draws, targets, 0.8).shape == ()
    assert float(coverage(draws, targets, 0.8)) == pytest.approx(slow[2])


@pytest.mark.parametrize("count", [3, 9, 39, 199])
def test_coverage_is_the_level_for_any_number_of_draws(count):
    draws = torch.randn(count + 1, 20_000, generator=Key(count, "exchangeable").generator())
    levels = [level for level in (0.5, 0.8, 0.95) if level <= (count - 1) / (count + 1) + 1e-9]
    assert coverage(draws[1:], draws[0], levels).tolist() == pytest.approx(levels, abs=0.015)


def test_coverage_of_draws_of_whole_numbers_counts_the_ends():
    draws = torch.arange(9.0)[:, None].expand(9, 4)
    assert float(coverage(draws, torch.tensor([0.0, 8.0, 4.0, 8.1]), 0.8)) == 0.75
    assert float(coverage(draws, torch.tensor([0, 2, 6, 7]), 0.4)) == 0.5


def test_entropies_are_those_of_scipy():
    probabilities, _ = predictions(rows=30, draws=5, dtype=torch.float64)
    total = [entropy(probabilities[:, row].mean(0)) for row in range(30)]
    within = [np.mean([entropy(draw) for draw in probabilities[:, row]]) for row in range(30)]
    assert predictive_entropy(probabilities).tolist() == pytest.approx(total)
    assert mutual_information(probabilities).tolist() == pytest.approx(
        np.subtract(total, within).tolist()
    )


def test_entropies_at_the_ends():
    certain = torch.eye(3)[None].expand(4, 3, 3)
    assert predictive_entropy(certain).tolist() == [0, 0, 0]
    assert mutual_information(certain).tolist() == [0, 0, 0]
    # Draws that each are sure of another class: all of the uncertainty is about the weights.
    apart = torch.eye(3)[:, None]
    assert float(predictive_entropy(apart)) == pytest.approx(math.log(3))
    assert float(mutual_information(apart)) == pytest.approx(math.log(3))
    # Draws that agree on a coin: none of it is.
    coin = torch.full((6, 1, 2), 0.5)
    assert float(predictive_entropy(coin)) == pytest.approx(math.log(2))
    assert float(mutual_information(coin)) == 0
    assert (mutual_information(predictions(rows=200, draws=1)[0]) == 0).all()


@pytest.mark.parametrize(
    ("count", "draws", "level"), [(20, 9, 0.95), (200, 99, 0.95), (300, 1000, 0.95), (150, 19, 0.5)]
)
def test_band_holds_its_level_and_little_more(count, draws, level):
    uniform, lower, upper = ecdf_band(count, draws, level)
    steps = np.diff(uniform.numpy(), prepend=0, append=1)
    ecdf = (
        torch.from_numpy(
            Key(count, "ranks").numpy().multinomial(count, steps, size=20_000).cumsum(1)[:, :-1]
        )
        / count
    )
    share = float(((lower - 1e-6 <= ecdf) & (ecdf <= upper + 1e-6)).all(1).double().mean())
    assert level - 0.005 <= share <= level + 0.025


@pytest.mark.parametrize(
    ("count", "draws", "level"), list(itertools.product((1, 2, 5), (1, 2, 4), (0.3, 0.8, 0.95)))
)
def test_band_is_the_narrowest_where_every_case_can_be_counted(count, draws, level):
    ranks = torch.tensor(list(itertools.product(range(draws + 1), repeat=count)))
    below = (ranks[:, :, None] <= torch.arange(draws)).sum(1).numpy()
    uniform = np.arange(1, draws + 1) / (draws + 1)

    def share(gamma):
        low, high = binom.ppf(gamma / 2, count, uniform), binom.ppf(1 - gamma / 2, count, uniform)
        return ((low <= below) & (below <= high)).all(1).mean(), low, high

    candidates = [share(gamma) for gamma in np.geomspace(1 - level, (1 - level) / draws, 500)]
    _, low, high = next(found for found in candidates if found[0] >= level - 1e-12)
    found = ecdf_band(count, draws, level)
    assert np.allclose(found[0], uniform)
    assert np.allclose(count * found[1], low)
    assert np.allclose(count * found[2], high)


def test_ranks_of_an_exact_posterior_pass_and_of_wrong_ones_do_not():
    """theta ~ N(0, 1), y ~ N(theta, 1): the posterior is N(y / 2, 1 / 2)."""
    generator = Key(0, "conjugate").generator()
    theta = torch.randn(400, generator=generator)
    y = theta + torch.randn(400, generator=generator)
    noise = torch.randn(99, 400, generator=generator)

    def ranks(shift, scale):
        return ((y / 2 + shift + scale * math.sqrt(0.5) * noise) < theta).sum(0)

    right = rank_statistics(ranks(0, 1), 99)
    assert right.inside
    assert right.deviation < 0.08
    for shift, scale in ((0.3, 1), (-0.3, 1), (0, 0.6), (0, 1.6)):
        wrong = rank_statistics(ranks(shift, scale), 99)
        assert not wrong.inside
        assert wrong.deviation > right.deviation
    assert rank_statistics(torch.zeros(50, dtype=torch.long), 9).deviation == pytest.approx(0.9)
    assert float(right.ecdf[9]) == float((ranks(0, 1) <= 9).double().mean())


P, Y = torch.full((4, 3), 1 / 3), torch.tensor([0, 1, 2, 0])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: nll(torch.zeros(4)), r"nll: expected floating-point numbers \(S, B\)"),
        (lambda: nll(torch.zeros(0, 4)), "at least one"),
        (
            lambda: nll(torch.tensor([[math.nan]])),
            "nll: expected finite numbers, found 1 that are not",
        ),
        (lambda: nll(torch.tensor([[math.inf]])), "found 1 that are not"),
        (lambda: brier(P[0], Y), r"brier: expected floating-point numbers \(B, C\)"),
        (lambda: brier(2 * P, Y), "brier: expected probabilities, a sum of 1 .*softmax"),
        (lambda: brier(P - torch.eye(4)[:, :3], Y), "a smallest one of -0.667"),
        (lambda: brier(P.long(), Y), "torch.int64"),
        (lambda: calibration_bins(P, Y, 0), "bins: expected a whole number >= 1, found 0"),
        (lambda: calibration_bins(P, Y, 1.5), "found 1.5"),
        (lambda: expected_calibration_error(P[None], Y), r"calibration_bins: .*\(B, C\)"),
        (lambda: coverage(P[0], Y, 0.5), r"coverage, draws: .*\(S, B\)"),
        (lambda: coverage(P, Y, 0.5), r"finite targets \(3,\), found \(4,\), 4 finite"),
        (lambda: coverage(P, torch.tensor([0.0, math.nan, 1.0]), 0.5), "2 finite"),
        (lambda: coverage(P, torch.zeros(3), 1.0), r"levels inside \(0, 1\), found 1.0"),
        (lambda: coverage(P, torch.zeros(3), [0.5, 0.0]), r"levels inside \(0, 1\)"),
        (lambda: coverage(P, torch.zeros(3), []), r"levels inside \(0, 1\)"),
        (lambda: coverage(P, torch.zeros(3), 0.9), "a level <= 0.6, found 0.9; try 19 draws"),
        (lambda: predictive_entropy(P), r"predictive_entropy: .*\(S, B, C\)"),
        (lambda: mutual_information(P), r"mutual_information: .*\(S, B, C\)"),
        (lambda: mutual_information(2 * P[None]), "a sum off by 1"),
        (lambda: rank_statistics(torch.tensor([0.5]), 9), "integer ranks .*torch.float32"),
        (lambda: rank_statistics(torch.tensor([3, 10]), 9), "0 to 9, found .* 3 to 10"),
        (lambda: rank_statistics(torch.tensor([-1]), 9), "-1 to -1"),
        (lambda: rank_statistics(torch.tensor([], dtype=torch.long), 9), r"found \(0,\)"),
        (lambda: rank_statistics(Y, 0), "draws: expected a whole number >= 1"),
        (lambda: ecdf_band(0, 9), "count: expected a whole number >= 1"),
        (lambda: ecdf_band(9, 9, 1.0), r"a level inside \(0, 1\), found 1.0"),
    ],
)
def test_bad_arguments_are_refused(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()


@pytest.mark.parametrize("score", [brier, calibration_bins])
@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (Y[:3], r"integer labels \(4,\), one a row, found \(3,\)"),
        (Y.float(), "torch.float32; try targets.long"),
        (Y > 0, "torch.bool"),
        (Y + 1, "labels 0 to 2, found 1 to 3"),
        (Y - 1, "found -1 to 1"),
    ],
)
def test_bad_labels_are_refused(score, targets, words):
    with pytest.raises(DataError, match=words):
        score(P, targets)
