"""Scores of uncertainties against scikit-learn, torchmetrics and their definitions; conformal sets
cover as they promise.
"""

import math

import numpy as np
import pytest
import torch
from sklearn import metrics

from bayesfed.errors import ArgumentError, DataError
from bayesfed.inference.evaluation import conformal
from bayesfed.inference.evaluation.detection import (
    adaptive_calibration_error,
    detection,
    risk_coverage,
    scores_of_classes,
    selective,
    uncertainties,
)
from bayesfed.inference.evaluation.scoring import expected_calibration_error
from bayesfed.keys import Key


def drawn(rows, seed=0, sharpness=2.0):
    noise = Key(seed, "rows").generator()
    p = (sharpness * torch.randn(rows, 4, generator=noise, dtype=torch.float64)).softmax(1)
    return p, torch.multinomial(p, 1, generator=noise)[:, 0]


@pytest.mark.parametrize("ties", [False, True])
def test_detection_is_that_of_scikit_learn(ties):
    noise = Key(0, "detection").generator()
    inside, outside = torch.randn(70, generator=noise), 0.7 + torch.randn(50, generator=noise)
    if ties:
        inside, outside = inside.round(), outside.round()
    labels, values = np.r_[np.zeros(70), np.ones(50)], torch.cat([inside, outside]).numpy()
    found = detection(inside, outside)
    assert found["auroc"] == pytest.approx(metrics.roc_auc_score(labels, values))
    assert found["aupr"] == pytest.approx(metrics.average_precision_score(labels, values))
    false, true, _ = metrics.roc_curve(labels, values, drop_intermediate=False)
    assert found["fpr95"] == pytest.approx(false[np.argmax(true >= 0.95)])


def test_selective_prediction_is_by_its_definition():
    wrong = torch.tensor([False, True, False, False])
    uncertainty = torch.tensor([0.1, 0.9, 0.2, 0.3])
    coverage, risk = risk_coverage(uncertainty, wrong)
    assert coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert risk.tolist() == [0.0, 0.0, 0.0, 0.25]
    assert selective(uncertainty, wrong) == {
        "aurc": pytest.approx(1 / 16),
        "coverage_at_risk": 0.75,
    }
    # Ties are broken by nobody: the order of the rows does not matter.
    tied = torch.tensor([0.5, 0.5, 0.5, 0.1])
    assert selective(tied, wrong) == pytest.approx(selective(tied, wrong[[1, 2, 0, 3]]))
    assert selective(torch.zeros(4), torch.ones(4).bool()) == {"aurc": 1.0, "coverage_at_risk": 0.0}


def test_scores_of_classes():
    p, y = drawn(3000)
    scores = scores_of_classes(p[None], y)
    assert scores["accuracy"] == pytest.approx(metrics.accuracy_score(y, p.argmax(1)))
    # Calibrated by construction; half as sure is not.
    assert scores["adaptive_ece"] < 0.03
    flat = (p + 0.25) / 2
    assert float(adaptive_calibration_error(flat, y)) == pytest.approx(
        float(expected_calibration_error(flat, y)), abs=0.01
    )
    assert float(adaptive_calibration_error(p[:1], y[:1], 15)) <= 1
    # One bin: the difference of the means.
    gap = abs(float(p.amax(1).mean()) - scores["accuracy"])
    assert float(adaptive_calibration_error(p, y, 1)) == pytest.approx(gap)
    assert set(uncertainties(p[None], p.log())) == {
        "max_probability",
        "entropy",
        "mutual_information",
        "max_logit",
    }


def test_conformal_sets_cover():
    """The sum of the clients' histograms is that of all rows; sets cover 90 % of fresh rows; a
    shift of labels is weighted away.
    """
    covered = []
    for seed in range(20):
        p, y = drawn(500, seed)
        parts = [
            conformal.histogram(p[rows], y[rows])
            for rows in (slice(0, 20), slice(20, 20), slice(20, 500))
        ]
        total = torch.stack(parts).sum(0)
        assert torch.equal(total, conformal.histogram(p, y))
        fresh, labels = drawn(500, seed + 1000)
        limit = conformal.threshold(total)
        exact = np.sort(1 - p[torch.arange(500), y].numpy())[math.ceil(501 * 0.9) - 1]
        assert exact <= limit <= exact + 1 / conformal.BINS + 1e-9
        covered.append(
            conformal.conformal_scores(conformal.prediction_sets(fresh, limit), labels)["coverage"]
        )
    assert np.mean(covered) == pytest.approx(0.9, abs=0.01)
    # Rows of class 0 only, hard ones: weights restore what equal weights miss.
    p, y = drawn(4000, 7)
    hard = torch.where((y == 0)[:, None], (p + 0.5) / 3, p)
    fresh = y == 0
    counts = torch.stack([conformal.histogram(hard[y == one], y[y == one]) for one in range(4)])
    limits = (
        conformal.threshold(counts.sum(0)),
        conformal.shifted_thresholds(counts, torch.tensor([1.0, 0.0, 0.0, 0.0])),
    )
    sets = [conformal.prediction_sets(hard[fresh], limit) for limit in limits]
    plain, weighed = (conformal.conformal_scores(one, y[fresh])["coverage"] for one in sets)
    assert weighed == pytest.approx(0.9, abs=0.01)
    assert abs(plain - 0.9) > abs(weighed - 0.9)
    assert conformal.threshold(conformal.histogram(p[:3], y[:3])) == math.inf


def test_sets_by_class_cover_every_class():
    """Hard classes and easy ones are covered alike, whatever a client has of them; a class with too
    few rows is in every set.
    """
    covered: list[list[float]] = []
    for seed in range(20):
        (p, y), (fresh, labels) = drawn(1000, seed), drawn(1000, seed + 1000)
        # Classes 0 and 1 are harder than the others.
        hard, fresh = (
            torch.where(classes[:, None] < 2, (one + 0.5) / 3, one)
            for one, classes in ((p, y), (fresh, labels))
        )
        counts = torch.stack([conformal.histogram(hard[y == one], y[y == one]) for one in range(4)])
        limits = conformal.class_thresholds(counts)
        assert limits.tolist() == [conformal.threshold(own) for own in counts]
        sets = conformal.prediction_sets(fresh, limits)
        covered.append(
            [
                conformal.conformal_scores(sets[labels == one], labels[labels == one])["coverage"]
                for one in range(4)
            ]
        )
    assert np.mean(covered, 0) == pytest.approx(0.9, abs=0.02)
    counts[2], counts[3] = 0, conformal.histogram(hard[y == 3][:8], y[y == 3][:8])
    assert conformal.class_thresholds(counts)[2:].tolist() == [math.inf, math.inf]
    assert conformal.prediction_sets(fresh, conformal.class_thresholds(counts))[:, 2:].all()


def test_what_does_not_fit_is_refused():
    p, y = drawn(5)
    with pytest.raises(ArgumentError, match="detection, outside"):
        detection(p[:, 0], torch.empty(0))
    with pytest.raises(DataError, match="risk_coverage"):
        risk_coverage(p[:, 0], torch.ones(3).bool())
    with pytest.raises(ArgumentError, match="detection, inside: .* 1 of them not finite"):
        detection(torch.tensor([0.1, torch.inf]), p[:, 0])
    with pytest.raises(DataError, match="booleans of errors, found torch.int64"):
        risk_coverage(p[:, 0], torch.arange(5))
    with pytest.raises(DataError, match="5 that are no numbers"):
        risk_coverage(p[:, 0] * torch.nan, torch.ones(5).bool())
    with pytest.raises(ArgumentError, match=r"a number in \[0, 1\], found 5"):
        selective(p[:, 0], torch.ones(5).bool(), 5)
    with pytest.raises(ArgumentError, match="a level in"):
        conformal.threshold(torch.zeros(5))
    with pytest.raises(ArgumentError, match="a level in"):
        conformal.class_thresholds(torch.zeros(2, 5))
    with pytest.raises(ArgumentError, match="bins"):
        adaptive_calibration_error(p, y, 0)
