"""Other libraries in processes of their own: their environment, and the near end of `serve.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

HERE = Path(__file__).parent


class Peer:
    """The other end of `peers/serve.py`."""

    def __init__(self, requests: IO[str], answers: IO[str], folder: Path) -> None:
        self.requests, self.answers, self.folder = requests, answers, folder

    def ask(self, action: str, **request: Any) -> dict[str, float]:
        """Send a request and wait for its answer."""
        print(json.dumps({"do": action, **request}), file=self.requests, flush=True)
        line = self.answers.readline()
        if not line:
            raise SystemExit(f"the peer ended when asked to {action}")
        answer: dict[str, float] = json.loads(line)
        return answer

    def marginals(self, shape: tuple[int, ...]) -> Tensor:
        """Return P(s = 1) after the peer's last run."""
        self.ask("marginals", path=str(self.folder / "marginals.npy"))
        return torch.from_numpy(np.load(self.folder / "marginals.npy").astype(np.float64)).reshape(
            shape
        )


@contextmanager
def peer(python: Path, which: str, values: Tensor, u: Tensor) -> Iterator[Peer]:
    """Start a peer with a model and its evidence."""
    say(f"{which} builds {u.shape[0]} x {u.shape[1]}")
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/evidence.npy", u.numpy())
        command = [str(python), "-I", str(HERE / "serve.py"), which]
        variables = {**os.environ, "JAX_PLATFORMS": "cpu"}
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            server = Peer(process.stdin, process.stdout, Path(folder))
            server.ask("build", table=values.tolist(), evidence=f"{folder}/evidence.npy")
            yield server


def environment(folder: Path) -> Path:
    """Return the Python of the peers' environment, made first where it is missing or has other
    pins.
    """
    wanted = HERE / "requirements.txt"
    made, python = folder / "made-of.txt", folder.absolute() / "bin" / "python"
    if made.exists() and made.read_bytes() == wanted.read_bytes():
        return python
    if folder.exists() and any(folder.iterdir()) and not (folder / "pyvenv.cfg").exists():
        raise SystemExit(f"{folder} holds something else than an environment")
    say(f"making the peers' environment in {folder}")
    start = time.perf_counter()
    venv.create(folder, with_pip=True)
    command = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-input",
        "--disable-pip-version-check",
        "--no-deps",
        "-r",
        str(wanted),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    made.write_bytes(wanted.read_bytes())
    print(f"the peers' environment took {time.perf_counter() - start:.0f} s to make")
    return python


def say(what: str) -> None:
    """Tell whoever waits what is being done."""
    print(f"{what} ...", file=sys.stderr, flush=True)
