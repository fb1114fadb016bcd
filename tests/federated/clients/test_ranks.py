"""Several processes give the bits of one: states, memories and records, with failures and after a
restart.
"""

import functools
import multiprocessing
import os
import pickle
import socket
import subprocess
import sys

import pytest
import torch

import bayesfed as bf
from bayesfed.errors import ArgumentError
from bayesfed.federated.clients import process_group
from bayesfed.federated.clients.process_group import Group, portable
from bayesfed.federated.engine.files import snapshots
from tests.federated.clients import ranks_job, torchrun
from tests.federated.clients.ranks_job import SAMPLE, hard_cases, whole_runs
from tests.support import recipes

ROOT = torchrun.ROOT


def forked(ranks, out, *arguments):
    """Return the outcomes of a job of so many processes that are forked from this one."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]

    def begin(rank):
        os.environ |= {
            "RANK": f"{rank}",
            "WORLD_SIZE": f"{ranks}",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": f"{port}",
        }
        ranks_job.main(out, *arguments)

    processes = [
        multiprocessing.get_context("fork").Process(target=begin, args=(rank,), daemon=True)
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * ranks
    return [pickle.loads(out.with_suffix(f".{rank}").read_bytes()) for rank in range(ranks)]


def equal(left, right, *, memories=True):
    """Whether two outcomes are the same; memories of all clients are on rank 0 alone."""
    if not isinstance(left, tuple) or not isinstance(left[0], dict):
        return left == right
    trees = [(left[0], right[0])]
    if memories:
        if list(left[1]) != list(right[1]):
            return False
        trees += [(tree, right[1][client]) for client, tree in left[1].items()]
    same = all(
        list(one) == list(two) and all(torch.equal(leaf, two[name]) for name, leaf in one.items())
        for one, two in trees
    )
    return same and left[2] == right[2]


@functools.cache
def alone(names):
    return whole_runs(lambda pool: pool, names)


def agree(expected, several):
    wrong = [
        (rank, name)
        for rank, outcome in enumerate(several)
        for name, one in expected.items()
        if not equal(one, outcome[name], memories=rank == 0)
    ]
    assert not wrong


@pytest.mark.slow
def test_two_ranks_give_the_bits_of_one_process(tmp_path, monkeypatch):
    # Checkpoints of few clients have files as those of many.
    monkeypatch.setattr(snapshots, "SHORT", 1)
    # First of all, so that processes that are forked from this one have imported what they need.
    expected = whole_runs(lambda pool: pool, SAMPLE) | hard_cases(
        lambda pool: pool, tmp_path / "alone"
    )
    agree(expected, forked(2, tmp_path / "out", tmp_path / "ranks", "cases"))
    assert expected["raise"][0] == "ClientError"
    assert expected["callback fails"] == "divided by zero"
    for case, words in {"NaN": "finite", "overflow": "below 2^50"}.items():
        (reason,) = expected[case][2][0].refused.values()
        assert words in reason
    assert len(expected["population"][2]) == 4
    assert expected["population"][1]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_recipe_gives_the_same_bits_on_any_number_of_ranks(ranks, tmp_path):
    names = tuple(recipes.tiny_recipes())
    process = torchrun.start(ranks, tmp_path / "out", tmp_path, *names)
    agree(alone(names), torchrun.finished(process, tmp_path / "out", ranks))


@pytest.mark.slow
def test_memories_go_on_on_other_numbers_of_ranks(tmp_path):
    for ranks, rounds in ((3, 2), (2, 4), (1, 6)):
        outcomes = torchrun.finished(
            torchrun.start(ranks, tmp_path / "out", tmp_path, "until", rounds),
            tmp_path / "out",
            ranks,
        )
        expected = ranks_job.until(lambda pool: pool, tmp_path / f"alone-{rounds}", rounds)
        assert expected[1]
        agree({"run": expected}, [{"run": outcome} for outcome in outcomes])


@pytest.mark.slow
@pytest.mark.parametrize("fault", torchrun.FAULTS)
def test_a_job_goes_on_after_a_loss(fault, tmp_path):
    outcomes = torchrun.disturbed(fault, tmp_path)
    tiny = recipes.tiny_recipes()["stc"]()
    expected = ranks_job.plain(bf.run(tiny.algorithm, tiny.pool(), rounds=8, progress=False))
    agree({"run": expected}, [{"run": outcome} for outcome in outcomes])


@pytest.mark.slow
def test_an_experiment_file_runs_on_ranks(tmp_path):
    text = (ROOT / "examples" / "experiments" / "fed_avg.toml").read_text()
    (tmp_path / "small.toml").write_text(
        text.replace("rounds = 20", "rounds = 2").replace("steps = 25", "steps = 2")
    )
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "bayesfed.cli.main",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for out, command in {
        "one": [sys.executable, "-m", "bayesfed.cli.main", "run"],
        "two": [*launcher, "run", "--ranks"],
    }.items():
        given = [*command, "small.toml", "--out", out, "--quiet"]
        done = subprocess.run(
            given,
            check=False,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.count("results: ") == 1
    for seed in ("seed-0", "seed-1"):
        one, two = (tmp_path / out / "small" / seed / "model.safetensors" for out in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()
        assert len((two.parent / "rounds.jsonl").read_text().splitlines()) == 2


class Told(Group):
    """A group of two of which the other rank says what a test lets it say."""

    said = None

    def gather(self, value):
        return [value, {**value, **self.said}]

    def broadcast(self, value):
        return value


def test_ranks_that_would_differ_are_refused(monkeypatch):
    group, own = Told(0, 2), process_group.machine()
    assert own == process_group.machine()
    group.__dict__["said"] = {}
    group.alike(own, "machines of one kind")
    group.__dict__["said"] = {"instructions": "AVX9"}
    with pytest.raises(
        ArgumentError,
        match=(
            "rank 1: expected instructions .*, as on rank 0, found 'AVX9'; try machines of one kind"
        ),
    ):
        group.alike(own, "machines of one kind")
    with pytest.raises(ArgumentError, match="timeout_s: expected a number in"):
        bf.federated.Ranks({}, timeout_s=0)
    data = recipes.tiny_recipes()["fed_avg"]().data
    with monkeypatch.context() as patched:
        patched.setattr(Group, "join", lambda timeout_s: group)
        with pytest.raises(ArgumentError, match="rank 1: expected instructions"):
            bf.federated.Ranks(data)
        assert bf.federated.Ranks(data, mixed=True).owner("client-3") == 1
        group.__dict__["said"] = {}
        with pytest.raises(ArgumentError, match="clients that train one by one, found cohorts"):
            bf.federated.Ranks(bf.InProcess(data, cohort=2))
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "TORCHELASTIC_MAX_RESTARTS": "2",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ArgumentError, match="try TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"):
        bf.federated.Ranks({})


def test_errors_travel_between_ranks():
    class Local(Exception):
        pass

    assert isinstance(portable(ArgumentError("a text")), ArgumentError)
    assert str(portable(Local("a text"))) == "Local: a text"
    assert portable(None) is None


def test_each_rank_has_a_gpu_of_its_own_and_populations_stay_lazy(monkeypatch):
    """On machines without GPUs: which one would be used, and that no rows are read for it."""
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU of {device}")
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("LOCAL_RANK", "3")
    with bf.federated.Ranks(bf.data.Population(4, 2, lambda name: pytest.fail("loaded"))) as pool:
        assert chosen == [torch.device("cuda", 1)]
        assert process_group.machine()["GPU"] == "GPU of cuda:1"
        assert pool.owner("client-003") == 0


def test_a_snapshot_is_sent_once(monkeypatch):
    sent = []

    class Counting(Group):
        """A group of two of which the other rank says nothing."""

        def gather(self, value):
            return [value]

        def broadcast(self, value):
            sent.append(value[0])
            return value

    tiny = recipes.tiny_recipes()["stc"]()
    snapshot = bf.run(tiny.algorithm, tiny.pool(), rounds=1, progress=False).snapshot
    monkeypatch.setattr(Group, "join", lambda timeout_s: Counting(0, 2))
    result = bf.run(
        tiny.algorithm, bf.federated.Ranks(tiny.pool()), rounds=2, progress=False, resume=snapshot
    )
    assert len(result.history) == 2
    assert sum(isinstance(value, bf.federated.Snapshot) for value in sent) == 1
