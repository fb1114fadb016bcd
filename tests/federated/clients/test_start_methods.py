"""Worker processes that are not forked: the same bits as forked ones, closures included, and what
cannot reach them is said.
"""

import multiprocessing
import subprocess
import sys

import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.errors import ArgumentError
from bayesfed.federated import rounds
from tests.conftest import tree_equal
from tests.federated.clients.test_pools import (  # noqa: F401
    WORK,
    check_second_round,
    clients,
    dies,
    failing,
    hangs,
    net,
    run,
)
from tests.support.recipes import tiny_recipes

# With error feedback in the clients' memories, with Pyro, with adapters over a frozen base.
RECIPES = ["stc", "federated_svi pvi", "fs_lora"]


def two_rounds(tiny, **options):
    with tiny.pool(**options) as pool:
        return list(rounds(tiny.algorithm, pool, rounds=2))[-1].snapshot


@pytest.mark.slow
@pytest.mark.parametrize("start", ["forkserver", "spawn"])
@pytest.mark.parametrize("name", RECIPES)
def test_recipes_give_the_same_bits(name, start):
    tiny = tiny_recipes()[name]()
    there, here = two_rounds(tiny, workers=2, start=start), two_rounds(tiny)
    assert tree_equal(there.state, here.state)
    assert there.memories.keys() == here.memories.keys()
    assert here.memories or name == "fs_lora"
    assert all(
        tree_equal(there.memories[client], memory) for client, memory in here.memories.items()
    )


@pytest.mark.parametrize("start", [pytest.param("spawn", marks=pytest.mark.slow), "forkserver"])
@pytest.mark.slow
def test_closures_and_settings_travel(start):
    """A network whose class is this function's, and double precision as the default."""

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3, 6, dtype=torch.float32))
            self.scale = lambda inputs: (inputs.to(torch.get_default_dtype()) / 3).exp().float()

        def forward(self, inputs):
            return self.scale(inputs) @ self.weight.T

    tiny = tiny_recipes()["fed_avg"]()
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        algorithm = bf.fed_avg(Own(), **WORK)
        states = []
        for options in ({}, {"workers": 1, "start": start}):
            with bf.InProcess(tiny.data, **options) as pool:
                states.append(run(algorithm, pool)[-1].state)
    finally:
        torch.set_default_dtype(before)
    assert tree_equal(*states)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "words"),
    [(dies, "and so did a fresh one (exit code 7)"), (hangs, "no answer within 2 s")],
)
def test_a_worker_that_dies_or_hangs_is_replaced(net, clients, act, words):  # noqa: F811
    with bf.InProcess(clients, workers=2, start="forkserver", deadline_s=2.0) as pool:
        check_second_round(run(failing(net, act), pool), words)


class Unreadable:
    """Pickles, but cannot be unpickled."""

    def __reduce__(self):
        return int, ("not a number",)


class Unsendable:
    """Cannot be pickled."""

    def __reduce__(self):
        raise TypeError("not this one")


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (Unreadable, "data that a worker process can unpickle, found ValueError: invalid literal"),
        (
            Unsendable,
            (
                "data that can be pickled, found not this one; try start='fork' on Linux, "
                "kind='thread', or workers=0"
            ),
        ),
    ],
)
@pytest.mark.slow
def test_a_site_that_cannot_travel_is_said(net, clients, extra, words):  # noqa: F811
    with bf.InProcess(clients, workers=2, start="forkserver") as pool:
        run(bf.fed_avg(net, **WORK), pool)
        with pytest.raises(ArgumentError, match=words):
            run(failing(net, extra()), pool)
        assert not multiprocessing.active_children()


SCRIPT = """
import torch
import bayesfed as bf

class Own(torch.nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs) / 3

rows = bf.Dataset(torch.ones(8, 6), torch.zeros(8, dtype=torch.long))
pool = bf.InProcess({"a": rows}, workers=1, start="spawn")
algorithm = bf.fed_avg(Own(6, 3), training=bf.Training(steps=1))
result = bf.run(algorithm, pool, rounds=1, progress=False)
print("rounds", result.snapshot.round)
"""


def python(*arguments):
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_so(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    ended = python(str(tmp_path / "script.py"))
    assert ended.returncode == 1
    assert (
        "InProcess: expected worker processes that start, found one that ended while it "
        "started (exit code 1)"
    ) in ended.stderr
    assert "run the script's work under `if __name__ == '__main__':`" in ended.stderr


@pytest.mark.slow
def test_classes_of_a_notebook_travel():
    """The main module is no file, as in a notebook, so a worker cannot import it."""
    ended = python("-c", SCRIPT)
    assert ended.stdout.strip() == "rounds 1", ended.stderr
