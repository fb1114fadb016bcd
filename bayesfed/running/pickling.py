"""Pickles of a run: functions of its algorithm are written by their code, and records that are on a
disk are read.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from bayesfed.federated import Algorithm, Record, Snapshot

Reduced = tuple[Callable[[type[Any], bytes], Any], tuple[type[Any], bytes]]


def reduced(
    kind: type[Any],
    algorithm: Algorithm,
    history: Sequence[Record],
    snapshot: Snapshot,
    rest: tuple[object, ...],
) -> Reduced:
    """Return what pickles a result: the function that makes it again, and its arguments."""
    # Loaded where a result is pickled alone.
    import cloudpickle

    records = tuple(history)
    parts = algorithm, records, replace(snapshot, history=records), *rest
    return restored, (kind, cloudpickle.dumps(parts))


def restored(kind: type[Any], content: bytes) -> Any:
    """Return the result of a pickle."""
    return kind(*pickle.loads(content))
