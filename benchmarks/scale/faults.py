"""Faults of a job: a process killed, a process that hangs, a whole agent killed. Each time the job goes on to the bits of an undisturbed run."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from targets import at_least

import bayesfed as bf
from bayesfed.testing import recipes
from scale.ranks import ROOT, launch

JOB = ROOT / "tests" / "ranks_job.py"
LIMIT_S = 240.0


def targets(check: bool) -> Iterator[bool]:
    """Print the target of faults, and yield whether it is met."""
    tiny = recipes.tiny_recipes()["stc"]()
    expected = bf.run(tiny.algorithm, tiny.pool(), rounds=8, progress=False).snapshot
    faults = ["killed", "hung", "agent"] if check else ["killed"] * 4 + ["hung"] * 3 + ["agent"] * 3
    resumed = 0
    for fault in faults:
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            state = _agent_lost(Path(folder)) if fault == "agent" else _rank_lost(Path(folder), fault)
        same = state is not None and all(torch.equal(leaf, state[name]) for name, leaf in expected.state.items())
        print(f"  {fault}: {'the same bits' if same else 'not resumed'} after {time.monotonic() - start:.0f} s", flush=True)
        resumed += same
    yield at_least(f"resumed to the same bits, of {len(faults)} faults", resumed / len(faults), 1.0)


def _rank_lost(folder: Path, fault: str) -> dict[str, torch.Tensor] | None:
    job = launch(JOB, 2, (folder / "out", folder, "paced"), options=("--standalone", "--max-restarts=2"))
    _wait(folder)
    os.kill(int((folder / "process-1").read_text()), signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
    return _state(folder, job)


def _agent_lost(folder: Path) -> dict[str, torch.Tensor] | None:
    """Start two agents, kill the second with its process, and let the first go on alone."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        endpoint = f"localhost:{free.getsockname()[1]}"
    rendezvous = ("--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=faults", "--rdzv-conf=last_call_timeout=5")
    options = (*rendezvous, "--nnodes=1:2", "--max-restarts=3")
    first = launch(JOB, 1, (folder / "out", folder, "paced"), options=options)
    time.sleep(2.0)
    second = launch(JOB, 1, (folder / "out", folder, "paced"), options=options)
    _wait(folder)
    if not (folder / "process-1").exists():
        os.killpg(first.pid, signal.SIGKILL)
        os.killpg(second.pid, signal.SIGKILL)
        return None
    # Its process has a session of its own.
    os.kill(int((folder / "process-1").read_text()), signal.SIGSTOP)
    os.killpg(second.pid, signal.SIGKILL)
    os.kill(int((folder / "process-1").read_text()), signal.SIGKILL)
    second.wait()
    return _state(folder, first)


def _wait(folder: Path) -> None:
    until = time.monotonic() + LIMIT_S
    while not (folder / "round-3").exists() and time.monotonic() < until:
        time.sleep(0.05)


def _state(folder: Path, job: subprocess.Popen[str]) -> dict[str, torch.Tensor] | None:
    try:
        said, _ = job.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        return None
    if job.returncode:
        print(said[-1500:])
        return None
    state: dict[str, torch.Tensor] = pickle.loads((folder / "out").with_suffix(".0").read_bytes())[0]
    return state
