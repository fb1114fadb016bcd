"""Jobs under torchrun on this machine, for tests and benchmarks: how they are started, and what can
happen to them.
"""

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
JOB = Path(__file__).with_name("ranks_job.py")
LIMIT_S = 300.0
FAULTS = ("killed", "hung", "agent")
Job = subprocess.Popen[str]


def start(
    ranks: int, *arguments: object, script: Path = JOB, options: Sequence[str] = ("--standalone",)
) -> Job:
    """Start a job, or an agent of one, of so many processes."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        *options,
        f"--nproc-per-node={ranks}",
        str(script),
        *map(str, arguments),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finished(process: Job, out: Path, ranks: int) -> list[Any]:
    """Wait for a job, and return what each rank wrote."""
    try:
        text, _ = process.communicate(timeout=LIMIT_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, text[-4000:]
    return [pickle.loads(out.with_suffix(f".{rank}").read_bytes()) for rank in range(ranks)]


def disturbed(fault: str, folder: Path) -> list[Any]:
    """Start the paced job on two ranks, lose one after some rounds, and return what the ranks that
    finish the job wrote.

    A rank is "killed" or "hung", or a whole "agent" with its rank is killed, as if its machine were
    lost: the other one goes on alone.
    """
    given = (folder / "out", folder, "paced")
    if fault != "agent":
        job = start(2, *given, options=("--standalone", "--max-restarts=2"))
        lost = _under_way(folder, job)
        (other,) = (process for process in _processes(folder) if process != lost)
        os.kill(lost, signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
        if fault == "hung":
            # Once the other one has given it up. A process that stays stopped does not end when the
            # agent asks it to, and is killed 30 s later.
            until = time.monotonic() + LIMIT_S
            while _runs(other) and time.monotonic() < until:
                time.sleep(0.05)
            os.kill(lost, signal.SIGCONT)
        outcomes = finished(job, folder / "out", 2)
        assert lost not in _processes(folder)
        return outcomes
    with socket.socket() as free:
        free.bind(("localhost", 0))
        endpoint = f"localhost:{free.getsockname()[1]}"
    rendezvous = (
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={endpoint}",
        "--rdzv-id=lost",
        "--nnodes=1:2",
        "--max-restarts=3",
    )
    first, second = (
        start(1, *given, options=(*rendezvous, f"--rdzv-conf=last_call_timeout=10,is_host={host}"))
        for host in (1, 0)
    )
    lost = _under_way(folder, second, first)
    # The rank has a session of its own. It is stopped first, so that it does not live to see its
    # agent die.
    os.kill(lost, signal.SIGSTOP)
    for process in (second.pid, lost):
        os.kill(process, signal.SIGKILL)
    second.communicate()
    return finished(first, folder / "out", 1)


def _under_way(folder: Path, *agents: Job) -> int:
    """Wait until both ranks have begun and some rounds are made; return the process of the first
    agent's last rank.
    """
    until = time.monotonic() + LIMIT_S
    while not ((folder / "round-3").exists() and (folder / "process-1").exists()):
        if time.monotonic() > until or any(agent.poll() is not None for agent in agents):
            for agent in agents:
                os.killpg(agent.pid, signal.SIGKILL)
            raise AssertionError("\n".join(agent.communicate()[0][-2000:] for agent in agents))
        time.sleep(0.05)
    return [process for process in _processes(folder) if _parent(process) == agents[0].pid][-1]


def _processes(folder: Path) -> list[int]:
    return [int((folder / f"process-{rank}").read_text()) for rank in (0, 1)]


def _parent(process: int) -> int:
    return int(_stat(process)[1])


def _runs(process: int) -> bool:
    try:
        return _stat(process)[0] != "Z"
    except OSError:
        return False


def _stat(process: int) -> list[str]:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
