"""`AnswerServer`: adds the prior to the sum of the sites' answers, and takes the next step."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bayesfed.algorithms.federated_svi.exact.local import FORM, SITES, SQUARES
from bayesfed.errors import DataError, PosteriorError
from bayesfed.federated import Reducer
from bayesfed.federated.aggregation.servers import summed
from bayesfed.federated.core import Info
from bayesfed.inference.exact import asking, stages
from bayesfed.inference.exact.drawn import spread
from bayesfed.inference.exact.traced import Form, doubled, traced
from bayesfed.inference.variational import Runs
from bayesfed.trees import Tree

# Most shared unconstrained values, whose Hessians every site sends.
LARGEST = 50
# How often an incomplete round is asked again before the absent are left out.
PATIENCE = 3
SHOWN = ("stage", "form", "centre", "basis", "shift", "scale", "notes")


@dataclass(frozen=True)
class AnswerServer:
    """The server's half.

    A round in which a site is missing is asked again; after three such rounds the others go on,
    from the mode of theirs.

    Parameters
    ----------
    model, plate
        As of `AnswerLocal`.
    """

    model: Runs
    plate: str

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Publish the question alone."""
        return {name: state[name] for name in SHOWN if name in state}

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
        if stage == stages.FORM:
            state = self._begun(total) | {"heard": stages.numbers(heard, 0, heard)}
            return state, _info(state)
        if stage == stages.DONE:
            return state, _info(state)
        sites, missed, most = (float(number) for number in state["heard"])
        if heard != sites:
            missed += 1
            if heard > sites or missed >= PATIENCE:
                state = stages.again(state)
                sites, missed, most = heard, 0, max(heard, most)
            return state | {"heard": stages.numbers(sites, missed, most)}, _info(state)
        state = state | {"heard": stages.numbers(sites, 0, most)}
        made = traced(self.model, Form.read(state["form"]), self.plate)
        with doubled():
            total = {name: leaf.double() for name, leaf in total.items()}
            if stage == stages.IMPORTANCE:
                seed = stages.seed(int(state["stage"][1]))
                where = asking.proposed(state, stages.counts(state), seed)
                state = stages.told(state, total, asking.many(made.log_prior, 1)(where))
            else:
                own = asking.reply(made.log_prior, state, stage == stages.GAUSSIAN, 1)
                state = stages.told(state, {name: total[name] + own[name] for name in total})
        return state, _info(state)

    def _begun(self, total: Tree) -> Tree:
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
        made = traced(self.model, Form.read(form), self.plate)
        if (size := made.size) > LARGEST:
            expected = f"at most {LARGEST} shared unconstrained values"
            hint = "example=, and a guide, which serve larger models"
            raise PosteriorError("federated_svi of a model alone", expected, size, hint)
        return stages.starts(size, spread(made)) | {"form": form.double()}


def _info(state: Tree) -> Info:
    found = {"stage": float(state["stage"][0])}
    if "points" in state:
        names = ("k_hat", "ess", "log_evidence", "log_evidence_error")
        found |= dict(zip(names, map(float, state["verdict"][1:5]), strict=True))
    return {name: value for name, value in found.items() if abs(value) < float("inf")}
