#!/opt/bayesfed/bin/python
"""As much of `systemctl` as pages use, where systemd does not run: it reads unit files of
`/etc/systemd/system` and starts what they say, as the user they say, again where it ended.

What sections say of sandboxes (`ProtectSystem=`, `PrivateNetwork=`, ...) is not done.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

UNITS = Path("/etc/systemd/system")
RUNNING = Path("/run/systemctl")
LOGS = Path("/var/log/units")
# Seconds a process has to end when it is asked to.
STOP_S = 10.0
# The unit of a package of the distribution.
NGINX = {"ExecStart": ["nginx -g 'daemon off;'"]}


def read(name: str, folder: Path = UNITS) -> dict[str, list[str]]:
    """Return the settings of a unit; one that is there more than once has several values."""
    if name == "nginx":
        return NGINX
    text = (folder / f"{name}.service").read_text()
    text = re.sub(r"^[#;].*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    settings: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            settings.setdefault(key.strip(), []).append(value.strip())
    return settings


def one(settings: dict[str, list[str]], key: str, default: str = "") -> str:
    """Return the last value of a setting."""
    return settings.get(key, [default])[-1]


def environment_of(settings: dict[str, list[str]]) -> dict[str, str]:
    """Return the variables of a unit's processes."""
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "LANG": "C.UTF-8"}
    lines = [part for value in settings.get("Environment", []) for part in shlex.split(value)]
    for path in settings.get("EnvironmentFile", []):
        lines += [line for line in Path(path).read_text().splitlines() if line]
    return environment | dict(line.split("=", 1) for line in lines)


def command_of(settings: dict[str, list[str]], environment: dict[str, str]) -> list[str]:
    """Return the words of a unit's command, with its variables."""
    return [
        re.sub(r"\$\{(\w+)\}", lambda found: environment[found[1]], word)
        for word in shlex.split(one(settings, "ExecStart"))
    ]


def keep(name: str) -> None:
    """Start a unit, and again whenever it has ended."""
    settings = read(name)
    user = one(settings, "User", "root")
    environment = environment_of(settings)
    command = command_of(settings, environment)
    for kind, root in (("RuntimeDirectory", "/run"), ("StateDirectory", "/var/lib")):
        for folder in settings.get(kind, []):
            path = Path(root) / folder
            path.mkdir(exist_ok=True)
            subprocess.run(["chown", f"{user}:", path], check=True)
            path.chmod(int(one(settings, f"{kind}Mode", "755"), 8))
    groups = one(settings, "SupplementaryGroups")
    groups = f"--groups={groups}" if groups else "--init-groups"
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", groups, "--"]
    while True:
        with open(LOGS / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                [*become, *command],
                env=environment,
                cwd=one(settings, "WorkingDirectory", "/"),
                umask=int(one(settings, "UMask", "022"), 8),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        (RUNNING / name).write_text(f"{os.getpid()} {process.pid}")
        process.wait()
        if one(settings, "Restart") != "always":
            return
        time.sleep(float(one(settings, "RestartSec", "0.1")))


def family_of(process: int) -> list[int]:
    """Return a process and all that it started, and they started."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    family = [process]
    for member in family:
        family += [child for child, parent in parents.items() if parent == member]
    return family


def kill(family: list[int], number: signal.Signals) -> None:
    """Send a signal to processes."""
    for process in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def start(name: str) -> None:
    """Start a unit in the background."""
    if (RUNNING / name).exists():
        return
    read(name)
    (RUNNING / name).touch()
    subprocess.Popen(
        [sys.executable, __file__, "keep", name],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def stop(name: str) -> None:
    """Ask a unit to end, and end it if it does not."""
    if (RUNNING / name).exists():
        keeper, process = map(int, (RUNNING / name).read_text().split())
        os.kill(keeper, signal.SIGKILL)
        family = family_of(process)
        kill([process], signal.SIGTERM)
        end = time.monotonic() + STOP_S
        while time.monotonic() < end and Path(f"/proc/{process}").exists():
            time.sleep(0.1)
        kill(family, signal.SIGKILL)
        (RUNNING / name).unlink()


def main() -> None:
    """Do what the command line says."""
    RUNNING.mkdir(exist_ok=True)
    LOGS.mkdir(exist_ok=True)
    verb, *words = (word for word in sys.argv[1:] if word not in ("--now", "--quiet"))
    names = [word.removesuffix(".service") for word in words if not word.startswith("-")]
    if verb == "keep":
        keep(names[0])
    elif verb in ("enable", "start"):
        for name in names:
            start(name)
    elif verb in ("disable", "stop"):
        for name in names:
            stop(name)
    elif verb == "restart":
        for name in names:
            stop(name)
            start(name)
    elif verb == "kill" and words[0] == "--signal=KILL":
        for name in names:
            kill(family_of(int((RUNNING / name).read_text().split()[1])), signal.SIGKILL)
    elif verb != "daemon-reload":
        raise SystemExit(f"this systemctl has no {verb}")


if __name__ == "__main__":
    main()
