"""Snapshots on disk without a run."""

from pathlib import Path

from bayesfed.federated import Snapshot
from bayesfed.federated.engine.checkpoint import Checkpoints


def save(path: Path, snapshot: Snapshot, *, keep: int = 2) -> None:
    """Write a snapshot, with the history that it has, into a folder of checkpoints."""
    checkpoints = Checkpoints(path, 1, keep)
    checkpoints._begin(snapshot)
    checkpoints._write(snapshot)
