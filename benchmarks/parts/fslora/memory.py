"""Peak memory of one client's fit, in a process of its own: a part of `fslora.py`."""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import torch
from parts.shared.memory import allocated, grown
from parts.shared.targets import target

import bayesfed as bf
from bayesfed.federated import Algorithm, LocalOptions
from bayesfed.federated.core import MODEL, owned
from bayesfed.federated.core.protocols import Assignment, Profile
from bayesfed.inspect import table

# Five layers of a wide encoder's size and a head, rank 64, a client of 8 slices, batches of 16.
WIDTH, DEPTH, RANK, SMALL, ROWS = 1536, 6, 64, 8, 64
NEAR = 1.05
M_MMAP_THRESHOLD = -3


def targets(options: argparse.Namespace) -> list[bool]:
    """Print what a client needs in both modes, and the target on it."""
    return peaks()


def peaks() -> list[bool]:
    """Print what a client needs more than the network and a message in both modes, and the
    target on it.
    """
    rows, tensors = list[list[str | float | int]](), list[float]()
    for name, anchored in (("printed", False), ("default", True)):
        message = _alone(partial(_message, anchored=anchored))
        found = _alone(partial(_peak, message, anchored=anchored))
        sent = sum(leaf.nbytes for leaf in message.values()) / 1e6
        rows.append([name, f"{sent:.2f}", *(f"{figure:.2f}" for figure in found)])
        tensors.append(found[0])
    heads = ["mode", "message, MB", "tensors beside it, MB", "process, MB"]
    print("\npeak of a client's fit above its network\n\n" + table(heads, rows) + "\n")
    ratio = tensors[1] / tensors[0]
    return [target("peak memory of a client, of the printed mode's", ratio, NEAR)]


def _alone(work: Callable[[], Any]) -> Any:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work).result()


def _made(*, anchored: bool) -> Algorithm:
    torch.set_num_threads(1)
    net = bf.lora(bf.mlp([WIDTH] * DEPTH + [10], bf.Key(0, "net")), RANK, bf.Key(0, "lora"))
    work = bf.Training(3, 16, bf.Adam(1e-3))
    return bf.fs_lora(net, [SMALL], lambda profile, round, key: 0, anchored=anchored, training=work)


def _message(*, anchored: bool) -> dict[str, Any]:
    """Return what the server sends, made in another process than the client's."""
    algorithm = _made(anchored=anchored)
    state, key = owned(algorithm.initial, MODEL), bf.Key(0, "fit")
    given = algorithm.phases[0].assign(state, 0, Profile("a", ROWS), key)
    assert isinstance(given, Assignment)
    return {name: leaf.numpy() for name, leaf in given.view.restrict(state).items()}


def _peak(sent: dict[str, Any], *, anchored: bool) -> tuple[float, float]:
    """Return the most megabytes of a second fit: of tensors, and of the process where what is
    freed goes back to Linux at once. By default malloc keeps some of it, which is 1.5 MB here in
    the printed mode and 4 MB in the other.
    """
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 14)
    local, key = _made(anchored=anchored).phases[0].local, bf.Key(0, "fit")
    inputs = torch.randn(ROWS, WIDTH, generator=key.generator())
    data = bf.Dataset(inputs, torch.arange(ROWS) % 10)
    message = {name: torch.from_numpy(leaf) for name, leaf in sent.items()}
    fit = partial(local.fit, message, {}, data, key, LocalOptions())
    fit()
    with grown() as most:
        fit()
    return allocated(fit), most[0]
