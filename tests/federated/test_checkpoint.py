"""Checkpoints: resuming is bit-exact from any moment, damage is found, a full disk costs nothing
that was there.
"""

import errno
import itertools
import os
import shutil
import signal
import warnings
from dataclasses import replace

import pytest
import torch

import bayesfed as bf
from bayesfed.data import files
from bayesfed.errors import ArgumentError, CheckpointError, CheckpointWarning
from bayesfed.federated import (
    ClientMemory,
    Snapshot,
    checkpoint,
    early_stop,
    load,
    newest,
    rounds,
)
from bayesfed.federated.engine.files.records import from_line, to_line
from tests.conftest import tree_equal
from tests.support.records import untimed
from tests.support.saving import save

WORK = bf.Training(steps=1, batch_size=8)


@pytest.fixture(scope="module")
def clients(digits):
    return {name: digits[0][slice(start, start + 8)] for name, start in (("a", 0), ("b", 50))}


@pytest.fixture
def net():
    return bf.mlp([64, 10], bf.Key(0, "net"))


def remembering(net):
    """FedAvg whose clients keep what their messages left out."""
    return bf.stc(net, share=0.1, training=WORK)


def run(net, clients, rounds=4, **changes):
    return bf.run(remembering(net), clients, rounds=rounds, progress=False, **changes)


def same(left, right):
    assert tree_equal(left.snapshot.state, right.snapshot.state)
    assert left.snapshot.memories.keys() == right.snapshot.memories.keys() != set()
    assert all(
        tree_equal(memory, right.snapshot.memories[name])
        for name, memory in left.snapshot.memories.items()
    )
    assert [to_line(untimed(record)) for record in left.history] == [
        to_line(untimed(record)) for record in right.history
    ]


def snapshot(round=1, value=1.0, **changes):
    return Snapshot("a", 0, round, {"w": torch.full((3,), value)}, **changes)


def kept(folder):
    return sorted(path.name for path in folder.glob("*.json"))


def test_whatever_a_snapshot_holds_comes_back(tmp_path):
    shared = torch.arange(6.0)
    state = {
        "z": shared.reshape(2, 3).T,
        "a": shared[1:3],
        "bool": torch.tensor([True, False]),
        "scalar": torch.tensor(2, dtype=torch.int64),
        "empty": torch.empty(0, 4),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "a/b \u00e9": shared,
    }
    memories = {'x/"y"': {"m/n": torch.ones(2, dtype=torch.float64)}, "nothing": {}}
    given = Snapshot("name", -3, 7, state, {"x": 4}, memories, run="id")
    save(tmp_path, given)
    found = load(tmp_path)
    assert list(found.state) == list(state)
    assert all(
        found.state[name].dtype == leaf.dtype and torch.equal(found.state[name], leaf)
        for name, leaf in state.items()
    )
    assert list(found.memories) == list(memories)
    assert tree_equal(found.memories['x/"y"'], memories['x/"y"'])
    assert (found.algorithm, found.seed, found.round, found.versions, found.run) == (
        "name",
        -3,
        7,
        {"x": 4},
        "id",
    )
    assert all(leaf.is_contiguous() for leaf in found.state.values())


def test_a_record_survives_to_the_bit(net, clients):
    record = run(net, clients, 1).history[0]
    odd = replace(
        record,
        server={"nan": float("nan"), "third": 1 / 3, "tiny": 5e-324, "whole": 3},
        metrics={"inf": float("inf")},
    )
    for each in (record, odd):
        assert to_line(from_line(to_line(each))) == to_line(each)
    assert from_line(to_line(record)) == record


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("keep", [1, 2, 3])
def test_a_resumed_run_is_the_uninterrupted_one(net, clients, digits, tmp_path, every, keep):
    """Parameters, client memories and history, metrics that were entered after the checkpoint
    callback among them.
    """

    def late(report):
        report.metrics["late"] = report.round / 3

    whole = run(net, clients, 7, test=digits[1], callbacks=[late])
    for stop in (3, 5, 7):
        found = run(
            net,
            clients,
            stop,
            test=digits[1],
            callbacks=[checkpoint(tmp_path, every=every, keep=keep), late],
            resume=newest(tmp_path),
        )
    assert len(kept(tmp_path)) == min(keep, 7 // every)
    same(found, whole)
    last = load(tmp_path)
    assert len(last.history) == last.round == 7 // every * every
    same(run(net, clients, 7, test=digits[1], callbacks=[late], resume=last), whole)
    # Nothing is left to do, and nothing is done.
    done = run(net, {}, last.round, resume=last) if last.round == 7 else None
    assert done is None or done.snapshot is last


def test_a_result_may_be_continued_and_saved(net, clients, tmp_path):
    whole = run(net, clients, 3)
    half = run(net, clients, 2)
    same(run(net, clients, 3, resume=half.snapshot), whole)
    save(tmp_path, half.snapshot)
    same(run(net, clients, 3, resume=load(tmp_path)), whole)


class Stopped(Exception):
    """The process is gone."""


def following(folder, reports):
    """Save reports that follow what is in the folder, as a run that was resumed from it does."""
    found = newest(folder)
    history, saver = found.history if found else (), checkpoint(folder)
    for report in reports[found.round if found else 0 :]:
        saver(replace(report, snapshot=replace(report.snapshot, history=history)))


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace", "ftruncate"])
def test_a_crash_at_any_call_leaves_a_checkpoint(net, clients, tmp_path, monkeypatch, call):
    """Every system call of four rounds' checkpoints is made the last one in turn."""
    reports, original = (
        list(rounds(remembering(net), bf.InProcess(clients), rounds=4)),
        getattr(os, call),
    )
    for number in itertools.count():
        folder, calls = tmp_path / str(number), itertools.count()

        def dying(*arguments, calls=calls, number=number):
            if next(calls) < number:
                return original(*arguments)
            if call == "write":
                original(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
            raise Stopped

        with monkeypatch.context() as patch:
            patch.setattr(files.os, call, dying)
            try:
                following(folder, reports)
                break
            except Stopped:
                pass
        with warnings.catch_warnings():
            # A record that was not written yet is said, and is nothing to worry about here.
            warnings.simplefilter("ignore", CheckpointWarning)
            following(folder, reports)
        found = load(folder)
        assert tree_equal(found.state, reports[-1].state)
        assert [to_line(record) for record in found.history] == [
            to_line(report.record) for report in reports
        ]
        # One too many, if all that was left to do was to remove it.
        assert kept(folder)[-2:] == ["00000003.json", "00000004.json"]
    assert number >= 2


def test_a_killed_process_resumes(net, clients, tmp_path):
    whole = run(net, clients, 4)
    child = os.fork()
    if not child:
        run(
            net,
            clients,
            4,
            callbacks=[
                checkpoint(tmp_path),
                lambda report: report.round == 2 and os.kill(os.getpid(), signal.SIGKILL),
            ],
        )
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert load(tmp_path).round == 2
    same(run(net, clients, 4, callbacks=[checkpoint(tmp_path)], resume=load(tmp_path)), whole)


def damages(folder):
    """Return every way to hurt the newest checkpoint, by name."""
    record, turn = folder / "00000003.json", 0
    (tensors,) = folder.glob("00000003-*.safetensors")
    (older,) = folder.glob("00000002-*.safetensors")
    history = folder / f"history-{turn}.jsonl"

    def flipped(path, place):
        raw = bytearray(path.read_bytes())
        raw[place] ^= 1
        path.write_bytes(raw)

    return {
        **{
            f"{path.suffix} bit {place}": lambda path=path, place=place: flipped(path, place)
            for path, place in itertools.product((record, tensors, history), (0, 9, -2))
        },
        **{
            f"{path.suffix} cut": lambda path=path: os.truncate(path, path.stat().st_size - 1)
            for path in (record, tensors, history)
        },
        **{
            f"{path.suffix} empty": lambda path=path: path.write_bytes(b"")
            for path in (record, tensors, history)
        },
        **{f"{path.suffix} gone": path.unlink for path in (record, tensors, history)},
        **{
            f"{path.suffix} longer": lambda path=path: path.write_bytes(path.read_bytes() + b" ")
            for path in (record, tensors)
        },
        "json older": lambda: shutil.copy(folder / "00000002.json", record),
        "tensors older": lambda: shutil.copy(older, tensors),
        "json nonsense": lambda: record.write_text('{"format": 1}'),
        "json list": lambda: record.write_text("[]"),
    }


def test_damage_is_found_and_the_previous_one_used(net, clients, tmp_path):
    whole = run(net, clients, 3, callbacks=[checkpoint(tmp_path / "sound")])
    for name in damages(tmp_path / "sound"):
        folder = tmp_path / name
        shutil.copytree(tmp_path / "sound", folder)
        damages(folder)[name]()
        with pytest.warns(
            CheckpointWarning,
            match=r"00000003.json: expected an undamaged checkpoint.* The one of round 2 is used",
        ):
            found = load(folder)
        assert found.round == 2
        same(run(net, clients, 3, callbacks=[checkpoint(folder)], resume=found), whole)
        assert load(folder).round == 3
        for path in folder.glob("*.safetensors"):
            path.write_bytes(b"nothing")
        with pytest.raises(
            CheckpointError, match=r"expected a checkpoint, found .*round|00000003.*00000002"
        ):
            load(folder)
        with pytest.raises(CheckpointError, match="expected a checkpoint"):
            newest(folder)


def test_no_checkpoint_is_said(tmp_path):
    with pytest.raises(CheckpointError, match="no such folder"):
        load(tmp_path / "none")
    with pytest.raises(CheckpointError, match="no checkpoint"):
        load(tmp_path)
    assert newest(tmp_path) is newest(tmp_path / "none") is None


def test_another_runs_checkpoints_are_not_written_over(net, clients, tmp_path):
    run(net, clients, 3, callbacks=[checkpoint(tmp_path)])
    for changes in ({}, {"seed": 1}):
        with pytest.raises(
            CheckpointError,
            match=r"those this run goes on from, found one of 'stc', seed 0, round 3",
        ):
            run(net, clients, 4, callbacks=[checkpoint(tmp_path)], **changes)
    with pytest.raises(CheckpointError, match="found one of 'stc'"):
        bf.run(
            bf.fed_avg(net, training=WORK),
            clients,
            rounds=9,
            progress=False,
            callbacks=[checkpoint(tmp_path)],
        )
    assert kept(tmp_path) == ["00000002.json", "00000003.json"]
    assert load(tmp_path).round == 3


@pytest.mark.parametrize("problem", [errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("round", [2, 3], ids=["the same round anew", "the next round"])
@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
def test_a_disk_that_cannot_be_written_costs_nothing(tmp_path, monkeypatch, problem, round, call):
    """From every call of a save on the disk is full, or read-only."""
    original = getattr(os, call)
    for number in itertools.count():
        folder, calls = tmp_path / str(number), itertools.count()
        save(folder, snapshot(1))
        save(folder, snapshot(2))

        def failing(*arguments, calls=calls, number=number):
            if next(calls) < number:
                return original(*arguments)
            if call == "write":
                original(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
            raise OSError(problem, os.strerror(problem))

        with monkeypatch.context() as patch:
            patch.setattr(files.os, call, failing)
            try:
                save(folder, snapshot(round, 9.0))
                break
            except CheckpointError as problem_said:
                said = str(problem_said)
        # Once its record has its name a checkpoint is there, whether or not the folder could be
        # synced after it.
        named = call in ("open", "fsync") and number == 5
        assert (f"checkpoint of round {round} in" in said, os.strerror(problem) in said) == (
            True,
            True,
        )
        with warnings.catch_warnings():
            # Tensors without a record: said when loading, too.
            warnings.simplefilter("ignore", CheckpointWarning)
            found = load(folder)
        if not named:
            assert "the checkpoint of round 2 is whole" in said
            assert (found.round, float(found.state["w"][0])) == (2, 1.0)
        save(folder, snapshot(4))
        assert load(folder).round == 4
        assert len(kept(folder)) == 2
    assert number


def test_a_full_disk_is_said_with_its_own_words(tmp_path):
    """The kernel's own refusal: a file size limit, in a child that can be thrown away."""
    save(tmp_path, snapshot(1))
    child = os.fork()
    if not child:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, 1 << 12))
        try:
            save(tmp_path, replace(snapshot(2), state={"w": torch.zeros(1 << 14)}))
        except CheckpointError as said:
            os._exit(
                3
                if "File too large" in str(said)
                and "the checkpoint of round 1 is whole" in str(said)
                else 4
            )
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert load(tmp_path).round == 1
    assert not list(tmp_path.glob(".*"))


def test_a_run_goes_on_after_a_full_disk(net, clients, tmp_path):
    whole = run(net, clients, 4)
    saver = checkpoint(tmp_path / "run")
    for report in rounds(remembering(net), bf.InProcess(clients), rounds=4):
        if report.round == 1:
            (tmp_path / "run").rename(tmp_path / "away")
            (tmp_path / "run").write_text("no folder")
            with pytest.raises(CheckpointError, match="checkpoint of round 2 in"):
                saver(report)
            (tmp_path / "run").unlink()
            (tmp_path / "away").rename(tmp_path / "run")
        else:
            saver(report)
    found = load(tmp_path / "run")
    assert tree_equal(found.state, whole.snapshot.state)
    assert [to_line(untimed(record)) for record in found.history] == [
        to_line(untimed(record)) for record in whole.history
    ]


def test_early_stopping_counts_on_after_resuming(net, clients):
    def flat(report):
        report.metrics["flat"] = 1.0

    def tried(**changes):
        return run(net, clients, 9, callbacks=[flat, early_stop("flat", patience=4)], **changes)

    assert (
        len(tried().history)
        == len(tried(resume=run(net, clients, 3, callbacks=[flat]).snapshot).history)
        == 5
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: checkpoint("x", keep=0), "checkpoint, keep"),
        (lambda: ClientMemory(None, keep=0), "Memory, keep"),
    ],
)
def test_bad_arguments_are_refused(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
