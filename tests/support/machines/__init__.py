"""Machines for tests of what a page tells an administrator to do: Linux namespaces, each with a
network card, users, files and processes of its own, on one switch. It needs root; nothing leaves
this machine, and what commands change (`/etc`, `/var`, `/opt`, `/srv`, `/run`, ...) is gone with
the namespace.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[3]
NETWORK = "10.77.0"
PROGRAMS = ("ip", "nsenter", "setpriv", "unshare", "useradd")
# Written by commands of a machine, on a layer of its own over those of this one.
CHANGED = ("etc", "var", "opt", "srv", "usr/local")
# The holder of the namespaces: the first process in them, which takes all others with it.
HOLD = "unshare --mount --net --uts --pid --fork --kill-child=KILL --mount-proc"
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}
PR_SET_PDEATHSIG = 1


def why_not() -> str:
    """Return why machines cannot be started here, or an empty text."""
    if sys.platform != "linux" or os.getuid() != 0:
        return "namespaces need Linux and root"
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        return f"no {missing}"
    tried = subprocess.run(
        [*HOLD.split(), "bash", "-c", "mount -t tmpfs tmpfs /mnt && ip link set lo up"],
        capture_output=True,
        text=True,
        check=False,
    )
    return tried.stderr


class Network:
    """Machines by name, numbered from 10 in the order of their names, as a context manager.

    Parameters
    ----------
    names
        Names of the machines.
    hosts
        Further names in their `/etc/hosts`, with the machine that has each.
    """

    def __init__(self, names: tuple[str, ...], hosts: Mapping[str, str] | None = None) -> None:
        self.names, self.hosts = names, dict(hosts or {})
        self.address = {name: f"{NETWORK}.{10 + number}" for number, name in enumerate(names)}
        self._holders: list[subprocess.Popen[bytes]] = []
        self._process: dict[str, int] = {}
        self._python = tempfile.TemporaryDirectory()

    def __enter__(self) -> Network:
        """Start the machines."""
        try:
            write_environment(Path(self._python.name))
            switch = self._hold()
            enter(
                switch,
                "ip link add switch type bridge && ip link set switch up && ip link set lo up",
            )
            lines = [f"{address} {name}" for name, address in self.address.items()]
            lines += [f"{self.address[machine]} {name}" for name, machine in self.hosts.items()]
            for name, address in self.address.items():
                self._process[name] = process = self._hold()
                enter(process, setting_up(Path(self._python.name), name, lines), check=True)
                # From outside: a process has its number in the namespace of who asks.
                for line in (
                    f"ip link add {name} type veth peer name eth0 netns {process}",
                    f"ip link set {name} master switch up",
                ):
                    connect = ["nsenter", "--target", str(switch), "--net", *line.split()]
                    subprocess.run(connect, check=True)
                enter(
                    process,
                    "ip link set lo up && ip link set eth0 up"
                    f" && ip address add {address}/24 dev eth0",
                )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the machines and everything that runs on them."""
        for holder in self._holders:
            holder.kill()
            holder.wait()
        self._python.cleanup()

    def run(
        self,
        machine: str,
        command: str,
        *,
        user: str = "",
        check: bool = True,
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run lines of bash on a machine as root, or as a user after login, and return what came
        out; standard error is in `stdout`.
        """
        return enter(self._process[machine], command, user=user, check=check, timeout=timeout)

    def copy(self, source: str, path: str, target: str, to: str) -> None:
        """Copy a file from a machine to another, as by mail."""
        read, write = (f"/proc/{self._process[name]}/root" for name in (source, target))
        Path(write + to).write_bytes(Path(read + path).read_bytes())

    def file(self, machine: str, path: str) -> Path:
        """Return where a file of a machine can be read here."""
        return Path(f"/proc/{self._process[machine]}/root{path}")

    def _hold(self) -> int:
        holder = subprocess.Popen(
            [*HOLD.split(), "bash", "-c", "while :; do sleep 1000 & wait; done"],
            preexec_fn=_end_with_parent,  # noqa: PLW1509
        )
        self._holders.append(holder)
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
        while not (text := children.read_text()):
            pass
        # The child has its namespaces before it becomes bash.
        while "bash" not in Path(f"/proc/{text.strip()}/comm").read_text():
            pass
        return int(text)


def enter(
    process: int, command: str, *, user: str = "", check: bool = True, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run lines of bash in the namespaces of a process."""
    shell = ["runuser", "-l", user, "-c"] if user else ["bash", "-c"]
    namespaces = [f"--{kind}" for kind in ("mount", "net", "uts", "pid")]
    enter_all = ["nsenter", "--target", str(process), *namespaces, "--wd=/", "--"]
    done = subprocess.run(
        [*enter_all, *shell, f"set -e -o pipefail; {command}"],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
        timeout=timeout,
    )
    if check and done.returncode:
        raise AssertionError(f"{command}\nended with {done.returncode}:\n{done.stdout[-4000:]}")
    return done


def _end_with_parent() -> None:
    """Stop when the process that started this one ends, for whatever reason."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def setting_up(environment: Path, name: str, hosts: list[str]) -> str:
    """Return the commands that give a machine its files: layers over this one's, this checkout at
    `/opt/checkout`, the package's environment at `/opt/bayesfed`, and `systemctl`.
    """
    mounts = [(environment, "/opt/bayesfed"), (ROOT, "/opt/checkout"), *python_folders()]
    layers = "\n".join(
        f"mkdir -p /mnt/{folder}/upper /mnt/{folder}/work\n"
        f"mount -t overlay overlay -o lowerdir=/{folder},upperdir=/mnt/{folder}/upper,"
        f"workdir=/mnt/{folder}/work /{folder}"
        for folder in CHANGED
    )
    binds = "\n".join(
        f"mkdir -p {target}; mount --bind {source} {target}; mount -o remount,ro,bind {target}"
        for source, target in mounts
    )
    return f"""set -e
hostname {name}
mount -t tmpfs tmpfs /mnt
{layers}
{binds}
install -m 755 /opt/checkout/tests/support/machines/systemctl.py /usr/local/bin/systemctl
for folder in /run /tmp /home /root; do mount -t tmpfs tmpfs $folder; done
chmod 1777 /tmp; chmod 700 /root
printf '%s\\n' '127.0.0.1 localhost' {" ".join(f"'{line}'" for line in hosts)} > /etc/hosts
echo /opt/python/lib > /etc/ld.so.conf.d/python.conf
ldconfig 2> /dev/null || true"""


def python_folders() -> list[tuple[Path, str]]:
    """Return the folders of this interpreter and its packages, and where machines have them: users
    of a machine may not be allowed to look into those of this one.
    """
    folders = [(Path(sysconfig.get_paths()["purelib"]), "/opt/packages")]
    if sys.base_prefix not in ("/usr", "/usr/local"):
        folders.append((Path(sys.base_prefix), "/opt/python"))
    return folders


def write_environment(folder: Path) -> None:
    """Write a virtual environment for `/opt/bayesfed`: this interpreter, its packages, this
    checkout, and the programs of both.
    """
    folder.chmod(0o755)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    installed = sys.base_prefix in ("/usr", "/usr/local")
    home = f"{sys.base_prefix}/bin" if installed else "/opt/python/bin"
    packages = folder / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    (packages / "here.pth").write_text("/opt/checkout\n/opt/packages\n")
    (folder / "bin").mkdir()
    (folder / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n")
    (folder / "bin" / "python").symlink_to(f"{home}/{version}")
    for program in Path(sys.executable).parent.iterdir():
        if program.name.split("-")[0] in ("bayesfed", "flower", "flwr"):
            _, rest = program.read_text().split("\n", 1)
            path = folder / "bin" / program.name
            path.write_text(f"#!/opt/bayesfed/bin/python\n{rest}")
            path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
