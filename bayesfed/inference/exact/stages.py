"""The three stages as steps of one state: the mode from several starts, the Gaussian, importance
rounds. The state has the question that all parties are asked next; `told` takes it to the next one.

========================  ==========================================================================
leaf                      what
========================  ==========================================================================
``stage``                 its number; rounds of the stage; rounds since the first mode
``centre``, ``basis``,    the question of each start or component (`asking`)
``shift``, ``scale``
``notes``                 notes of each start (`steps`); shares of components
``mode/...``              modes found: centre, basis, level (log joint density)
``mix/...``               components of all proposals so far: centre, basis, number of points
``points``, ``value``     points of all importance rounds, log joint density at each
``verdict``               status, k-hat, ESS, log evidence and its error; without a mode, the status
                          and whether the density was not finite at values that were tried last
========================  ==========================================================================
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesfed.inference.exact import points, steps, weighing
from bayesfed.inference.exact.asking import LOWEST
from bayesfed.inference.exact.checking import answered, judge
from bayesfed.trees import Tree

FORM, MODE, GAUSSIAN, IMPORTANCE, DONE, FIT = range(6)
# Most shared unconstrained values whose Hessians every site sends, and whose independent Gaussians
# are checked.
LARGEST, WIDEST = 50, 20_000
# Name of the moves of the last rounds of such a fit.
TRAIL = "trail"
# Most rounds of the first two stages, and those that other starts have once there is a mode.
CLIMBS, GRACE, WIDENS = 30, 4, 14
# Smallest share of a further mode, by Laplace, that is proposed from; that of the mode beside the
# first refit, which is 1: its curvature reaches into tails that few points of the Gaussian are in.
LEAST, BESIDE = 1e-6, 0.4
QUESTION = ("centre", "basis", "shift", "scale", "lengths", "notes")


def starts(size: int, prior: Tensor | None = None) -> Tree:
    """Return the first state of the stage of the mode: the origin and quasi-random starts, half of
    them as far apart as the prior is wide, since a mode may be where no other start leads.

    Parameters
    ----------
    size
        Number d of values.
    prior
        Sorted values of each, ``(n, d)``, of draws of the prior; None if there are none.
    """
    count = 12 if size <= 4 else 6 if size <= 12 else 2 if size <= 20 else 1
    places = points.uniform(11, size, 5)[: count - 1]
    others = 4 * places - 2
    if prior is not None:
        half = count // 2
        others[:half] = prior.gather(0, (places[:half] * len(prior)).long())
    centres = torch.cat([torch.zeros(1, size, dtype=torch.float64), others])
    eye = torch.eye(size, dtype=torch.float64)
    made = stacked([steps.begun(centre, eye) for centre in centres])
    return made | {"stage": numbers(MODE, 0, 0)}


def stacked(several: list[Tree]) -> Tree:
    """Return trees of equal leaves as one."""
    return {name: torch.stack([one[name] for one in several]) for name in several[0]}


def apart(state: Tree, names: tuple[str, ...] = QUESTION) -> list[Tree]:
    """Return the starts of a state."""
    return [{name: state[name][number] for name in names} for number in range(len(state[names[0]]))]


def numbers(*values: float) -> Tensor:
    """Return numbers in 64 bits."""
    return torch.tensor(values, dtype=torch.float64)


def _dealt(share: Tensor, total: int) -> Tensor:
    """Return even numbers of points, at least 2, whose sum is the total."""
    made = (share / share.sum() * total / 2).round().clamp_min(1) * 2
    made[int(share.argmax())] += total - made.sum()
    return made


def again(state: Tree) -> Tree:
    """Return the first state of the stage of the mode, from where the last question was."""
    size = state["centre"].shape[1]
    start = steps.begun(state["centre"][0], torch.eye(size, dtype=torch.float64))
    return stacked([start]) | {"stage": numbers(MODE, 0, 0), "form": state["form"]}


def told(
    state: Tree,
    answer: Tree,
    prior: Tensor | float = 0.0,
    values: weighing.Values = weighing.same,
) -> Tree:
    """Return the next state.

    Parameters
    ----------
    state
        The state.
    answer
        Sum of the answers of all parties; in importance rounds without the prior's.
    prior
        Log prior density at the points of an importance round.
    values
        What second moments of such points are taken of. Default: the points.
    """
    stage, rounds, grace = (int(number) for number in state["stage"])
    state = state | {"stage": numbers(stage, rounds + 1, grace)}
    if stage == MODE:
        return _climbed(state, answer)
    if stage == GAUSSIAN:
        (start,), (told,) = apart(state), apart(answer, tuple(answer))
        made, still = steps.widened(start, told)
        if still or rounds + 1 >= WIDENS:
            return _proposing(state | stacked([made]), made, still)
        return state | stacked([made])
    return _weighed(state, answer, prior, values)


def _climbed(state: Tree, answer: Tree) -> Tree:
    """Climb with all starts; end when all have arrived, or others had their time."""
    names = ("mode/centre", "mode/basis", "mode/level")
    modes = apart(state, names) if names[0] in state else []
    starts = list[Tree]()
    for start, told in zip(apart(state), apart(answer, tuple(answer)), strict=True):
        made, level = steps.climbed(start, told), told["level"].sum()
        status = made["notes"][steps.STATUS]
        if level < LOWEST / 2 or status == steps.LOST or any(_near(made, mode) for mode in modes):
            continue
        made["level"] = level + told["value"][0]
        if status == steps.ARRIVED:
            modes.append(_mode(made))
        elif status == steps.FREE:
            state = state | {"free": made["basis"]}
        else:
            starts.append(made)
    _, rounds, grace = (int(number) for number in state["stage"])
    grace += bool(modes)
    if grace > GRACE:
        # Those that are above every mode go on.
        highest = max(float(mode["mode/level"]) for mode in modes)
        starts = [start for start in starts if float(start["level"]) > highest]
    ended = not starts or rounds >= CLIMBS
    if ended and not modes:
        # One that is nearly there may do.
        near = [start for start in starts if start["notes"][steps.AWAY] < 1]
        modes += [_mode(start) for start in sorted(near, key=lambda one: -float(one["level"]))[:1]]
    state = state | {"stage": numbers(MODE, rounds, grace)} | (stacked(modes) if modes else {})
    if not ended:
        return state | stacked([{name: one[name] for name in QUESTION} for one in starts])
    if not modes:
        code = weighing.FREE if "free" in state else weighing.NO_MODE
        edge = bool((answer["value"] < LOWEST / 2).any())
        return state | {"stage": numbers(DONE, 0, 0), "verdict": numbers(code, edge)}
    best = _laplace(state, best_mode(state))
    start = steps.begun(best["centre"], best["basis"], steps.DAMPINGS)
    return state | stacked([start]) | {"stage": numbers(GAUSSIAN, 0, 0)}


def _mode(start: Tree) -> Tree:
    return {f"mode/{name}": start[name] for name in ("centre", "basis", "level")}


def best_mode(state: Tree) -> int:
    """Return the place of the highest mode."""
    return int(state["mode/level"].argmax())


def _near(start: Tree, mode: Tree) -> bool:
    away = torch.linalg.solve(mode["mode/basis"], start["centre"] - mode["mode/centre"])
    return float(away.norm()) < 1


def _proposing(state: Tree, made: Tree, still: bool) -> Tree:
    """Begin the first importance round: the Gaussian, and the other modes. A step that nobody has
    looked at is taken only where it is small.
    """
    lengths = made["lengths"]
    place = int(lengths.argmax() if still else lengths.argmin())
    first = {
        "centre": made["centre"] + made["basis"] @ made["shift"][place],
        "basis": made["basis"] * made["scale"][place],
    }
    share, best = _shares(state), best_mode(state)
    each = [(first, share[best])]
    for k in range(len(share)):
        if k != best and share[k] > LEAST:
            each.append((_laplace(state, k), share[k].clamp_min(0.05)))
    return _asked(state, each)


def _laplace(state: Tree, mode: int) -> Tree:
    return {name: state[f"mode/{name}"][mode] for name in ("centre", "basis")}


def _asked(state: Tree, each: list[tuple[Tree, Tensor]]) -> Tree:
    """Return a state that asks for an importance round of these components and shares."""
    total = points.MORE if "points" in state else points.POINTS
    many = _dealt(torch.stack([share for _, share in each]), total)
    asked = [
        {
            "centre": one["centre"],
            "basis": _lower(one["basis"]),
            "notes": number[None],
        }
        for (one, _), number in zip(each, many, strict=True)
    ]
    rounds = float(state["stage"][1]) if state["stage"][0] == IMPORTANCE else 0.0
    return state | stacked(asked) | {"stage": numbers(IMPORTANCE, rounds, 0)}


def _lower(basis: Tensor) -> Tensor:
    """Return the lower triangular root of the same covariance, which sums of other rounding, whose
    eigenvectors may be turned, change little.
    """
    root: Tensor = torch.linalg.qr(basis.T).R
    return (torch.where(root.diagonal() < 0, -1.0, 1.0)[:, None] * root).T.contiguous()


def seed(number: int) -> int:
    """Return the seed of the points of an importance round."""
    return 1000 * (1 + number)


def _weighed(state: Tree, answer: Tree, prior: Tensor | float, values: weighing.Values) -> Tree:
    """Weigh all points so far. End if those of this round say by themselves that they are of the
    posterior; if not, ask for points of a mixture that is fitted to all.
    """
    number = int(state["stage"][1]) - 1
    more = answered(state, answer, prior, seed(number))
    if number:
        more = {name: torch.cat([state[name], leaf]) for name, leaf in more.items()}
    state = state | more
    found, good = judge(state, values)
    status = trusted_status(state) if good else weighing.GAUSSIAN
    state = state | {"verdict": numbers(status, *found[:4])}
    hopeless = number >= weighing.REFITS or found.ess < state["points"].shape[1]
    if hopeless or status != weighing.GAUSSIAN:
        return state | {"stage": numbers(DONE, number + 1, 0)}
    each = weighing.refitted(state["points"], found.weights)
    if not number:
        each.append((_laplace(state, best_mode(state)), numbers(BESIDE)[0]))
    return _asked(state, each)


def trusted_status(state: Tree) -> int:
    """Return the status of points that are of the posterior (`checking.judge`)."""
    if "mode/level" in state and int((_shares(state) > LEAST).sum()) > 1:
        return weighing.SEVERAL
    return weighing.ADAPTED if state["stage"][1] > 1 else weighing.EXACT


def _shares(state: Tree) -> Tensor:
    """Return the share of each mode by Laplace's approximation."""
    heights = state["mode/level"] + torch.linalg.slogdet(state["mode/basis"]).logabsdet
    return torch.softmax(heights, 0)
