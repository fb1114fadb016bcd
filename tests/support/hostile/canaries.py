"""Canaries: numbers and names that are planted in clients' rows, memories and secrets, none of
which may leave, and are searched for in all messages.

A pattern is the bytes of consecutive planted numbers in any of the usual widths and byte orders, a
planted name, or a secret. It has at least eight bytes, so that none occurs by chance. Decoded
messages are searched too, for the numbers themselves, since entropy codes would hide them from a
search of bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from bayesfed.data.dataset import Dataset
from bayesfed.federated.clients.envelopes import masked
from bayesfed.federated.clients.turn import Outcome, Reply, Task
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.federated.engine.reports import Snapshot
from bayesfed.federated.engine.round_loop import rounds
from bayesfed.keys import Key
from bayesfed.testing.law import law
from bayesfed.trees import Tree
from tests.support.hostile.pool import Arrivals, Between
from tests.support.recipes import Tiny

NAME = "0/canary-5d41402abc4b2a76"
KINDS = ("<f2", ">f2", "<f4", ">f4", "<f8", ">f8")


@dataclass
class Canaries:
    """The canaries of a run.

    Parameters
    ----------
    data
        Rows by client. The first row of each client is overwritten by canaries.
    searched
        Number of messages searched so far.
    memories, secrets
        Planted memories and keys by client.
    """

    data: Mapping[str, Dataset]
    searched: int = 0
    memories: dict[str, Tree] = field(default_factory=dict)
    secrets: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._numbers, patterns = np.zeros(0, np.float32), [NAME.encode()]
        for client, rows in self.data.items():
            random = Key(0, "canary", client).numpy()
            row, memory = (
                random.uniform(0.5, 1.5, count).astype(np.float32)
                for count in (rows.inputs[0].numel(), 16)
            )
            rows.inputs[0] = (
                torch.from_numpy(row).reshape(rows.inputs[0].shape).to(rows.inputs.dtype)
            )
            self.memories[client], self.secrets[client] = (
                {NAME: torch.from_numpy(memory)},
                random.bytes(32),
            )
            patterns += [self.secrets[client], *_patterns(row), *_patterns(memory)]
            self._numbers = np.concatenate([self._numbers, row, memory])
        self._pattern = re.compile(b"|".join(map(re.escape, patterns)))

    def search(self, message: bytes, tree: Tree) -> None:
        """Raise `LawError` if a canary is in a message or in its decoded tree."""
        self.searched += 1
        law(not self._pattern.search(message), "a canary was sent, byte for byte")
        for name, leaf in tree.items():
            if leaf.is_floating_point():
                law(
                    not np.isin(leaf.float().numpy(), self._numbers).any(),
                    f"leaf {name!r} has a canary's number",
                )
            law("canary" not in name, f"leaf {name!r} was sent")

    def watch(self, algorithm: Algorithm, tiny: Tiny, count: int, *, seed: int = 0) -> int:
        """Run `count` rounds of a keyed run with all canaries planted, and return the number of
        messages searched.
        """
        before = self.searched

        def search(task: Task, outcome: Outcome) -> Arrivals:
            law(isinstance(outcome, Reply), f"a client failed: {outcome}")
            if isinstance(outcome, Reply):
                secret = self.secrets[task.client]
                for sent, direction, codec in (
                    (task.message, "down", task.down),
                    (outcome.packed, "up", task.up),
                ):
                    envelope = task.envelope(direction)  # type: ignore[arg-type]
                    self.search(
                        sent,
                        codec.decode(masked(sent, envelope, secret), task.key.child(direction))[0],
                    )
            return [(task, outcome)]

        scopes = [phase.scope for phase in algorithm.phases]
        memories = dict.fromkeys(self.memories, Tree())
        for client, planted in self.memories.items():
            for scope in scopes:
                memories[client] = scope.joined(memories[client], planted, {})
        start = Snapshot(algorithm.name, seed, 0, algorithm.initial, memories=memories)
        pool = Between(Tiny(algorithm, self.data, tiny.devices).pool(secrets=self.secrets), search)
        for _ in rounds(
            algorithm, pool, rounds=count, seed=seed, resume=start, secrets=self.secrets
        ):
            pass
        return self.searched - before


def _patterns(numbers: np.ndarray) -> Iterator[bytes]:
    """Yield windows of at least eight bytes of the numbers in each of `KINDS`."""
    for kind in KINDS:
        raw, width = numbers.astype(kind).tobytes(), np.dtype(kind).itemsize
        for start in range(0, len(raw) - 7, width):
            yield raw[start : start + max(8, width)]
