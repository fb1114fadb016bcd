"""How well a number for each row tells rows apart: errors from right answers, or rows of another
distribution from those of the data.

B rows, C classes. A score is an uncertainty: larger means less certain. Lower is better except for
areas under ROC and precision-recall curves.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError, DataError
from bayesfed.errors.checks import check, number, whole
from bayesfed.inference.evaluation import scoring


def uncertainties(probabilities: Tensor, logits: Tensor | None = None) -> dict[str, Tensor]:
    """Return uncertainties of each row, ``(B,)``: of any posterior's draws, and of a network's
    outputs.

    ``max_probability`` is one minus the largest mean probability; ``entropy`` and
    ``mutual_information`` are in nats, the latter the part that the posterior adds; ``max_logit``
    is minus the largest output of the network, which needs no posterior (Hendrycks et al., 2022).

    Parameters
    ----------
    probabilities
        ``(S, B, C)``.
    logits
        ``(B, C)`` outputs of the network.

    Raises
    ------
    ArgumentError
        If these are not probabilities.
    """
    entropy = scoring.predictive_entropy(probabilities)
    given = {
        "max_probability": 1 - probabilities.mean(0).amax(1),
        "entropy": entropy,
        "mutual_information": scoring.mutual_information(probabilities),
    }
    return given if logits is None else {**given, "max_logit": -logits.amax(1)}


def detection(inside: Tensor, outside: Tensor) -> dict[str, float]:
    """Return how well uncertainties tell rows of another distribution from those of the data's own.

    Parameters
    ----------
    inside, outside
        ``(B,)`` and ``(B',)``: uncertainties of rows of the data's distribution and of others.

    Returns
    -------
    dict
        ``auroc``, the probability that an outside row is the less certain one, ties counted half;
        ``aupr``, the average precision with outside rows as positives; ``fpr95``, the share of
        inside rows above the threshold that 95 % of the outside rows reach.

    Raises
    ------
    ArgumentError
        If either is empty, or has a value that is not finite.
    """
    for name, values in (("inside", inside), ("outside", outside)):
        if values.ndim != 1 or not len(values) or not values.isfinite().all():
            raise ArgumentError(
                f"detection, {name}",
                "finite numbers (B,)",
                f"{tuple(values.shape)}, {int((~values.isfinite()).sum())} of them not finite",
                "predictive.uncertainties['entropy'] of the rows",
            )
    values = torch.cat([inside, outside]).double()
    order = values.argsort(descending=True, stable=True)
    # One threshold for each distinct value: the last place of each run of ties.
    ends = values[order].unique_consecutive(return_counts=True)[1].cumsum(0) - 1
    hits = (order >= len(inside)).double().cumsum(0)[ends]
    false = ends + 1 - hits
    recall, share, precision = hits / len(outside), false / len(inside), hits / (ends + 1)
    before = torch.cat([recall.new_zeros(1), recall[:-1]])
    step = torch.cat([share[:1], share.diff()])
    return {
        "auroc": float((step * (recall + before) / 2).sum()),
        "aupr": float(((recall - before) * precision).sum()),
        "fpr95": float(share[(recall >= 0.95 - 1e-12).nonzero()[0, 0]]),
    }


def adaptive_calibration_error(probabilities: Tensor, targets: Tensor, bins: int = 15) -> Tensor:
    """Return the calibration error with bins of equally many rows by confidence (Nguyen and
    O'Connor, 2015).

    Parameters
    ----------
    probabilities
        ``(B, C)``, the mean over draws.
    targets
        Labels ``(B,)``.
    bins
        Number of bins; their numbers of rows differ by one at most. No more bins than rows are
        used.

    Raises
    ------
    ArgumentError
        If the probabilities are none, or bins is below 1.
    DataError
        If the targets are not labels of these rows.
    """
    check("adaptive_calibration_error, bins", bins, whole(1, "15"))
    scoring._probabilities("adaptive_calibration_error", probabilities, "(B, C)")
    scoring._labels("adaptive_calibration_error", probabilities, targets)
    top, likeliest = probabilities.double().max(1)
    order = top.argsort(stable=True)
    gaps = ((likeliest == targets).double() - top)[order].tensor_split(min(bins, len(top)))
    return torch.stack([gap.sum().abs() for gap in gaps]).sum() / len(top)


def risk_coverage(uncertainty: Tensor, wrong: Tensor) -> tuple[Tensor, Tensor]:
    """Return coverage and risk ``(B,)``: shares of rows answered, the most certain first, and of
    errors among them.

    Rows of equal uncertainty are answered together, in expectation: the risk goes linearly between
    the ends of a tie.

    Parameters
    ----------
    uncertainty
        ``(B,)``.
    wrong
        ``(B,)`` booleans.

    Raises
    ------
    DataError
        If the shapes differ, there are no rows, an uncertainty is not a number, or `wrong` is not
        of booleans.
    """
    if uncertainty.shape != wrong.shape or uncertainty.ndim != 1 or not len(wrong):
        raise DataError(
            "risk_coverage",
            "an uncertainty and an error for each row (B,)",
            f"{tuple(uncertainty.shape)} and {tuple(wrong.shape)}",
            "probabilities.argmax(1) != targets",
        )
    if wrong.dtype != torch.bool or uncertainty.isnan().any():
        raise DataError(
            "risk_coverage",
            "numbers, and booleans of errors",
            f"{wrong.dtype}, and {int(uncertainty.isnan().sum())} that are no numbers",
            "finite entropies, probabilities.argmax(1) != targets",
        )
    order = uncertainty.argsort(stable=True)
    errors = wrong[order].double()
    _, group, size = uncertainty[order].unique_consecutive(return_inverse=True, return_counts=True)
    rate = torch.zeros_like(size, dtype=torch.float64).index_add(0, group, errors) / size
    answered = torch.arange(1, len(errors) + 1, dtype=torch.float64, device=group.device)
    return answered / len(errors), rate[group].cumsum(0) / answered


def selective(uncertainty: Tensor, wrong: Tensor, risk: float = 0.05) -> dict[str, float]:
    """Return ``aurc``, the mean risk over all coverages (Geifman and El-Yaniv, 2017), and
    ``coverage_at_risk``, the largest coverage at this risk.

    Raises
    ------
    ArgumentError
        If `risk` is not from 0 to 1.
    DataError
        As `risk_coverage`.
    """
    check("selective, risk", risk, number("[0, 1]", "0.05"))
    coverage, risks = risk_coverage(uncertainty, wrong)
    answered = (risks <= risk).nonzero()[:, 0]
    return {
        "aurc": float(risks.mean()),
        "coverage_at_risk": float(coverage[answered[-1]]) if len(answered) else 0.0,
    }


def scores_of_classes(probabilities: Tensor, targets: Tensor) -> dict[str, float]:
    """Return the scores of the mean over draws of probabilities ``(S, B, C)``, but for its log
    likelihood: brier, ece, adaptive_ece, accuracy, entropy and mutual_information in nats, and by
    the largest probability aurc and coverage_at_risk (of 5 %).

    Raises
    ------
    ArgumentError, DataError
        If these are no probabilities, or no labels of their rows.
    """
    mean = probabilities.mean(0)
    return {
        "brier": float(scoring.brier(mean, targets)),
        "ece": float(scoring.expected_calibration_error(mean, targets)),
        "adaptive_ece": float(adaptive_calibration_error(mean, targets)),
        "accuracy": float((mean.argmax(1) == targets).double().mean()),
        "entropy": float(scoring.predictive_entropy(probabilities).mean()),
        "mutual_information": float(scoring.mutual_information(probabilities).mean()),
        **selective(1 - mean.amax(1), mean.argmax(1) != targets),
    }
