"""Laws of pools of clients: order, determinism, failures and memories."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from bayesfed.compress import Cast
from bayesfed.data import Dataset
from bayesfed.errors import ClientError
from bayesfed.federated import ClientPool, Digital, Fit, Kind, LocalOptions, Reply, Task
from bayesfed.federated.clients import ClientSide
from bayesfed.keys import Key
from bayesfed.testing.law import law, same
from bayesfed.trees import Tree


class Counter:
    """A local step that counts its own fits in its memory, and fails on data with a
    negative sum.
    """

    kind: Kind = "value"

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
    pool, sides = make(data), {"train": ClientSide(Counter())}
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
                # The text itself stays where the rows are: on another machine, its class is told.
                law(
                    "ValueError" in outcome.reason and outcome.stage == "fit",
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
