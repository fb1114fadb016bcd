"""Laws of views, local steps, samplers and pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch

from bayesfed.compress import Cast
from bayesfed.data import Dataset
from bayesfed.errors import ClientError, UpdateError
from bayesfed.federated import (
    ClientPool,
    Digital,
    Fit,
    Kind,
    Local,
    LocalOptions,
    Reply,
    Sampler,
    Task,
    View,
)
from bayesfed.federated.aggregation.rules import added
from bayesfed.federated.clients import ClientSide
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


class _Counter:
    """A local step that counts its own fits in its memory, and fails on data with a
    negative sum.
    """

    kind: Kind = "value"
    uses_global_randomness = False

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        if float(data.inputs.sum()) < 0:
            raise ValueError("told to fail")
        count = memory.get("count", torch.zeros(())) + 1
        noise = torch.randn(2, generator=key.generator())
        return Fit(
            {"x": message["x"] + noise, "count": count},
            {"count": count},
            {"threads": float(torch.get_num_threads())},
        )


def check_pool(make: Callable[[Mapping[str, Dataset]], ClientPool]) -> None:
    """Check order, determinism, failures, and the two steps of keeping a memory, for a pool made
    from data sets.

    Parameters
    ----------
    make
        ``(data sets by client) -> pool``.

    Raises
    ------
    LawError
        If a law is broken.
    """
    data = {
        f"client-{i}": Dataset(torch.full((2, 1), -1.0 if i == 3 else 1.0), torch.zeros(2))
        for i in (5, 3, 1, 0)
    }
    pool, sides = make(data), {"train": ClientSide(_Counter())}
    names = [profile.name for profile in pool.profiles]
    law(names == sorted(data), f"profiles are in the order of their names, not {names}")
    law([profile.samples for profile in pool.profiles] == [2, 2, 2, 2], "profiles count rows")

    def ask(round: int) -> dict[str, Tree]:
        codec = Cast(32)
        tasks = [
            Task(
                name,
                round,
                "train",
                0,
                codec.encode({"x": torch.ones(2)}, {}, Key(0)),
                codec,
                codec,
                Digital(),
            )
            for name in names
        ]
        answers = {}
        for task, (asked, outcome) in zip(tasks, pool.map(sides, tasks), strict=True):
            law(asked.client == task.client, "answers come in the order of the tasks")
            if isinstance(outcome, Reply):
                law(outcome.info["threads"] == 1, "a step runs on one intra-op thread")
                answers[task.client] = codec.decode(outcome.packed, task.key)[0]
            else:
                law(
                    isinstance(outcome, ClientError) and outcome.client == "client-3",
                    f"only client-3 fails: {outcome}",
                )
                law(
                    "told to fail" in outcome.reason and outcome.stage == "fit",
                    f"a failure says where and why: {outcome}",
                )
        law(answers.keys() == set(names) - {"client-3"}, "the others answer")
        return answers

    first = ask(0)
    same(first["client-0"], ask(0)["client-0"], "one task answered twice, nothing settled")
    for name in names:
        pool.settle(name, accepted=name != "client-1")
    counts = {name: float(tree["count"]) for name, tree in ask(1).items()}
    law(
        counts == {"client-0": 2, "client-1": 1, "client-5": 2},
        f"memory is kept only where it was accepted: {counts}",
    )
    saved = pool.memories()
    law(set(saved) == {"client-0", "client-5"}, f"memories of accepted clients: {sorted(saved)}")
    pool.restore({})
    law(float(ask(2)["client-0"]["count"]) == 1, "restore replaces every memory")
