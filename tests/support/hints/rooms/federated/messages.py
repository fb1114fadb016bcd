"""Messages about what arrives: the gate, envelopes, secrets, clients' memories."""

import secrets
import shutil
import tempfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch

import bayesfed as bf
from bayesfed.federated import ClientMemory, Slot, rounds
from bayesfed.federated.clients.envelopes import Envelope, masked, opened
from bayesfed.federated.clients.memory.table import StoredMemories, entry
from bayesfed.federated.clients.serialisation import from_safetensors, to_safetensors
from tests.house.wrong_calls.given import CLIENTS, KEY, Loc, avg, go, net, own
from tests.support.hints.world import full_disk
from tests.support.hostile.pool import Between

COMPLETE = (
    "bayesfed/federated/engine/entries.py",
    "bayesfed/federated/engine/exchange.py",
    "bayesfed/federated/engine/gate.py",
    "bayesfed/federated/clients/envelopes.py",
    "bayesfed/federated/clients/serialisation.py",
    "bayesfed/federated/clients/memory",
)
ENVELOPE = Envelope("run", 0, "up", "a", 3, "train")
SECRETS = {name: secrets.token_bytes(32) for name in CLIENTS}
LEAF = {"w": torch.arange(3.0)}


def heard(act, **changes):
    """Make a round in which `act` stands between clients and server; print what is refused."""
    pool = Between(bf.InProcess(CLIENTS), act)
    (report,) = rounds(avg(), pool, rounds=1, **changes)
    print(*(row.reason for row in report.refusals), sep="\n")  # noqa: T201


def twice(**changes):
    """Hear every answer, and then another one."""
    heard(lambda task, reply: [(task, reply), (replace(task, **changes), reply)])


def once(**changes):
    """Hear every answer once, changed."""
    heard(lambda task, reply: [(task, replace(reply, **changes))])


def silent(names):
    """Hear nothing of these clients."""
    heard(lambda task, reply: [] if task.client in names else [(task, reply)])


def received(secret=None, **changes):
    """Open a message of another exchange."""
    there = replace(ENVELOPE, **changes)
    meta = {"client": there.client, "round": there.round, "phase": there.phase}
    opened(masked(bf.Cast(32).encode(LEAF, meta, KEY), there, secret), ENVELOPE, secret)


def keyed(given, pool):
    """Run with secrets at the server and in the pool."""
    go(clients=bf.InProcess(CLIENTS, secrets=pool), secrets=given)


def remembering(*, keep=1, back=1, damage=lambda folder: None, folder=None):
    """Accept three memories, damage the files, and go back by some."""
    memory = ClientMemory(folder or tempfile.mkdtemp(), keep=keep)
    for round in range(3):
        memory.pend(Slot(round, "train"), LEAF)
        memory.agree(Slot(round, "train"))
    damage(memory._folder)
    memory.agree(Slot(3 - back, "train"))
    memory.read()


def swapped(folder):
    """Put an older memory in the place of a newer one."""
    older, newer = sorted(folder.glob("*.memory"))
    shutil.copy(older, newer)


def stored(cut=0):
    """Read memories from a file that lacks some bytes."""
    path = Path(tempfile.mkdtemp()) / "memories"
    content = entry("a", LEAF)
    path.write_bytes(content[: len(content) - cut])
    StoredMemories.of(path)["a"]


def on_disk(folder, disk=full_disk):
    """Run a method whose clients' memories are on a disk."""
    pool = bf.InProcess(CLIENTS, memory_bytes=0, memory_folder=folder)
    with disk():
        go(bf.stc(net(), share=0.5, training=bf.Training(steps=1)), pool)


def nowhere():
    """Return the path of a folder that does not exist."""
    return str(Path(tempfile.mkdtemp()) / "none")


CASES = [
    # Strays: their reasons are in the report.
    (lambda: twice(client="stranger"), "this exchange's own", once),
    (lambda: twice(round=7), "this exchange's own", once),
    (lambda: twice(seed=7), "this exchange's own", once),
    (twice, "this exchange's own", once),
    (
        lambda: go(own(local=Loc(info={"loss": "much"}))),
        "Fit(info={'loss': float(loss)})",
        lambda: go(own(local=Loc(info={"loss": float("0.5")}))),
    ),
    (
        lambda: go(own(local=Loc(info={str(number): 0.0 for number in range(100)}))),
        "Fit(info={'loss': float(loss)})",
        lambda: go(own(local=Loc(info={"loss": 0.5}))),
    ),
    (
        lambda: once(seconds=-1.0),
        "time.perf_counter() - start",
        lambda: once(seconds=0.1),
    ),
    (
        lambda: go(own(local=Loc(payload={"1.bias": torch.full((3,), 1e7)}))),
        "leaves of these names",
        lambda: go(own(local=Loc())),
    ),
    (lambda: silent("a"), "no answer", None),
    (lambda: go(least=3), "2 of at least 3 clients", None),
    # Envelopes and secrets.
    (lambda: received(run="other"), "this exchange's own message", received),
    (lambda: received(round=2), "this exchange's own message", received),
    (lambda: received(direction="down"), "this exchange's own message", received),
    (
        lambda: received(SECRETS["a"], direction="down"),
        "this exchange's own message",
        lambda: received(SECRETS["a"]),
    ),
    (
        lambda: keyed(SECRETS, None),
        "one set of secrets at both ends",
        lambda: keyed(SECRETS, SECRETS),
    ),
    (
        lambda: keyed(None, SECRETS),
        "one set of secrets at both ends",
        lambda: keyed(SECRETS, SECRETS),
    ),
    (
        lambda: keyed(SECRETS, "secret"),
        "{name: secrets.token_bytes(32) for name in clients}",
        lambda: keyed(SECRETS, SECRETS),
    ),
    (
        lambda: bf.InProcess(CLIENTS, secrets={"a": SECRETS["a"]}),
        "secrets.token_bytes(32)",
        lambda: bf.InProcess(CLIENTS, secrets={"a": SECRETS["a"], "b": secrets.token_bytes(32)}),
    ),
    (lambda secret: bf.InProcess(CLIENTS, secrets={"a": SECRETS["a"], "b": secret}), b"short"),
    (
        lambda: from_safetensors(to_safetensors(LEAF)[:-1]),
        "an undamaged one",
        lambda: from_safetensors(to_safetensors(LEAF)),
    ),
    # Memories.
    (lambda: remembering(keep=2, damage=swapped), "restoring it", lambda: remembering(keep=2)),
    (lambda: remembering(keep=2, damage=swapped), "a new run", remembering),
    (lambda: remembering(back=2), "a larger keep", lambda: remembering(keep=2, back=2)),
    (lambda: remembering(back=2), "a new run", remembering),
    (
        lambda: remembering(damage=lambda folder: (folder / "own.memory").touch()),
        "a folder of its own",
        remembering,
    ),
    (lambda: stored(3), "an undamaged file", stored),
    (
        lambda: on_disk(nowhere(), nullcontext),
        "memory_folder= on a larger disk",
        lambda: on_disk(tempfile.mkdtemp(), nullcontext),
    ),
    (
        lambda: on_disk(tempfile.mkdtemp()),
        "room there",
        lambda: on_disk(tempfile.mkdtemp(), nullcontext),
    ),
]
