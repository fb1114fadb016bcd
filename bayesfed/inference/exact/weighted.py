"""`Weighted`: a posterior as weighted points, what the weights say of it, and of each site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from bayesfed.data import Dataset
from bayesfed.errors import PosteriorError
from bayesfed.errors.checks import check, checked
from bayesfed.errors.names import Named
from bayesfed.inference.exact import checking, stages, weighing
from bayesfed.inference.exact.at_values import everywhere, moments
from bayesfed.inference.exact.form import Form
from bayesfed.inference.exact.refusals import MEMORIES, MEMORY, not_kept
from bayesfed.inference.exact.traced import Traced, traced
from bayesfed.inference.variational.program import Runs
from bayesfed.trees import Tree

STAGES = ("form", "mode", "q", "importance", "", "fit")
WORDS = ("exact", "adapted", "gaussian", "several modes", "no mode", "not identified")


@dataclass(frozen=True)
class Weighted:
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
    own
        Draws of a client's own sites at all points; empty for the server.
    """

    model: Runs
    plate: str
    state: Tree
    place: str = ""
    less: Tensor | float = 0.0
    own: Tree = field(default_factory=dict)

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
            if self._word not in STAGES:
                hint = "proper priors, in units in which latents are of order one"
            raise PosteriorError("posterior", "a run with an importance round", self.doubt, hint)
        return checking.weights(self.state | {"value": self.state["value"] - self.less})

    @cached_property
    def weights(self) -> Tensor:
        """Weights of the points, ``(n,)``: those of the posterior; those of the fit, if it was
        only checked and is not the posterior.
        """
        verdict, code = self.verdict, int(self.state["verdict"][0])
        fit = stages.TRAIL in self.state and not isinstance(self.less, Tensor)
        good = not fit or code != weighing.GAUSSIAN
        return verdict.weights if good else checking.gaussian(self.state)

    @property
    def status(self) -> str:
        """How far the draws can be trusted.

        ==============================  =======================================================
        "exact", "adapted"              they are of the posterior; "adapted" after refits
        "gaussian"                      they are of the best approximation; see `k_hat` and `ess`
        "several modes"                 they are of those modes that were found; there may be more
        "no mode"                       the density has no maximum that was found
        "not identified: NAMES"         it is constant in a direction of these entries of sites
        "mode", ...                     the run ended in this stage
        "exact, without 1 sites", ...   these have rows, and were away in the end
        ==============================  =======================================================
        """
        return self._word + (f", without {self._away} sites" if self._away else "")

    @property
    def _away(self) -> int:
        """Number of sites that are missing in the posterior."""
        return int(self.state["heard"][2] - self.state["heard"][0]) if "heard" in self.state else 0

    @property
    def _word(self) -> str:
        if (stage := int(self.state["stage"][0])) != stages.DONE:
            return STAGES[stage]
        if (code := int(self.state["verdict"][0])) != weighing.FREE:
            return WORDS[code]
        return f"{WORDS[code]}: {', '.join(weighing.free(self.state['free'], self.traced.slots))}"

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
        """Log evidence of all rows in nats, if the prior is proper, and its standard error."""
        return self.verdict.log_evidence, self.verdict.error

    @property
    def doubt(self) -> str:
        """What speaks against the draws, in words; empty if nothing does."""
        away = f"{self._away} sites were not heard: the posterior is that of the others"
        return "; ".join(filter(None, (self.lack, away if self._away else "")))

    @property
    def lack(self) -> str:
        """What speaks against the draws as those of the sites that were heard, in words."""
        status = self._word
        if status in STAGES:
            return f"it ended in the stage {status!r}; try more rounds"
        if status in WORDS[:2]:
            return ""
        if "points" not in self.state:
            edge = ", at an edge beyond which the density is not finite"
            return f"its status is {status!r}" + (edge if self.state["verdict"][1:].any() else "")
        told = f"its status is {status!r} (k-hat {self.k_hat:.2f}, ESS {self.ess:.0f})"
        weights = self.verdict.weights
        leaves = {name: leaf.reshape(len(leaf), -1) for name, leaf in self.values.items()}
        if few := [name for name in leaves if weighing.sparse(weights, leaves[name])]:
            told += f"; sds of {', '.join(few)} rest on few points"
        if self.weights is weights:
            return told
        return f"{told}; by the weights, a mean is {self._moved(weights):.2g} sds off"

    @checked(memory=MEMORY)
    def without(self, memory: Mapping[str, Tensor]) -> Self:
        """Return the posterior without the rows of a site, for nothing: its log likelihoods are
        taken out of the weights, whose `k_hat` says whether that is possible.

        Parameters
        ----------
        memory
            What the site keeps: ``result.snapshot.memories["name"]``.

        Raises
        ------
        PosteriorError
            If the site keeps no log likelihoods of these points, as under secure sums.
        """
        return replace(self, less=self.less + self._of(memory, "value"))

    @property
    def stays(self) -> tuple[str, ...]:
        """Names of the sites that stay with clients, and that this posterior lacks."""
        return tuple(sorted(self.traced.own - self.own.keys()))

    @checked(memory=MEMORY)
    def at_client(
        self, memory: Mapping[str, Tensor], data: Dataset | None = None, name: str = ""
    ) -> Self:
        """Return the posterior of one client, with its own latents, which go with the shared values
        of every point.

        Parameters
        ----------
        memory
            What the client keeps, as in `Snapshot.memories`.
        data, name
            Not needed.

        Raises
        ------
        PosteriorError
            If the client keeps no draws of these points.
        """
        found = {site: self._of(memory, f"own/{site}") for site in sorted(self.traced.own)}
        return replace(self, own=found)

    def _of(self, memory: Mapping[str, Tensor], leaf: str) -> Tensor:
        """Return what a site keeps of all points."""
        if not (found := self.kept({"": memory}, leaf)):
            raise not_kept(leaf, memory)
        return found[""]

    def kept(self, memories: Mapping[str, Mapping[str, Tensor]], leaf: str = "value") -> Tree:
        """Return the log likelihoods in nats of each site's rows at all points, ``(n,)``, by its
        name, or another leaf, of the sites that keep those of these points.
        """
        check("posterior, memories", memories, MEMORIES)
        rounds = int(self.state["stage"][1]) if "points" in self.state else 0
        seeds, found = [stages.seed(number) for number in range(rounds)], Tree()
        paths = [[f"{self.place}{part}/{seed}" for part in (leaf, "at")] for seed in seeds]
        for name, memory in sorted(memories.items()):
            # A site that was left out keeps those of other points, by the same seeds.
            if paths and all(one in memory and self._asked(memory.get(at)) for one, at in paths):
                found[name] = torch.cat([memory[one] for one, _ in paths])
        return found

    def _asked(self, centre: Tensor | None) -> bool:
        mix = self.state["mix/centre"]
        return centre is not None and bool((mix == centre).all(1).any())

    def without_each(self, memories: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Self]:
        """Return the posteriors without each site that keeps log likelihoods, as ``without NAME``;
        `bayesfed.inspect.plot_intervals` draws them.

        Parameters
        ----------
        memories
            What sites keep, by name: ``result.snapshot.memories``.
        """
        return {
            f"without {name}": replace(self, less=self.less + likely)
            for name, likely in self.kept(memories).items()
        }

    def by_site(self, memories: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, float]]:
        """Return what each site's rows say beside those of all others, by its name, of the sites
        that keep log likelihoods; `score_table` prints it.

        =============  ===========================================================================
        figure         what
        =============  ===========================================================================
        elpd, error    log density in nats of the site's rows, given those of all others, and its
                       standard error: low where the site is unlike them, for the number of its rows
        shift          sds by which the mean of a value moves without the site, the largest
        k_hat, ess     of the posterior without the site (`without`), on which the others rest
        =============  ===========================================================================

        Parameters
        ----------
        memories
            What sites keep, by name: ``result.snapshot.memories``.
        """
        weights, table = self.verdict.weights, Named[dict[str, float]]()
        for name, likely in self.kept(memories).items():
            other = replace(self, less=self.less + likely)
            table[name] = {
                "elpd": self.log_evidence[0] - other.log_evidence[0],
                "error": float((torch.softmax(weights.log() - likely, 0) - weights).norm()),
                "shift": self._moved(other.verdict.weights),
                "k_hat": other.k_hat,
                "ess": other.ess,
            }
        return table

    def _moved(self, weights: Tensor) -> float:
        """Return by how many sds other weights move the mean of a value, the largest."""
        most = 0.0
        for leaf in self.values.values():
            (mean, sd), (there, _) = moments(self.weights, leaf), moments(weights, leaf)
            most = max(most, float(((there - mean).abs() / sd).max()))
        return most

    @cached_property
    def values(self) -> Tree:
        """Values of every shared site, and of a client's own ones, at all points, ``(n, ...)``;
        their weights are `weights`.
        """
        return everywhere(self.traced, self.state["points"]) | self.own

    @property
    def constants(self) -> Tree:
        """Means and sds of all sites, log evidence, k-hat and effective sample size."""
        if "points" not in self.state:
            return Named()
        weights, made = self.weights, Named[Tensor]()
        for name, leaf in self.values.items():
            made[f"{name}.mean"], made[f"{name}.sd"] = moments(weights, leaf)
        names = "log_evidence", "log_evidence_error", "k_hat", "ess"
        numbers = stages.numbers(*self.log_evidence, self.k_hat, self.ess)
        return Named(made | dict(zip(names, numbers, strict=True)))

    @property
    def parameters(self) -> Tree:
        """Means of all sites."""
        found = self.constants.items()
        return Named({name: leaf.contiguous() for name, leaf in found if ".mean" in name})
