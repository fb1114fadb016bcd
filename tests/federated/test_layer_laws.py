"""Laws of layers over the whole product: every wrapper around every recipe that takes it, in runs
in which rounds go wrong.

A run has a round in which everybody is heard, one in which nobody is, one with half of the clients,
one with a client that is refused, and one after a resume. Whatever the wrapper:

- clients train on the model that the server holds;
- what a client remembers is what it was last told to remember, by its own accepted answers;
- a resumed run is the run, bit for bit;
- noise that was promised is added in every round.
"""

from dataclasses import dataclass, field, replace

import pytest
import torch

import bayesfed as bf
from bayesfed.errors import ArgumentError, BayesfedError
from bayesfed.federated import FedBuff, Skip, feedback, layered, published, rounds
from bayesfed.federated.core.owners import unwired
from bayesfed.federated.engine.assembly import assembled
from tests.support import recipes
from tests.support.logged import Logged

KEY = bf.Key(0, "layers")
NOBODY, HALF, REFUSED, LAST = 1, 2, 3, 4


def private(algorithm):
    return bf.private(algorithm, clip=1.0, noise=0.5, participants=recipes.CLIENTS, key=KEY)


WRAPPERS = {
    "nothing": lambda algorithm: algorithm,
    "private": private,
    "locally private": lambda algorithm: bf.local_privacy(algorithm, clip=1.0, noise=0.1, key=KEY),
    "robust": lambda algorithm: bf.robust(algorithm, bf.federated.Median()),
    "averaged": lambda algorithm: bf.averaged(algorithm, begin=0),
    "optimised": lambda algorithm: bf.server_optimised(algorithm, bf.FedAvgM()),
    "equal weights": bf.equal_weights,
    "timed": lambda algorithm: bf.timed(algorithm, 100.0),
    "swag": lambda algorithm: bf.swag(algorithm, begin=0, rank=2),
    "personalised": lambda algorithm: bf.personalised(algorithm, steps=1),
    "feedback": lambda algorithm: layered(algorithm, feedback(), one_phase=False),
    "logged": lambda algorithm: layered(algorithm, Logged(), one_phase=False),
    "averaged private": lambda algorithm: bf.averaged(private(algorithm), begin=0),
    "optimised private": lambda algorithm: bf.server_optimised(private(algorithm), bf.FedAvgM()),
}


@dataclass(frozen=True)
class Recorded:
    """A local step that notes what it is given and what it returns."""

    local: object
    seen: list = field(repr=False, compare=False)

    @property
    def kind(self):
        return self.local.kind

    @property
    def options(self):
        return bf.federated.core.seams.options_of(self.local)

    def fit(self, message, memory, data, key, options):
        fit = self.local.fit(message, memory, data, key, options)
        _, round, client = key.path[:3]
        self.seen.append((round, client, message, memory, fit.memory))
        return fit


def troubled(algorithm, seen):
    """The algorithm with recorded local steps, and rounds in which clients are missing."""

    def changed(phase):
        def assign(state, round, profile, key):
            plan = phase.assign(state, round, profile, key)
            if round == NOBODY:
                return Skip("nobody is heard")
            if round == REFUSED and profile.name == "client-0" and not isinstance(plan, Skip):
                return replace(plan, weight=-1.0)
            return plan

        return replace(phase, assign=assign, local=Recorded(phase.local, seen))

    return replace(algorithm, phases=tuple(map(changed, algorithm.phases)))


def half(number, names, key):
    return names[::2] if number == HALF else names


def run(algorithm, tiny, **options):
    options = {"rounds": LAST + 1, "sampler": half, "on_client_error": "drop", **options}
    return [*rounds(algorithm, tiny.pool(), **options)]


def same(left, right):
    return left.keys() == right.keys() and all(
        torch.equal(left[name], right[name]) for name in left
    )


def check_model_of_clients(algorithm, states, seen, profiles):
    """What the core got at a client is what a whole message of the server's state has."""
    for phase in algorithm.phases:
        flat = assembled(phase)
        for round, client, message, _, _ in seen[phase.name]:
            state, key = states[round], bf.Key(0, phase.name, round, client)
            core, _ = phase.scope.parted(state)
            plan = flat.assign(state, round, profiles[client], key.child("assign"))
            whole = plan.view.restrict(published(phase.server, core, round, None))
            expected, _ = unwired(
                plan.down.decode(plan.down.encode(whole, {}, key.child("down")), key.child("down"))[
                    0
                ]
            )
            for name in message.keys() & expected.keys():
                if (
                    message[name].shape == expected[name].shape
                    and message[name].is_floating_point()
                ):
                    torch.testing.assert_close(
                        message[name].double(), expected[name].double(), atol=1e-5, rtol=1e-4
                    )


def check_memories(seen):
    """What the core remembers at a client is what it returned there in the last accepted turn."""
    for turns in seen.values():
        kept = {}
        for round, client, _, memory, after in turns:
            if client in kept:
                assert same(memory, kept[client]), (round, client)
            if (round, client) != (REFUSED, "client-0"):
                kept[client] = after


def check_run(name, algorithm, tiny):
    seen = {phase.name: [] for phase in algorithm.phases}

    def recorded(number):
        phases = tuple(
            replace(troubled(replace(algorithm, phases=(phase,)), seen[phase.name]).phases[0])
            for phase in algorithm.phases
        )
        return replace(algorithm, phases=phases)

    ours = recorded(0)
    reports = run(ours, tiny)
    states = [algorithm.initial, *(report.state for report in reports)]
    if len(algorithm.phases) == 1:
        profiles = {profile.name: profile for profile in tiny.pool().profiles}
        check_model_of_clients(algorithm, states, seen, profiles)
        check_memories(seen)
    before = reports[LAST - 1].snapshot
    *_, resumed = run(ours, tiny, resume=before)
    assert same(resumed.state, reports[-1].state)
    if name in ("private", "averaged private", "optimised private"):
        core = [phase.scope.parted(state)[0] for phase in algorithm.phases[:1] for state in states]
        assert not same(core[NOBODY], core[NOBODY + 1]), "no noise where nobody was heard"
    if name == "logged":
        turns = [
            float(leaf)
            for leaf_name, leaf in states[-1].items()
            if leaf_name.endswith("log/rounds")
        ]
        assert sum(turns) == (LAST + 1) * len(algorithm.phases)


def check_late(algorithm, tiny):
    """One client's answers come late."""
    slow = FedBuff(2, 3, seconds=lambda profile, cost: 2.5 if profile.name == "client-1" else 1.0)
    try:
        *_, last = rounds(algorithm, tiny.pool(), rounds=3, asynchronous=slow)
    except ArgumentError as problem:
        if "FedBuff" not in str(problem) and "client" not in str(problem):
            raise
        return
    assert all(bool(torch.isfinite(leaf).all()) for leaf in last.state.values())


def made(wrapper, recipe):
    tiny = recipes.tiny_recipes()[recipe]()
    if wrapper == "timed":
        tiny = replace(tiny, devices=dict.fromkeys(tiny.data, recipes.PLENTY.figures()))
    try:
        return tiny, WRAPPERS[wrapper](tiny.algorithm)
    except ArgumentError as problem:
        return tiny, said(problem.complaint is not None, problem)


def said(clearly, problem):
    """Check that a refusal says what was expected and what to try."""
    assert clearly, str(problem)


QUICK = ("fed_avg", "stc", "d_turbo_vbi ternary", "fed_avg on air")


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK))
        for name in recipes.tiny_recipes()
    ],
)
def test_laws_hold_around_every_method(wrapper, recipe):
    tiny, algorithm = made(wrapper, recipe)
    if algorithm is None:
        return
    try:
        check_run(wrapper, algorithm, tiny)
    except BayesfedError as problem:
        # Methods that cannot do without a client say so in words.
        said("nobody" in str(problem) or "client" in str(problem), problem)
    check_late(algorithm, tiny)
