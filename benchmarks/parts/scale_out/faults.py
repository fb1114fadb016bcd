"""Faults of a job: a process killed, a process that hangs, a whole agent killed. Each time the job
goes on to the bits of an undisturbed run.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from parts.shared.targets import at_least

import bayesfed as bf
from tests.federated.clients import torchrun
from tests.support import recipes


def targets(options: argparse.Namespace) -> Iterator[bool]:
    """Print a target for each fault, and yield whether it is met: once each in a check, else ten
    times.
    """
    tiny, times = recipes.tiny_recipes()["stc"](), 1 if options.check else 10
    expected = bf.run(tiny.algorithm, tiny.pool(), rounds=8, progress=False).snapshot.state
    for fault in torchrun.FAULTS:
        resumed = 0
        for number in range(times):
            start = time.monotonic()
            same = _resumed(fault, expected)
            print(
                (
                    f"  {fault} {number + 1}: {'the same bits' if same else 'not resumed'} "
                    f"after {time.monotonic() - start:.0f} s"
                ),
                flush=True,
            )
            resumed += same
        yield at_least(f"{fault}: of {times}, resumed to the same bits", resumed, times)


def _resumed(fault: str, expected: dict[str, torch.Tensor]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        try:
            outcomes = torchrun.disturbed(fault, Path(folder))
        except (AssertionError, OSError, subprocess.TimeoutExpired) as problem:
            print(problem)
            return False
    return all(
        state.keys() == expected.keys()
        and all(torch.equal(leaf, state[name]) for name, leaf in expected.items())
        for state, *_ in outcomes
    )
