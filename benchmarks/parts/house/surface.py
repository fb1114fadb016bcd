"""What somebody meets who uses the package or reads a traceback: the names on `bayesfed`, and the
calls between a round and the loss of a client.
"""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Mapping

import bayesfed as bf
from bayesfed.inference.turbo.elbo import MeanFieldElbo

LISTED = """
import sys, types
import bayesfed as bf

for name in dir(bf):
    if not name.startswith("_"):
        value = getattr(bf, name)
        home = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
        print(name, home.split(".")[0])
"""


def names() -> dict[str, str]:
    """Return the names on `bayesfed` after its import, with the packages that define them."""
    command = [sys.executable, "-c", LISTED]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return dict(line.split() for line in found.splitlines())


def strangers(found: Mapping[str, str]) -> list[str]:
    """Return the names of what the package does not define."""
    return [f"{name} of {home}" for name, home in found.items() if home != "bayesfed"]


def frames() -> list[str]:
    """Return the calls between `rounds` and the loss of a step of D-Turbo-VBI, outermost first."""
    found, loss = list[str](), MeanFieldElbo.loss

    def noted(self: MeanFieldElbo, *given: object) -> object:
        if not found:
            stack = [f"{frame.filename}:{frame.name}" for frame in traceback.extract_stack()[:-1]]
            place = next(at for at, one in enumerate(stack) if one.endswith("round_loop.py:rounds"))
            found.extend(one.rpartition("bayesfed/")[2] for one in stack[place + 1 :])
        return loss(self, *given)  # type: ignore[arg-type]

    train, _ = bf.digits()
    clients = bf.federate(train[:40], bf.iid(40, 2, bf.Key(0, "clients")))
    declared = bf.declare(bf.mlp([64, 8, 10], bf.Key(0, "net")))
    work = bf.Training(steps=1, batch_size=8)
    algorithm = bf.d_turbo_vbi(declared, observations=40, training=work, temperature="auto")
    MeanFieldElbo.loss = noted  # type: ignore[assignment,method-assign]
    try:
        bf.run(algorithm, clients, rounds=1, progress=False)
    finally:
        MeanFieldElbo.loss = loss  # type: ignore[method-assign]
    return found
