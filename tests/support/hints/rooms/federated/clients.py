"""Messages of pools, of workers, of ranks and of a client's turn."""

import multiprocessing
import os
import pickle
import socket
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

import bayesfed as bf
from bayesfed.compress import Cast
from bayesfed.data import Population
from bayesfed.federated import Fit, Ranks, checkpoint, newest
from bayesfed.federated.clients import worker
from bayesfed.federated.clients.process_group import Group, portable
from bayesfed.federated.clients.worker_loop import Site, _answer_one, receive_outcome
from tests.federated.clients.test_start_methods import Unreadable, Unsendable
from tests.house.wrong_calls.given import (
    BINARY,
    CLIENTS,
    DATA,
    Loc,
    go,
    net,
    own,
    rows,
    svi,
    zeros_and_ones,
)
from tests.support.hints.rooms import networks

COMPLETE = (
    "bayesfed/federated/clients/cohorts.py",
    "bayesfed/federated/clients/pools.py",
    "bayesfed/federated/clients/process_group.py",
    "bayesfed/federated/clients/ranks.py",
    "bayesfed/federated/clients/side.py",
    "bayesfed/federated/clients/turn.py",
    "bayesfed/federated/clients/worker.py",
    "bayesfed/federated/clients/worker_loop.py",
    "bayesfed/federated/clients/workers.py",
)
tree = {name: torch.zeros_like(leaf) for name, leaf in net().named_parameters()}


def pooled(algorithm=None, data=CLIENTS, **options):
    """Run with a pool of this kind."""
    with bf.InProcess(data, **options) as pool:
        go(algorithm, pool)


@dataclass(frozen=True)
class Acting(Loc):
    """A local step that first does something, in the process of a worker alone."""

    act: object = None

    def fit(self, message, memory, data, key, options):
        if multiprocessing.parent_process() is not None:
            self.act()
        return super().fit(message, memory, data, key, options)


def dies():
    """End this process."""
    os._exit(7)


def sleeps():
    """Take some time."""
    time.sleep(0.1)


@dataclass(frozen=True)
class Holding(Loc):
    """A local step that holds something which cannot travel."""

    held: object = None


class Ends:
    """What ends the process that unpickles it."""

    def __reduce__(self):
        return os._exit, (1,)


@dataclass(frozen=True)
class Secretive(Cast):
    """A codec that cannot be pickled."""

    def __reduce__(self):
        raise TypeError("not this one")


@dataclass(frozen=True)
class Broken(Cast):
    """A codec that fails."""

    def encode(self, tree, meta, key):
        if key.path[-1] == "up":
            raise ValueError("told to fail")
        return super().encode(tree, meta, key)


@contextmanager
def quickly():
    """Fork workers that are to be spawned, which takes no seconds; they receive what those do."""
    forking = multiprocessing.get_context("fork")
    with mock.patch.object(multiprocessing, "get_context", return_value=forking):
        yield


def spawned(held, **options):
    """Run a local step that holds something, in a worker that receives it."""
    with quickly():
        pooled(own(local=Holding(held=held)), **{"workers": 1, "start": "spawn", **options})


def scarce(count):
    """Run in several workers on a machine that has room for one."""

    class Scarce(worker.Worker):
        alive = 0

        def __init__(self, *given):
            Scarce.alive += 1
            if Scarce.alive > 1:
                raise OSError("no more processes")
            super().__init__(*given)

    with mock.patch.object(worker, "Worker", Scarce):
        pooled(workers=count)


def accelerated(**options):
    """Make a pool of rows on an accelerator; here on torch's device without memory."""
    data = rows(3)
    object.__setattr__(data, "inputs", data.inputs.to("meta"))
    bf.InProcess({"a": data}, **options)


def unread():
    """Answer a task that a worker cannot read, and hear of it."""
    near, far = multiprocessing.Pipe()
    for part in (pickle.dumps(Unreadable()), b""):
        near.send_bytes(part)
    _answer_one(far, Site({}, {}, {}))
    asked = bf.federated.Task("a", 0, "train", 0, b"", Cast(32), Cast(32), bf.federated.Digital())
    raise receive_outcome(near, asked)


def failing(name):
    """Run clients whose rows cannot be loaded."""

    def load(client):
        return CLIENTS[name]

    go(clients=Population(["a", "b"], {"a": 3, "b": 3}, load))


def free():
    """Return a free port."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return str(found.getsockname()[1])


@contextmanager
def job(ranks, variable="1"):
    """Be rank 0 of a job with so many ranks, of which no other comes, under this value of
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE, of which torchrun makes another variable.
    """
    with mock.patch.dict(os.environ, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": variable}):
        shared = str(DynamicRendezvousHandler.use_agent_store.fget(None))
    environment = {"RANK": "0", "WORLD_SIZE": str(ranks), "MASTER_ADDR": "localhost"}
    restarts = {"TORCHELASTIC_MAX_RESTARTS": "2", "TORCHELASTIC_USE_AGENT_STORE": shared}
    with mock.patch.dict(os.environ, {**environment, **restarts, "MASTER_PORT": free()}):
        try:
            yield
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


def joined(ranks, *variable):
    """Run in a job, and go on from its checkpoints."""
    folder = Path(tempfile.mkdtemp())
    with job(ranks, *variable):
        for count in (1, 2):
            pool = Ranks(CLIENTS, mixed=True, timeout_s=0.2 if ranks > 1 else 60.0)
            go(clients=pool, rounds=count, callbacks=[checkpoint(folder)], resume=newest(folder))


def lost():
    """Gather in a job whose other rank has ended."""
    with job(2):
        with mock.patch.dict(os.environ, {"RANK": "1"}):
            other = multiprocessing.get_context("fork").Process(target=Group.join, args=(60.0,))
            other.start()
        group = Group.join(60.0)
        other.join()
        group.gather("a value")


@dataclass(frozen=True)
class Beside(Group):
    """A group of two of which the other rank differs in what it says."""

    said: tuple[str, str] = ("", "")

    def gather(self, value):
        name, text = self.said
        known = isinstance(value, dict) and name in value
        return [value, {**value, name: text}] if known else [value]

    def broadcast(self, value):
        return value


def beside(*said, mixed=False, clients=CLIENTS):
    """Run beside another rank that says something else."""
    group = Beside(0, 2, said=said or ("", ""))
    with mock.patch.object(Group, "join", return_value=group):
        go(clients=Ranks(clients, mixed=mixed))


def unportable():
    """Raise what another rank gets to see of an error of a class that it does not have."""

    class Own(Exception):
        pass

    raise portable(Own("told to fail"))


CASES = [
    (lambda cohort: pooled(own(local=Loc()), cohort=cohort), 2),
    # Pools.
    (lambda workers: accelerated(workers=workers), 1),
    (bf.InProcess, {}),
    (
        lambda: bf.InProcess(CLIENTS, deadline_s=1.0),
        "workers=1, kind='process'",
        lambda: bf.InProcess(CLIENTS, deadline_s=1.0, workers=1, kind="process"),
    ),
    (lambda cohort: bf.InProcess(CLIENTS, workers=1, cohort=cohort), 2),
    # Ranks.
    (
        lambda: joined(1, "0"),
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in the environment of torchrun",
        lambda: joined(1, "1"),
    ),
    (lambda: joined(2), "resume=newest(folder)", lambda: joined(1)),
    (lost, "resume=newest(folder)", lambda: joined(1)),
    (unportable, "told to fail", None),
    (
        lambda: beside("instructions", "AVX9"),
        "mixed=True",
        lambda: beside("instructions", "AVX9", mixed=True),
    ),
    (
        lambda: beside("instructions", "AVX9"),
        "machines of one kind with one build of torch",
        beside,
    ),
    (
        lambda: beside("first state", "0"),
        "one script with the same arguments and seeds on every rank",
        beside,
    ),
    (
        lambda: beside(clients=bf.InProcess(CLIENTS, cohort=2)),
        "cohort=1",
        lambda: beside(clients=bf.InProcess(CLIENTS, cohort=1)),
    ),
    # Turns.
    (
        lambda: go(own(local=Loc(result=Fit(torch.zeros(3), {}, {})))),
        "Fit(tree, {}, {})",
        lambda: go(own(local=Loc(result=Fit(tree, {}, {})))),
    ),
    (lambda: failing("c"), "KeyError: 'c'", None),
    (lambda: go(own(up=Broken(32))), "ValueError: told to fail", None),
    (
        lambda: networks.counted("static"),
        'buffers="mean"',
        lambda: networks.counted("mean"),
    ),
    (
        lambda: go(clients={"a": rows(6, 5)}),
        "rows of the width and type that the network takes",
        lambda: go(clients={"a": rows(6, 4)}),
    ),
    (
        lambda: go(svi(zeros_and_ones), {"a": BINARY}),
        "obs=targets.float() in a model",
        lambda: list(
            bf.federated.rounds(
                svi(lambda inputs, targets=None: zeros_and_ones(inputs, floats(targets))),
                bf.InProcess({"a": BINARY}),
                rounds=1,
            )
        ),
    ),
    # Workers.
    (lambda: scarce(2), "fewer workers", lambda: scarce(1)),
    (lambda: spawned(Unsendable()), "start='fork'", lambda: spawned(Unsendable(), start="fork")),
    (lambda: spawned(Unsendable()), "workers=0", lambda: spawned(Unsendable(), workers=0)),
    (
        lambda: pooled(own(codec=Secretive(32)), workers=1),
        "kind='thread'",
        lambda: pooled(own(codec=Secretive(32)), workers=1, kind="thread"),
    ),
    (
        lambda: spawned(Unreadable()),
        "define their classes in a module that can be imported",
        lambda: spawned(DATA),
    ),
    (lambda: spawned(Unreadable()), "workers=0", lambda: spawned(Unreadable(), workers=0)),
    (lambda: spawned(Ends()), "workers=0", lambda: spawned(Ends(), workers=0)),
    (unread, "ValueError: invalid literal", None),
    (
        lambda: pooled(own(local=Acting(act=sleeps)), workers=1, deadline_s=0.03),
        "a larger deadline_s",
        lambda: pooled(own(local=Acting(act=sleeps)), workers=1, deadline_s=60.0),
    ),
    (
        lambda: pooled(own(local=Acting(act=dies)), workers=1),
        "workers=0 to see why",
        lambda: pooled(own(local=Acting(act=dies)), workers=0),
    ),
    (lambda: networks.threaded("thread"), "kind='process'", lambda: networks.threaded("process")),
]


def floats(targets):
    """Return targets as fractions."""
    return None if targets is None else targets.float()
