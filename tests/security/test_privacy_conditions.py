"""Every wrapper, link and setting under which a printed epsilon could be false: the rows of the
table in SECURITY.md, in its order.
"""

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.compress import Coded, ErrorFeedback, TopK
from bayesfed.errors import ArgumentError, ClientError, TooFewClientsError, UpdateError
from bayesfed.federated import Digital, OverTheAir, Slice, fraction, rounds
from bayesfed.federated.aggregation.changes import clipped, norm
from bayesfed.federated.aggregation.reducers import Admitted, BoundedSum
from bayesfed.federated.core.owners import owned
from bayesfed.federated.core.protocols import Fit
from bayesfed.federated.core.update import Update
from bayesfed.trees import zip_map
from tests.conftest import tree_equal

KEY = bf.Key(7, "secret")
NET = nn.Linear(3, 1, bias=False).requires_grad_()


@dataclass(frozen=True)
class Told:
    """A local step that sends the mean of its inputs as its change, and keeps nothing."""

    kind: str = "delta"
    keeps: bool = False

    def fit(self, message, memory, data, key, options):
        if bool((data.targets < 0).any()):
            raise ValueError("no targets")
        change = data.inputs.mean(0, keepdim=True) if len(data) else torch.zeros(1, 3)
        return Fit(
            {"weight": change if self.kind == "delta" else message["weight"] + change},
            {"kept": change} if self.keeps else {},
            {},
        )


def rows(value=1.0, count=2):
    return bf.Dataset(torch.full((count, 3), value), torch.zeros(count))


CLIENTS = {f"c{number}": rows(0.1 * number) for number in range(4)}


def plain(**changes):
    local = Told(**{name: changes.pop(name) for name in ("kind", "keeps") if name in changes})
    return bf.compose("told", NET, local, **changes)


def private(algorithm=None, **changes):
    given = {"clip": 0.5, "noise": 1.0, "participants": 4, "key": KEY, "delta": 1e-5, **changes}
    return bf.private(plain() if algorithm is None else algorithm, **given)


def ran(algorithm, clients=None, **changes):
    pool = bf.InProcess(CLIENTS if clients is None else clients, **changes.pop("pool", {}))
    return list(rounds(algorithm, pool, **{"rounds": 2, **changes}))


def rephased(algorithm, **changes):
    return replace(algorithm, phases=(replace(algorithm.phases[0], **changes),))


def doubling():
    class Twice(Digital):
        def collect(self, arrivals, reducer, key):
            for arrival in super().collect(arrivals, reducer, key):
                reducer.add(arrival.client, Update({"weight": torch.ones(1, 3)}, 1.0, arrival.kind))
                yield arrival

    return Twice()


def two_phases(algorithm):
    return replace(algorithm, phases=(*algorithm.phases, replace(plain().phases[0], name="more")))


def continued(before, after, **changes):
    (first,) = ran(before, rounds=1)
    return ran(after, resume=first.snapshot, resume_anyway=True, **changes)


def by_entry():
    return plain(view=Slice({"weight": (1, 3)}, {"weight": (1, 3)}))


def sampled(**changes):
    return private(**{"participants": 2, "population": 4, **changes})


REFUSED = {
    "robust rule": (
        lambda: bf.robust(private(), bf.federated.Median()),
        "a method without 'private'",
    ),
    "robust rule below": (
        lambda: private(bf.robust(plain(), bf.federated.NormGate(2.0))),
        "a method whose server takes a sum",
    ),
    "private twice": (
        lambda: private(private(delta=None)),
        "a method without 'private', found one with 'private'; try one 'private'",
    ),
    "over the air": (
        lambda: private(plain(link=OverTheAir(snr_db=9.0))),
        "updates that arrive one by one, found OverTheAir",
    ),
    "over the air later": (
        lambda: ran(rephased(private(), link=OverTheAir(snr_db=9.0))),
        "updates that arrive one by one, found OverTheAir",
    ),
    "own link": (lambda: ran(rephased(private(), link=doubling())), "one clipped update, found"),
    "entry weights": (
        lambda: ran(private(by_entry())),
        "clients of weight 1, found a weight for each entry",
    ),
    "several phases": (
        lambda: private(two_phases(plain())),
        r"a method of one phase, found \['train', 'more'\]",
    ),
    "more phases later": (
        lambda: ran(two_phases(private())),
        "epsilon would not hold: expected one phase with the layer that `private` made",
    ),
    "other server": (
        lambda: ran(rephased(private(), layers=())),
        "epsilon would not hold: expected one phase with the layer that `private` made",
    ),
    "too many clients": (lambda: ran(private(participants=3)), "at most 3 clients, found 4"),
    "sampler": (
        lambda: ran(sampled(), sampler=fraction(0.75)),
        r"2 of 4 clients, found 3 a round; try sampler=fraction\(2 / 4\)",
    ),
    "sampler everyone": (
        lambda: ran(sampled()),
        "a uniform sample of 2 of 4 clients, found 4 a round",
    ),
    "own sampler": (
        lambda: ran(sampled(), sampler=lambda number, names, key: names[:2]),
        "of which that is not known",
    ),
    "pool": (
        lambda: ran(sampled(population=9), sampler=fraction(0.5)),
        "a pool of 9 clients, the population, found 4",
    ),
    "memory": (
        lambda: ran(sampled(algorithm=plain(keeps=True)), sampler=fraction(0.5)),
        "clients without memory",
    ),
    "error feedback": (
        lambda: ran(
            sampled(algorithm=plain(up=ErrorFeedback(Coded(TopK(0.5))))), sampler=fraction(0.5)
        ),
        "clients without memory",
    ),
    "resumed quieter": (
        lambda: continued(private(noise=0.1), private()),
        "found other train.layers.private.noise",
    ),
    "resumed unprotected": (
        lambda: continued(plain(), private()),
        "epsilon would not hold: expected a snapshot of a run with the same settings",
    ),
    "resumed elsewhere": (
        lambda: continued(private(), private(), clients={**CLIENTS, "c0": rows(9, 5)}),
        "found other rows of clients",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_make_epsilon_false_is_refused(case):
    call, words = REFUSED[case]
    with pytest.raises((ArgumentError, ClientError, UpdateError), match=words):
        call()


def moved(algorithm, clients=None, **changes):
    """How far the model moves in one round, per entry, in units of the noise's standard deviation;
    0 means that there was no noise.
    """
    report = ran(algorithm, clients, rounds=1, **changes)[-1]
    return report, zip_map(torch.sub, report.state, algorithm.initial)["model/weight"] * 4 / 0.5


def weightless():
    _, only = moved(private(), {"empty": rows(5.0)[:0], "c1": CLIENTS["c1"]})
    _, alone = moved(private(), {"c1": CLIENTS["c1"]})
    assert torch.equal(only, alone)


def dropped():
    broken = replace(rows(), targets=-torch.ones(2))
    report, moves = moved(private(), {**CLIENTS, "c9": broken}, on_client_error="drop")
    assert list(report.refused) == ["c9"]
    assert bool((moves != 0).all())


def late():
    """Nobody comes in time: the round has noise, and epsilon counts it."""
    from bayesfed.federated.core.protocols import Skip

    never = rephased(private(), assign=lambda *_: Skip("no time"))
    report, moves = moved(never, on_client_error="drop")
    assert bool((moves != 0).all())
    assert report.server["epsilon"] == bf.algorithms.epsilon(1.0, 1, 1e-5)


def on_devices():
    """Devices that cannot do the work in time count as clients that changed nothing."""
    from bayesfed.algorithms.wrappers.on_devices import Planner, on_devices
    from bayesfed.models.elastic.shares import Share
    from bayesfed.wireless.devices import fleet

    algorithm = on_devices(private(), Planner((Share(1.0, 10**13, 3, 1, 1),), 5.0))
    devices = {name: one.figures() for name, one in fleet(list(CLIENTS), KEY).items()}
    _, moves = moved(algorithm, pool={"devices": devices}, on_client_error="drop")
    assert bool((moves != 0).all())


def ending():
    """The run ends without a model of that round: those before it were private."""
    broken = {**CLIENTS, "c9": replace(rows(), targets=-torch.ones(2))}
    with pytest.raises(ClientError, match="no targets"):
        ran(private(participants=5), broken)
    with pytest.raises(TooFewClientsError):
        ran(private(participants=5), broken, on_client_error="drop", least=5)


def same_key():
    """Another sum has other noise, so two runs with one key do not reveal their difference; the
    same sum has the same.
    """
    _, first = moved(private())
    _, again = moved(private())
    _, other = moved(private(), {**CLIENTS, "c0": rows(0.001)})
    assert torch.equal(first, again)
    assert float((first - other).abs().min()) > 0.01


def coded():
    report, _ = moved(
        private(plain(up=Coded(TopK(0.4))), noise=1e-6, delta=None), {"c": rows(100.0)}
    )
    assert (
        norm(zip_map(torch.sub, owned(report.state, "model"), {"weight": NET.weight.detach()}))
        <= 0.5 / 4 * 1.001
    )


def together():
    private_net = bf.private(
        bf.fed_avg(bf.mlp([3, 2], KEY), training=bf.Training(steps=1)),
        clip=0.1,
        noise=1.0,
        participants=4,
        key=KEY,
        delta=1e-5,
    )
    data = {
        name: bf.Dataset(part.inputs, torch.zeros(2, dtype=torch.long))
        for name, part in CLIENTS.items()
    }
    one, all_at_once = (
        ran(private_net, data, rounds=1, pool=pool)[-1].server for pool in ({}, {"cohort": 4})
    )
    assert one == all_at_once


def endless():
    """A bound of infinity on norms lets infinite numbers as far as the clip, which refuses them."""
    with pytest.raises(UpdateError, match="a client's change: expected a finite norm, found inf"):
        clipped(Update({"w": torch.tensor([math.inf, 1.0])}, 1.0, "delta"), {}, 1.0)


def rounded():
    """Beside large values single precision rounds a clipped change to something longer than the
    clip.
    """
    state = {"w": torch.full((1000,), 1e4)}
    shorter = clipped(Update({"w": state["w"] + 1.0}, 1.0, "value"), state, 1e-2)
    assert norm(zip_map(torch.sub, shorter.total, state)) <= 1e-2


HOLDS = {
    "weight 0": weightless,
    "drop policy": dropped,
    "nobody heard": late,
    "Cell": on_devices,
    "least": ending,
    "same key": same_key,
    "codecs": coded,
    "cohorts": together,
    "max_norm=inf": endless,
    "rounding": rounded,
}


@pytest.mark.parametrize("case", HOLDS)
def test_what_is_accounted_for(case):
    HOLDS[case]()


def test_only_what_was_clipped_is_summed_once():
    update = Update({"w": torch.ones(1)}, 1.0, "delta")
    total, admitted = BoundedSum("private"), Admitted.of(update)
    for other in (update, replace(admitted, total={"w": 2 * torch.ones(1)})):
        with pytest.raises(UpdateError, match="one clipped update, found one that was not clipped"):
            total.add("a", other)
    total.add("a", admitted)
    with pytest.raises(UpdateError, match="private, client 'a': .* found a second one"):
        total.add("a", admitted)
    assert torch.equal(total.total.total["w"], torch.ones(1))


def test_uniform_samples_of_the_population_are_accepted():
    assert ran(sampled(), sampler=fraction(0.5))[-1].server["epsilon"] == bf.algorithms.epsilon(
        1.0, 2, 1e-5, participants=2, population=4
    )
    assert ran(private(population=4))[-1].server["epsilon"] == bf.algorithms.epsilon(
        1.0, 2, 1e-5, participants=4, population=4
    )
    (first,) = ran(sampled(), sampler=fraction(0.5), rounds=1)
    assert tree_equal(
        ran(sampled(), sampler=fraction(0.5), resume=first.snapshot)[-1].state,
        ran(sampled(), sampler=fraction(0.5))[-1].state,
    )


def test_security_has_a_row_for_each():
    text = (Path(__file__).parents[2] / "SECURITY.md").read_text()
    named = set(re.findall(r"`\[([^\]]+)\]`", text))
    assert named == {*REFUSED, *HOLDS}
