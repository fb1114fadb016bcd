"""FedPA (Al-Shedivat et al., "Federated learning via posterior averaging: a new perspective and
practical algorithms", 2021).

==========================  ========================================================================
paper                       here
==========================  ========================================================================
theta                       the state
IASG samples, l of them     `samples`, each the mean of the models of a window of local steps
burn-in steps               share `burn_in` of the local steps
burn-in rounds              `begin`: before it a round is FedAvg's
rho                         `shrinkage`
Sigma-hat                   ``s I + (1 - s) S``, S the samples' covariance, ``s = 1 / (1 + (l - 1)
                            rho)``
Delta                       ``Sigma-hat^-1 (theta - mu-hat)``; clients send ``-Delta``, which the
                            server adds
==========================  ========================================================================

The inverse is taken by Woodbury's identity, of an l by l matrix. The server's rate and momentum are
those of `server_optimised`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesfed.algorithms.composing import Turn, compose
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Codec
from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import number
from bayesfed.errors.plurals import plural
from bayesfed.federated import Algorithm, Descent, Fit, Link, LocalOptions, Training
from bayesfed.federated.core import Around
from bayesfed.federated.core.settings import with_settings
from bayesfed.keys import Key
from bayesfed.models import Likelihood
from bayesfed.trees import Tree, flat, unflat, zeros_like


@recipe(
    cites=("alshedivat2021federated",),
    shrinkage=number("[0, inf)", "0.01"),
    burn_in=number("[0, 1)", "0.5"),
)
def fed_pa(
    net: nn.Module,
    *,
    samples: int = 5,
    shrinkage: float = 0.01,
    burn_in: float = 0.5,
    begin: int = 0,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train towards the mean of the product of the clients' posteriors, each estimated from the
    iterates of local SGD.

    Messages are those of FedAvg. It returns a point; `laplace` puts a Gaussian around it.

    Parameters
    ----------
    samples
        l, the number of windows of local steps whose mean models are samples of a client's
        posterior.
    shrinkage
        rho. With 0 the covariance is the identity, and a round is FedAvg's of averaged iterates.
    burn_in
        Share of the local steps before the first window, in [0, 1).
    begin
        Number of rounds of FedAvg before the first of FedPA.
    net, likelihood, training, codec, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If a number is outside its domain, or there are fewer steps after the burn-in than samples.

    References
    ----------
    Al-Shedivat et al., "Federated Learning via Posterior Averaging: A New Perspective and Practical
    Algorithms" (2021).
    """
    work = training or Training()
    if work.epochs is None:
        _window(work.steps, burn_in, samples)

    @with_settings(begin=begin, samples=samples, work=work)
    def options(turn: Turn) -> LocalOptions:
        return work.options_as(
            Windows, turn.round, turn.profile.samples, windows=samples if turn.round >= begin else 0
        )

    descent = work.likelihood_descent(net, likelihood, "delta")
    return compose(
        "fed_pa",
        net,
        PosteriorAverage(descent, shrinkage, burn_in),
        training=work,
        options=options,
        codec=codec,
        link=link,
    )


@dataclass(frozen=True)
class Windows(LocalOptions):
    """Options of a round of FedPA.

    Parameters
    ----------
    windows
        Number of samples; 0: a round of FedAvg.
    """

    windows: int = 0


@dataclass(frozen=True)
class PosteriorAverage(Around):
    """Gradient steps whose iterates give mean and covariance of a client's posterior; the change
    that is sent is ``Sigma^-1 (mu - theta)``.

    Parameters
    ----------
    local
        Gradient steps that send changes.
    shrinkage, burn_in
        As of `fed_pa`.
    """

    local: Descent
    shrinkage: float
    burn_in: float
    options: ClassVar[type[LocalOptions]] = Windows

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Train and send the change.

        Raises
        ------
        ArgumentError
            If there are fewer steps after the burn-in than samples.
        DataError
            If the data cannot be scored, or training diverged.
        """
        count = options.windows if isinstance(options, Windows) else 0
        if not count or not len(data):
            return self.local.train(message, data, key, options)
        _, steps = self.local.asked(options)
        window = _window(steps, self.burn_in, count)
        sums, before = list[Tree](), steps - window * count

        def after_step(trained: Tree, rate: float, left: int) -> None:
            place = steps - left - 1 - before
            if place < 0:
                return
            if place % window == 0:
                sums.append(zeros_like(trained))
            for name, leaf in trained.items():
                sums[-1][name].add_(leaf, alpha=1 / window)

        fit = self.local.train(message, data, key, options, after_step)
        change = posterior_change(torch.stack([*map(flat, sums)]), flat(message), self.shrinkage)
        return fit._replace(payload=unflat(change, message))


def posterior_change(samples: Tensor, start: Tensor, shrinkage: float) -> Tensor:
    """Return ``Sigma^-1 (mu - start)``, ``(P,)``.

    Parameters
    ----------
    samples
        ``(l, P)``.
    start
        ``(P,)``: theta.
    shrinkage
        rho of ``Sigma = s I + (1 - s) S``, ``s = 1 / (1 + (l - 1) rho)``.
    """
    mean, count = samples.mean(0), len(samples)
    change: Tensor = mean - start
    if count == 1 or shrinkage == 0:
        return change
    own = 1 / (1 + (count - 1) * shrinkage)
    apart = samples - mean
    # In 64 bits: the matrix is small, its entries are sums over all parameters.
    wide = apart.double()
    inner = wide @ wide.mT + torch.eye(count, dtype=torch.float64, device=wide.device) * (
        own * (count - 1) / (1 - own)
    )
    within: Tensor = torch.linalg.solve(inner, wide @ change.double()) @ wide
    return (change - within.to(change)) / own


def _window(steps: int, burn_in: float, samples: int) -> int:
    """Return the number of steps of a window; `ArgumentError` if there is none."""
    window = (steps - math.floor(burn_in * steps)) // samples
    if not window:
        raise ArgumentError(
            "fed_pa",
            "a step for each sample after the burn-in",
            f"{plural(steps, 'step')}, {plural(samples, 'sample')}",
            f"Training(steps={math.ceil(samples / (1 - burn_in))})",
        )
    return window
