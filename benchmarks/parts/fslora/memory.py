"""Peak memory of one client's fit, in a process of its own: a part of `fslora.py`."""

from __future__ import annotations

import multiprocessing
import resource
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import torch
from parts.shared.targets import target

import bayesfed as bf
from bayesfed.federated import LocalOptions
from bayesfed.federated.core import MODEL, owned
from bayesfed.federated.core.protocols import Profile

# Six layers of a wide encoder's size, rank 64, a client of 8 slices, batches of 16 rows.
WIDTH, DEPTH, RANK, SMALL, ROWS = 1536, 6, 64, 8, 64
NEAR = 1.05


def peaks() -> list[bool]:
    """Print what a client needs above the network in the printed and in the anchored mode, and the
    target on it.
    """
    found = {}
    for anchored in (False, True):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            found[anchored] = pool.submit(partial(_peak, anchored=anchored)).result()
    print(f"\npeak above the network: printed {found[False]:.1f} MB, default {found[True]:.1f} MB")
    ratio = found[True] / found[False]
    return [target("peak memory of a client, of the printed mode's", ratio, NEAR)]


def _peak(*, anchored: bool) -> float:
    torch.set_num_threads(1)
    net = bf.lora(bf.mlp([WIDTH] * DEPTH + [10], bf.Key(0, "net")), RANK, bf.Key(0, "lora"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    work = bf.Training(3, 16, bf.Adam(1e-3))
    algorithm = bf.fs_lora(
        net, [SMALL], lambda profile, round, key: 0, anchored=anchored, training=work
    )
    state, phase, key = owned(algorithm.initial, MODEL), algorithm.phases[0], bf.Key(0, "fit")
    inputs = torch.randn(ROWS, WIDTH, generator=key.generator())
    data = bf.Dataset(inputs, torch.arange(ROWS) % 10)
    message = phase.assign(state, 0, Profile("a", ROWS), key).view.restrict(state)
    phase.local.fit(message, {}, data, key, LocalOptions())
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
