"""`ExactPosterior`: draws by resampling weighted points, and what the weights say of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import torch
from pyro import poutine
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.func import vmap

from bayesfed.errors import PosteriorError
from bayesfed.inference.exact import stages, weighing
from bayesfed.inference.exact.drawn import drawn
from bayesfed.inference.exact.traced import Form, Traced, doubled, traced
from bayesfed.inference.variational.program import Runs
from bayesfed.keys import Key, forked
from bayesfed.trees import Tree

STAGES = ("form", "mode", "q", "importance")
WORDS = ("exact", "adapted", "gaussian", "several modes", "no mode", "not identified")


@dataclass(frozen=True)
class ExactPosterior:
    """The posterior of all sites' rows, as weighted points.

    Parameters
    ----------
    model
        ``model(inputs, targets=None)``.
    plate
        Name of the plate of a site's own latents.
    state
        State of the run (`stages`).
    place
        Prefix of what the method keeps in a site's memory.
    less
        Log likelihoods of the sites that are taken out, at the points; 0 for none.
    """

    model: Runs
    plate: str
    state: Tree
    place: str = ""
    less: Tensor | float = 0.0

    @cached_property
    def traced(self) -> Traced:
        """The model and its sites."""
        return traced(self.model, Form.read(self.state["form"]), self.plate)

    @cached_property
    def verdict(self) -> weighing.Verdict:
        """What the importance weights say: k-hat, effective sample size, log evidence.

        Raises
        ------
        PosteriorError
            If the run ended before the importance round, or found no mode.
        """
        if "points" not in self.state:
            hint = "bf.run(algorithm, clients) without rounds=; test rows by result.scores(test)"
            raise PosteriorError("posterior", "a run with an importance round", self.doubt, hint)
        state = self.state | {"value": self.state["value"] - self.less}
        return stages.weights(state)

    @property
    def status(self) -> str:
        """How far the draws can be trusted.

        ==============================  =======================================================
        "exact", "adapted"              they are of the posterior; "adapted" after refits
        "gaussian"                      they are of the best approximation; see `k_hat` and `ess`
        "several modes"                 they are of those modes that were found; there may be more
        "no mode"                       the density has no maximum that was found
        "not identified: NAMES"         it is constant in a direction of these sites
        "mode", ...                     the run ended in this stage
        "exact, without 1 sites", ...   sites that were heard once were away in the end
        ==============================  =======================================================
        """
        return self._word + (f", without {self._away} sites" if self._away else "")

    @property
    def _away(self) -> int:
        """Number of sites that were heard and are missing in the posterior."""
        return int(self.state["heard"][2] - self.state["heard"][0]) if "heard" in self.state else 0

    @property
    def _word(self) -> str:
        if (stage := int(self.state["stage"][0])) != stages.DONE:
            return STAGES[stage]
        code = int(self.state["verdict"][0])
        named = f": {', '.join(self._free)}" if code == weighing.FREE else ""
        return WORDS[code] + named

    @property
    def k_hat(self) -> float:
        """Shape of the tail of the importance weights: good up to 0.5."""
        return self.verdict.k_hat

    @property
    def ess(self) -> float:
        """Effective number of independent draws that the weighted points are worth."""
        return self.verdict.ess

    @property
    def log_evidence(self) -> tuple[float, float]:
        """The log marginal likelihood of all rows in nats, and its standard error. It means
        something if the prior is proper.
        """
        return self.verdict.log_evidence, self.verdict.error

    @property
    def doubt(self) -> str:
        """What speaks against the draws, in words; empty if nothing does."""
        status, found = self._word, list[str]()
        if status not in WORDS[:2]:
            found = [f"its status is {status!r}"]
            if status in STAGES:
                found = [f"it ended in the stage {status!r}; try more rounds"]
            elif "points" in self.state:
                found[0] += f" (k-hat {self.k_hat:.2f}, ESS {self.ess:.0f})"
        if self._away:
            found.append(f"{self._away} sites were not heard: the posterior is that of the others")
        return "; ".join(found)

    def without(self, memory: Mapping[str, Tensor]) -> ExactPosterior:
        """Return the posterior without the rows of a site, for nothing: its log likelihoods are
        taken out of the weights, whose `k_hat` says whether that is possible.

        Parameters
        ----------
        memory
            What the site keeps: ``result.snapshot.memories["name"]``.

        Raises
        ------
        PosteriorError
            If the site keeps no log likelihoods of these points.
        """
        rounds = int(self.state["stage"][1]) if "points" in self.state else 0
        names = [f"{self.place}value/{stages.seed(number)}" for number in range(rounds)]
        if not names or any(name not in memory for name in names):
            expected, hint = "what a site keeps of the importance rounds", "snapshot.memories[name]"
            raise PosteriorError("without", expected, sorted(memory), hint)
        return replace(self, less=self.less + torch.cat([memory[name] for name in names]))

    @cached_property
    def values(self) -> Tree:
        """Values of every shared site at all points, ``(n, ...)``; their weights are
        ``verdict.weights``.
        """
        points = self.state["points"]
        with doubled():
            found: Tree = vmap(self.traced.values, chunk_size=1024)(points)
        return found

    @property
    def constants(self) -> Tree:
        """Means and sds of all sites, log evidence, k-hat and effective sample size."""
        if "points" not in self.state:
            return {}
        weights, made = self.verdict.weights, Tree()
        for name, leaf in self.values.items():
            mean = torch.tensordot(weights, leaf, 1)
            made[f"{name}.mean"] = mean
            made[f"{name}.sd"] = torch.tensordot(weights, (leaf - mean).square(), 1).sqrt()
        numbers = zip(("log_evidence", "log_evidence_error"), self.log_evidence, strict=True)
        told = {**dict(numbers), "k_hat": self.k_hat, "ess": self.ess}
        return made | {name: stages.numbers(value)[0] for name, value in told.items()}

    @property
    def parameters(self) -> Tree:
        """Means of all sites."""
        return {name: leaf.contiguous() for name, leaf in self.constants.items() if ".mean" in name}

    @property
    def axes(self) -> Mapping[str, tuple[str, ...]]:
        """Empty: axes have numbers, not names."""
        return {}

    def draw(self, key: Key) -> Tree:
        """Return one draw of every shared site."""
        place = torch.rand((), dtype=torch.float64, generator=key.generator())
        total = self.verdict.weights.cumsum(0)
        number = int(torch.searchsorted(total, place * total[-1]))
        return {name: leaf[number].float() for name, leaf in self.values.items()}

    def draw_prior(self, key: Key) -> Tree:
        """Return one draw of every shared site from the prior; empty if it is improper, or has
        other terms than sites.
        """
        return {n: node["value"].float() for n, node in drawn(self.traced, key).items()}

    def observe(self, draw: Mapping[str, Tensor], inputs: Tensor, key: Key) -> TorchDistribution:
        """Return the distribution of the targets at one draw, batch ``(B,)``.

        Raises
        ------
        PosteriorError
            If the model has more than one observed site, or none.
        """
        given = {name: leaf.double().to(inputs.device) for name, leaf in draw.items()}
        with doubled(), forked(key), torch.no_grad():
            run = poutine.condition(self.model, data=given)
            wide = inputs.double() if inputs.is_floating_point() else inputs
            nodes = poutine.trace(run).get_trace(wide).nodes
        named = [
            name for name in self.traced.observed if type(nodes[name]["fn"]).__name__ != "Unit"
        ]
        if len(named) != 1:
            hint = "draws of the posterior instead"
            raise PosteriorError("predictions", "one observed site", named, hint)
        return cast(TorchDistribution, nodes[named[0]]["fn"])

    @property
    def _free(self) -> list[str]:
        """Names of the sites of the direction in which nothing is known, the first of the basis."""
        basis = self.state["free"].abs()
        involved = basis[:, 0] / basis[:, 1:].norm(dim=1).clamp_min(1e-12)
        return [
            name
            for name, slot in self.traced.slots.items()
            if bool((involved[slot.begin : slot.end] > 0.1 * involved.max()).any())
        ]
