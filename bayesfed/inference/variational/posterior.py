"""`FittedGuide`, the posterior after a run: draws of the shared sites, predictions, importance
weights, the ELBO.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor
from tqdm import tqdm

from bayesfed.data.dataset import Dataset
from bayesfed.errors import ArgumentError, DataError, PosteriorError
from bayesfed.errors.checks import shown
from bayesfed.inference.variational.layout import Layout
from bayesfed.inference.variational.program import Pair, Program
from bayesfed.inference.variational.tilted import Tilt, tilted
from bayesfed.keys import Key, forked
from bayesfed.trees import Tree, under

# Prefix of a client's own parameters in what the method's local step keeps.
LOCAL = "local/"


@dataclass(frozen=True)
class FittedGuide:
    """The guide at the parameters of a finished run.

    It has no local latents: where they are needed, they are drawn from the model, given the shared
    sites, as for a client that never took part. `at_client` has those of a client.

    Parameters
    ----------
    pair, layout
        The model and guide, and what the guide's parameters mean.
    parameters
        Shared parameters, unconstrained.
    program
        The model and the guide as they were given, from which a client's own guide is built.
    own
        A client's own parameters, unconstrained; empty for the server.
    server
        The server's posterior, from which that of a client was made.
    client
        The client's name; empty for the server, and for a client without one.
    place
        Prefix of a client's own parameters in its memory.
    """

    pair: Pair
    layout: Layout
    parameters: Tree
    program: Program | None = None
    own: Tree = field(default_factory=dict)
    server: FittedGuide | None = None
    client: str = ""
    place: str = LOCAL

    @property
    def stays(self) -> tuple[str, ...]:
        """Names of the parameters that stay with clients, and that this posterior lacks."""
        return () if self.server else self.layout.local

    def at_client(
        self, memory: Mapping[str, Tensor], data: Dataset | None = None, name: str = ""
    ) -> FittedGuide:
        """Return the posterior of one client, with its local latents and whatever else of it stays
        there.

        For the same key, `draw` returns the same shared sites for every client, and independent
        local ones for clients of different names.

        Parameters
        ----------
        memory
            What the client keeps, as in `Snapshot.memories`.
        data
            Rows of the client. If each row has a local latent, they must be the rows that were
            fitted. Default: the example of the method.
        name
            The client's name. Local sites of clients are independent under q, so their draws need
            streams of their own.

        Raises
        ------
        PosteriorError
            If the client never took part, or its local latents do not fit the rows.
        """
        kept = under(memory, self.place)
        if missing := [leaf for leaf in self.layout.local if leaf not in kept]:
            hint = "a client that took part, or `Predictive(result.posterior, ...)` for a new one"
            raise PosteriorError(
                "posterior at a client", "what the client keeps", f"no {missing}", hint
            )
        builds = self.program is not None and self.program.builds and data is not None
        pair = (
            self.program.at(data, Key(0, "at_client"))
            if self.program and data is not None and builds
            else self.pair
        )
        own = {leaf: kept[leaf] for leaf in self.layout.local}
        for path, leaf in own.items():
            if (shape := pair.first[path].shape) != leaf.shape:
                where, hint = (
                    f"posterior at a client, {path}",
                    "the client's own rows, as they were fitted",
                )
                raise PosteriorError(
                    where, f"rows for a local latent {tuple(leaf.shape)}", tuple(shape), hint
                )
        return replace(self, pair=pair, own=own, server=self, client=name)

    @property
    def constants(self) -> Tree:
        """Mean and sd of every Gaussian block, in the guide's own space."""
        result = {}
        for block in self.layout.blocks:
            usual = block.read(self.pair, self.parameters)
            if "loc" in usual:
                tril = usual.get("scale_tril")
                result[f"{block.name}.mean"] = usual["loc"]
                result[f"{block.name}.sd"] = (
                    usual["scale"] if tril is None else tril.square().sum(-1).sqrt()
                )
        return result

    def draw(self, key: Key) -> Tree:
        """Return one draw of every shared site, and of the local ones for a client, in their own
        space.
        """
        return self._values(self._trace(key))

    def draw_with_densities(self, key: Key) -> tuple[Tree, Tree]:
        """Return the draw of `draw` for this key, and the log densities ``log_q`` and ``log_prior``
        at it in nats.

        Densities are those of the shared sites; for a client, those of its local sites, given the
        shared ones.
        """
        trace, densities = self._with_densities(key)
        return self._values(trace), {
            name: value for name, value in densities.items() if name != "log_likelihood"
        }

    def _with_densities(self, key: Key, shared: Any = None) -> tuple[Any, Tree]:
        """Return the guide's trace, and the log densities of `draw_with_densities` and of the
        example's targets at it; arguments as for `_trace`.
        """
        names, observed = (
            self.layout.local_sites if self.server else self.layout.sites,
            set(self.layout.observed),
        )
        local = {
            *self.layout.local_sites,
            *(f"{name}_unconstrained" for name in self.layout.local_sites),
        }
        trace = self._trace(key, shared)
        with torch.no_grad(), self.pair.held(self._all()):
            trace.compute_log_prob(lambda name, node: (name in local) is bool(self.server))
            given = {
                name: trace.nodes[name]["value"]
                for name in (*self.layout.sites, *self._local)
                if name in trace.nodes
            }
            with forked(key.child("model")):
                joint = poutine.trace(poutine.condition(self.pair.model, data=given)).get_trace(
                    *self.pair.example
                )
            joint.compute_log_prob(lambda name, node: name in names or name in observed)
        scored = {
            name: node["log_prob_sum"]
            for name, node in joint.nodes.items()
            if "log_prob_sum" in node
        }
        log_q = sum(node["log_prob_sum"] for node in trace.nodes.values() if "log_prob_sum" in node)
        log_prior, log_likelihood = (
            sum(value for name, value in scored.items() if (name in observed) is seen)
            for seen in (False, True)
        )
        found = {"log_q": log_q, "log_prior": log_prior, "log_likelihood": log_likelihood}
        return trace, {name: torch.as_tensor(value) for name, value in found.items()}

    @property
    def _local(self) -> tuple[str, ...]:
        return self.layout.local_sites if self.server else ()

    def _trace(self, key: Key, shared: Any = None) -> Any:
        """Return the guide's trace; for a client, with the server's draw of the shared sites, which
        is `shared` where it was drawn before.
        """
        guide = self.pair.guide
        if self.server:
            shared = self.server._trace(key) if shared is None else shared.copy()
            key = key.child("local", self.client)
            # Plates are the client's own as well: theirs may have other lengths.
            stays = {
                *self.layout.local_sites,
                *(
                    name
                    for name, node in shared.nodes.items()
                    if type(node.get("fn")).__name__ == "_Subsample"
                ),
            }
            for name in [
                name for name in shared.nodes if name.removesuffix("_unconstrained") in stays
            ]:
                shared.remove_node(name)
            guide = poutine.replay(guide, trace=shared)
        with forked(key), torch.no_grad(), self.pair.held(self._all()):
            return poutine.trace(guide).get_trace(*self.pair.example)

    def draw_prior(self, key: Key) -> Tree:
        """Return one draw of every shared site from the prior."""
        with forked(key), torch.no_grad(), self.pair.held(self._all()):
            trace = poutine.trace(self.pair.model).get_trace(self.pair.example[0])
        return self._values(trace)

    @property
    def axes(self) -> Mapping[str, tuple[str, ...]]:
        """Empty: axes have numbers, not names."""
        return {}

    def _values(self, trace: Any) -> Tree:
        return {
            name: trace.nodes[name]["value"].detach().clone()
            for name in (*self.layout.sites, *self._local)
            if name in trace.nodes
        }

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
            raise PosteriorError(
                "predictions",
                "one observed site",
                list(self.layout.observed),
                "draws of the posterior instead",
            )
        given = {name: leaf.to(inputs.device) for name, leaf in draw.items()}
        with forked(key), torch.no_grad(), self.pair.held(self._all()):
            try:
                trace = poutine.trace(poutine.condition(self.pair.model, data=given)).get_trace(
                    inputs
                )
            except RuntimeError as problem:
                actual, hint = (
                    f"{shown(inputs)}: {str(problem).splitlines()[0]}",
                    "rows of the width and type that were fitted",
                )
                raise DataError(
                    "predictions", "inputs that the model takes", actual, hint
                ) from problem
        (name,) = self.layout.observed
        if name not in trace.nodes:
            raise PosteriorError(
                "predictions",
                f"a model that draws {name!r} when there are no targets",
                "no such site",
                "targets=None",
            )
        return cast(dist.TorchDistribution, trace.nodes[name]["fn"])

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
        _check_draws(draws)
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
        _check_draws(draws)
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
        for number in tqdm(
            range(draws),
            desc="importance weights",
            unit="draw",
            delay=2.0,
            leave=False,
            disable=None,
        ):
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

    def _all(self) -> Tree:
        return {**self.pair.first, **self.parameters, **self.own}

    @property
    def predictor(self) -> MeanPrediction:
        """The posterior as a model: the predictive mean over 32 draws."""
        return MeanPrediction(self)


@dataclass(frozen=True)
class MeanPrediction:
    """The posterior predictive mean as a model: class probabilities ``(B, C)``, or the mean of the
    targets.

    Parameters
    ----------
    posterior
        The fitted guide.
    draws
        Draws of the shared sites that the mean is taken over.
    """

    posterior: FittedGuide
    draws: int = 32

    @property
    def parameters(self) -> Tree:
        """The guide's shared parameters."""
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


def _check_draws(draws: int) -> None:
    if draws < 1:
        raise ArgumentError("log_weights", "draws >= 1", draws, "1000")


def expected(distribution: Any) -> Tensor:
    """Return the probabilities ``(B, C)`` of a categorical or Bernoulli distribution, the mean of
    any other.
    """
    base = distribution.base_dist if isinstance(distribution, dist.Independent) else distribution
    if hasattr(base, "probs") and isinstance(base, dist.Categorical):
        probabilities: Tensor = base.probs
        return probabilities
    if isinstance(base, dist.Bernoulli):
        return torch.stack([1 - base.probs, base.probs], -1)
    mean: Tensor = distribution.mean
    return mean
