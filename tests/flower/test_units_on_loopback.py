"""The services of the tutorial, of the centre and of one hospital, on loopback as one user: what is
left of it where machines that are namespaces cannot be had. What needs several users or a proxy is
not tested here.
"""

import contextlib
import grp
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from examples.flower.certificates import make_certificates, make_node_key
from examples.flower.loopback import free_port
from tests.flower.test_three_machines import ROOT, wait_for, why_not_all
from tests.support.machines import systemctl

MACHINES = ROOT / "examples/flower/machines"
HOSPITAL = "basel"
BINARIES = Path(sys.executable).parent


class Services:
    """Services of the tutorial, each machine in a folder of its own."""

    def __init__(self, folder):
        self.folder, self.port, self.processes = folder, free_port(), []

    def local(self, text, machine):
        """Return a text of a machine with its paths and ports on this one."""
        here = self.folder / machine
        group = grp.getgrgid(os.getgid()).gr_name
        text = text.replace("--socket-group fednode", f"--socket-group {shlex.quote(group)}")
        text = text.replace("127.0.0.1:8000", f"127.0.0.1:{self.port}")
        text = text.replace("--port 8000", f"--port {self.port}")
        text = text.replace("/opt/bayesfed/bin", str(BINARIES))
        return re.sub(r"(?<![\w.])/(etc|var/lib|run|srv)/bayesfed", rf"{here}/\1", text)

    def start(self, machine, unit, *more):
        """Start a service as its unit says, with further arguments."""
        here = self.folder / machine
        for name in ("etc", "var/lib", "run", "srv", "units"):
            (here / name).mkdir(parents=True, exist_ok=True)
        path = next(MACHINES.glob(f"*/{unit}.service"))
        (here / "units" / path.name).write_text(self.local(path.read_text(), machine))
        settings = systemctl.read(unit, here / "units")
        environment = os.environ | systemctl.environment_of(settings)
        environment |= {"HOME": str(here / "var/lib"), "FLWR_HOME": str(here / "var/lib/flwr")}
        command = [*systemctl.command_of(settings, environment), *more]
        with open(self.folder / f"{machine} {unit}.log", "ab") as log:
            self.processes.append(
                subprocess.Popen(command, env=environment, cwd=here, stdout=log, stderr=log)
            )

    def flwr(self, *words):
        """Run a command of Flower's as the centre."""
        home = str(self.folder / "centre/var/lib/flwr")
        done = subprocess.run(
            ["flwr", *words],
            env={**os.environ, "FLWR_HOME": home, "PATH": f"{BINARIES}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout

    def listens(self):
        """Return whether the SuperLink listens."""
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port)).close()
            return True
        return False

    def stop(self):
        """Stop all services, the last first."""
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()


@pytest.mark.flower
@pytest.mark.skipif(not why_not_all(), reason="test_three_machines.py tests more")
def test_the_services_of_the_tutorial_run_its_regression(tmp_path):
    services = Services(tmp_path)
    centre = tmp_path / "centre"
    make_certificates(centre / "etc", ["localhost", "127.0.0.1"])
    (centre / "etc/superexec.key").write_bytes(os.urandom(32))
    (centre / "var/lib/flwr").mkdir(parents=True)
    config = services.local((MACHINES / "centre/config.toml").read_text(), "centre")
    (centre / "var/lib/flwr/config.toml").write_text(config)
    out = tmp_path / "out"
    try:
        services.start("centre", "bayesfed-superlink")
        services.start("centre", "bayesfed-superexec")
        wait_for(services.listens, "the SuperLink")
        here = tmp_path / HOSPITAL
        (here / "etc/app").mkdir(parents=True)
        (here / "srv").mkdir()
        (here / "etc/app/experiment.py").write_text((MACHINES / "app/experiment.py").read_text())
        (here / "etc/ca.pem").write_bytes((centre / "etc/ca.pem").read_bytes())
        (here / "etc/hospital.env").write_text(
            f"CLIENT={HOSPITAL}\nSUPERLINK=127.0.0.1:{services.port}\n"
            f"STAYS={here / 'srv/stays.csv'}\n"
        )
        stays = [sys.executable, MACHINES / "stays.py", HOSPITAL, here / "srv/stays.csv"]
        subprocess.run(stays, check=True)
        key = make_node_key(here / "etc/node")
        services.flwr("supernode", "register", str(key), "consortium", "--name", HOSPITAL)
        services.start(HOSPITAL, "bayesfed-worker")
        services.start(HOSPITAL, "bayesfed-node", "--port", str(free_port()))
        config = f'clients="{HOSPITAL}" out="{out}"'
        services.flwr("run", str(MACHINES / "app"), "consortium", "--run-config", config)
        wait_for((out / "rounds.txt").exists, "the end of the run")
    except BaseException:
        for path in tmp_path.glob("*.log"):
            sys.stdout.write(f"{path.name}\n{path.read_text()[-2000:]}\n")
        raise
    finally:
        services.stop()
    last = json.loads((out / "rounds.jsonl").read_text().splitlines()[-1])
    assert last["server"]["k_hat"] < 0.7
    assert not last["refused"]
