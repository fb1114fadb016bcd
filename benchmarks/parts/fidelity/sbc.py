"""Simulation-based calibration for `fidelity.py`: ranks of the truth among draws tell honest
posteriors from narrow ones.
"""

from __future__ import annotations

from functools import partial

import torch
from parts.fidelity.closed import closed_form
from parts.fidelity.problems import FEATURES, NOISE_SD, mean_field
from parts.shared.targets import at_least, target
from torch import Tensor

import bayesfed as bf
from bayesfed.federated.clients.turn import one_thread
from bayesfed.inference.evaluation.ranks import RankStatistics, rank_statistics

SIMULATIONS, SIMULATED_ROWS, DRAWS = 1000, 40, 99


def calibration(simulations: int = SIMULATIONS) -> bool:
    """F9: ranks of the truth among draws, prior to data to fit; bands of the coordinates hold 95 %
    together.
    """
    columns, ranks = torch.arange(FEATURES), dict[str, list[Tensor]](full=[], diagonal=[])
    factor = torch.linalg.cholesky(0.6 ** (columns[:, None] - columns).abs().double())
    with one_thread():
        for number in range(simulations):
            generator = bf.Key(0, "calibration", number).generator()
            normal = partial(torch.randn, generator=generator, dtype=torch.float64)
            truth, inputs = normal(FEATURES), normal(SIMULATED_ROWS, FEATURES) @ factor.T
            rows = bf.Dataset(inputs, inputs @ truth + NOISE_SD * normal(SIMULATED_ROWS))
            full = closed_form({f"client-{k}": rows[8 * k : 8 * (k + 1)] for k in range(5)})
            for name, q in (("full", full), ("diagonal", mean_field(full))):
                draws = q.mean + normal(DRAWS, FEATURES) @ torch.linalg.cholesky(q.covariance).T
                ranks[name].append((draws < truth).sum(0))
    full_ranks, diagonal = (
        [
            rank_statistics(torch.stack(found)[:, i], DRAWS, 1 - 0.05 / FEATURES)
            for i in range(FEATURES)
        ]
        for found in ranks.values()
    )
    outside, narrow = sum(not found.inside for found in full_ranks), sum(map(too_narrow, diagonal))
    return min(
        [
            target(
                f"F9 full covariance, {simulations} simulations, coordinates outside the band",
                outside,
                0,
            ),
            at_least("F9 mean field, coordinates shown too narrow", narrow, 1),
            target(
                "F9 mean field, coordinates outside on another side",
                sum(not found.inside for found in diagonal) - narrow,
                0,
            ),
        ]
    )


def too_narrow(ranks: RankStatistics) -> bool:
    """Return whether the ECDF leaves its band, above it among low ranks or below it among high
    ones, and nowhere else.
    """
    low = ranks.uniform < 0.5
    above, below = ranks.ecdf > ranks.upper, ranks.ecdf < ranks.lower
    return bool((above & low | below & ~low).any()) and not bool((above & ~low | below & low).any())
