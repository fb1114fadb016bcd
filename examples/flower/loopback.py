"""`Loopback`: a SuperLink and its SuperNodes on 127.0.0.1, started and stopped together, for
experiments and tests and as an example of the commands.

Nothing leaves the machine: telemetry, update checks and the installation of an app's dependencies
are off, and all servers listen on loopback.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bayesfed.errors import MissingExtraError
from examples.flower.certificates import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    make_certificates,
    make_node_key,
)

HOST = "127.0.0.1"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "OMP_NUM_THREADS": "1",
    # Seconds between two checks of the SuperLink and the nodes for a process to start; 1 by
    # default.
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
}


class Loopback:
    """A cluster with its own folder, as a context manager.

    Parameters
    ----------
    folder
        Folder of configuration, logs, clients' memories, certificates and sockets.
    clients
        Names of the clients. Each has one SuperNode.
    secure
        Whether to use TLS and SuperNodes with registered keys.
    worker
        ``"module:function"`` of the experiment, to start a worker beside each node. Empty: no
        workers.
    path
        The folder of that module.
    start_s
        Longest time in seconds that each part may take to start.

    Raises
    ------
    MissingExtraError
        If Flower is not installed.
    RuntimeError
        If a process stops unexpectedly, or not all nodes come in time; the message has the end of
        its log.
    """

    def __init__(
        self,
        folder: str | Path,
        clients: Iterable[str],
        *,
        secure: bool = False,
        worker: str = "",
        path: str | Path = ".",
        start_s: float = 120.0,
    ) -> None:
        self.folder, self.clients, self.secure = Path(folder).resolve(), tuple(clients), secure
        self._worker, self._path, self._start_s = worker, Path(path).resolve(), start_s
        binaries = Path(sys.executable).parent
        if not (binaries / "flower-superlink").exists():
            raise MissingExtraError("flwr", "flower")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        # Flower starts its own programs by name.
        self._environment = {
            **os.environ,
            **QUIET,
            "FLWR_HOME": str(self.folder / "flwr"),
            "PATH": f"{binaries}:{os.environ.get('PATH', '')}",
        }
        self.port = free_port()

    def __enter__(self) -> Self:
        """Start everything and wait until all nodes are online."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def run(
        self,
        app: str | Path,
        config: Mapping[str, str | int | float | bool],
        *,
        timeout_s: float = 600.0,
    ) -> dict[str, Any]:
        """Submit an app, wait for its end and return Flower's record of the run.

        Parameters
        ----------
        app
            Folder of the app.
        config
            Run-config that replaces values of the app's.
        timeout_s
            Longest time of the run in seconds.

        Raises
        ------
        RuntimeError
            If the run fails or takes too long; the message has its output.
        """
        return self.wait(self.submit(app, config), timeout_s=timeout_s)

    def submit(self, app: str | Path, config: Mapping[str, str | int | float | bool]) -> str:
        """Submit an app and return the number of the run."""
        line = " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())
        return str(self._flwr("run", str(app), "loopback", "--run-config", line)["run-id"])

    def wait(self, run: str, *, timeout_s: float = 600.0) -> dict[str, Any]:
        """Wait for the end of a run and return Flower's record of it. Raises as `run`."""
        record: dict[str, Any] = {}

        def ended() -> bool:
            record.update(self._flwr("list", "loopback", "--run-id", run)["runs"][0])
            return str(record["status"]).startswith("finished")

        try:
            # Each check starts a program of Flower, which takes a second of one core.
            self._until(ended, f"run {run} to end", timeout_s, every_s=4.0)
        except RuntimeError:
            subprocess.run(
                ["flwr", "stop", run, "loopback"],
                env=self._environment,
                capture_output=True,
                check=False,
            )
            raise
        if record["status"] != "finished:completed":
            printed = subprocess.run(
                ["flwr", "log", run, "loopback", "--show"],
                env=self._environment,
                capture_output=True,
                text=True,
                check=False,
            )
            raise RuntimeError(
                f"run {run}: {record['status']}, "
                f"{record.get('status-details')}\n{printed.stdout[-6000:]}"
            )
        return record

    def start_node(self, client: str) -> None:
        """Start a client's SuperNode, also after it was killed, and its worker if workers are
        wanted.
        """
        config: dict[str, str] = {"client": client, "folder": str(self.folder / "memory")}
        if self._worker:
            config["socket"] = str(self.folder / f"{self.clients.index(client)}.sock")
            if f"worker {client}" not in self._processes:
                command = [
                    "--socket",
                    config["socket"],
                    "--experiment",
                    self._worker,
                    "--client",
                    client,
                    "--folder",
                    config["folder"],
                ]
                self._popen(
                    f"worker {client}",
                    [
                        sys.executable,
                        "-m",
                        "bayesfed.flower.worker",
                        *command,
                        "--path",
                        str(self._path),
                    ],
                )
                self._until(Path(config["socket"]).is_socket, f"the worker of {client}")
        said = " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())
        trust = ["--insecure"]
        if self.secure:
            trust = [
                "--root-certificates",
                str(self.folder / AUTHORITY),
                "--auth-supernode-private-key",
                str(self._key(client)),
            ]
        where = [
            "--superlink",
            f"{HOST}:{self.port}",
            "--host",
            HOST,
            "--port",
            str(free_port()),
            "--node-config",
            said,
        ]
        self._popen(f"node {client}", ["flower-supernode", *trust, *where])

    def kill_node(self, client: str) -> None:
        """Kill a client's SuperNode and all processes it has started, as in a power failure; its
        worker stays alive.
        """
        process = self._processes.pop(f"node {client}")
        _signal(process, signal.SIGKILL)
        process.wait()

    def online(self) -> int:
        """Return the number of nodes that Flower lists as online."""
        nodes = self._flwr("supernode", "list", "loopback", "-v")["nodes"]
        return sum(node["status"] == "online" for node in nodes)

    def stop(self) -> None:
        """Stop all processes, the nodes first."""
        order = sorted(self._processes, key=lambda name: name == "superlink")
        for name in order:
            _signal(self._processes[name], signal.SIGTERM)
        end = time.monotonic() + 8.0
        for name in order:
            process = self._processes.pop(name)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(end - time.monotonic(), 0.1))
            _signal(process, signal.SIGKILL)
            process.wait()

    def log(self, name: str) -> str:
        """Return the output of a process: "superlink", "node NAME" or "worker NAME"."""
        return (self.folder / "logs" / f"{name}.log").read_text(errors="replace")

    def _start(self) -> None:
        shutil.rmtree(self.folder / "logs", ignore_errors=True)
        for part in ("flwr", "logs"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        trust, said = ["--insecure"], "insecure = true"
        if self.secure:
            make_certificates(self.folder, [HOST])
            trust = [
                "--ssl-ca-certfile",
                AUTHORITY,
                "--ssl-certfile",
                CERTIFICATE,
                "--ssl-keyfile",
                KEY,
            ]
            trust = [
                str(self.folder / part) if not part.startswith("--") else part for part in trust
            ] + ["--enable-supernode-auth"]
            said = f"root-certificates = {json.dumps(str(self.folder / AUTHORITY))}"
        lines = [
            "[superlink]",
            'default = "loopback"',
            "[superlink.loopback]",
            f'address = "{HOST}:{self.port}"',
            said,
        ]
        (self.folder / "flwr" / "config.toml").write_text("\n".join(lines) + "\n")
        self._popen(
            "superlink",
            [
                "flower-superlink",
                *trust,
                "--host",
                HOST,
                "--port",
                str(self.port),
                "--disable-runtime-dependency-installation",
            ],
        )
        self._until(self._healthy, "the SuperLink")
        for client in self.clients:
            if self.secure:
                self._flwr(
                    "supernode", "register", str(make_node_key(self._key(client))), "loopback"
                )
            self.start_node(client)
        self._until(lambda: self.online() >= len(self.clients), "all nodes", every_s=2.0)

    def _key(self, client: str) -> Path:
        return self.folder / f"node-{self.clients.index(client)}"

    def _healthy(self) -> bool:
        try:
            context = None
            if self.secure:
                import ssl

                context = ssl.create_default_context(cafile=str(self.folder / AUTHORITY))
            scheme = "https" if self.secure else "http"
            with urllib.request.urlopen(
                f"{scheme}://{HOST}:{self.port}/health", timeout=5, context=context
            ) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _flwr(self, *arguments: str) -> dict[str, Any]:
        done = subprocess.run(
            ["flwr", *arguments, "--format", "json"],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            record: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
        except ValueError:
            record = {}
        if not record.get("success"):
            raise RuntimeError(
                f"flwr {' '.join(arguments)}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
            )
        return record

    def _popen(self, name: str, command: list[str]) -> None:
        with open(self.folder / "logs" / f"{name}.log", "ab") as log:
            options = {
                "stdout": log,
                "stderr": subprocess.STDOUT,
                "env": self._environment,
                "cwd": self.folder,
                "start_new_session": True,
            }
            self._processes[name] = subprocess.Popen(command, preexec_fn=_with_parent, **options)  # type: ignore[call-overload] # noqa: PLW1509

    def _until(
        self,
        ready: Callable[[], bool],
        what: str,
        timeout_s: float | None = None,
        every_s: float = 0.2,
    ) -> None:
        end = time.monotonic() + (timeout_s or self._start_s)
        while not ready():
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise RuntimeError(
                        f"{name} has stopped with status "
                        f"{process.returncode}:\n{self.log(name)[-3000:]}"
                    )
            if time.monotonic() >= end:
                raise RuntimeError(
                    f"waited {timeout_s or self._start_s:g} s for "
                    f"{what}:\n{self.log('superlink')[-3000:]}"
                )
            time.sleep(every_s)


def _with_parent() -> None:
    """Stop when the process that started this one ends, for whatever reason (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def free_port() -> int:
    """Return a port of loopback at which nothing listens."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
