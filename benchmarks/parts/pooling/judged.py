"""The table of a problem and its targets, with paired bootstraps over clients."""

from __future__ import annotations

import math
import statistics

import torch
from parts.pooling.runs import Chosen, Scores
from parts.shared.targets import target

import bayesfed as bf
from bayesfed.inspect import table


def shown(several: list[dict[str, Chosen]]) -> str:
    """Return the table of means over seeds, with the strengths of the first."""
    rows: list[list[str | float | int]] = []
    for name, first in several[0].items():
        # What inputs say of a client is there where class shares were chosen.
        own, unseen = (
            statistics.fmean(mean(getattr(one[name], scores)) for one in several if name in one)
            for scores in ("own", "unseen")
        )
        rows.append([name, first.strength, f"{own:.3f}", f"{unseen:.3f}"])
    return table(["method", "chosen", "own NLL", "unseen NLL"], rows)


def mean(scores: Scores) -> float:
    """Return the mean over clients."""
    return statistics.fmean(scores.values())


def pooled_targets(name: str, several: list[dict[str, Chosen]]) -> list[bool]:
    """Print the targets of one problem, over the clients of all seeds; return whether each
    is met.
    """
    rivals = ("FedAvg", "FedAvg, fine-tuned", "local only", "Ditto")
    best_rival = min(
        rivals, key=lambda rival: statistics.fmean(mean(one[rival].own) for one in several)
    )
    own = [
        (one["pooled"].own[client], one[best_rival].own[client])
        for one in several
        for client in one["pooled"].own
    ]
    given = (
        "pooled, inputs seen" if all("pooled, inputs seen" in one for one in several) else "pooled"
    )
    unseen = [
        (one[given].unseen[client], one["FedAvg, temperature"].unseen[client])
        for one in several
        for client in one[given].unseen
    ]
    ratio = math.fsum(left for left, _ in own) / math.fsum(right for _, right in own)
    return [
        target(f"{name}: own NLL of pooled over that of {best_rival}", ratio, 0.9),
        target(
            f"{name}: upper end of the interval of own NLL less that of {best_rival}",
            interval(own)[1],
            0.0,
        ),
        target(
            (
                f"{name}: upper end of the interval of unseen NLL, {given}, less that of "
                "FedAvg at its temperature"
            ),
            interval(unseen)[1],
            0.0,
        ),
    ]


def interval(pairs: list[tuple[float, float]], draws: int = 2000) -> tuple[float, float]:
    """Return the 95 % interval of a mean difference by a bootstrap over clients."""
    differences = torch.tensor([left - right for left, right in pairs], dtype=torch.float64)
    picked = torch.randint(
        len(pairs), (draws, len(pairs)), generator=bf.Key(0, "bootstrap").generator()
    )
    low, high = (
        differences[picked]
        .mean(1)
        .quantile(torch.tensor([0.025, 0.975], dtype=torch.float64))
        .tolist()
    )
    return low, high
