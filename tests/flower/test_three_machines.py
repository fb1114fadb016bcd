"""The tutorial of three hospitals and a centre, followed to the letter on machines that are
namespaces, and what a hospital must not be able to do there. Needs root, nginx and nft.
"""

import contextlib
import json
import re
import shutil
import sys
import time
from pathlib import Path

import pytest

from tests.support.machines import Network, why_not

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/tutorials/flower.md").read_text()
HOSPITALS = ("basel", "bern", "chur")
ALL = ("centre", *HOSPITALS)
# A block of commands with the machine and the user that its title names, and what it prints.
BLOCK = re.compile(
    r'^```(bash|py) title="([^",]+), as (\w+)"\n(.*?)^```$(?:\n+```text\n(.*?)^```$)?',
    re.DOTALL | re.MULTILINE,
)
RESULTS = "/var/lib/bayesfed/results/died"
ATTACK = "/opt/bayesfed/bin/python /opt/checkout/tests/support/machines/attack.py"


def why_not_all():
    """Return why the tutorial cannot be followed here, or an empty text."""
    missing = [name for name in ("nginx", "nft", "curl", "ssh-keygen") if not shutil.which(name)]
    return f"no {missing}" if missing else why_not()


def wait_for(ready, what, seconds=200.0):
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, what
        time.sleep(0.5)


class Consortium:
    """The four machines, on which blocks of the page are run one after the other."""

    def __init__(self, network):
        self.network = network
        self.blocks = [found.groups() for found in BLOCK.finditer(PAGE)]

    def follow(self, *words):
        """Run the block with each of these words, on its machine or on each of the hospitals."""
        for word in words:
            (block,) = [block for block in self.blocks if word in block[3]]
            self.blocks.remove(block)
            language, where, user, code, printed = block
            if where == "each hospital":
                for hospital in HOSPITALS:
                    self.one(hospital, language, user, code.replace("basel", hospital), printed)
            else:
                self.one(where, language, user, code, printed)

    def one(self, machine, language, user, code, printed):
        """Run a block and compare what it prints with the page."""
        if language == "py":
            self.network.file(machine, "/tmp/block.py").write_text(code)
            code = "/opt/bayesfed/bin/python /tmp/block.py"
        elif machine in HOSPITALS:
            code = f"cd /root; {code}"
        done = self.network.run(
            machine, code, user="" if user == "root" else user, check=not printed
        )
        if printed:
            assert [line.split() for line in done.stdout.strip().splitlines()] == [
                line.split() for line in printed.strip().splitlines()
            ]

    def rounds(self):
        """Return the reports of the rounds so far."""
        file = self.network.file("centre", f"{RESULTS}/rounds.jsonl")
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line) for line in lines]


@contextlib.contextmanager
def logs_on_failure(network):
    """Print the ends of the logs of all machines when something fails."""
    try:
        yield
    except BaseException:
        for machine in ALL:
            log = network.run(machine, "tail -n 25 /var/log/units/*", check=False).stdout
            sys.stdout.write(f"{machine}\n{log}\n")
        raise


@pytest.mark.flower
@pytest.mark.skipif(bool(why_not_all()), reason=why_not_all())
def test_the_tutorial_works_as_written_and_keeps_its_promises():
    with Network(ALL, {"fed.example.org": "centre"}) as network, logs_on_failure(network):
        for machine in ALL:
            network.run(machine, "cp -r /opt/checkout/examples/flower /opt/flower")
        page = Consortium(network)
        page.follow("centre/setup.sh")
        for hospital in HOSPITALS:
            network.copy("centre", "/etc/bayesfed/ca.pem", hospital, "/root/ca.pem")
        page.follow("hospital/setup.sh", "stays.py", "runuser -u fednode", "nft -f")
        for hospital in HOSPITALS:
            key = f"/var/lib/bayesfed/{hospital}.pub"
            network.copy(hospital, "/etc/bayesfed/node.pub", "centre", key)
        page.follow("flwr supernode register", "systemctl enable", "cp -r")
        check_doors(network)
        page.follow("--write-out")
        check_permissions(network)
        wait_for(lambda: len(page.rounds()) >= 3, "three rounds")
        page.follow("systemctl kill")
        before = len(page.rounds())
        page.follow("resume=true")
        wait_for(network.file("centre", f"{RESULTS}/rounds.txt").exists, "the end of the run")
        numbers = [report["round"] for report in page.rounds()]
        assert numbers[:before] == list(range(before))
        assert numbers[-1] == 9
        page.follow("bf.open(")
        assert not page.blocks


def check_permissions(network):
    """Rows, keys and memories can be read by their user alone, also after a worker was killed."""
    for path in ("/srv/bayesfed/stays.csv", "/var/lib/bayesfed-worker"):
        refused = network.run("bern", f"runuser -u fednode -- ls -l {path}", check=False)
        assert "Permission denied" in refused.stdout, refused.stdout
    assert owner(network, "bern", "/etc/bayesfed/node") == "600 fednode root"
    socket = "/run/bayesfed/worker.sock"
    wait_for(network.file("bern", socket).exists, "the worker")
    network.run("bern", "systemctl kill --signal=KILL bayesfed-worker")
    code = f"from multiprocessing.connection import Client; Client('{socket}').close()"
    connect = f'runuser -u fednode -- /opt/bayesfed/bin/python -c "{code}"'
    wait_for(lambda: network.run("bern", connect, check=False).returncode == 0, "a new worker")
    assert owner(network, "bern", socket) == "660 feddata fednode"
    other = connect.replace("fednode", "nobody")
    assert "PermissionError" in network.run("bern", other, check=False).stdout
    for secret in ("superexec.key", "superlink.key"):
        assert owner(network, "centre", f"/etc/bayesfed/{secret}").startswith("600 fedcentre")
    assert owner(network, "centre", "/etc/bayesfed/ca.key") == "600 root root"


def check_doors(network):
    """A hospital gets neither the centre's run nor a run of its own, and no machine of another gets
    into a hospital; a program of the centre gets no run without the secret.
    """
    attack = f"{ATTACK} fed.example.org:443 /etc/bayesfed/ca.pem 5"
    assert "403 Forbidden" in network.run("chur", attack).stdout
    as_nobody = f"runuser -u nobody -- {ATTACK} 127.0.0.1:8000 /etc/bayesfed/ca.pem 5"
    assert "401 Unauthorized" in network.run("centre", as_nobody).stdout
    for machine, port in (("centre", 8000), ("basel", 9094)):
        connect = f"timeout 2 bash -c '< /dev/tcp/{network.address[machine]}/{port}'"
        assert network.run("chur", connect, check=False).returncode != 0
    flwr = "/opt/bayesfed/bin/flwr"
    unknown = network.run(
        "chur", f"{flwr} supernode register /etc/bayesfed/node.pub consortium", check=False
    )
    assert unknown.returncode != 0
    assert "'consortium' not found" in " ".join(unknown.stdout.split())
    network.file("chur", "/root/.flwr/config.toml").write_text(
        '[superlink.consortium]\naddress = "fed.example.org:443"\n'
        'root-certificates = "/etc/bayesfed/ca.pem"\n'
    )
    started = network.run("chur", f"{flwr} run /opt/flower/machines/app consortium", check=False)
    assert started.returncode != 0
    assert "403 Forbidden" in started.stdout


def owner(network, machine, path):
    """Return the permissions, the owner and the group of a file."""
    return network.run(machine, f"stat -c '%a %U %G' {path}").stdout.strip()
