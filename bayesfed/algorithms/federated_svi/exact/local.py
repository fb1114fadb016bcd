"""`AnswerLocal`: what a site answers in each round of the exact posterior."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from bayesfed.data import Dataset
from bayesfed.federated import Fit, Kind, LocalOptions
from bayesfed.inference.exact import asking, points, stages
from bayesfed.inference.exact.form import AXES, Form
from bayesfed.inference.exact.own import inside
from bayesfed.inference.exact.traced import doubled, traced
from bayesfed.inference.variational import Runs
from bayesfed.keys import Key
from bayesfed.trees import Shapes, Tree

# What sites say in the first round: the form of their rows, its squares, whether they have any.
FORM, SQUARES, SITES = "form", "squares", "sites"
# Names of a site's log likelihoods, and of draws of its own latents, in its memory, by the round's
# seed.
KEPT, OWN = "value", "own"


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
    model
        ``model(inputs, targets=None)``.
    plate
        Name of the plate of a site's own latents.
    """

    model: Runs
    plate: str
    kind: ClassVar[Kind] = "moments"

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Return the answer. A site without rows answers zeros.

        Raises
        ------
        DataError, PosteriorError
            If the rows or the model cannot be used.
        """
        stage, info = int(message["stage"][0]), {"samples": float(len(data))}
        if not len(data):
            shapes = answer_shapes(message)
            return Fit({name: torch.zeros(shape) for name, shape in shapes.items()}, memory, info)
        if stage == stages.FORM:
            form = torch.tensor(Form.of(data).numbers, dtype=torch.float64)
            return Fit({FORM: form, SQUARES: form.square(), SITES: torch.ones(1)}, {}, info)
        rows = data.to("cpu")
        made = traced(self.model, Form.read(message["form"]), self.plate)
        with doubled():
            made.check(rows)
            near = message["centre"][0]
            own = inside(made, rows, near) if made.own else None
            density = own.log_rows if own else partial(made.log_rows, rows)
            cost = own.cost if own else len(rows)
            if stage != stages.IMPORTANCE:
                smooth = stage == stages.GAUSSIAN
                return Fit(asking.reply(density, message, smooth, cost), memory, info)
            seed, counts = stages.seed(int(message["stage"][1])), stages.counts(message)
            answer = asking.importance(density, message, counts, seed, cost)
            kept = {f"{KEPT}/{seed}": answer["value"].float().double() + answer["level"].sum()}
            if own:
                own.check(near)
                where = asking.proposed(message, counts, seed)
                drawn = own.draws(where, key.child("own", str(seed)).generator())
                kept |= {f"{OWN}/{name}/{seed}": leaf for name, leaf in drawn.items()}
            return Fit(answer, memory | kept, info)
