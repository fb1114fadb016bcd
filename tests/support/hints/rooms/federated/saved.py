"""Messages about what is saved and gone on from: checkpoints, records, snapshots."""

import functools
import shutil
import tempfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch

import bayesfed as bf
from bayesfed.federated import RecordFile, checkpoint, load
from bayesfed.federated.engine.round_loop import check_same
from tests.federated.test_migration import FOLDER
from tests.house.wrong_calls.given import CLIENTS, DATA, avg, done, go, net
from tests.support.hints.world import full_disk
from tests.support.recipes import tiny_recipes

COMPLETE = (
    "bayesfed/federated/engine/checkpoint.py",
    "bayesfed/federated/engine/files",
    "bayesfed/federated/engine/round_loop.py",
)


def fresh():
    """Return a new folder."""
    return Path(tempfile.mkdtemp())


@functools.cache
def kept():
    """Return the folder of a run of two rounds with checkpoints and records."""
    folder = fresh()
    go(rounds=2, callbacks=[checkpoint(folder)], records=folder / "records")
    return folder


def loaded(*damaged):
    """Load checkpoints of which the files with these patterns are damaged."""
    folder = fresh()
    shutil.copytree(kept(), folder, dirs_exist_ok=True)
    for pattern in damaged:
        for path in folder.glob(pattern):
            path.write_bytes(b"nothing")
    return load(folder)


def saved(folder, disk=nullcontext, **changes):
    """Run with checkpoints."""
    saver = checkpoint(folder)

    def saving(report):
        with disk():
            saver(report)

    go(callbacks=[saving], **changes)


def full_later(disk=full_disk):
    """Save a checkpoint of a second round on a disk that is full by then."""
    saver = checkpoint(fresh())
    for report in bf.federated.rounds(avg(), bf.InProcess(CLIENTS), rounds=2):
        with nullcontext() if report.round == 0 else disk():
            saver(report)


def copied():
    """Return a copy of the file of records of a run."""
    path = fresh() / "records.jsonl"
    shutil.copy(kept() / "records" / "records.jsonl", path)
    return path


def read(damage=lambda path: None):
    """Read all records of a file that was damaged after it was opened."""
    history = RecordFile(copied())
    damage(history.path)
    list(history)


def recorded(folder, disk=nullcontext, **changes):
    """Run with records."""
    with disk():
        go(records=folder, **changes)


def under_a_file():
    """Return the path of a folder that cannot be made."""
    path = fresh() / "file"
    path.touch()
    return path / "folder"


def old(change=lambda state: state, *, name="fed_avg", **changes):
    """Go on from a snapshot of 0.2."""
    tiny = tiny_recipes()[name]()
    snapshot = load(FOLDER / name)
    snapshot = replace(snapshot, state=change(snapshot.state), **changes)
    bf.run(tiny.algorithm, tiny.pool(), rounds=2, progress=False, resume=snapshot)


def anew():
    """Make a new run."""
    tiny = tiny_recipes()["fed_avg"]()
    bf.run(tiny.algorithm, tiny.pool(), rounds=1, progress=False)


def resumed(algorithm=None, snapshot=lambda: done().snapshot, **changes):
    """Go on from a run of two rounds."""
    go(algorithm, resume=snapshot(), **{"rounds": 3, **changes})


def made(count):
    """Make rounds up to this number, from a snapshot of two."""
    list(bf.federated.rounds(avg(), bf.InProcess(CLIENTS), rounds=count, resume=done().snapshot))


def finished(algorithm=None):
    """Look at the run of two rounds again, as that of an algorithm."""
    check_same(avg() if algorithm is None else algorithm, done().snapshot)


def unknown():
    """Return a snapshot without settings."""
    return replace(done().snapshot, settings={})


CASES = [
    # Checkpoints.
    (lambda: loaded("00000002.json"), "The one of round 1 is used", None),
    (lambda: loaded("*.json"), "a copy", loaded),
    (lambda: loaded("*.json"), "a new run in another folder", lambda: saved(fresh())),
    (lambda: load(kept() / "none"), "a new run in another folder", lambda: saved(fresh())),
    (lambda: saved(under_a_file()), "another folder", lambda: saved(fresh())),
    (full_later, "room there", lambda: full_later(nullcontext)),
    (
        lambda: saved(kept()),
        "resume=load(...)",
        lambda: saved(kept(), rounds=3, resume=load(kept())),
    ),
    (lambda: saved(kept()), "another folder", lambda: saved(fresh())),
    # Records.
    (lambda: recorded(under_a_file()), "another folder", lambda: recorded(fresh())),
    (lambda: recorded(fresh(), full_disk), "room on the disk", lambda: recorded(fresh())),
    (lambda: read(lambda path: path.write_bytes(b"{}\n" * 9999)), "a copy", read),
    (lambda: read(lambda path: path.write_bytes(b"")), "a copy", read),
    (
        lambda: recorded(kept() / "records"),
        "resume=newest(checkpoints) of that run",
        lambda: recorded(kept() / "records", rounds=5, resume=load(kept())),
    ),
    (lambda: recorded(kept() / "records"), "another folder", lambda: recorded(fresh())),
    # Snapshots of 0.2.
    (lambda: old(lambda state: {"x": state["1.bias"]}), "a new run", anew),
    (lambda: old(lambda state: state | {"x": state["1.bias"]}), "a new run", anew),
    (lambda: old(in_flight={"about": torch.zeros(1)}), "a new run", anew),
    # Looking at a run that is finished.
    (lambda: finished(bf.fed_l1(net())), "that of the run", finished),
    (lambda: finished(bf.fed_avg(bf.mlp([4, 3], bf.Key(0)))), "the algorithm of the run", finished),
    # Resuming.
    (made, 2),
    (
        lambda: resumed(bf.fed_prox(net(), strength=0.1)),
        "the run's own arguments",
        resumed,
    ),
    (lambda run_id: go(run_id=run_id), ""),
    (lambda run_id: resumed(run_id=run_id), "another"),
    (
        lambda: resumed(snapshot=unknown),
        "resume_anyway=True, if settings and clients are those of the run",
        lambda: resumed(snapshot=unknown, resume_anyway=True),
    ),
    (
        lambda: resumed(clients={"a": DATA}),
        "the settings and clients of the run",
        resumed,
    ),
    (
        lambda: resumed(clients={"a": DATA}),
        "resume_anyway=True",
        lambda: resumed(clients={"a": DATA}, resume_anyway=True),
    ),
    *(
        (
            lambda chosen=chosen: go(sampler=lambda round, names, key: chosen),
            "fraction(0.5)",
            lambda: go(sampler=bf.fraction(0.5)),
        )
        for chosen in ([], ["zz"], ["a", "a"], "a")
    ),
    (
        lambda: go(sampler=lambda round, names, key: []),
        "on_client_error='drop', under which such a round changes nothing",
        lambda: go(sampler=lambda round, names, key: [], on_client_error="drop"),
    ),
]
