"""What a case of `cifar10.py` trains, by its system: algorithms on one small network, and where its
clients are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from parts.anycostfl import runs as devices
from parts.cifar10.records import Settings
from parts.fedhm import defaults, tasks
from parts.sparse import weights
from parts.sparse.tasks import Task as Weighted

import bayesfed as bf
from bayesfed.algorithms import fed_l1, fed_mid
from bayesfed.compress.lossless.ranges import Range
from bayesfed.compress.quantisers.floats import Float
from bayesfed.compress.quantisers.sparsify import Sparse
from bayesfed.federated import Algorithm, ClientPool, cosine
from bayesfed.trees import Tree

IMAGE, CLASSES, FLOOR = (3, 32, 32), 10, 0.1
# 16 bits a value, and of sparse models the values that are not zero.
SIXTEEN = bf.compress.Coded(Float(16, entropy=Range()))
NONZERO = bf.compress.Coded(Sparse(Float(16)))
# What comes before has no state.
Stage = Callable[[Tree], Algorithm]


class Place(NamedTuple):
    """What the runs of a seed share."""

    train: bf.Dataset
    clients: Mapping[str, bf.Dataset]
    seed: int
    megabytes: Callable[[str], float]
    """Of a case that was run before."""


class Plan(NamedTuple):
    """Algorithms one after another, each from the state that the one before ends with, and for how
    many rounds.
    """

    stages: Sequence[tuple[Stage, int]]
    clients: Mapping[str, bf.Dataset] | ClientPool


def plan(settings: Settings, place: Place) -> Plan:
    """Return what a case runs."""
    if settings["system"] == "devices":
        task = devices.Task(settings, place.seed, place.train, 0)
        return Plan([(lambda state: task.algorithm(), settings["rounds"])], task.pool)
    if settings["system"] == "pruned":
        return Plan(pruned(settings, place.seed), place.clients)
    rounds = settings["rounds"]
    if settings["system"] == "sparse":
        rounds = as_many_bytes(settings, place)
        made = partial(supported, settings, place, rounds)
    elif settings["system"] == "sizes":
        made = partial(sized, settings, place)
    else:
        made = partial(plain, settings, place.seed)
    return Plan([(lambda state: made(), rounds)], place.clients)


def network(settings: Settings, key: bf.Key, width: float = 1.0) -> torch.nn.Module:
    """Return the network at a width."""
    channels = [round(width * many) for many in settings["channels"]]
    hidden = round(width * settings["hidden"])
    return bf.cnn(IMAGE, CLASSES, key, channels=channels, hidden=hidden)


def work(
    settings: Settings, optimiser: Callable[[float], Any], rounds: int, after: int = 0
) -> bf.Training:
    """Return a round's work, whose rate falls along a cosine over all rounds, of which `after` were
    made before; at first it rises, where settings have a warm-up.
    """
    slow: float = settings.get("warm_up", 0) + 1.0
    falling = cosine(FLOOR, rounds)

    def schedule(round: int) -> float:
        return min(1.0, (round + 1) / slow) * falling(round)

    return bf.Training(
        settings["steps"],
        settings["batch_size"],
        optimiser(settings["learning_rate"]),
        lambda round: schedule(round + after),
    )


def supported(settings: Settings, place: Place, rounds: int) -> Algorithm:
    """Return D-Turbo-VBI with a learned support, or a random one."""
    task = Weighted(place.clients, place.train, ())
    own = {**settings, "every": settings["returns"]}
    made = weights.Made("CIFAR-10", place.seed, task, own)
    net = network(settings, bf.Key(place.seed, "net"))
    return weights.algorithm(made, net, settings["method"], rounds)


def as_many_bytes(settings: Settings, place: Place) -> int:
    """Return the rounds in which a random support sends as much as a case; a round's bytes do not
    depend on its steps.
    """
    rounds: int = settings["rounds"]
    if "as_many_bytes_as" not in settings:
        return rounds
    probe = supported({**settings, "steps": 1}, place, rounds)
    megabytes = place.megabytes(settings["as_many_bytes_as"])
    return weights.rounds_of(megabytes, probe, place.clients, place.seed)


def pruned(settings: Settings, seed: int) -> list[tuple[Stage, int]]:
    """Return dense training, and training in which only the largest weights are kept."""
    net, rounds = network(settings, bf.Key(seed, "net")), settings["rounds"]
    dense = bf.fed_avg(net, training=work(settings, bf.Adam, rounds), codec=SIXTEEN)

    def largest(state: Tree) -> Algorithm:
        trained = copy.deepcopy(net)
        trained.load_state_dict(dict(dense.predictor(state).parameters))
        later = work(settings, bf.Adam, rounds, rounds // 2)
        share, once = settings["density"], settings["once"]
        return bf.fed_prune(trained, share=share, once=once, training=later, codec=NONZERO)

    return [(lambda state: dense, rounds // 2), (largest, rounds - rounds // 2)]


def sized(settings: Settings, place: Place) -> Algorithm:
    """Return FedHM, or a rival whose networks have as many parameters, for three sizes."""

    def net(width: float, key: bf.Key) -> torch.nn.Module:
        return network(settings, key, width)

    task = tasks.Task(lambda seed: (place.train, place.train), net, len(place.clients), 0, 1)
    optimiser = partial(bf.Sgd, momentum=settings["momentum"])
    training = work(settings, optimiser, settings["rounds"])
    made = defaults.recipes(task, place.seed, sorted(place.clients), training=training)
    return made[settings["method"]]()


def plain(settings: Settings, seed: int) -> Algorithm:
    """Return a method that trains the network whole, or at a fixed rank."""
    net, rounds = network(settings, bf.Key(seed, "net")), settings["rounds"]
    system = settings["system"]
    optimiser: Callable[[float], Any] = bf.Adam if system in ("stc", "fed_paq") else bf.Sgd
    training = work(settings, optimiser, rounds)
    if system == "stc":
        return bf.stc(net, share=settings["share"], training=training)
    if system == "fed_paq":
        return bf.fed_paq(net, bits=settings["bits"], training=training, codec=SIXTEEN)
    if system == "fed_rlr":
        return bf.fed_rlr(net, settings["rank"], clip=settings["clip"], training=training)
    if system == "fed_l1":
        codec = bf.compress.Coded(Sparse())
        return fed_l1(net, strength=settings["strength"], training=training, codec=codec)
    return fed_mid(net, strength=settings["strength"], training=training)
