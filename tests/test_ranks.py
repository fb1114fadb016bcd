"""Several processes give the bits of one: states, memories and records, with failures and after a restart."""

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import bayesfed as bf
from bayesfed.errors import ArgumentError
from bayesfed.federated.clients import process_group
from bayesfed.federated.clients.process_group import Group, portable
from bayesfed.testing import recipes
from tests.ranks_job import SAMPLE, hard_cases, whole_runs

ROOT = Path(__file__).parent.parent


def job(ranks, *arguments, restarts=0):
    """Start a job of so many processes on this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    command = [*launcher, str(ROOT / "tests" / "ranks_job.py"), *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finished(process, out, ranks):
    text, _ = process.communicate(timeout=500)
    assert process.returncode == 0, text[-4000:]
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
    same = all(list(one) == list(two) and all(torch.equal(leaf, two[name]) for name, leaf in one.items()) for one, two in trees)
    return same and left[2] == right[2]


def agree(expected, several):
    wrong = [
        (rank, name) for rank, outcome in enumerate(several) for name, one in expected.items() if not equal(one, outcome[name], memories=rank == 0)
    ]
    assert not wrong


def test_two_ranks_give_the_bits_of_one_process(tmp_path):
    process = job(2, tmp_path / "out", tmp_path / "ranks")
    expected = whole_runs(lambda pool: pool, SAMPLE) | hard_cases(lambda pool: pool, tmp_path / "alone")
    agree(expected, [runs | cases for runs, cases in finished(process, tmp_path / "out", 2)])
    assert expected["raise"][0] == "ClientError"
    assert expected["callback fails"] == "divided by zero"


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_recipe_gives_the_same_bits_on_any_number_of_ranks(ranks, tmp_path):
    names = list(recipes.tiny_recipes())
    process = job(ranks, tmp_path / "out", tmp_path, *names)
    agree(whole_runs(lambda pool: pool, names), [runs for runs, _ in finished(process, tmp_path / "out", ranks)])


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hung"])
def test_a_job_goes_on_after_a_rank_is_lost(sent, tmp_path):
    process = job(2, tmp_path / "out", tmp_path, "paced", restarts=2)
    until = time.monotonic() + 120
    while not (tmp_path / "round-3").exists() and time.monotonic() < until:
        time.sleep(0.05)
    victim = int((tmp_path / "process-1").read_text())
    os.kill(victim, sent)
    outcomes = finished(process, tmp_path / "out", 2)
    assert int((tmp_path / "process-1").read_text()) != victim
    tiny = recipes.tiny_recipes()["stc"]()
    expected = bf.run(tiny.algorithm, tiny.pool(), rounds=8, progress=False)
    states = [expected.snapshot.state, *(state for state, _, _ in outcomes)]
    assert all(torch.equal(leaf, state[name]) for state in states for name, leaf in states[0].items())
    assert outcomes[0][1].keys() == expected.snapshot.memories.keys()


@pytest.mark.slow
def test_an_experiment_file_runs_on_ranks(tmp_path):
    text = (ROOT / "examples" / "experiments" / "fed_avg.toml").read_text()
    (tmp_path / "small.toml").write_text(text.replace("rounds = 20", "rounds = 2").replace("steps = 25", "steps = 2"))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "bayesfed.cli.main"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for out, command in {"one": [sys.executable, "-m", "bayesfed.cli.main", "run"], "two": [*launcher, "run", "--ranks"]}.items():
        given = [*command, "small.toml", "--out", out, "--quiet"]
        done = subprocess.run(given, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
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
    with pytest.raises(ArgumentError, match="rank 1: expected instructions .*, as on rank 0, found 'AVX9'; try machines of one kind"):
        group.alike(own, "machines of one kind")
    with pytest.raises(ArgumentError, match="seconds above 0"):
        bf.Ranks({}, timeout_s=0)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_MAX_RESTARTS": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ArgumentError, match="try TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"):
        bf.Ranks({})


def test_errors_travel_between_ranks():
    class Local(Exception):
        pass

    assert isinstance(portable(ArgumentError("a text")), ArgumentError)
    assert str(portable(Local("a text"))) == "Local: a text"
    assert portable(None) is None
