"""D-Turbo-VBI on planted supports for `fidelity.py`: its inclusion probabilities beside those of
all 2^12 supports.

Every output's 12 weights are a chain of its own: s is Markov, w is N(0, 1) where s is on and N(0,
spike_sd^2) where it is off, so that truth, prior and likelihood agree. Given the rows outputs are
independent, and the posterior of each support is a sum over 4,096 Gaussian evidences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from parts.fidelity.problems import double
from parts.shared.targets import at_least, target
from torch import Tensor, nn

import bayesfed as bf
from bayesfed.algorithms.d_turbo_vbi import no_field
from bayesfed.inspect.tables import table
from bayesfed.models.random_fields.support_priors import Transition

OUTPUTS, LENGTH, ROWS, SLAB_SD = 200, 12, 400, 1.0
CHAIN = Transition(off=0.85, on=0.7)


@dataclass(frozen=True)
class Planted:
    """Rows and the truth that made them: supports ``(200, 12)``."""

    data: bf.Dataset
    support: Tensor
    spike_sd: float
    noise_sd: float


def planted(spike_sd: float, noise_sd: float) -> Planted:
    """Draw supports, weights and 400 rows."""
    generator = bf.Key(0, "planted").generator()
    support = torch.zeros(OUTPUTS, LENGTH, dtype=torch.bool)
    chances = torch.rand(OUTPUTS, LENGTH, generator=generator)
    support[:, 0] = chances[:, 0] < CHAIN.stationary()
    for j in range(1, LENGTH):
        support[:, j] = torch.where(
            support[:, j - 1], chances[:, j] < CHAIN.on, chances[:, j] < 1 - CHAIN.off
        )
    weights = torch.randn(OUTPUTS, LENGTH, generator=generator) * torch.where(
        support, SLAB_SD, spike_sd
    )
    inputs = torch.randn(ROWS, LENGTH, generator=generator)
    return Planted(
        bf.Dataset(
            inputs, inputs @ weights.T + noise_sd * torch.randn(ROWS, OUTPUTS, generator=generator)
        ),
        support,
        spike_sd,
        noise_sd,
    )


def enumerated(truth: Planted) -> Tensor:
    """Return the exact inclusion probabilities ``(200, 12)``, from all supports of an output."""
    x, y = truth.data.inputs.double() / truth.noise_sd, truth.data.targets.double() / truth.noise_sd
    supports = torch.tensor(list(product((0, 1), repeat=LENGTH)))
    variances = torch.where(supports > 0, SLAB_SD**2, truth.spike_sd**2).double()
    factors = torch.linalg.cholesky(x.T @ x + torch.diag_embed(variances.reciprocal()))
    whitened = torch.linalg.solve_triangular(
        factors, (x.T @ y).expand(len(supports), LENGTH, OUTPUTS), upper=False
    )
    evidence = (
        whitened.square().sum(1) / 2
        - (factors.diagonal(dim1=1, dim2=2).log().sum(1) + variances.log().sum(1) / 2)[:, None]
    )
    moves = double(CHAIN.off, 1 - CHAIN.off, 1 - CHAIN.on, CHAIN.on).log().reshape(2, 2)
    first = (
        math.log1p(-CHAIN.stationary())
        + (math.log(CHAIN.stationary()) - math.log1p(-CHAIN.stationary())) * supports[:, 0]
    )
    prior = first + moves[supports[:, :-1], supports[:, 1:]].sum(1)
    inclusion: Tensor = (evidence + prior[:, None]).softmax(0).T @ supports.double()
    return inclusion


def learned(truth: Planted, rounds: int) -> Tensor:
    """Return the inclusion probabilities of D-Turbo-VBI over five clients."""
    # Gammas of a large shape hold the precision at its mean, so that slab and spike are the truth's
    # Gaussians.
    precision = bf.BernoulliGamma(
        SLAB_SD, truth.spike_sd, slab_shape=1000, spike_shape=1000, relative=False
    )
    support = bf.models.MarkovGrid(row=CHAIN, column=0.5, patch=(1, LENGTH))
    declared = bf.declare(
        nn.Sequential(nn.Linear(LENGTH, OUTPUTS, bias=False)),
        bf.Prior(support, precision),
        likelihood=bf.Normal(truth.noise_sd),
    )
    algorithm = bf.d_turbo_vbi(
        declared,
        observations=ROWS,
        training=bf.Training(
            steps=40,
            batch_size=80,
            optimiser=bf.Adam(0.02),
            schedule=bf.federated.cosine(0.02, rounds),
        ),
        spread="weight",
        initial_sd=0.05,
        codec=bf.Cast(32),
        exchange=bf.inference.Exchange(tolerance=1e-6),
        temperature=1.0,
        field=no_field,
        warm_up=rounds // 3,
    )
    found = bf.run(
        algorithm,
        bf.federate(truth.data, bf.iid(ROWS, 5, bf.Key(0, "planted"))),
        rounds=rounds,
        progress=False,
    )
    inclusion: Tensor = found.posterior.constants["0.weight.inclusion"]
    return inclusion.double()


def f1(found: Tensor, truth: Tensor) -> float:
    """Return the F1 score of a support: the harmonic mean of precision and recall."""
    return 2 * float((found & truth).sum()) / float(found.sum() + truth.sum())


def calibration_error(inclusion: Tensor, truth: Tensor, bins: int = 10) -> float:
    """Return the mean gap, weighted by entries, between a bin's mean probability and its share of
    entries that are on.
    """
    number = (bins * inclusion).long().clamp(max=bins - 1).reshape(-1)
    gaps = torch.zeros(bins, dtype=torch.float64).index_add_(
        0, number, (inclusion - truth.double()).reshape(-1)
    )
    return float(gaps.abs().sum()) / inclusion.numel()


def supports(rounds: int = 20) -> bool:
    """F12: high signal to noise, then a spike that overlaps the slab."""
    rows: list[list[str | float]] = []
    targets = []
    for name, spike_sd, noise_sd in (("high SNR", 0.02, 0.1), ("overlapping", 0.05, 0.2)):
        truth = planted(spike_sd, noise_sd)
        exact, found = enumerated(truth), learned(truth, rounds)
        scores = {
            which: (f1(p > 0.5, truth.support), calibration_error(p, truth.support))
            for which, p in (("enumerated", exact), ("learned", found))
        }
        rows += [[name, which, *score] for which, score in scores.items()]
        (enumerated_f1, _), (learned_f1, error) = scores.values()
        targets += [
            partial(target, f"F12 {name}, calibration of inclusion", error, 0.05),
            partial(
                target,
                f"F12 {name}, mean distance to enumeration",
                float((found - exact).abs().mean()),
                0.02,
            ),
            partial(
                at_least,
                f"F12 {name}, F1 of the support",
                learned_f1,
                0.95 if name == "high SNR" else enumerated_f1 - 0.02,
            ),
        ]
    print(table(["supports", "inclusion", "F1", "calibration"], rows))
    return min([line() for line in targets])
