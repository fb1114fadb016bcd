"""Named random streams: the only source of randomness in the package.

A `Key` is a seed and a path of names. The same path gives the same stream on any machine, in any
order and in any process, so the order of clients, the number of workers and resuming at round t do
not change a bit of the result::

    Key(0, "fit", 3, "client-7").generator()
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral

import numpy as np
import torch

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import ITSELF, checked

Name = str | int


@dataclass(frozen=True, init=False)
class Key:
    """A random stream, named by a seed and a path of strings and integers.

    Parameters
    ----------
    seed
        Any integer, negative ones included.
    path
        Names of the stream: the purpose first, then round, client and so on.

    Raises
    ------
    ArgumentError
        If the seed is not an integer, or a name is neither a string nor an integer.
    """

    seed: int
    path: tuple[Name, ...]

    @checked(seed=ITSELF, path=ITSELF)
    def __init__(self, seed: int, *path: Name) -> None:
        self._named(seed, path)

    def _named(self, seed: int, path: tuple[Name, ...]) -> Key:
        if type(seed) is not int or not {str, int}.issuperset(map(type, path)):
            _check(seed, path)
            path = tuple(name if isinstance(name, str) else int(name) for name in path)
        object.__setattr__(self, "seed", int(seed))
        object.__setattr__(self, "path", tuple(path))
        return self

    def child(self, *names: Name) -> Key:
        """Return the key with a longer path: an independent stream."""
        return object.__new__(Key)._named(self.seed, (*self.path, *names))

    def integer(self) -> int:
        """Return the 63-bit seed of this stream, the BLAKE2b hash of seed and path as JSON."""
        text = json.dumps([self.seed, *self.path], separators=(",", ":"))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1

    def generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        """Return a new torch generator at the start of this stream."""
        return torch.Generator(device).manual_seed(self.integer())

    def numpy(self) -> np.random.Generator:
        """Return a new NumPy generator at the start of this stream."""
        return np.random.default_rng(self.integer())


def _check(seed: int, path: tuple[Name, ...]) -> None:
    for what, value in (("seed", seed), *(("name", name) for name in path)):
        legal = isinstance(value, Integral) or (what == "name" and isinstance(value, str))
        if not legal or isinstance(value, bool):
            raise ArgumentError("Key", f"an integer {what}", repr(value), "Key(0, 'fit', 3)")


@contextmanager
def forked(key: Key) -> Iterator[None]:
    """Run a block with torch's global generators seeded by `key`, and restore their states
    afterwards.

    For code that draws from the global generator and takes no other: Pyro's `sample`, dropout,
    module initialisers. Do not use it in threads: they share the global generator.
    """
    # Named, since torch warns of several GPUs otherwise, and touches each of them.
    with torch.random.fork_rng(
        range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    ):
        torch.manual_seed(key.integer())
        yield
