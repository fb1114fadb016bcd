"""Named random streams: the only source of randomness in the package.

A `Key` is a seed and a path of names. The same path gives the same stream on any machine, in any
order and in any process, so the order of clients, the number of workers and resuming at round t do
not change a bit of the result::

    Key(0, "fit", 3, "client-7").generator()
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.random import mtrand

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


# What draws random numbers and is not global.
Generator = torch.Generator | np.random.Generator | np.random.RandomState | random.Random


class _Thread(threading.local):
    """Whether this thread works on copies of its own, and draws from no global generator; and the
    key of the innermost `forked` block that it is in.
    """

    apart = False
    key: Key | None = None


_THREAD, _ONE = _Thread(), threading.RLock()
# NumPy's state is slow to copy, so a block gets a generator that no other block has.
_SPARE = list[np.random.MT19937]()
if hasattr(os, "register_at_fork"):
    # A process that is forked has no thread that would let go, and nothing that was half done.
    os.register_at_fork(
        before=_ONE.acquire, after_in_parent=_ONE.release, after_in_child=_ONE.release
    )


@contextmanager
def alone() -> Iterator[None]:
    """Let no other thread into such a block: it lends what a process has once, such as the global
    generators, or the tensors and modes of a network.
    """
    if _THREAD.apart:
        yield
        return
    with _ONE:
        yield


def stay_apart() -> None:
    """Say that this thread works on copies of its own and draws from no global generator: it waits
    for no other, and `forked` does nothing in it.
    """
    _THREAD.apart = True


def streams(own: Iterable[Generator] = ()) -> tuple[object, ...]:
    """Return the states of the global generators, and of some others, which are equal if nothing
    was drawn between.
    """
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    devices = [bytes(state.numpy()) for state in (torch.get_rng_state(), *cuda)]
    others = [repr(_state(one)) for one in own]
    return devices, random.getstate(), repr(np.random.get_state(legacy=False)), others


@contextmanager
def seeded(own: Iterable[Generator], key: Key) -> Iterator[None]:
    """Run a block with generators that a user's code has of its own seeded by `key`, and restore
    their states afterwards.
    """
    held = [(one, _state(one)) for one in own]
    for number, (one, _) in enumerate(held):
        _set_state(one, _state(_like(one, key.child("own", number).integer())))
    try:
        yield
    finally:
        # What threads share shows that it was drawn from (`streams`).
        for one, state in () if _THREAD.apart else held:
            _set_state(one, state)


def _state(one: Generator) -> Any:
    if isinstance(one, np.random.Generator):
        return one.bit_generator.state
    return one.getstate() if isinstance(one, random.Random) else one.get_state()


def _set_state(one: Generator, state: Any) -> None:
    if isinstance(one, np.random.Generator):
        one.bit_generator.state = state
    else:
        (one.setstate if isinstance(one, random.Random) else one.set_state)(state)


def _like(one: Generator, seed: int) -> Generator:
    """Return a new generator of the kind of another."""
    if isinstance(one, torch.Generator):
        return torch.Generator(one.device).manual_seed(seed)
    if isinstance(one, np.random.Generator):
        return np.random.Generator(type(one.bit_generator)(seed))
    if isinstance(one, np.random.RandomState):
        return np.random.RandomState(seed % 2**32)
    return random.Random(seed)


@contextmanager
def forked(key: Key) -> Iterator[None]:
    """Run a block with the global generators of torch, Python and NumPy seeded by `key`, and
    restore their states afterwards. Other threads wait.

    For code that draws from a global generator and takes no other: Pyro's `sample`, dropout, module
    initialisers, whatever a user's network does.
    """
    outer, _THREAD.key = _THREAD.key, key
    try:
        with _reseeded(key):
            yield
    finally:
        _THREAD.key = outer


def forked_key() -> Key:
    """Return the key of the innermost `forked` block that this thread is in.

    Code without a key of its own draws from children of it: the step of a server is in a block
    whose key names run, phase and round (`bayesfed.federated.core.algorithm.Server`). Unlike a draw
    from the global generators, it leaves their streams as they are. Outside such a block the key is
    made of the seed of torch's global generator.
    """
    return _THREAD.key or Key(torch.initial_seed(), "global")


@contextmanager
def _reseeded(key: Key) -> Iterator[None]:
    if _THREAD.apart:
        yield
        return
    with _ONE:
        seed, before, python = key.integer(), torch.get_rng_state(), random.getstate()
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        numpy, own = mtrand.get_bit_generator(), _SPARE.pop() if _SPARE else np.random.MT19937()
        try:
            # Not `torch.manual_seed`, which takes as long as a small step.
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            mtrand.set_bit_generator(own)
            np.random.seed(seed % 2**32)
            if cuda:
                torch.cuda.manual_seed_all(seed)
            if torch.backends.mps.is_available():
                torch.mps.manual_seed(seed)
            yield
        finally:
            torch.set_rng_state(before)
            random.setstate(python)
            mtrand.set_bit_generator(numpy)
            _SPARE.append(own)
            if cuda:
                torch.cuda.set_rng_state_all(cuda)
