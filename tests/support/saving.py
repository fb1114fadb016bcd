"""Snapshots on disk without a run."""
# mypy: allow-untyped-defs

from bayesfed.federated.engine.checkpoint import Checkpoints


def save(path, snapshot, *, keep=2):
    """Write a snapshot, with the history that it has, into a folder of checkpoints."""
    checkpoints = Checkpoints(path, 1, keep)
    checkpoints._begin(snapshot)
    checkpoints._write(snapshot)
