"""Laws of views, local steps and samplers."""

from __future__ import annotations

from functools import partial

import torch

from bayesfed.data import Dataset
from bayesfed.errors import UpdateError
from bayesfed.federated import Kind, Local, LocalOptions, Sampler, View
from bayesfed.federated.aggregation.rules import added
from bayesfed.keys import Key
from bayesfed.testing.law import law, refuses, same
from bayesfed.trees import Tree


def check_view(view: View, payload: Tree, kind: Kind = "value") -> None:
    """Check that lifting is linear in the weight, that lifted updates add, and that payloads that
    do not fit are refused.

    Parameters
    ----------
    view
        The view to check.
    payload
        A payload of it.
    kind
        Kind of the updates.

    Raises
    ------
    LawError
        If a law is broken.
    """
    once, twice = view.lift(payload, 1.0, kind), view.lift(payload, 2.0, kind)
    both = added({"one": once, "another": once})
    same(both.total, twice.total, "lift(2) against lift(1) + lift(1)", tolerance=1e-6)
    for name in both.total:
        law(torch.equal(both.weight_of(name), twice.weight_of(name)), "weights add")
    same(
        once.mean(), twice.mean(), "the mean does not depend on the weight's scale", tolerance=1e-6
    )
    name = next(iter(payload))
    leaf = payload[name].float()
    bad: dict[str, Tree] = {
        "a missing leaf": {other: value for other, value in payload.items() if other != name},
        "an extra leaf": {**payload, "stranger": torch.zeros(1)},
        "a leading dimension": {**payload, name: leaf[None]},
        "NaN": {**payload, name: torch.full_like(leaf, float("nan"))},
        "Inf": {**payload, name: torch.full_like(leaf, float("inf"))},
        "complex numbers": {**payload, name: leaf.to(torch.complex64)},
        "an empty leaf": {**payload, name: torch.empty(0)},
    }
    for what, tree in bad.items():
        refuses(partial(view.lift, tree, 1.0, kind), UpdateError, what)


def check_local(
    local: Local, message: Tree, data: Dataset, options: LocalOptions | None = None
) -> None:
    """Check that a local step depends on its key only, leaves its arguments and torch's global
    generator unchanged, and works without data.

    Parameters
    ----------
    local
        The local step to check.
    message
        A message of the server.
    data
        A client's rows.
    options
        Options of the assignment.

    Raises
    ------
    LawError
        If a law is broken.
    """
    options, key = options or LocalOptions(), Key(0, "local-law")
    before = {name: leaf.clone() for name, leaf in message.items()}
    stream = torch.get_rng_state()
    first = local.fit(message, {}, data, key, options)
    law(
        torch.equal(stream, torch.get_rng_state()),
        "fit drew from torch's global generator without putting it back",
    )
    same(before, message, "fit changed the message it was given")
    torch.rand(3)
    second = local.fit(message, {}, data, key, options)
    same(first.payload, second.payload, "two fits with one key")
    same(first.memory, second.memory, "two memories with one key")
    law(
        not any(leaf.requires_grad for leaf in first.payload.values()),
        "a payload carries no gradient graph",
    )
    empty = local.fit(message, {}, data[slice(0, 0)], key, options)
    law(
        empty.payload.keys() == first.payload.keys(),
        "a client without data answers with the same leaves",
    )


def check_sampler(sampler: Sampler) -> None:
    """Check that a sampler returns distinct known clients, at least one, and depends on nothing but
    its arguments.

    Parameters
    ----------
    sampler
        The sampler to check.

    Raises
    ------
    LawError
        If a law is broken.
    """
    clients = [f"client-{i}" for i in range(17)]
    for number in range(20):
        key = Key(0, "sample", number)
        chosen = list(sampler(number, clients, key))
        law(
            bool(chosen) and len(set(chosen)) == len(chosen) and set(chosen) <= set(clients),
            f"round {number}: {chosen}",
        )
        law(
            chosen == list(sampler(number, clients, key)),
            f"round {number}: two draws with one key differ",
        )
