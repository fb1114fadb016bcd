"""Laws of support priors and of closed-form guides."""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch
from torch import Tensor

from bayesfed.inference import infer, kl_divergence
from bayesfed.inference.turbo.blocks import Blocks
from bayesfed.keys import Key
from bayesfed.models import Clusters, Gammas, Grid, Ising, SiteBelief, Support
from bayesfed.testing.law import law


def enumerate_log_odds(model: Grid | Ising | Clusters, evidence: Tensor) -> Tensor:
    """Return exact posterior log-odds by summing over all ``2^n`` supports; the slow counterpart of
    `infer`.

    Parameters
    ----------
    model
        Support model with n entries, at most 20.
    evidence
        Log-odds of the evidence ``(M, N)``.
    """
    count = evidence.numel()
    states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=count)), dtype=torch.float64)
    if isinstance(model, Ising):
        model = replace(model, field=model.field.double(), coupling=model.coupling.double())
    logs = model.energy(states.reshape(-1, *model.shape)) + states @ evidence.double().reshape(-1)
    on = torch.stack([torch.logsumexp(logs[states[:, i] == 1], 0) for i in range(count)])
    off = torch.stack([torch.logsumexp(logs[states[:, i] == 0], 0) for i in range(count)])
    return (on - off).reshape(model.shape)


def check_support(support: Support, key: Key | None = None, *, inputs: int | None = None) -> None:
    """Check that message passing converges on the models of a support prior, and is exact if they
    are small enough to enumerate.

    Parameters
    ----------
    support
        The support prior to check.
    key
        Key of the random evidence.
    inputs
        Number of inputs of a unit, if a patch or graph of the support fixes it.

    Raises
    ------
    LawError
        If a law is broken.
    """
    generator = (key or Key(0, "support-law")).generator()
    shapes = [(1, 1), (1, 7), (6, 1), (3, 4)] if inputs is None else [(1, inputs), (2, inputs)]
    for shape in shapes:
        model = support.lower(shape)
        law(tuple(model.shape) == shape, f"lower({shape}) has shape {tuple(model.shape)}")
        evidence = 2 * torch.randn(shape, generator=generator, dtype=torch.float64)
        result = infer(model, evidence, tol=1e-12, warn=False)
        law(result.converged, f"{shape}: messages settle; residual {result.residual:g}")
        if result.method == "exact" and evidence.numel() <= 16:
            gap = float((result.belief - enumerate_log_odds(model, evidence)).abs().max())
            law(gap < 1e-6, f"{shape}: beliefs differ from enumeration by {gap:g}")
    shape = (16, inputs or 14)
    result = infer(
        support.lower(shape),
        torch.randn(shape, generator=generator, dtype=torch.float64),
        method="bp",
        tol=1e-8,
        warn=False,
    )
    law(result.converged, f"a {shape[0]} x {shape[1]} layer settles; residual {result.residual:g}")


def check_blocks(blocks: Blocks, *, states: int = 50, slack: float = 1e-9) -> None:
    """Check that an update never increases the exact divergence, in three updates from each random
    state.

    Parameters
    ----------
    blocks
        The closed-form updates to check.
    states
        Number of random states.
    slack
        Relative increase that counts as rounding.

    Raises
    ------
    LawError
        If the divergence increases.
    """
    generator = Key(0, "blocks-law").generator()
    for number in range(states):
        belief, prior, gammas = random_state(generator)
        before = float(kl_divergence(belief, prior, gammas))
        for _ in range(3):
            belief = blocks.update(belief, prior, gammas)
            after = float(kl_divergence(belief, prior, gammas))
            law(
                after <= before + slack * abs(before),
                f"state {number}: the divergence rose from {before:.9g} to {after:.9g}",
            )
            before = after


def random_state(
    generator: torch.Generator, shape: tuple[int, int] = (4, 5)
) -> tuple[SiteBelief, Tensor, Gammas]:
    """Return a random belief, prior log-odds and pair of Gammas, in float64."""

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    a, b = normal(2).mul(0.5).exp().tolist(), normal(2).exp().tolist()
    gammas = Gammas((a[0], a[1]), (1e-3 * b[0], b[1]))
    scale = float((2 * normal(1) - 2).exp())
    # One Gamma for both values of the support, which is legal for either guide.
    shapes, rates = (normal(1, *shape).exp().expand(2, *shape) for _ in range(2))
    belief = SiteBelief(
        scale * normal(*shape),
        0.3 * scale * normal(*shape).exp(),
        2 * normal(*shape),
        shapes,
        rates,
    )
    return belief, 2 * normal(*shape), gammas
