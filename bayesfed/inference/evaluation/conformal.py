"""Split conformal prediction over clients: histograms of scores add, and a quantile of their sum is
the threshold (Lu et al., 2023).

The score of a row is one minus the probability of its class. With N held-out rows and a threshold
at their ``ceil((N + 1) (1 - alpha)) / N`` quantile, the set of all classes with a score up to the
threshold holds the right one with probability at least ``1 - alpha``, if a new row is exchangeable
with the held-out ones: it comes from the same clients in the same shares. With K clients, who each
add one row, N + K replaces N + 1. Weights by class make up for other shares of the classes
(Plassier et al., 2023); a new row then has the weight of the class that is tried for it, so that
every class has a threshold (`shifted_thresholds`). With a threshold for each class, of its own
rows, the sets cover every class, and so a client of any shares (label-conditional prediction: Vovk,
2012).

References
----------
Tibshirani, Barber, Candes and Ramdas, "Conformal prediction under covariate shift" (2019);
Podkopaev and Ramdas, "Distribution-free uncertainty quantification for classification under label
shift" (2021).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import shown
from bayesfed.inference.evaluation.scoring import _labels, _probabilities

# Bins of a histogram: thresholds are rounded up to the next of so many in [0, 1].
BINS = 1000


def histogram(probabilities: Tensor, targets: Tensor, *, bins: int = BINS) -> Tensor:
    """Return the histogram of a client's scores ``(bins,)``: what it sends. Bin i has the scores in
    ``(i / bins, (i + 1) / bins]``, the first also 0.

    Parameters
    ----------
    probabilities
        ``(B, C)``; a client without rows has B = 0.
    targets
        Labels ``(B,)``.
    bins
        Number of bins.

    Raises
    ------
    ArgumentError, DataError
        If these are no probabilities, or no labels of their rows.
    """
    if not len(targets):
        return torch.zeros(bins, dtype=torch.float64)
    _probabilities("histogram", probabilities, "(B, C)")
    _labels("histogram", probabilities, targets)
    scores = (1 - probabilities.double().gather(1, targets[:, None])[:, 0]).clamp(0, 1)
    places = (scores * bins).ceil().long().sub(1).clamp_min(0)
    return torch.bincount(places, minlength=bins).double().cpu()


def label_weights(wanted: Tensor, counts: Tensor) -> Tensor:
    """Return ``p_wanted(y) / p_pooled(y)``, ``(C,)``: weights for label shift. Classes without
    held-out rows have weight 0.

    Parameters
    ----------
    wanted
        ``(C,)``: shares or counts of the classes where the sets are to cover.
    counts
        ``(C,)``: counts of the classes in the held-out rows of all clients.

    Raises
    ------
    ArgumentError
        If `wanted` is not C finite numbers from 0 on, of which one is above 0.
    """
    if wanted.shape != counts.shape or not (
        wanted.isfinite().all() & (wanted >= 0).all() & (wanted.sum() > 0)
    ):
        raise ArgumentError(
            "shares of the classes",
            f"{len(counts)} finite numbers >= 0, not all 0",
            shown(wanted.tolist()),
            "torch.bincount(targets, minlength=C)",
        )
    shares, pooled = wanted.double() / wanted.sum(), counts.double() / counts.sum()
    return torch.where(pooled > 0, shares / pooled.clamp_min(1e-300), 0.0)


def threshold(total: Tensor, level: float = 0.9, *, clients: int = 1) -> float:
    """Return the threshold of the sum of the clients' histograms: the upper end of the bin with the
    quantile; infinity if there are too few rows.

    Parameters
    ----------
    total
        ``(bins,)``: sum of the histograms.
    level
        Share of the rows whose set shall hold the right class, in (0, 1).
    clients
        K, the number of clients in the sum.

    Raises
    ------
    ArgumentError
        If the level is not in (0, 1), or there are no rows.
    """
    count = float(total.sum())
    if not 0 < level < 1 or count <= 0:
        raise ArgumentError(
            "threshold",
            "a level in (0, 1) and at least one row",
            f"level {level}, {count:g} rows",
            "level=0.9, and clients with rows",
        )
    wanted = math.ceil((count + clients) * level - 1e-9)
    reached = (total.double().cumsum(0) >= wanted - 1e-9).nonzero()[:, 0]
    return (int(reached[0]) + 1) / len(total) if len(reached) else math.inf


def class_thresholds(counts: Tensor, level: float = 0.9) -> Tensor:
    """Return a threshold for every class, ``(C,)``: `threshold` of its own rows, infinity for a
    class with too few of them.

    Parameters
    ----------
    counts
        ``(C, bins)``: sum of the histograms by class.
    level
        Share of the rows of every class whose set shall hold it, in (0, 1). At 0.9 a class needs
        nine rows.

    Raises
    ------
    ArgumentError
        If the level is not in (0, 1), or no class has rows.
    """
    # Refuses a wrong level, and no rows at all.
    threshold(counts.sum(0), level)
    return torch.tensor(
        [threshold(own, level) if own.any() else math.inf for own in counts], dtype=torch.float64
    )


def shifted_thresholds(counts: Tensor, wanted: Tensor, level: float = 0.9) -> Tensor:
    """Return a threshold for every class, ``(C,)``, of all rows in other shares of the classes:
    weighted conformal prediction under label shift.

    With the weights ``w`` of `label_weights`, class y has the smallest threshold up to which
    held-out rows weigh at least ``level (sum_i w(y_i) + w(y))``: a new row of class y has its
    weight, at a score of infinity (Tibshirani et al., 2019, (6); Podkopaev and Ramdas, 2021). Where
    no threshold does, or where class y is wanted and has no held-out rows, it is infinity: the
    class is in every set.

    Parameters
    ----------
    counts
        ``(C, bins)``: sum of the histograms by class.
    wanted
        ``(C,)``: shares or counts of the classes where the sets are to cover.
    level
        Share of the rows whose set shall hold the right class, in (0, 1).

    Raises
    ------
    ArgumentError
        If the level is not in (0, 1), there are no rows, or `wanted` is not as in `label_weights`.
    """
    # Refuses a wrong level, and no rows at all.
    threshold(counts.sum(0), level)
    rows = counts.double().sum(1)
    weights = label_weights(wanted, rows)
    reached = (weights @ counts.double()).cumsum(0)
    # Sums of weights are not exact.
    needed = level * (reached[-1] + weights) * (1 - 1e-9)
    places = torch.searchsorted(reached, needed)
    unknown = (places == len(reached)) | ((wanted > 0) & (rows == 0))
    return torch.where(unknown, math.inf, (places + 1).double() / len(reached))


def prediction_sets(probabilities: Tensor, limit: float | Tensor) -> Tensor:
    """Return which classes are in each row's set, ``(B, C)`` booleans: those of a score up to the
    threshold, and always the likeliest one.

    Parameters
    ----------
    probabilities
        ``(B, C)``.
    limit
        The threshold, or ``(C,)`` of them, one a class.
    """
    member = 1 - probabilities.double() <= (
        limit.to(probabilities.device) if isinstance(limit, Tensor) else limit
    )
    return (
        member | torch.nn.functional.one_hot(probabilities.argmax(1), probabilities.shape[1]).bool()
    )


def conformal_scores(sets: Tensor, targets: Tensor) -> Mapping[str, float]:
    """Return ``coverage``, the share of rows whose set holds the right class, and ``set_size``, the
    mean number of classes of a set.
    """
    held = sets.gather(1, targets[:, None])[:, 0]
    return {"coverage": float(held.double().mean()), "set_size": float(sets.double().sum(1).mean())}
