"""`AnswerLocal`: what a site answers in each round of the exact posterior."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from bayesfed.algorithms.federated_svi.exact.looks import FIT, Looks, in_type
from bayesfed.data import Dataset
from bayesfed.errors import DataError
from bayesfed.federated import Fit, Kind, LocalOptions
from bayesfed.inference.exact import asking, checking, points, stages
from bayesfed.inference.exact.form import AXES, Form
from bayesfed.inference.exact.own import inside
from bayesfed.inference.exact.refusals import check_started
from bayesfed.inference.exact.traced import doubled
from bayesfed.keys import Key
from bayesfed.trees import Shapes, Tree, under

# What sites say in the first round: the form of their rows, its squares, whether they have any.
FORM, SQUARES, SITES = "form", "squares", "sites"
# Names of a site's log likelihoods, of where their points are, of draws of its own latents, and of
# a number that no other site has, in its memory, by the round's seed.
KEPT, AT, OWN, MARK = "value", "at", "own", "mark"
# Says in a site's memory that model and rows fit together.
CHECKED = "checked"


def answer_shapes(state: Mapping[str, Tensor]) -> Shapes:
    """Return names and shapes of what a site answers in a state."""
    stage = int(state["stage"][0])
    if stage == stages.FORM:
        return {FORM: (2 * AXES + 4,), SQUARES: (2 * AXES + 4,), SITES: (1,)}
    if stage == stages.IMPORTANCE:
        return {"value": (int(state["notes"].sum()),), "level": (2,)}
    starts, count, size = state["shift"].shape
    replicates = points.REPLICATES if stage == stages.GAUSSIAN else 1
    return {
        "level": (starts, 2),
        "value": (starts, count),
        "slope": (starts, replicates, size),
        "curve": (starts, size * (size + 1) // 2),
    }


@dataclass(frozen=True)
class AnswerLocal:
    """Answer the question of the message from the site's rows.

    Of an importance round a site keeps its own log likelihoods: with them, the posterior without
    the site is known.

    Parameters
    ----------
    looks
        The model.
    least
        Fewest rows of a site that has any; None for no limit.
    """

    looks: Looks
    least: int | None = None
    kind: ClassVar[Kind] = "moments"

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Return the answer. A site without rows answers zeros.

        Raises
        ------
        DataError, PosteriorError
            If the rows are too few, or the rows or the model cannot be used.
        """
        stage, info = int(message["stage"][0]), {"samples": float(len(data))}
        if 0 < len(data) < (self.least or 0):
            hint = f"least_rows={len(data)}, or a run without this site"
            raise DataError("federated_svi, least_rows", f"{self.least} rows", len(data), hint)
        if stage == stages.FIT:
            fitting, given = self.looks.fit(message["form"]), under(message, FIT)
            rows, step = in_type(data, fitting.dtype), fitting.phase.local
            return step.fit(given, memory, rows, key, options)
        if not len(data):
            shapes = answer_shapes(message)
            return Fit({name: torch.zeros(shape) for name, shape in shapes.items()}, memory, info)
        if stage == stages.FORM:
            self.looks.forget()
            form = torch.tensor(Form.of(data).numbers, dtype=torch.float64)
            return Fit({FORM: form, SQUARES: form.square(), SITES: torch.ones(1)}, {}, info)
        rows, made = data.to("cpu"), self.looks.at(message["form"])
        with doubled():
            if CHECKED not in memory:
                made.check(rows, message["centre"])
                memory = memory | {CHECKED: torch.ones(1)}
            near = message["centre"][0]
            own = inside(made, rows, near) if made.own else None
            density = own.log_rows if own else partial(made.log_rows, rows)
            cost = own.cost if own else len(rows)
            if stage != stages.IMPORTANCE:
                smooth = stage == stages.GAUSSIAN
                answer = asking.reply(density, message, smooth, cost)
                if stage == stages.MODE:
                    at = own.start if own else None
                    runs = (made.run(rows, start, at).nodes for start in message["centre"])
                    check_started(answer["level"], runs, made.observed, rows)
                return Fit(answer, memory, info)
            seed, counts = stages.seed(int(message["stage"][1])), checking.counts(message)
            answer = asking.importance(density, message, counts, seed, cost)
            kept = {
                f"{KEPT}/{seed}": answer["value"].float().double() + answer["level"].sum(),
                f"{AT}/{seed}": message["centre"][0],
                f"{MARK}/{seed}": torch.tensor([key.child("mark").integer()]),
            }
            if own:
                own.check(near)
                where = asking.proposed(message, counts, seed)
                drawn = own.draws(where, key.child("own", str(seed)).generator())
                kept |= {f"{OWN}/{name}/{seed}": leaf for name, leaf in drawn.items()}
            return Fit(answer, memory | kept, info)
