"""`FittedGuide`, the posterior after a run: draws of the shared sites, predictions, importance
weights, the ELBO.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor
from tqdm import tqdm

from bayesfed.data import Dataset
from bayesfed.data.dataset import unchecked
from bayesfed.errors import DataError, PosteriorError
from bayesfed.errors.checks import COUNT, check, shown
from bayesfed.inference.variational.terms import deterministic, traced
from bayesfed.inference.variational.tilted import Tilt, tilted
from bayesfed.inference.variational.traced import TracedGuide
from bayesfed.keys import Key, forked
from bayesfed.models.likelihoods.rows import expected
from bayesfed.trees import Tree, under


@dataclass(frozen=True)
class FittedGuide(TracedGuide):
    """The guide at the parameters of a finished run, as a posterior; its parameters are those of
    `TracedGuide`.
    """

    def observe(
        self, draw: Mapping[str, Tensor], inputs: Tensor, key: Key
    ) -> dist.TorchDistribution:
        """Return the distribution of the targets at one draw, batch ``(B,)``.

        Parameters
        ----------
        draw
            One draw, as `draw` returns it.
        inputs
            ``(B, ...)``.
        key
            Names the draws of local latents that the draw lacks.

        Raises
        ------
        PosteriorError
            If the model has more than one observed site, or none.
        """
        if len(self.layout.observed) != 1:
            found, hint = list(self.layout.observed), "Result.to_arviz, which has every site"
            raise PosteriorError("predictions", "one observed site", found, hint)
        (response,) = self.observe_sites(draw, inputs, key).values()
        return response

    def observe_sites(
        self, draw: Mapping[str, Tensor], inputs: Tensor, key: Key
    ) -> dict[str, dist.TorchDistribution]:
        """Return the distribution of each observed site at one draw, by its name; parameters as for
        `observe`. A draw may have values of observed sites as well, on which others may depend.
        """
        given = {name: leaf.to(inputs.device) for name, leaf in draw.items()}
        with forked(key), torch.no_grad(), self.pair.held(self._all()):
            try:
                trace = poutine.trace(poutine.condition(self.pair.model, data=given)).get_trace(
                    inputs
                )
            except RuntimeError as problem:
                actual = f"{shown(inputs)}: {str(problem).splitlines()[0]}"
                hint = "rows of the width and type that were fitted"
                raise DataError(
                    "predictions", "inputs that the model takes", actual, hint
                ) from problem
        if missing := [name for name in self.layout.observed if name not in trace.nodes]:
            raise PosteriorError(
                "predictions",
                f"a model that draws {missing[0]!r} when there are no targets",
                "no such site",
                "targets=None",
            )
        return {
            name: cast(dist.TorchDistribution, trace.nodes[name]["fn"])
            for name in self.layout.observed
        }

    def observed(self, draw: Mapping[str, Tensor], data: Dataset) -> Tree:
        """Return what each observed site observes of rows, by its name."""
        with forked(Key(0, "observed")), torch.no_grad(), self.pair.held(self._all()):
            trace = traced(self.pair.model, draw, data)
        return {name: trace.nodes[name]["value"] for name in self.layout.observed}

    def derived(self, draw: Mapping[str, Tensor], key: Key) -> Tree:
        """Return the deterministic sites that no rows enter, at one draw."""
        if not (names := self.layout.split.derived):
            return {}
        with forked(key), torch.no_grad(), self.pair.held(self._all()):
            found = deterministic(traced(self.pair.model, draw, unchecked(*self.pair.example)))
        return {name: found[name].detach().clone() for name in names}

    def log_weights(self, data: Dataset, key: Key, *, draws: int = 1000) -> Tensor:
        """Return ``log p(D, z) - log q(z)`` at draws of q, ``(draws,)``. Their mean is the ELBO;
        their tail gives k-hat.

        Parameters
        ----------
        data
            The rows D.
        key
            Names the draws.
        draws
            How many.

        Raises
        ------
        ArgumentError
            If there are no draws.
        PosteriorError
            If the model has local latents, whose posterior the server does not have: then
            `log_weights_with_clients`.
        """
        check("log_weights, draws", draws, COUNT)
        if self.layout.local_sites:
            hint = (
                "log_weights_with_clients(memories, rows by client, key), Result.k_hat(rows by "
                "client)"
            )
            raise PosteriorError(
                "log_weights", "a model without local latents", list(self.layout.local_sites), hint
            )
        weights = []
        with forked(key), torch.no_grad(), self.pair.held(self._all()):
            model, guide = tilted(self.pair.model, self.pair.guide, self.layout, Tilt())
            for _ in range(draws):
                drawn = poutine.trace(guide).get_trace(data.inputs, data.targets)
                joint = poutine.trace(poutine.replay(model, trace=drawn)).get_trace(
                    data.inputs, data.targets
                )
                weights.append(torch.as_tensor(joint.log_prob_sum() - drawn.log_prob_sum()))
        return torch.stack(weights)

    def log_weights_with_clients(
        self,
        memories: Mapping[str, Mapping[str, Tensor]],
        data: Mapping[str, Dataset],
        key: Key,
        *,
        draws: int = 1000,
    ) -> Tensor:
        """Return `log_weights` of a model with local latents, ``(draws,)``: z are the shared sites
        and the local ones of all clients.

        Parameters
        ----------
        memories
            By client: what it keeps, as in `Snapshot.memories`.
        data
            By client: the rows that were fitted; of all clients.
        key
            Names the draws.
        draws
            How many.

        Raises
        ------
        ArgumentError
            If there are no draws.
        PosteriorError
            If a client of the run is not among the rows, or never took part, or its local latents
            do not fit its rows.
        """
        check("log_weights, draws", draws, COUNT)
        if missing := sorted(
            name
            for name, memory in memories.items()
            if under(memory, self.place) and not len(data.get(name, ()))
        ):
            hint = "the rows of all clients that were fitted, {name: rows}"
            raise PosteriorError(
                "log_weights_with_clients", "rows of every client", f"none of {missing}", hint
            )
        clients = {
            name: self.at_client(memories.get(name, {}), rows, name)
            for name, rows in data.items()
            if len(rows)
        }
        weights = []
        shown_after: dict[str, Any] = {"delay": 2.0, "leave": False, "disable": None}
        for number in tqdm(range(draws), desc="importance weights", unit="draw", **shown_after):
            trace, shared = self._with_densities(key.child(number))
            total = shared["log_prior"] - shared["log_q"]
            for client in clients.values():
                _, own = client._with_densities(key.child(number), trace)
                total = total + own["log_likelihood"] + own["log_prior"] - own["log_q"]
            weights.append(total)
        return torch.stack(weights)

    def elbo(self, data: Dataset, key: Key, *, draws: int = 100) -> float:
        """Return the ELBO of the model on these rows, in nats, as the mean over draws. Arguments
        are those of `log_weights`.
        """
        return float(self.log_weights(data, key, draws=draws).mean())

    @property
    def predictor(self) -> MeanPrediction:
        """The posterior as a model: the predictive mean over 32 draws."""
        return MeanPrediction(self)


class Drawn(Protocol):
    """What a mean is taken of."""

    @property
    def parameters(self) -> Tree:
        """Its parameters."""

    def draw(self, key: Key) -> Tree:
        """Return one draw of every shared site."""

    def observe(self, draw: Mapping[str, Tensor], inputs: Tensor, key: Key) -> Any:
        """Return the distribution of the targets at one draw."""


@dataclass(frozen=True)
class MeanPrediction:
    """A posterior predictive mean as a model: class probabilities ``(B, C)``, or the mean of the
    targets.

    Parameters
    ----------
    posterior
        The posterior.
    draws
        Draws of the shared sites that the mean is taken over.
    """

    posterior: Drawn
    draws: int = 32

    @property
    def parameters(self) -> Tree:
        """Those of the posterior."""
        return self.posterior.parameters

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the predictive mean at these inputs."""
        total: Any = 0.0
        for number in range(self.draws):
            key = Key(0, "prediction", number)
            total = total + expected(
                self.posterior.observe(self.posterior.draw(key), inputs, key.child("local"))
            )
        mean: Tensor = total / self.draws
        return mean
