"""Importance weights of quasi-random points of mixtures of Student-t's: Pareto smoothing (Vehtari
et al., 2024), k-hat, effective sample size, evidence, refits, and the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from bayesfed.inference.exact.asking import LOWEST
from bayesfed.inference.exact.placed import Slot
from bayesfed.inference.exact.points import freedom
from bayesfed.trees import Tree

# Largest k-hat of weights, and of weights times squares, and least share of effective points, of a
# round that is trusted.
GOOD, USABLE, EFFICIENT = 0.5, 0.5, 0.6
# Variance in squares of the mean, of a value that varies by rounding alone.
CONSTANT = 1e-24
# Most rounds after the first, and the statuses; the last one is never a run's, but that of points
# whose weights leave sites out and are not even any more.
REFITS = 4
EXACT, ADAPTED, GAUSSIAN, SEVERAL, NO_MODE, FREE, UNEVEN = range(7)


# From points ``(n, d)`` to the values ``(n, m)`` whose second moments are to be covered.
Values = Callable[[Tensor], Tensor]


def same(points: Tensor) -> Tensor:
    """Return the points."""
    return points


class Verdict(NamedTuple):
    """What importance weights say of their points."""

    k_hat: float
    ess: float
    log_evidence: float
    error: float
    weights: Tensor


def log_mixture(points: Tensor, mixture: Tree) -> Tensor:
    """Return the log density of a mixture of Student-t's, ``(n,)``: ``centre`` (M, d), ``basis``
    (M, d, d), or (M, d) of independent values, and ``share`` (M,).
    """
    nu, size = freedom(points.shape[1]), points.shape[1]
    constant = (
        math.lgamma((nu + size) / 2) - math.lgamma(nu / 2) - size / 2 * math.log(nu * math.pi)
    )
    share = mixture["share"] / mixture["share"].sum()
    parts = []
    for centre, basis, own in zip(mixture["centre"], mixture["basis"], share, strict=True):
        away = whitened(points - centre, basis).square().sum(1)
        scale = basis.log().sum() if basis.ndim == 1 else torch.linalg.slogdet(basis).logabsdet
        parts.append(own.log() + constant - scale - (nu + size) / 2 * (away / nu).log1p())
    return torch.stack(parts).logsumexp(0)


def whitened(away: Tensor, basis: Tensor) -> Tensor:
    """Return distances ``(n, d)`` in units of a root of a covariance, or of sds."""
    return away / basis if basis.ndim == 1 else torch.linalg.solve(basis, away.T).T


def judged(log_ratios: Tensor) -> Verdict:
    """Return smoothed weights of points, and what they say.

    Parameters
    ----------
    log_ratios
        Log joint density less the log density of the proposal, ``(n,)``; minus infinity allowed.
    """
    top = float(log_ratios.max())
    raw = (log_ratios - top).exp()
    smooth, k_hat = smoothed(raw)
    weights = smooth / smooth.sum()
    return Verdict(
        k_hat,
        float(1 / weights.square().sum()),
        float(smooth.mean().log()) + top,
        float(raw.std() / raw.mean()) / math.sqrt(len(raw)),
        weights,
    )


def trusted(alone: Verdict, found: Verdict, values: Callable[[], Tensor]) -> bool:
    """Return whether a round's points alone have even weights, and the weights of all points say
    that they are of the posterior: their own tail, and those of weights times squared distances
    of values ``(n, m)`` from their means, which tell of regions that few points are in. Values are
    those of points, and on their sites' own scale as well: an sd rests on its largest ones, which
    its logarithm does not show. They are asked for only where the rest holds.
    """
    if max(alone.k_hat, found.k_hat) > GOOD or alone.ess < EFFICIENT * len(alone.weights):
        return False
    # Weights of points none of which has a density are even.
    return found.log_evidence > LOWEST / 2 and not sparse(found.weights, values())


def sparse(weights: Tensor, values: Tensor) -> bool:
    """Return whether the variance of any of the values ``(n, m)`` rests on few points, by the tail
    of their squared distances from the mean. Values that are the same everywhere, as ones in a
    matrix of correlations, do not.
    """
    mean = weights @ values
    spread = (values - mean).square() * weights[:, None]
    moving = ~(spread.sum(0) <= CONSTANT * mean.square())
    tails = [smoothed(part / part.max())[1] for part in spread.T[moving]]
    return not all(k_hat <= USABLE for k_hat in tails)


def smoothed(ratios: Tensor) -> tuple[Tensor, float]:
    """Return weights whose largest are those expected of a generalised Pareto distribution, and its
    shape k-hat.
    """
    count = len(ratios)
    length = min(count // 5, math.ceil(3 * math.sqrt(count)))
    values, order = ratios.sort()
    tail, cut = values[-length:], float(values[-length - 1])
    excess = tail - cut
    if float(excess[-1]) <= 1e-9:
        return values[order.argsort()], -math.inf
    if float(excess[length // 4]) <= 0:
        return ratios, math.inf
    k_hat, sigma = _pareto(excess)
    ranks = (torch.arange(length, dtype=torch.float64) + 0.5) / length
    fitted = (
        sigma / k_hat * torch.expm1(-k_hat * torch.log1p(-ranks))
        if abs(k_hat) > 1e-9
        else -sigma * torch.log1p(-ranks)
    )
    values = torch.cat([values[:-length], (fitted + cut).clamp_max(float(tail[-1]))])
    return values[order.argsort()], k_hat


def _pareto(excess: Tensor) -> tuple[float, float]:
    """Return shape and scale of a generalised Pareto distribution (Zhang and Stephens, 2009), with
    the weak prior of Vehtari et al.
    """
    count, many = len(excess), 30 + math.isqrt(len(excess))
    quarter = float(excess[int(count / 4 + 0.5) - 1])
    theta = 1 - (many / (torch.arange(1, many + 1, dtype=torch.float64) - 0.5)).sqrt()
    theta = theta / (3 * quarter) + 1 / float(excess[-1])
    shape = torch.log1p(-theta[:, None] * excess).mean(1)
    profile = count * ((-theta / shape).log() - shape - 1)
    chosen = float(torch.softmax(profile, 0) @ theta)
    k_hat = float(torch.log1p(-chosen * excess).mean())
    sigma = -k_hat / chosen
    return (count * k_hat + 10 * 0.5) / (count + 10), sigma


def refitted(points: Tensor, weights: Tensor, components: int = 5) -> list[tuple[Tree, Tensor]]:
    """Return components of a mixture fitted to weighted points, each with its share.

    It begins with slices along the direction of the largest skewness, and takes some steps of EM;
    covariances are drawn to the common one. Points count the more the farther off they are, since
    second moments rest on them: the scale of few sites has a long tail.
    """
    mean = weights @ points
    centred = points - mean
    cov = (weights[:, None] * centred).T @ centred
    root = torch.linalg.cholesky(cov + 1e-9 * cov.diagonal().diag())
    white = torch.linalg.solve_triangular(root, centred.T, upper=False).T
    skew = (weights * white.square().sum(1)) @ white
    axis = skew / skew.norm().clamp_min(1e-12)
    weights = weights * (1 + white.square().mean(1)) / 2
    along = white @ axis
    order = along.argsort()
    rank = torch.empty_like(along)
    rank[order] = weights[order].cumsum(0)
    member = (rank * components).long().clamp_max(components - 1)
    belongs = torch.nn.functional.one_hot(member, components).double()
    eye = torch.eye(len(cov), dtype=cov.dtype)
    for _ in range(15):
        share = (weights @ belongs).clamp_min(1e-3)
        share = share / share.sum()
        logs = []
        made = []
        for k in range(components):
            own = weights * belongs[:, k] / (weights @ belongs[:, k]).clamp_min(1e-12)
            centre = own @ white
            spread = (own[:, None] * (white - centre)).T @ (white - centre)
            basis = torch.linalg.cholesky(0.8 * spread + 0.2 * eye)
            made.append((centre, basis))
            away = torch.linalg.solve_triangular(basis, (white - centre).T, upper=False)
            logs.append(share[k].log() - basis.diagonal().log().sum() - away.square().sum(0) / 2)
        belongs = torch.softmax(torch.stack(logs, 1), 1)
    return [
        ({"centre": mean + root @ centre, "basis": root @ basis}, share[k])
        for k, (centre, basis) in enumerate(made)
    ]


def free(basis: Tensor, slots: Mapping[str, Slot]) -> list[str]:
    """Return the names of the sites of the direction in which nothing is known, the first of a
    basis ``(d, d)``; of a site that is in it by some of its entries, those.
    """
    size = basis.abs()
    involved = size[:, 0] / size[:, 1:].norm(dim=1).clamp_min(1e-12)
    inside, names = involved > 0.1 * involved.max(), list[str]()
    for name, slot in slots.items():
        entries = inside[slot.begin : slot.end].reshape(slot.shape)
        if bool(entries.all()):
            names.append(name)
        else:
            places = entries.nonzero().tolist()
            names += [f"{name}[{', '.join(map(str, place))}]" for place in places]
    return names
