"""The posterior of pooled rows, without pooling them, with nothing to choose.

==========================  =============================================================
stage                       what sites answer
==========================  =============================================================
form (one round)            shape and type of their rows
mode (4 to 16)              log likelihood at candidates, gradient and Hessian at one
Gaussian (1 to 4)           the same in expectation over 64 quasi-random points
importance (1, or up to 5)  log likelihood at 4,096 points that a seed names
==========================  =============================================================

With more than 50 shared values, a fit of independent Gaussians by `PVI` stands for the two stages
in the middle, and one importance round is its check. Of a guide that is fitted already only that is
left, around its mean and covariance.

Every answer is added up over sites; the prior, with its Jacobian, is the server's, once. A site's
own latents are integrated at the site before it answers (`inference.exact.own`).
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

from bayesfed.algorithms.federated_svi.exact.local import AnswerLocal, answer_shapes
from bayesfed.algorithms.federated_svi.exact.looks import FIT, Fits, Looks
from bayesfed.algorithms.federated_svi.exact.server import AnswerServer
from bayesfed.algorithms.wrappers.secure_sums.recipe import secure as masked
from bayesfed.compress import Cast
from bayesfed.data import Dataset
from bayesfed.data.dataset import unchecked
from bayesfed.errors import ArgumentError, complain
from bayesfed.federated import (
    Algorithm,
    Assignment,
    Digital,
    Link,
    Phase,
    Profile,
    Skip,
    Whole,
    everyone,
)
from bayesfed.federated.core import MODEL, Conditions, owned
from bayesfed.federated.core.layering import of_core
from bayesfed.federated.core.settings import with_settings
from bayesfed.federated.training.observations import counting
from bayesfed.inference.exact import checking, stages
from bayesfed.inference.exact.asking import LOWEST
from bayesfed.inference.exact.at_values import gaussian_of
from bayesfed.inference.exact.form import Form
from bayesfed.inference.exact.posterior import ExactPosterior
from bayesfed.inference.exact.traced import traced
from bayesfed.inference.variational import FittedGuide, Program, Runs
from bayesfed.inference.variational.posterior import MeanPrediction
from bayesfed.keys import Key
from bayesfed.trees import Tree, under

# Rows for each shared value below which a site is warned of, as DataSHIELD refuses regressions with
# more than a third as many coefficients.
FEW = 3


def exact_svi(
    model: Runs,
    fit: Fits,
    guide: Runs | FittedGuide | None,
    client_plate: str,
    link: Link | None,
    observations: int | None,
    example: Dataset | None,
    least_rows: int | None,
    secure: int | None,
    vault: str | Path | None = None,
) -> Algorithm:
    """Return the method; parameters are those of `federated_svi`, and `fit` makes the fit of
    a model with many shared values, of its argument `example`.

    Raises
    ------
    ArgumentError
        If the model is no function of inputs and targets.
    PosteriorError
        If the model cannot be used with the example.
    """
    # It checks that the model can be called.
    Program(model, model)
    # Under masks nothing is cast, and sums have 64 bits.
    looks, up = Looks(model, client_plate, fit), Cast(64 if secure else 32)
    start = {"stage": stages.numbers(stages.FORM, 0, 0)}
    if isinstance(guide, FittedGuide):
        example = unchecked(*guide.pair.example)
        known = traced(model, Form.of(example), client_plate)
        start |= checking.around(*gaussian_of(guide, known, stages.LARGEST))
    elif example is not None:
        looks.check(example)

    @with_settings(looks=looks, up=up)
    def assign(state: Tree, round: int, profile: Profile, key: Key) -> Assignment | Skip:
        if int(state["stage"][0]) == stages.FIT:
            phase, own = looks.fit(state["form"]).phase, under(state, FIT)
            return phase.assign(own, int(state["stage"][1]), profile, key)
        return Assignment(Whole(answer_shapes(state)), 1.0, Cast(64), up)

    def weighed(state: Tree) -> ExactPosterior:
        return ExactPosterior(model, client_plate, state, f"{MODEL}/")

    def posterior(state: Tree) -> ExactPosterior | FittedGuide:
        if int(state["stage"][0]) != stages.FIT:
            return weighed(state)
        return looks.fit(state["form"]).posterior(state)

    phase = Phase(
        "answer",
        assign,
        AnswerLocal(looks, least_rows),
        AnswerServer(looks, example),
        link or Digital(max_norm=1e20),
    )
    made = of_core(
        "federated_svi",
        start,
        (phase,),
        lambda state: MeanPrediction(posterior(state)),
        posterior,
    )
    shown = () if secure or least_rows is not None else (partial(_warn_of_few, looks),)
    made = counting(
        replace(
            made,
            checks=(_check_sampler, partial(_note_sites, looks), *shown),
            unfinished=lambda state, rounds: weighed(owned(state, MODEL)).lack,
            finished=lambda state: int(owned(state, MODEL)["stage"][0]) == stages.DONE,
        ),
        observations,
    )
    if secure is None:
        if vault is not None:
            hint = "secure=, the largest number of sites, or no vault"
            raise ArgumentError("federated_svi, vault", "sums under masks", "no secure=", hint)
        return made
    return masked(made, participants=secure, largest=-LOWEST, bits=64, vault=vault)


def _note_sites(looks: Looks, run: Conditions) -> None:
    """Note the sites of the pool, for the server to know of one that is never heard: those of this
    run alone, since a method may be run again on fewer sites.
    """
    looks.there.clear()
    looks.there.update({one.name: one.samples for one in run.profiles})


def _warn_of_few(looks: Looks, run: Conditions) -> None:
    """Warn, before the first question, of sites whose answers give their rows away."""
    # What the server found out in the round before.
    for made in looks.traces.values() if run.round == 1 else ():
        least = FEW * made.size
        few = [f"{one.name!r} {one.samples}" for one in run.profiles if 0 < one.samples < least]
        if few:
            expected = f"{least} rows a site, {FEW} for each shared value"
            found = ", ".join(few[:3]) + (f" and {len(few) - 3} more sites" if few[3:] else "")
            hint = "secure=, a larger site, or least_rows=, with which it is as you say"
            warnings.warn(complain("federated_svi", expected, found, hint), stacklevel=2)


def _check_sampler(conditions: Conditions) -> None:
    if conditions.sampler is not everyone:
        expected, hint = "every site in every round", "sampler=everyone"
        raise ArgumentError("federated_svi of a model alone", expected, "a sampler", hint)
