"""Gradient steps of many clients at once, by `torch.func.vmap`: the part of a client's turn that
`bayesfed.federated.clients.cohorts` batches.

Every client draws its own batches from its own key, as it would alone. A batched product may add in
another order than a single one. Payloads may therefore differ in the last bits from those of
clients that train one by one (at most 1e-6 is tested), and depend on which clients train together.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import partial
from typing import NamedTuple

import pyro
import torch
from torch import Tensor
from torch.func import vmap

from bayesfed.data import Dataset
from bayesfed.data.dataset import unchecked
from bayesfed.errors import ClientError
from bayesfed.federated.clients.turn import Task, attempt, one_thread
from bayesfed.federated.core import Fit, Local, LocalOptions, seams
from bayesfed.federated.training.batches import row_numbers
from bayesfed.federated.training.descent import Descent
from bayesfed.federated.training.optimisers import Adam, Sgd
from bayesfed.inference import MaximumLikelihood, Proximal
from bayesfed.keys import Key, forked, streams
from bayesfed.models.live import generators_in, networks_in, untouched
from bayesfed.models.nets.norms import batch_norms
from bayesfed.trees import Tree


class Member(NamedTuple):
    """One client of a cohort: its task, its rows, and its decoded message with options, on the
    device of the rows.
    """

    task: Task
    data: Dataset
    message: Tree
    options: LocalOptions


def obstacle(local: Local) -> str:
    """Return why a local step cannot be batched, or an empty string if no reason is known.
    `together` may still fail.

    What can be batched is `Descent` with `Sgd` or `Adam` on `MaximumLikelihood` or `Proximal`, for
    networks without dropout and batch norm.
    """
    descent: Descent | None = seams.descent_of(local)
    if descent is None:
        return f"{type(local).__name__} does more than gradient steps"
    if descent.bfloat16 or not descent.plain:
        return "rows are augmented, taken in parts or in bfloat16"
    found = descent.objective
    objective = found.inner if isinstance(found, Proximal) else found
    if not isinstance(objective, MaximumLikelihood):
        return f"{type(objective).__name__} is no point objective"
    if type(descent.optimiser) not in (Sgd, Adam):
        return f"{type(descent.optimiser).__name__} is not known to work entry by entry"
    steps = descent.optimiser
    clips = isinstance(steps, Sgd | Adam) and steps.clip < math.inf
    if clips or (isinstance(steps, Adam) and steps.weight_decay):
        return "gradients are clipped, or weights decay by their shape"
    return "the network has batch norm" if batch_norms(objective.net) else ""


def shape_of(local: Local, member: Member) -> tuple[Hashable, ...]:
    """Return what must be equal for clients that train together: phase, rows of a step, shapes,
    dtypes, devices and options.
    """
    leaves = tuple((name, leaf.shape, leaf.dtype) for name, leaf in member.message.items())
    rows = tuple(
        (values.shape[1:], values.dtype, values.device)
        for values in (member.data.inputs, member.data.targets)
    )
    return member.task.phase, rows_of(local, member), leaves, rows, member.options


def rows_of(local: Local, member: Member) -> int:
    """Return the number of rows that a client takes per step."""
    descent: Descent | None = seams.descent_of(local)
    rows = len(member.data)
    return min(rows, descent.batch_size or rows) if descent else rows


def together(local: Descent, members: Sequence[Member]) -> list[Fit | ClientError]:
    """Train clients of one shape at once.

    Each client returns what it would return alone, up to rounding. A client that fails does not
    affect the others.

    Parameters
    ----------
    local
        Local step without an `obstacle`.
    members
        Clients for which `shape_of` is equal.

    Raises
    ------
    Exception
        Any error of `vmap` or the network if the network cannot be batched: a branch on a value,
        ``.item()``, a draw without a key.
    """
    seed, networks, own = members[0].task.key, networks_in(local), generators_in(local)
    with one_thread(), forked(seed), untouched(networks) as changed:
        state = streams(own)
        begun = [attempt(member.task, "fit", partial(_begin, local, member)) for member in members]
        sound = [
            (member, start)
            for member, start in zip(members, begun, strict=True)
            if not isinstance(start, ClientError)
        ]
        if streams(own) == state:
            ended = iter(_steps(local, sound) if sound else ())
        drew = streams(own) != state
    if drew or changed:
        # Each client has random numbers of its own, or is refused by name.
        raise RuntimeError("the network draws random numbers (dropout), or changes its buffers")
    return [start if isinstance(start, ClientError) else next(ended) for start in begun]


def _begin(local: Descent, member: Member) -> tuple[Tree, Tree]:
    """Return the leaves of one client before its first step: trained, and fixed."""
    trained, fixed = local.objective.start(member.message)
    local.objective.check(trained, fixed, member.data)
    return trained, fixed


def _steps(
    local: Descent, sound: Sequence[tuple[Member, tuple[Tree, Tree]]]
) -> list[Fit | ClientError]:
    members = [member for member, _ in sound]
    rate, steps = local.asked(members[0].options)
    trained, fixed = (_stacked([start[place] for _, start in sound]) for place in (0, 1))
    leaves = [leaf.requires_grad_() for leaf in trained.values()]
    optimiser, (rows, order) = local.optimiser.build(leaves, rate), _rows(local, members, steps)
    # A point objective uses neither.
    observations, noise = 1.0, Key(0).generator()

    def score(trained: Tree, fixed: Tree, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        with local.objective.held(trained):
            loss, nll = local.objective.loss(
                trained, fixed, unchecked(inputs, targets), observations, noise
            )
        return loss, nll

    scores, losses = vmap(score), []
    # Distributions that check the values of their arguments cannot be batched. The data were
    # checked before.
    with pyro.validation_enabled(False):
        for step in range(steps):
            optimiser.zero_grad()
            taken = (
                _taken(values, order[step], len(members)) for values in (rows.inputs, rows.targets)
            )
            loss, nll = scores(trained, fixed, *taken)
            # Clients share no leaves, so a client's slice of the gradient of the sum is the
            # gradient of its own loss.
            loss.sum().backward()
            optimiser.step()
            losses.append(torch.stack([loss.detach(), nll.detach()]))
    means = torch.stack(losses).mean(0).T.tolist()
    fits = []
    for number, (member, (_, kept)) in enumerate(sound):
        own = {name: leaf.detach()[number] for name, leaf in trained.items()}
        work = partial(local.ended, own, kept, member.message, member.data, *means[number])
        fits.append(attempt(member.task, "fit", work))
    return fits


def _rows(local: Descent, members: Sequence[Member], steps: int) -> tuple[Dataset, Tensor]:
    """Return all clients' rows as one set, and the row numbers that the clients take at each step,
    ``(steps, K B)``.
    """
    orders, first = [], 0
    for member in members:
        generator = member.task.key.child("fit", "batches").generator()
        orders.append(row_numbers(len(member.data), local.batch_size, steps, generator) + first)
        first += len(member.data)
    rows = unchecked(
        torch.cat([member.data.inputs for member in members]),
        torch.cat([member.data.targets for member in members]),
    )
    return rows, torch.cat(orders, dim=1).to(rows.inputs.device)


def _taken(values: Tensor, rows: Tensor, clients: int) -> Tensor:
    """Return the rows of each client, ``(K, B, ...)``. This is several times faster than indexing
    by a matrix.
    """
    return values.index_select(0, rows).view(clients, -1, *values.shape[1:])


def _stacked(trees: Sequence[Tree]) -> Tree:
    return {name: torch.stack([tree[name] for tree in trees]) for name in trees[0]}
