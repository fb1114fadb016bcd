"""Damaged checkpoints and full disks, for `recovery.py`."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import torch
from tqdm import tqdm

import bayesfed as bf
from bayesfed.errors import CheckpointError, CheckpointWarning
from bayesfed.federated import RoundReport, Snapshot, checkpoint, load, rounds
from bayesfed.federated.engine.files.records import to_line
from tests.support.codecs.damage import damaged
from tests.support.saving import save


def reports(number: int) -> list[RoundReport]:
    """Return the reports of a small run whose clients keep something."""
    train, _ = bf.digits()
    clients = {
        name: train[slice(start, start + 20)] for name, start in (("a", 0), ("b", 50), ("c", 100))
    }
    algorithm = bf.stc(
        bf.mlp([64, 8, 10], bf.Key(0, "net")),
        share=0.05,
        training=bf.Training(steps=2, batch_size=8),
    )
    return list(rounds(algorithm, bf.InProcess(clients), rounds=number))


def same(left: Snapshot, right: Snapshot) -> bool:
    """Compare states and client memories, bit for bit."""
    trees = [
        (left.state, right.state),
        *((left.memories.get(name, {}), memory) for name, memory in right.memories.items()),
    ]
    alike = all(
        a.keys() == b.keys() and all(torch.equal(leaf, b[name]) for name, leaf in a.items())
        for a, b in trees
    )
    return alike and left.memories.keys() == right.memories.keys() and left.round == right.round


def damages(folder: Path, number: int) -> int:
    """Damage the newest checkpoint in `number` seeded ways; return how often it was found out and
    the previous one used.
    """
    made, saver, found = reports(3), checkpoint(folder), 0
    for report in made:
        saver(report)
    newest, before = made[-1].snapshot.round, made[-2]
    # The first and the third save wrote to the first of the two history files.
    hurt = [
        folder / f"{newest:08d}.json",
        next(folder.glob(f"{newest:08d}-*.safetensors")),
        folder / "history-0.jsonl",
    ]
    sound = {path: path.read_bytes() for path in hurt}
    for trial in tqdm(range(number), desc="damages"):
        random = bf.Key(trial, "damage").numpy()
        path = hurt[int(random.integers(len(hurt)))]
        content: bytes | None = None
        # What only follows a history is no part of the checkpoint: the next one overwrites it.
        while (
            content is None
            or content == sound[path]
            or (path.suffix == ".jsonl" and content.startswith(sound[path]))
        ):
            content = damaged(sound[path], random)
        path.write_bytes(content) if random.random() < 0.95 else path.unlink()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            loaded = load(folder)
        history = [to_line(record) for record in loaded.history] == [
            to_line(report.record) for report in made[:-1]
        ]
        warned = any(issubclass(warning.category, CheckpointWarning) for warning in said)
        found += warned and history and same(loaded, before.snapshot)
        path.write_bytes(sound[path])
    return found


def full_disks(folder: Path, number: int) -> int:
    """Let the disk be full from a seeded byte of a save on; return how often that was said and the
    previous checkpoint whole.
    """
    first, second = (report.snapshot for report in reports(2))
    save(folder / "whole", first)
    with Full(1 << 60) as meter:
        save(folder / "whole", second)
    intact = 0
    for trial in tqdm(range(number), desc="full disks"):
        here = folder / str(trial)
        save(here, first)
        try:
            with Full(int(bf.Key(trial, "full").numpy().integers(meter.gone))):
                save(here, second)
            continue
        except CheckpointError as problem:
            said = "No space left on device" in str(
                problem
            ) and f"the checkpoint of round {first.round} is whole" in str(problem)
        with warnings.catch_warnings():
            # Tensors may be there, whose record did not fit any more.
            warnings.simplefilter("ignore", CheckpointWarning)
            whole = same(load(here), first)
        save(here, second)
        intact += said and whole and same(load(here), second)
    return intact


class Full:
    """Inside the block, bytes after the first `room` go to /dev/full."""

    def __init__(self, room: int) -> None:
        self.room, self.gone, self._write = room, 0, os.write

    def __enter__(self) -> Full:
        os.write = self._called  # type: ignore[assignment]
        return self

    def __exit__(self, *error: object) -> None:
        os.write = self._write

    def _called(self, file: int, content: bytes) -> int:
        fits = bytes(content)[: self.room - self.gone]
        self.gone += len(fits)
        if len(fits) == len(content):
            return self._write(file, content)
        self._write(file, fits)
        full = os.open("/dev/full", os.O_WRONLY)
        try:
            return self._write(full, bytes(content)[len(fits) :])
        finally:
            os.close(full)
