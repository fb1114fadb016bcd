"""One importance round around a Gaussian that the server knows: the check of any fit.

`around` makes the question, which is all that sites need beside the seed; they answer
`asking.importance`, answers are added, and `checked` says what the sum, with the prior, tells of
the fit. The names of a state's leaves are those of `stages`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesfed.inference.exact import points, weighing
from bayesfed.inference.exact.asking import proposed
from bayesfed.trees import Tree, under


def around(centre: Tensor, basis: Tensor) -> Tree:
    """Return the question of an importance round.

    Parameters
    ----------
    centre
        Mean of the Gaussian, ``(d,)``, in the unconstrained values of `traced`.
    basis
        A root of its covariance, ``(d, d)``; or the sds of independent values, ``(d,)``.
    """
    count = torch.tensor([[float(points.number(len(centre)))]], dtype=torch.float64)
    return {"centre": centre[None].double(), "basis": basis[None].double(), "notes": count}


def counts(question: Tree) -> list[int]:
    """Return how many points each component of an importance round has."""
    return [int(number) for number in question["notes"][:, 0]]


def answered(question: Tree, answer: Tree, prior: Tensor | float, seed: int) -> Tree:
    """Return the points of an importance round, the log joint density at each, and what they were
    drawn from.

    Parameters
    ----------
    question
        The question.
    answer
        Sum of the answers of all parties that have rows.
    prior
        Log prior density at the points (`asking.proposed`); 0 if it is in the answer.
    seed
        Seed of the points.
    """
    return {
        "points": proposed(question, counts(question), seed),
        "value": answer["value"] + answer["level"].sum() + prior,
        "mix/centre": question["centre"],
        "mix/basis": question["basis"],
        "mix/share": question["notes"][:, 0],
    }


def checked(
    question: Tree,
    answer: Tree,
    prior: Tensor | float,
    seed: int,
    values: weighing.Values = weighing.same,
) -> Tree:
    """Return what `answered` does, and the ``verdict`` on the points: the status, which is "exact"
    or "gaussian", k-hat, effective sample size, log evidence and its standard error. Second
    moments are checked of `values` of the points.
    """
    found = answered(question, answer, prior, seed)
    verdict, good = judge(question | found, values)
    code = weighing.EXACT if good else weighing.GAUSSIAN
    return found | {"verdict": torch.tensor([code, *verdict[:4]], dtype=torch.float64)}


def judge(state: Tree, values: weighing.Values = weighing.same) -> tuple[weighing.Verdict, bool]:
    """Return what the weights of all points say, and whether the points, with these weights, are of
    the posterior (`weighing.trusted`): the one rule behind every status that says so, of a run and
    of a posterior without some of the sites.

    Parameters
    ----------
    state
        Points of all rounds with the log joint density at each, what they were drawn from, and the
        question of the last round.
    values
        What second moments of points are checked of.
    """
    verdict, asked = weights(state), sum(counts(state))
    last = {
        "points": state["points"][-asked:],
        "value": state["value"][-asked:],
        "mix/centre": state["centre"],
        "mix/basis": state["basis"],
        "mix/share": state["notes"][:, 0],
    }
    alone = verdict if asked == len(state["points"]) else weights(last)
    return verdict, weighing.trusted(alone, verdict, lambda: values(state["points"]))


def weights(state: Tree) -> weighing.Verdict:
    """Return what the weights of all points say, all proposals taken together."""
    return weighing.judged(state["value"] - _proposed(state))


def gaussian(state: Tree) -> Tensor:
    """Return weights with which the points are of the Gaussian that they were drawn around."""
    (centre,), (basis,) = state["mix/centre"], state["mix/basis"]
    squares = weighing.whitened(state["points"] - centre, basis).square().sum(1)
    return torch.softmax(-squares / 2 - _proposed(state), 0)


def _proposed(state: Tree) -> Tensor:
    """Return the log density of all proposals at all points, ``(n,)``."""
    return weighing.log_mixture(state["points"], under(state, "mix/"))
