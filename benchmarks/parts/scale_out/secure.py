"""Secure sums: the bits of sums without masks, what they cost a client, and what hostile messages
and questions do.

    python benchmarks/scale_out.py --only secure [--check]

- FedAvg of 10, 50 and 100 clients, of which 0, 10 and 30 % drop out in one of the four phases, or
  that share of those left in each of them, against the same rounds whose sums are made in the same
  fixed point without masks.
- Processor time of one client of 100 at 269k parameters, over its four phases, without training,
  beside a plain loop over the bytes of its masks.
- Rounds in which one client's key, share or unmask message is changed: the state must be that of
  the sum with or without the client, or unchanged since the round is lost.
- Questions for shares with overlapping sets, all of which must be refused.
- The chi-square test of the bytes of one masked update against uniform.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator

import numpy as np
import torch
from parts.shared.plain import loop_seconds
from parts.shared.targets import at_least, target
from scipy.stats import chisquare

import bayesfed as bf
from bayesfed.algorithms.wrappers.secure_sums import FixedPoint, degree
from bayesfed.algorithms.wrappers.secure_sums.graphs import neighbours
from bayesfed.algorithms.wrappers.secure_sums.sessions import Session
from bayesfed.errors import UpdateError
from bayesfed.federated import Algorithm, RoundReport, rounds
from bayesfed.trees import Tree, without
from tests.support.hostile.interference import dropping, interfered
from tests.support.hostile.mutations import mutants

PHASES = ("train-keys", "train-shares", "train", "train-open")
PARAMETERS, MANY, MUTATED = 268_800, 100, 1000
# Passes of a plain loop over the masks of a client that its four phases may take. They take
# 0.65.
MOST_LOOPS = 2.0


def targets(options: argparse.Namespace) -> Iterator[bool]:
    """Measure and print; yield whether each target is met."""
    torch.set_num_threads(1)
    yield _bits()
    yield _cost(options.check)
    yield _mutated()
    yield _overlapping()
    yield _uniform()


def _clients(count: int) -> dict[str, bf.Dataset]:
    inputs = torch.randn(count * 4, 6, generator=bf.Key(0, "rows").generator())
    whole = bf.Dataset(inputs, inputs[:, :3].argmax(1))
    return {
        f"client-{number:03d}": whole[slice(4 * number, 4 * number + 4)] for number in range(count)
    }


def _algorithm(count: int, *, masks: bool, dropouts: float = 0.3) -> Algorithm:
    plain = bf.fed_avg(
        bf.mlp([6, 4, 3], bf.Key(0, "net")), training=bf.Training(steps=1, batch_size=4)
    )
    return bf.secure(
        plain, participants=count, largest=8.0, heaviest=4.0, masks=masks, dropouts=dropouts
    )


def _last(algorithm: Algorithm, clients: dict[str, bf.Dataset], seed: int = 0) -> RoundReport:
    *_, report = rounds(
        algorithm, bf.InProcess(clients), rounds=1, seed=seed, on_client_error="drop"
    )
    return report


def _equal(left: Tree, right: Tree) -> bool:
    own = without(left, "secure/")
    return own.keys() == right.keys() and all(
        torch.equal(leaf, right[name]) for name, leaf in own.items()
    )


def _bits() -> bool:
    same = runs = 0
    for count in (10, 50, MANY):
        clients = _clients(count)
        masked, plain = _algorithm(count, masks=True), _algorithm(count, masks=False)
        for share in (0.0, 0.1, 0.3):
            gone = random.Random(count).sample(sorted(clients), int(share * count))
            for phase in PHASES if share else PHASES[:1]:
                kept = _last(
                    dropping(plain, {"train": gone if phase != PHASES[-1] else ()}), clients
                )
                runs += 1
                same += _same(_last(dropping(masked, {phase: gone}), clients), kept)
            if share:
                left, lost = sorted(clients), dict[str, list[str]]()
                for phase in PHASES:
                    lost[phase] = random.Random(count).sample(left, int(share * len(left)))
                    left = [name for name in left if name not in lost[phase]]
                kept = _last(
                    dropping(
                        plain, {"train": [name for phase in PHASES[:3] for name in lost[phase]]}
                    ),
                    clients,
                )
                runs += 1
                same += _same(
                    _last(dropping(_algorithm(count, masks=True, dropouts=0.7), lost), clients),
                    kept,
                )
    return target(
        f"secure sums: of {runs} runs of 10, 50 and 100 clients, those that differ in a bit",
        runs - same,
        0,
    )


def _same(masked: RoundReport, plain: RoundReport) -> bool:
    return (
        _equal(masked.state, plain.state) and masked.server["summed"] == plain.server["summed"] > 0
    )


def _circle(
    count: int, number: int, threshold: int
) -> tuple[list[Session], list[list[bytes]], list[list[int]]]:
    """Return sessions that have shared, the boxes for each, and its neighbours."""
    sessions, graph = [Session.fresh() for _ in range(count)], neighbours(count, number).tolist()
    for place, one in enumerate(sessions):
        one.share([sessions[other].public for other in graph[place]], threshold)
    boxes = [
        [sessions[other].boxes[graph[other].index(place)] for other in graph[place]]
        for place in range(count)
    ]
    return sessions, boxes, graph


def _cost(check: bool) -> bool:
    chosen = degree(MANY, 0.3, 0.1)
    if chosen is None:
        return False
    point = FixedPoint(32, MANY, 8.0, 1.0, (("weight", (PARAMETERS,)),), "value")
    payload = {"weight": torch.randn(PARAMETERS, generator=bf.Key(0, "payload").generator())}
    sessions, boxes, graph = _circle(MANY, *chosen)
    seconds = []
    for place in range(3 if check else 10):
        start = time.process_time()
        other = Session.fresh()
        other.share([sessions[number].public for number in graph[place]], chosen.threshold)
        sessions[place].mask(point.encode(payload, 1.0), [True] * chosen.neighbours, 32)
        sessions[place].open(list(range(chosen.neighbours)), [], boxes[place])
        seconds.append(time.process_time() - start)
    print(f"{MANY} clients: {chosen.neighbours} neighbours each, threshold {chosen.threshold}")
    # A client draws one mask for each neighbour and one of its own.
    masked_bytes = (chosen.neighbours + 1) * 4 * PARAMETERS
    client, loop = float(np.median(seconds)), loop_seconds(masked_bytes)
    print(f"a client {1e3 * client:.1f} ms, a plain loop over its masks {1e3 * loop:.1f} ms")
    return target(
        "secure sums: a client of 100 at 269k parameters / plain loop over its masks",
        client / loop,
        MOST_LOOPS,
    )


def _mutated() -> bool:
    """Change the payload or the message of one client in one phase, in as many rounds; the digest
    of the message is made anew.
    """
    clients, draw = _clients(5), random.Random(0)
    masked, plain = _algorithm(5, masks=True), _algorithm(5, masks=False)
    everyone, begin = sorted(clients), masked.initial
    sums = {
        name: _last(dropping(plain, {"train": [name]} if name else {}), clients).state
        for name in ("", *everyone)
    }
    wrong, kinds = 0, {"with it": 0, "without it": 0, "lost": 0}
    for number in range(MUTATED):
        phase, bad = (
            draw.choice(("train-keys", "train-shares", "train-open")),
            draw.choice(everyone),
        )

        def act(
            where: str,
            round: int,
            client: str,
            payload: Tree,
            phase: str = phase,
            bad: str = bad,
            number: int = number,
        ) -> Tree:
            return (
                _tampered(payload, draw)
                if (where, client) == (phase, bad) and number % 2
                else payload
            )

        def rewrite(
            where: str,
            client: str,
            message: bytes,
            phase: str = phase,
            bad: str = bad,
            number: int = number,
        ) -> bytes:
            if (where, client) != (phase, bad) or number % 2:
                return message
            return next(
                mutants([message, message[:40] + message], bf.Key(number, "mutant"), 1)
            ).message

        report = _last(interfered(masked, act, rewrite), clients)
        if report.server["summed"] == 0 and _equal(report.state, without(begin, "secure/")):
            kinds["lost"] += 1
        elif _equal(report.state, sums[""]):
            kinds["with it"] += 1
        elif _equal(report.state, sums[bad]):
            kinds["without it"] += 1
        else:
            wrong += 1
    print(f"{MUTATED} rounds with a changed key, share or unmask message: {kinds}")
    return target(
        "secure sums: rounds of 1,000 with a changed message whose sum is wrong", wrong, 0
    )


def _tampered(payload: Tree, draw: random.Random) -> Tree:
    """Return a payload with one change: bits, a leaf, its shape or its type."""
    name = draw.choice(sorted(payload))
    leaf = payload[name].clone()
    match draw.randrange(7):
        case 0:
            leaf.view(-1)[draw.randrange(leaf.numel())] ^= 1 << draw.randrange(8)
        case 1:
            leaf = torch.zeros_like(leaf)
        case 2:
            leaf = torch.from_numpy(
                np.frombuffer(draw.randbytes(leaf.numel()), np.uint8).copy()
            ).reshape(leaf.shape)
        case 3:
            leaf = leaf.roll(1, 0)
        case 4:
            leaf = leaf[:-1]
        case 5:
            leaf = leaf.to(torch.int64)
        case _:
            return {other: value for other, value in payload.items() if other != name}
    return {**payload, name: leaf}


def _overlapping() -> bool:
    opened, draw, tries = 0, random.Random(1), 200
    sessions, boxes, _ = _circle(8, 7, 3)
    for session in sessions:
        session.mask(np.zeros(4, np.uint32), [True] * 7, 32)
    for number in range(tries):
        place = number % 7
        active = draw.sample(range(7), draw.randint(3, 7))
        dropped = sorted(
            {*draw.sample(active, draw.randint(1, len(active))), *(set(range(7)) - set(active))}
        )
        opened += _answers(sessions[place], active, dropped, boxes[place])
    once = sessions[7]
    opened += not _answers(once, list(range(6)), [6], boxes[7])
    # A second question, in which a client changes sides.
    opened += sum(
        _answers(once, [other for other in range(7) if other != moved], [moved], boxes[7])
        for moved in range(6)
    )
    return target(
        f"secure sums: of {tries + 6} questions with overlapping sets, those that are answered",
        opened,
        0,
    )


def _answers(session: Session, active: list[int], dropped: list[int], boxes: list[bytes]) -> bool:
    try:
        session.open(active, dropped, boxes)
    except UpdateError:
        return False
    return True


def _uniform() -> bool:
    sessions, _, _ = _circle(8, 7, 3)
    masked = sessions[0].mask(np.zeros(PARAMETERS, np.uint32), [True] * 7, 32)
    counts = np.bincount(masked.view(np.uint8), minlength=256)
    return at_least(
        "secure sums: p value of the bytes of a masked update of zeros against uniform",
        float(chisquare(counts).pvalue),
        1e-4,
    )
