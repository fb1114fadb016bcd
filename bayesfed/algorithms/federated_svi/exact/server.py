"""`AnswerServer`: adds the prior to the sum of the sites' answers, and takes the next step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch

from bayesfed.algorithms.federated_svi.exact.local import FORM, SITES, SQUARES
from bayesfed.algorithms.federated_svi.exact.looks import FIT, Looks
from bayesfed.data import Dataset
from bayesfed.errors import DataError, PosteriorError
from bayesfed.federated import Reducer, Sum, Update, published
from bayesfed.federated.aggregation.servers import summed
from bayesfed.federated.core import Info
from bayesfed.inference.exact import asking, checking, stages
from bayesfed.inference.exact.at_values import beside
from bayesfed.inference.exact.drawn import spread
from bayesfed.inference.exact.form import Form
from bayesfed.inference.exact.refusals import check_started
from bayesfed.inference.exact.traced import doubled
from bayesfed.trees import Tree, under

# How often an incomplete round is asked again before the absent are left out.
PATIENCE = 3
SHOWN = ("stage", "form", "centre", "basis", "shift", "scale", "notes")
# A fit of independent Gaussians ends when the last of its rounds moved no mean by more sds, and no
# logarithm of an sd by more, in their mean; and after so many rounds.
LAST, MOVES, FITS = 3, 0.05, 100


@dataclass(frozen=True)
class AnswerServer:
    """The server's half.

    A round in which a site is missing is asked again; after three such rounds the others go on,
    from the mode of theirs.

    Parameters
    ----------
    looks
        The model.
    example
        Rows of which the sites' rows must have the form; None for no check.
    """

    looks: Looks
    example: Dataset | None = None

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Publish the question alone, or the fit."""
        shown = {name: state[name] for name in SHOWN if name in state}
        if int(state["stage"][0]) != stages.FIT:
            return shown
        server = self.looks.fit(state["form"]).phase.server
        given = published(server, under(state, FIT), round, version)
        return shown | {f"{FIT}{name}": leaf for name, leaf in given.items()}

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the next state, and what is known of the posterior.

        Raises
        ------
        DataError
            If sites have rows of different forms, or none has any.
        PosteriorError
            If the model cannot be used, or has too many shared values.
        """
        answers = summed(reducer, "moments")
        heard, total = answers.number(), answers.total
        stage = int(state["stage"][0])
        if stage == stages.DONE:
            return state, _info(state)
        if stage == stages.FORM:
            silent = sum(map(bool, self.looks.there.values())) - float(total[SITES])
            there = stages.numbers(heard, 0, heard + max(0.0, silent))
            state = self._begun(state, total) | {"heard": there}
            return state, _info(state)
        sites, missed, most = state["heard"].tolist()
        if stage == stages.FIT:
            state = state | {"heard": stages.numbers(heard, 0, max(heard, most))}
            return self._fitted(state, answers)
        if heard != sites:
            missed += 1
            late, fit = heard > sites or missed >= PATIENCE, stages.TRAIL in state
            if late:
                sites, missed, most = heard, 0, max(heard, most)
                state = state if fit else stages.again(state)
            state = state | {"heard": stages.numbers(sites, missed, most)}
            if not (late and fit):
                return state, _info(state)
        state = state | {"heard": stages.numbers(sites, 0, most)}
        made = self.looks.at(state["form"])
        with doubled():
            total = {name: leaf.double() for name, leaf in total.items()}
            if stage == stages.IMPORTANCE:
                seed = stages.seed(int(state["stage"][1]))
                where = asking.proposed(state, checking.counts(state), seed)
                prior, values = asking.many(made.log_prior, 1)(where), partial(beside, made)
                if stages.TRAIL in state:
                    state = state | checking.checked(state, total, prior, seed, values)
                    state = state | {"stage": stages.numbers(stages.DONE, 1, 0)}
                else:
                    state = stages.told(state, total, prior, values)
            else:
                own = asking.reply(made.log_prior, state, stage == stages.GAUSSIAN, 1)
                total = {name: total[name] + own[name] for name in total}
                if stage == stages.MODE:
                    runs = (made.run(made.rows, start).nodes for start in state["centre"])
                    check_started(total["level"], runs, sorted(made.prior))
                state = stages.told(state, total)
        return state, _info(state)

    def _fitted(self, state: Tree, answers: Update) -> tuple[Tree, Info]:
        """Take a step of the fit; begin the importance round where it moves no more."""
        number, fitting = int(state["stage"][1]), self.looks.fit(state["form"])
        phase = fitting.phase
        told = Sum(replace(answers, kind=phase.local.kind))
        after, info = phase.server.step(under(state, FIT), told, number)
        moved = stages.numbers(info["moved"], info["moved_sd"])
        trail = torch.cat([state[stages.TRAIL], moved[None]])[-LAST:]
        state = state | {f"{FIT}{name}": leaf for name, leaf in after.items()}
        state |= {stages.TRAIL: trail, "stage": stages.numbers(stages.FIT, number + 1, 0)}
        still = len(trail) == LAST and bool((trail.mean(0) <= MOVES).all())
        if still or number + 1 >= FITS:
            mean, sd = fitting.gaussian(state, self.looks.at(state["form"]))
            state = state | checking.around(mean, sd)
            state = state | {"stage": stages.numbers(stages.IMPORTANCE, 0, 0)}
        return state, info | _info(state)

    def _begun(self, state: Tree, total: Tree) -> Tree:
        sites = float(total[SITES])
        if not sites:
            raise DataError("federated_svi", "a site with rows", "none", "clients with rows")
        form = total[FORM] / sites
        if not torch.equal(total[SQUARES] / sites, form.square()):
            expected, hint = (
                "rows of one shape and type at all sites",
                "the same columns everywhere",
            )
            raise DataError("federated_svi", expected, "different ones", hint)
        if self.example is not None and Form.of(self.example) != Form.read(form):
            expected, hint = "rows like those of the sites", "example=rows[:2] of a site, or none"
            actual = Form.of(self.example).words
            raise DataError("federated_svi, example", expected, actual, hint)
        made, form = self.looks.at(form), form.double()
        trail = {stages.TRAIL: torch.zeros(0, 2).double()}
        if "centre" in state:
            return state | trail | {"form": form, "stage": stages.numbers(stages.IMPORTANCE, 0, 0)}
        if (size := made.size) <= stages.LARGEST:
            return stages.starts(size, spread(made)) | {"form": form}
        if size > stages.WIDEST:
            expected = f"at most {stages.WIDEST:,} shared unconstrained values"
            hint = "example=, and a guide, which serve larger models"
            raise PosteriorError("federated_svi of a model alone", expected, size, hint)
        first = self.looks.fit(form).initial
        return first | trail | {"form": form, "stage": stages.numbers(stages.FIT, 0, 0)}


def _info(state: Tree) -> Info:
    found = {"stage": float(state["stage"][0])}
    if "points" in state:
        names = ("k_hat", "ess", "log_evidence", "log_evidence_error")
        found |= dict(zip(names, map(float, state["verdict"][1:5]), strict=True))
    return {name: value for name, value in found.items() if abs(value) < float("inf")}
