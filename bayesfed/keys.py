"""Named random streams: the only source of randomness in the package.

A `Key` is a seed and a path of names. The same path gives the same stream on any
machine, in any order, in any process, so client order, worker count and resuming
at round t cannot change a bit::

    Key(0, "fit", 3, "client-7").generator()
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from bayesfed.errors import ArgumentError, complain

Name = str | int


@dataclass(frozen=True, init=False)
class Key:
    """Name a random stream by a seed and a path of strings and integers.

    Parameters
    ----------
    seed
        Any integer; negative ones are legal.
    path
        Purpose first, then round, client and so on.

    Raises
    ------
    ArgumentError
        If the seed is not an integer or a name is neither string nor integer.
    """

    seed: int
    path: tuple[Name, ...]

    def __init__(self, seed: int, *path: Name) -> None:
        if type(seed) is not int or not {str, int}.issuperset(map(type, path)):
            _check(seed, path)
        object.__setattr__(self, "seed", int(seed))
        object.__setattr__(self, "path", tuple(path))

    def child(self, *names: Name) -> Key:
        """Extend the path: an independent stream below this one."""
        return Key(self.seed, *self.path, *names)

    def integer(self) -> int:
        """Return the 63-bit seed this name stands for (BLAKE2b of the JSON of seed and path)."""
        text = json.dumps([self.seed, *self.path], separators=(",", ":"))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1

    def generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        """Return a fresh torch generator at the start of this stream."""
        return torch.Generator(device).manual_seed(self.integer())

    def numpy(self) -> np.random.Generator:
        """Return a fresh NumPy generator at the start of this stream."""
        return np.random.default_rng(self.integer())


def _check(seed: int, path: tuple[Name, ...]) -> None:
    for what, value in (("seed", seed), *(("name", name) for name in path)):
        legal = isinstance(value, int) or (what == "name" and isinstance(value, str))
        if not legal or isinstance(value, bool):
            raise ArgumentError(complain("Key", expected=f"an integer {what}", actual=repr(value), hint="Key(0, 'fit', 3)"))


@contextmanager
def forked(key: Key) -> Iterator[None]:
    """Run a block with torch's global generators seeded by `key`, and put them back after.

    For code that draws from the global generator and cannot be handed one: Pyro's
    `sample`, dropout, module initialisers. Not for threads: the global generator is shared.
    """
    with torch.random.fork_rng():
        torch.manual_seed(key.integer())
        yield
