"""Pools and memories: clients that raise, hang or die cost themselves alone; what was not accepted
is not remembered.
"""

import multiprocessing
import os
import signal
import threading
import time
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

import bayesfed as bf
from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError, CheckpointError, ClientError
from bayesfed.federated import ClientMemory, Slot, rounds
from bayesfed.federated.clients.workers import wait_until_gone
from tests.conftest import tree_equal
from tests.support.records import untimed

WORK = {"training": bf.Training(steps=1, batch_size=8)}
BAD = "b"


@pytest.fixture(scope="module")
def clients(digits):
    return {
        name: digits[0][slice(20 * index, 20 * index + 8)] for index, name in enumerate("abcde")
    }


@pytest.fixture
def net():
    return bf.mlp([64, 10], bf.Key(0, "net"))


class Failing:
    """A local that does something at one client in the second round."""

    kind = "value"

    def __init__(self, honest, act):
        self.honest, self.act = honest, act

    def fit(self, message, memory, data, key, options):
        # The path of a key is purpose, round, client and so on.
        if key.path[1:3] == (1, BAD):
            self.act()
        fit = self.honest.fit(message, memory, data, key, options)
        return fit._replace(memory={"fits": memory.get("fits", torch.zeros(())) + 1})


def failing(net, act):
    algorithm = bf.fed_avg(net, **WORK)
    return replace(
        algorithm,
        phases=(replace(algorithm.phases[0], local=Failing(algorithm.phases[0].local, act)),),
    )


def raises():
    raise ValueError("told to fail")


def leaves():
    raise SystemExit(3)


def hangs():
    while True:
        time.sleep(60.0)


def is_deaf():
    """Hang where an interrupt and a request to end are of no use."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hangs()


def dies():
    os._exit(7)


def is_killed():
    os.kill(os.getpid(), signal.SIGKILL)


def breaks_off(number):
    """Stop in the middle of the next answer that is sent."""
    whole = Connection._send

    def half(self, content, *rest):
        whole(self, bytes(content)[: len(content) // 2])
        os.kill(os.getpid(), number)

    Connection._send = half


def children():
    """Return the processes of ours that still are, zombies among them."""
    found = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    return [number for number in found if _parent(number) == os.getpid()]


def _parent(number):
    try:
        return int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def run(algorithm, pool, **changes):
    return list(rounds(algorithm, pool, **{"rounds": 3, "on_client_error": "drop", **changes}))


def check_second_round(reports, words):
    assert [sorted(report.refused) for report in reports] == [[], [BAD], []]
    assert words in reports[1].refused[BAD]
    counts = {
        name: float(memory["model/fits"]) for name, memory in reports[-1].snapshot.memories.items()
    }
    assert counts == {"a": 3, BAD: 2, "c": 3, "d": 3, "e": 3}


@pytest.mark.parametrize(
    "pool",
    [{}, {"workers": 2, "kind": "thread"}, {"workers": 2}, {"workers": 1, "deadline_s": 600.0}],
)
@pytest.mark.parametrize(
    ("act", "words"), [(raises, "fit: ValueError: told to fail"), (leaves, "fit: SystemExit: 3")]
)
def test_a_client_that_raises_is_named_in_every_pool(net, clients, pool, act, words):
    with bf.InProcess(clients, **pool) as crew:
        check_second_round(run(failing(net, act), crew), words)


def test_the_threads_of_a_closed_pool_are_gone_before_anything_may_fork(net, clients):
    with bf.InProcess(clients, workers=2, kind="thread") as crew:
        run(bf.fed_avg(net, **WORK), crew)
        mine = list(crew._crew._numbers)
        assert mine
        assert all(Path(f"/proc/self/task/{number}").exists() for number in mine)
    assert not any(Path(f"/proc/self/task/{number}").exists() for number in mine)
    ends = threading.Event()
    late = threading.Thread(target=ends.wait)
    late.start()
    threading.Timer(0.05, ends.set).start()
    wait_until_gone([late.native_id])
    assert ends.is_set()
    assert not late.is_alive()


@pytest.mark.parametrize(
    ("act", "deadline_s", "words"),
    [
        (dies, None, "worker: its worker process died, and so did a fresh one (exit code 7)"),
        (is_killed, None, "a fresh one (signal 9; out of memory?)"),
        (hangs, 2.0, "deadline: no answer within 2 s; its worker process was stopped"),
        pytest.param(is_deaf, 2.0, "deadline: no answer within 2 s", marks=pytest.mark.slow),
        (partial(breaks_off, signal.SIGKILL), None, "a fresh one (signal 9; out of memory?)"),
        pytest.param(
            partial(breaks_off, signal.SIGSTOP),
            2.0,
            "deadline: no answer within 2 s",
            marks=pytest.mark.slow,
        ),
    ],
)
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_worker_that_dies_or_hangs_is_replaced(
    net, clients, act, deadline_s, words, workers, monkeypatch
):
    monkeypatch.setattr("bayesfed.federated.clients.worker.GRACE_S", 0.5)
    before, handles = children(), len(os.listdir("/proc/self/fd"))
    with bf.InProcess(clients, workers=workers, deadline_s=deadline_s) as pool:
        reports = run(failing(net, act), pool)
        assert len(children()) <= len(before) + workers
    check_second_round(reports, words)
    assert children() == before
    assert len(os.listdir("/proc/self/fd")) == handles
    honest = run(
        failing(net, lambda: None),
        bf.InProcess(clients),
        sampler=lambda number, names, key: [n for n in names if (number, n) != (1, BAD)],
    )
    assert tree_equal(reports[-1].state, honest[-1].state)


@pytest.mark.parametrize("act", [dies, pytest.param(hangs, marks=pytest.mark.slow)])
def test_under_raise_the_error_is_the_clients(net, clients, act):
    before = children()
    with bf.InProcess(clients, workers=2, deadline_s=2.0) as pool:
        with pytest.raises(ClientError, match="client 'b', round 1, stage"):
            run(failing(net, act), pool, on_client_error="raise")
        # The pool is as good as new for another run.
        assert not run(failing(net, lambda: None), pool)[-1].refused
    assert children() == before


def test_a_worker_that_dies_idle_costs_nobody(net, clients):
    def killing(number, names, key):
        for child in multiprocessing.active_children() if number else []:
            child.kill()
        return names

    with bf.InProcess(clients, workers=2) as pool:
        reports = run(failing(net, lambda: None), pool, sampler=killing)
    assert not any(report.refused for report in reports)
    assert tree_equal(
        reports[-1].state, run(failing(net, lambda: None), bf.InProcess(clients))[-1].state
    )


@pytest.mark.slow
def test_a_worker_that_does_not_read_is_replaced(clients):
    """A message that does not fit into the pipe, to a process that was stopped."""

    def stopping(number, names, key):
        for child in multiprocessing.active_children() if number == 1 else []:
            os.kill(child.pid, signal.SIGSTOP)
        return names

    net = bf.mlp([64, 4000, 10], bf.Key(0, "wide"))
    with bf.InProcess(clients, workers=1, deadline_s=2.0) as pool:
        reports = run(bf.fed_avg(net, **WORK), pool, sampler=stopping)
    assert [sorted(report.refused) for report in reports] == [[], ["a"], []]
    assert "deadline: no answer within 2 s" in reports[1].refused["a"]


def test_a_round_that_is_given_up_leaves_no_answers(net, clients):
    """Workers are still at its tasks when the next round begins."""
    algorithm = failing(net, lambda: None)
    with bf.InProcess(clients, workers=2) as pool:
        whole = pool.map

        def interrupted(locals, tasks):
            yield next(whole(locals, tasks))
            raise KeyboardInterrupt

        pool.map = interrupted
        with pytest.raises(KeyboardInterrupt):
            run(algorithm, pool)
        del pool.map
        reports = run(algorithm, pool)
    assert tree_equal(reports[-1].state, run(algorithm, bf.InProcess(clients))[-1].state)


def test_a_forgotten_pool_takes_its_workers_along(net, clients):
    before = children()
    pool = bf.InProcess(clients, workers=2)
    run(failing(net, lambda: None), pool)
    assert len(children()) == len(before) + 2
    del pool
    assert children() == before


def test_workers_end_with_their_server(net, clients):
    """The server is killed while a client hangs: no process of its own stays behind."""
    ours, theirs = multiprocessing.Pipe()
    server = os.fork()
    if not server:

        def say():
            theirs.send(os.getpid())
            hangs()

        run(failing(net, say), bf.InProcess(clients, workers=2))
        os._exit(0)
    worker = ours.recv()
    os.kill(server, signal.SIGKILL)
    os.waitpid(server, 0)
    for _ in range(3000):
        try:
            state = Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":
            # Ended, and left to whoever reaps orphans on this machine.
            return
        time.sleep(0.01)
    os.kill(worker, signal.SIGKILL)
    pytest.fail("the worker outlived its server")


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_any_number_of_workers_gives_the_same_history(net, clients, workers):
    algorithm = bf.stc(net, share=0.1, **WORK)
    whole = run(algorithm, bf.InProcess(clients))
    with bf.InProcess(dict(reversed(clients.items())), workers=workers) as pool:
        found = run(algorithm, pool)
    assert [untimed(report.record) for report in found] == [
        untimed(report.record) for report in whole
    ]
    assert all(
        tree_equal(found[-1].snapshot.memories[name], memory)
        for name, memory in whole[-1].snapshot.memories.items()
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"deadline_s": 1.0},
            r"process workers, which can be stopped, found kind='process', workers=0",
        ),
        ({"deadline_s": 1.0, "workers": 2, "kind": "thread"}, "kind='thread', workers=2"),
        ({"deadline_s": 0.0, "workers": 2}, "deadline_s: expected a number in"),
        ({"deadline_s": float("nan"), "workers": 2}, "deadline_s: expected a number in"),
        (
            {"start": "thread", "workers": 2},
            "InProcess, start: expected .*'spawn'.*, found 'thread'",
        ),
    ],
)
def test_pools_that_cannot_be_had_are_refused(clients, options, words):
    with pytest.raises(ArgumentError, match=words):
        bf.InProcess(clients, **options)


def test_a_message_that_reaches_no_process_is_said(net, clients):
    algorithm = bf.fed_avg(net, codec=Unsendable(), **WORK)
    with (
        bf.InProcess(clients, workers=1) as pool,
        pytest.raises(ArgumentError, match="codecs and links that reach a process"),
    ):
        run(algorithm, pool)


class Unsendable(bf.Cast):
    """A codec that cannot be pickled."""

    def __init__(self):
        super().__init__(32)

    def __reduce__(self):
        raise TypeError("not this one")


# Memories


@pytest.fixture
def make(tmp_path):
    """Make a memory that is opened anew for every call, as another process would."""

    class Reopened:
        def __init__(self, keep=1):
            self.keep = keep

        def __getattr__(self, name):
            return getattr(ClientMemory(tmp_path, keep=self.keep), name)

    return Reopened


def slot(round, phase="train"):
    return Slot(round, phase)


def value(number):
    return {"x": torch.tensor(float(number))}


def test_a_memory_counts_when_the_server_counts_on_it(make):
    memory = make()
    assert (memory.read(), memory.accepted) == ({}, None)
    memory.pend(slot(0), value(0))
    assert (memory.read(), memory.accepted) == ({}, None)
    for _ in range(2):
        memory.agree(slot(0))
        assert (memory.read(), memory.accepted) == (value(0), slot(0))
    memory.pend(slot(1), value(1))
    memory.pend(slot(1), value(1.5))
    for _ in range(2):
        memory.agree(slot(0))
        assert (memory.read(), memory.accepted) == (value(0), slot(0))
    with pytest.raises(CheckpointError, match="memory: expected one of"):
        memory.agree(slot(1))
    memory.pend(slot(1), value(1))
    memory.pend(slot(2, "a b/.é"), {})
    with pytest.raises(CheckpointError, match="memory: expected one of"):
        memory.agree(slot(1))
    memory.agree(slot(2, "a b/.é"))
    assert (memory.read(), memory.accepted) == ({}, slot(2, "a b/.é"))


def test_a_client_agrees_with_what_the_server_says(make):
    """A straggler is where it was, and a server that went back takes its clients along."""
    memory = make(keep=3)
    for number in range(4):
        memory.pend(slot(number), value(number))
        for _ in range(2):
            memory.agree(slot(number))
            assert (memory.read(), memory.accepted) == (value(number), slot(number))
    memory.pend(slot(4), value(4))
    for _ in range(2):
        memory.agree(slot(3))
        assert (memory.read(), memory.accepted) == (value(3), slot(3))
    memory.pend(slot(4), value(4))
    memory.agree(slot(2))
    assert (memory.read(), memory.accepted) == (value(2), slot(2))
    for gone in (0, 3, 4):
        with pytest.raises(CheckpointError, match="which the server counts on"):
            memory.agree(slot(gone))
    memory.agree(slot(1))
    memory.agree(None)
    assert (memory.read(), memory.accepted) == ({}, None)


def test_a_damaged_memory_is_refused(tmp_path):
    memory = ClientMemory(tmp_path / "new")
    memory.pend(slot(0), value(1))
    memory.agree(slot(0))
    (path,) = (tmp_path / "new").iterdir()
    raw = path.read_bytes()
    for damage in (raw[:-1], b"", raw.replace(b"train", b"trail"), bytes([raw[0] ^ 1]) + raw[1:]):
        path.write_bytes(damage)
        with pytest.raises(CheckpointError, match="expected undamaged files"):
            memory.read()
    path.write_bytes(raw)
    path.rename(path.with_name(path.name.replace("00000001", "00000002")))
    with pytest.raises(CheckpointError, match="expected undamaged files"):
        memory.read()
    (tmp_path / "new" / "other.memory").write_bytes(raw)
    with pytest.raises(CheckpointError, match="files of ours"):
        memory.read()
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(CheckpointError, match="expected undamaged files"):
        ClientMemory(tmp_path / "file")


def test_rows_of_none_are_a_client_too(net, clients):
    """An empty client in worker processes: nothing to learn from, nothing to crash on."""
    with bf.InProcess(
        {**clients, "empty": Dataset(torch.empty(0, 8, 8), torch.empty(0).long())}, workers=2
    ) as pool:
        assert not run(bf.fed_avg(net, **WORK), pool)[-1].refused


@pytest.mark.parametrize("name", ["fed_hm", "flex_lora", "fed_rlr"])
def test_servers_give_the_same_bits_on_any_number_of_threads(name, digits):
    """Products of matrices, which the servers of these take, differ in their last bits between
    thread counts.
    """
    net = bf.mlp([64, 128, 64, 10], bf.Key(0, "net"))
    parts = bf.federate(digits[0], bf.iid(len(digits[0]), 4, bf.Key(0, "parts")))
    recipes = {
        "fed_hm": lambda: bf.fed_hm(
            net,
            [1, 1 / 2],
            bf.fixed(sorted(parts), 2),
            whole=["5"],
            convention="matrix",
            training=bf.Training(steps=3),
        ),
        "flex_lora": lambda: bf.flex_lora(
            bf.lora(net, 8, bf.Key(0, "lora")),
            [8, 4],
            bf.fixed(sorted(parts), 2),
            training=bf.Training(steps=3, batch_size=16),
        ),
        "fed_rlr": lambda: bf.fed_rlr(net, 8, training=bf.Training(steps=3)),
    }
    before, found = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(bf.run(recipes[name](), parts, rounds=2, progress=False).snapshot.state)
    finally:
        torch.set_num_threads(before)
    assert tree_equal(*found)
