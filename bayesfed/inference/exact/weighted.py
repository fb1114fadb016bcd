"""`Weighted`: a posterior as weighted points, what the weights say of it, and of each site."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from bayesfed.data import Dataset
from bayesfed.errors import PosteriorError, UndeterminedWarning
from bayesfed.errors.checks import check, checked
from bayesfed.errors.names import Named
from bayesfed.errors.plurals import plural
from bayesfed.inference.exact import checking, stages, weighing
from bayesfed.inference.exact.at_values import beside, everywhere, moments
from bayesfed.inference.exact.form import Form
from bayesfed.inference.exact.refusals import (
    MEMORIES,
    MEMORY,
    is_its_own,
    is_left_out,
    not_kept,
)
from bayesfed.inference.exact.traced import Traced, doubled, traced
from bayesfed.inference.variational.program import Runs
from bayesfed.trees import Tree

STAGES = ("form", "mode", "q", "importance", "", "fit")
WORDS = (
    "exact",
    "adapted",
    "gaussian",
    "several modes",
    "no mode",
    "not identified",
    "uneven weights",
)
# Those of points that are of the posterior.
TRUSTED = WORDS[:2]
# Nats by which sites' log likelihoods may be off their sum, by rounding.
CLOSE = 0.01
# Points at which it is looked whether any rows are left.
FEW = 3


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
    left_out
        Log likelihoods, at the points, of the sites whose rows are left out, ``(n,)`` each, by the
        mark that a site keeps.
    own
        Draws of a client's own sites at all points; empty for the server.
    """

    model: Runs
    plate: str
    state: Tree
    place: str = ""
    left_out: Tree = field(default_factory=dict)
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
        return checking.weights(self._left)

    @property
    def _left(self) -> Tree:
        """The state, whose log joint density is that of the rows that are left."""
        density = self.state["value"]
        for likelihood in self.left_out.values():
            density = density - likelihood
        return self.state | {"value": density}

    @cached_property
    def _code(self) -> int:
        """Status of a run that has ended, in `WORDS`. Where sites are left out, it is that of the
        weights that are left, by the rule of the run's own last round.
        """
        if not self.left_out:
            return int(self.state["verdict"][0])
        _, trusted = checking.judge(self._left, lambda points: beside(self.traced, points))
        return stages.trusted_status(self.state) if trusted else weighing.UNEVEN

    @cached_property
    def weights(self) -> Tensor:
        """Weights of the points, ``(n,)``: those of the posterior; those of the fit, if it was
        only checked and is not the posterior.
        """
        weights, fitted = self.verdict.weights, stages.TRAIL in self.state
        if fitted and self._code == weighing.GAUSSIAN:
            return checking.gaussian(self.state)
        return weights

    @property
    def status(self) -> str:
        """How far the draws can be trusted.

        ==============================  =======================================================
        "exact", "adapted"              they are of the posterior; "adapted" after refits
        "gaussian"                      they are of the best approximation; see `k_hat` and `ess`
        "several modes"                 they are of those modes that were found; there may be more
        "uneven weights"                sites are left out, and too few of the run's points are
                                        where the posterior of the others is; see `k_hat` and `ess`
        "no mode"                       the density has no maximum that was found
        "not identified: NAMES"         it is constant in a direction of these entries of sites
        "mode", ...                     the run ended in this stage
        "exact, without 1 site", ...    these have rows, and were away in the end
        ==============================  =======================================================

        Without some of the sites (`without`) it is that of the weights that are left, by the same
        rule.
        """
        return self._word + (f", without {plural(self._away, 'site')}" if self._away else "")

    @property
    def _away(self) -> int:
        """Number of sites that are missing in the posterior."""
        return int(self.state["heard"][2] - self.state["heard"][0]) if "heard" in self.state else 0

    @property
    def _word(self) -> str:
        if (stage := int(self.state["stage"][0])) != stages.DONE:
            return STAGES[stage]
        word = WORDS[self._code]
        if self._code != weighing.FREE:
            return word
        return f"{word}: {', '.join(weighing.free(self.state['free'], self.traced.slots))}"

    @property
    def uneven(self) -> bool:
        """Whether sites are left out and the weights that are left do not do."""
        return bool(self.left_out) and self._code == weighing.UNEVEN

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
        verb = "was" if self._away == 1 else "were"
        away = f"{plural(self._away, 'site')} {verb} not heard: the posterior is that of the others"
        return "; ".join(filter(None, (self.lack, away if self._away else "")))

    @property
    def lack(self) -> str:
        """What speaks against the draws as those of the sites that were heard, in words."""
        status = self._word
        if status in STAGES:
            return f"it ended in the stage {status!r}; try more rounds"
        if status in TRUSTED:
            return ""
        if "points" not in self.state:
            edge = ", at an edge beyond which the density is not finite"
            return f"its status is {status!r}" + (edge if self.state["verdict"][1:].any() else "")
        told = f"its status is {status!r} (k-hat {self.k_hat:.2f}, ESS {self.ess:.0f})"
        weights = self.verdict.weights
        leaves = {name: leaf.reshape(len(leaf), -1) for name, leaf in self.values.items()}
        if few := [name for name in leaves if weighing.sparse(weights, leaves[name])]:
            told += f"; sds of {', '.join(few)} rest on few points"
        if self.uneven:
            return f"{told}; {self._consequence}"
        if self.weights is weights:
            return told
        return f"{told}; by the weights, a mean is {self._moved(weights):.2g} sds off"

    @property
    def _consequence(self) -> str:
        """What uneven weights mean for the draws, and what to do, in words."""
        if self._without_rows:
            return "no rows are left; try draw_prior(key), which draws the prior"
        remedy = "try a fit of the other sites alone"
        if self.k_hat > weighing.GOOD:
            return f"the points are not where the posterior of the other sites is; {remedy}"
        error = self.ess**-0.5
        return f"means are off by about {error:.1g} sds, sds by more; {remedy}"

    @property
    def _without_rows(self) -> bool:
        """Whether the rows of all sites are left out."""
        density, points = self._left["value"][:FEW], self.state["points"][:FEW]
        with doubled():
            prior = torch.stack([self.traced.log_prior(point) for point in points])
        return bool(((density - prior).abs() < CLOSE).all())

    @checked(memory=MEMORY)
    def without(self, memory: Mapping[str, Tensor]) -> Self:
        """Return the posterior without the rows of a site, without another round: its log
        likelihoods are taken out of the weights. Its `status` says whether the weights that are
        left do.

        Parameters
        ----------
        memory
            What the site keeps: ``result.snapshot.memories["name"]``.

        Raises
        ------
        PosteriorError
            If the site keeps no log likelihoods of these points, as under secure sums, is left out
            already, or is that of `at_client`.

        Warns
        -----
        UndeterminedWarning
            If the weights that are left do not do: the status is "uneven weights".
        """
        posterior = self.leave_out(memory)
        if posterior.uneven:
            text = f"posterior without a site: {posterior.lack}"
            warnings.warn(text, UndeterminedWarning, stacklevel=3)
        return posterior

    def leave_out(self, memory: Mapping[str, Tensor]) -> Self:
        """Return what `without` does, with its errors, and do not warn: for a caller that shows the
        status.
        """
        likelihood, mark = self._of(memory, "value"), self._mark(memory)
        if mark in self.left_out:
            raise is_left_out()
        if self._is_own(memory):
            raise is_its_own()
        return replace(self, left_out=self.left_out | {mark: likelihood})

    def _mark(self, memory: Mapping[str, Tensor]) -> str:
        """Return what no other site has."""
        return "/".join(map(str, self._of(memory, "mark").tolist()))

    def _is_own(self, memory: Mapping[str, Tensor]) -> bool:
        """Return whether the own latents are those of the site that keeps this."""
        return bool(self.own) and all(
            torch.equal(self._of(memory, f"own/{name}"), leaf) for name, leaf in self.own.items()
        )

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
            If the client keeps no draws of these points, or its rows are left out: its own latents
            are then those of a new site.
        """
        if self.left_out and self._mark(memory) in self.left_out:
            raise is_left_out()
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

    def sites_in(self, memories: Mapping[str, Mapping[str, Tensor]]) -> list[str]:
        """Return the names of the sites that can be left out: they keep log likelihoods of these
        points, and are not left out already.

        Parameters
        ----------
        memories
            What sites keep, by name: ``result.snapshot.memories``.
        """
        return [
            name
            for name in self.kept(memories)
            if self._mark(memories[name]) not in self.left_out and not self._is_own(memories[name])
        ]

    def without_each(self, memories: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Self]:
        """Return the posteriors without each site that keeps log likelihoods, as ``without NAME``;
        `bayesfed.inspect.plot_intervals` draws them, and marks those whose `status` says that the
        weights do not do.

        Parameters
        ----------
        memories
            What sites keep, by name: ``result.snapshot.memories``.
        """
        return {
            f"without {name}": self.leave_out(memories[name]) for name in self.sites_in(memories)
        }

    def by_site(
        self, memories: Mapping[str, Mapping[str, Tensor]]
    ) -> dict[str, dict[str, float | str]]:
        """Return what each site's rows say beside those of all others, by its name, of the sites
        that keep log likelihoods; `score_table` prints it.

        =============  ===========================================================================
        figure         what
        =============  ===========================================================================
        elpd, error    log density in nats of the site's rows, given those of all others, and its
                       standard error: low where the site is unlike them, for the number of its rows
        shift          sds by which the mean of a value moves without the site, the largest
        k_hat, ess     of the posterior without the site (`without`), on which the others rest
        status         of that posterior: under "uneven weights" the others are inexact
        =============  ===========================================================================

        Parameters
        ----------
        memories
            What sites keep, by name: ``result.snapshot.memories``.
        """
        weights, table = self.verdict.weights, Named[dict[str, float | str]]()
        kept = self.kept(memories)
        for name in self.sites_in(memories):
            likely, other = kept[name], self.leave_out(memories[name])
            table[name] = {
                "elpd": self.log_evidence[0] - other.log_evidence[0],
                "error": float((torch.softmax(weights.log() - likely, 0) - weights).norm()),
                "shift": self._moved(other.verdict.weights),
                "k_hat": other.k_hat,
                "ess": other.ess,
                "status": other.status,
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
