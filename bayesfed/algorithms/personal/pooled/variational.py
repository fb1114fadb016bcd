"""The Gaussian nearest to a client's posterior in Kullback-Leibler divergence, where the Laplace
approximation is too narrow.

With own parameters theta = mu + diag(s) u the prior of u is N(0, I). The outputs of a row are
linear in u about the maximum, which is exact for a last layer under a fixed body. The Gaussian N(m,
H^-1) that maximises the evidence lower bound satisfies

    m = E[J' (y - p)],    H = I + E[J' (diag p - p p') J],

with p the probabilities at a draw of u and J the Jacobian of the outputs by u (Opper and
Archambeau, 2009, (12) to (15)). Laplace has the same equations without the expectations.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from bayesfed.keys import Key

# Draws, of which one half mirrors the other; steps at most; step of an entry, in sds of the
# population, at most, and at which the search ends.
DRAWS, STEPS, LONGEST, SETTLED = 128, 30, 2.0, 1e-3


def nearest(
    jacobian: Tensor,
    outputs: Tensor,
    targets: Tensor,
    begun: Tensor,
    key: Key,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return the mean ``(P,)`` of u and the root ``(P, P)`` of its covariance, for classes.

    Parameters
    ----------
    jacobian
        ``(N, C, P)``: Jacobian of the outputs by u.
    outputs
        ``(N, C)``: outputs at `begun`.
    targets
        ``(N,)``: classes.
    begun
        ``(P,)``: u at which the outputs were computed, usually the maximum of the posterior.
    key
        Names the draws, which are the same in every step, so that the search has a fixed point.
    temperature
        Divisor of the log likelihood.
    """
    size, mean = len(begun), begun
    noise = torch.randn(size, DRAWS // 2, generator=key.generator(), dtype=torch.float64).to(
        jacobian
    )
    noise = torch.cat([noise, -noise], 1)
    labels, unit = one_hot(targets, outputs.shape[1]).to(jacobian), torch.eye(size).to(jacobian)
    root = torch.zeros_like(unit)
    for _ in range(STEPS):
        at = outputs + jacobian @ (mean - begun)
        p = (at[..., None] + jacobian @ (root @ noise)).softmax(1)
        expected = p.mean(2)
        curvature = torch.diag_embed(expected) - p @ p.mT / DRAWS
        precision = unit + torch.einsum("nci,ncj->ij", jacobian, curvature @ jacobian) / temperature
        factor = torch.linalg.cholesky(precision)
        gradient = torch.einsum("nci,nc->i", jacobian, expected - labels) / temperature + mean
        step = torch.cholesky_solve(gradient[:, None], factor)[:, 0]
        longest = float(step.abs().max())
        mean = mean - step * min(1.0, LONGEST / max(longest, LONGEST))
        before, root = root, torch.linalg.solve_triangular(factor, unit, upper=False).mT
        if longest < SETTLED and float((root - before).abs().max()) < SETTLED:
            break
    return mean, root
