"""The posterior of pooled rows, without pooling them, with nothing to choose.

==========================  =============================================================
stage                       what sites answer
==========================  =============================================================
form (one round)            shape and type of their rows
mode (4 to 16)              log likelihood at candidates, gradient and Hessian at one
Gaussian (1 to 4)           the same in expectation over 64 quasi-random points
importance (1, or up to 5)  log likelihood at 4,096 points that a seed names
==========================  =============================================================

Every answer is added up over sites; the prior, with its Jacobian, is the server's, once. A site's
own latents are integrated at the site before it answers (`inference.exact.own`).
"""

from __future__ import annotations

from dataclasses import replace

from bayesfed.algorithms.federated_svi.exact.local import AnswerLocal, answer_shapes
from bayesfed.algorithms.federated_svi.exact.server import AnswerServer
from bayesfed.compress import Cast
from bayesfed.errors import ArgumentError
from bayesfed.federated import (
    Algorithm,
    Assignment,
    Digital,
    Link,
    Phase,
    Profile,
    Whole,
    everyone,
)
from bayesfed.federated.core import MODEL, Conditions, owned
from bayesfed.federated.core.layering import of_core
from bayesfed.inference.exact import stages
from bayesfed.inference.exact.posterior import ExactPosterior
from bayesfed.inference.variational import Program, Runs
from bayesfed.inference.variational.posterior import MeanPrediction
from bayesfed.keys import Key
from bayesfed.trees import Tree


def exact_svi(model: Runs, client_plate: str, link: Link | None) -> Algorithm:
    """Return the method; parameters are those of `federated_svi`.

    Raises
    ------
    ArgumentError
        If the model is no function of inputs and targets.
    """
    # It checks that the model can be called.
    Program(model, model)

    def assign(state: Tree, round: int, profile: Profile, key: Key) -> Assignment:
        return Assignment(Whole(answer_shapes(state)), 1.0, Cast(64), Cast(32))

    def posterior(state: Tree) -> ExactPosterior:
        return ExactPosterior(model, client_plate, state, f"{MODEL}/")

    def unfinished(state: Tree, rounds: int) -> str:
        return posterior(owned(state, MODEL)).doubt

    phase = Phase(
        "answer",
        assign,
        AnswerLocal(model, client_plate),
        AnswerServer(model, client_plate),
        link or Digital(max_norm=1e20),
    )
    made = of_core(
        "federated_svi",
        {"stage": stages.numbers(stages.FORM, 0, 0)},
        (phase,),
        lambda state: MeanPrediction(posterior(state)),
        posterior,
    )
    return replace(
        made,
        checks=(_check_sampler,),
        unfinished=unfinished,
        finished=lambda state: int(owned(state, MODEL)["stage"][0]) == stages.DONE,
    )


def _check_sampler(conditions: Conditions) -> None:
    if conditions.sampler is not everyone:
        expected, hint = "every site in every round", "sampler=everyone"
        raise ArgumentError("federated_svi of a model alone", expected, "a sampler", hint)
