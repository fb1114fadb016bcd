"""Clients that hold what they received, servers that send what changed, and codecs that remember
what they left out.
"""

import math
from dataclasses import dataclass, replace

import pytest
import torch

import bayesfed as bf
from bayesfed.algorithms.d_turbo_vbi import ToDensity
from bayesfed.compress import Coded, ErrorFeedback, Float, Ternary, TopK
from bayesfed.compress.codecs import RESIDUAL
from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.federated import Average, DeltaServer, Fit, Holding, fraction, rounds
from bayesfed.federated.core.protocols import Local
from bayesfed.trees import parameters
from tests.conftest import tree_equal

WORK = bf.Training(steps=4, batch_size=16, optimiser=bf.Adam(2e-3))


@dataclass(frozen=True)
class Listener:
    """A local that sends back what it was told."""

    kind: str = "value"
    uses_global_randomness: bool = False

    def fit(self, message, memory, data, key, options):
        return Fit(message, {"own": torch.ones(1)}, {})


def test_what_changed_is_put_together_with_what_is_held():
    local, data, key = Holding(Listener(), ("w", "*.support")), None, bf.Key(0)
    first = {
        "w": torch.tensor([1.0, 2.0]),
        "a.support": torch.tensor([True, False]),
        "b": torch.zeros(2),
    }
    fit = local.fit(first, {}, data, key, bf.LocalOptions())
    assert tree_equal(fit.payload, first)
    assert set(fit.memory) == {"own", "held/w", "held/a.support"}
    change = {
        "w.change": torch.tensor([0.5, 0.0]),
        "a.support.change": torch.tensor([True, True]),
        "b": torch.ones(2),
    }
    fit = local.fit(change, fit.memory, data, key, bf.LocalOptions())
    assert tree_equal(
        fit.payload,
        {
            "w": torch.tensor([1.5, 2.0]),
            "a.support": torch.tensor([False, True]),
            "b": torch.ones(2),
        },
    )
    with pytest.raises(
        UpdateError, match="change of 'b'.*a held leaf of torch.float32.*found nothing"
    ):
        local.fit({"b.change": torch.ones(2)}, fit.memory, data, key, bf.LocalOptions())
    with pytest.raises(UpdateError, match=r"found torch.float32 of shape \(2,\)"):
        local.fit({"w.change": torch.ones(3)}, fit.memory, data, key, bf.LocalOptions())


@dataclass(frozen=True)
class Whole:
    """A server that sends everything to everyone."""

    server: object

    def publish(self, state, round, version):
        return self.server.publish(state, round, None)

    def step(self, state, reducer, round):
        return self.server.step(state, reducer, round)


@pytest.mark.parametrize(
    "sampler", [pytest.param(fraction(1.0), marks=pytest.mark.slow), fraction(0.5)]
)
def test_sending_what_changed_of_supports_changes_nothing_but_bits(declared, clients, sampler):
    density = ToDensity(patience=1)
    algorithm = bf.d_turbo_vbi(
        declared, observations=sum(map(len, clients.values())), density=density, training=WORK
    )
    (phase,) = algorithm.phases
    whole = replace(algorithm, phases=(replace(phase, server=Whole(phase.server)),))
    ours, twin = (
        [*rounds(each, bf.InProcess(clients), rounds=6, sampler=sampler)]
        for each in (algorithm, whole)
    )
    assert tree_equal(ours[-1].state, twin[-1].state)
    assert ours[-1].server["density"] < 1


def test_up_to_date_clients_hear_flips_and_others_the_support(declared):
    (phase,) = bf.d_turbo_vbi(declared, observations=10, training=WORK).phases
    state = dict(bf.d_turbo_vbi(declared, observations=10, training=WORK).initial)
    name = next(iter(declared.sites))
    state[f"{name}.log_odds"][0, :3] = -1.0
    assert int(phase.server.publish(state, 4, 3)[f"{name}.support.change"].sum()) == 3
    for version in (None, 1, 2):
        assert int((~phase.server.publish(state, 4, version)[f"{name}.support"]).sum()) == 3


def stc(net, **changes):
    return bf.stc(net, **{"share": 0.05, "training": WORK, **changes})


def test_clients_of_stc_hold_the_servers_model_bit_for_bit(net, clients):
    algorithm, pool = stc(net), bf.InProcess(clients)
    server = algorithm.phases[0].server
    before = algorithm.initial
    for report in rounds(algorithm, pool, rounds=4):
        for memory in report.snapshot.memories.values():
            held = {
                name.removeprefix("held/"): leaf
                for name, leaf in memory.items()
                if name.startswith("held/")
            }
            assert tree_equal(held, server.inner(before))
        changes = {name: report.state[f"{name}.sum-of-last-1"] for name in held}
        for change in changes.values():
            assert int((change != 0).sum()) <= math.ceil(0.05 * change.numel())
            assert len(change.unique()) <= 3
        before = report.state


def test_stale_clients_of_stc_get_the_sum_and_staler_ones_the_model(net, clients):
    algorithm = stc(net, cache=2)
    server = algorithm.phases[0].server
    *_, last = rounds(algorithm, bf.InProcess(clients), rounds=4)
    model, name = server.inner(last.state), "1.weight"
    fresh, late = (server.publish(last.state, 4, version) for version in (3, 2))
    assert set(fresh) == {f"{leaf}.change" for leaf in model}
    assert torch.equal(fresh[f"{name}.change"], last.state[f"{name}.sum-of-last-1"])
    assert int((late[f"{name}.change"] != 0).sum()) >= int((fresh[f"{name}.change"] != 0).sum())
    for version in (None, 1, 0):
        assert tree_equal(server.publish(last.state, 4, version), model)
    # Anybody's copy, however it came about, is the server's model up to rounding.
    *_, mixed = rounds(algorithm, bf.InProcess(clients), rounds=7, sampler=fraction(0.5))
    assert float((mixed.model.parameters[name] - last.state[name]).abs().max()) < 1


def test_the_servers_residual_keeps_what_was_not_sent(net):
    from bayesfed.federated import Sum, Update

    server, model = DeltaServer(Average(), Ternary(0.1)), parameters(net)
    state = server.initial(model)
    change = {name: torch.randn_like(leaf) for name, leaf in model.items()}
    for number in range(3):
        reducer = Sum()
        reducer.add("a", Update(change, 1.0, "delta"))
        state, _ = server.step(state, reducer, number)
    for name, leaf in model.items():
        wanted = leaf + 3 * change[name]
        assert torch.allclose(state[name] + state[f"{name}.residual"], wanted, atol=1e-5)
    with pytest.raises(ArgumentError, match="a number of rounds >= 1"):
        DeltaServer(Average(), Ternary(0.1), cache=0)


@pytest.mark.parametrize("codec", [Coded(Ternary(0.1)), Coded(TopK(0.2, Float(16)))])
def test_error_feedback_leaves_out_only_the_last_residual(codec):
    feedback, memory, sent, wanted, norms = (
        ErrorFeedback(codec),
        {},
        torch.zeros(40),
        torch.zeros(40),
        [],
    )
    generator = torch.Generator().manual_seed(0)
    for number in range(8):
        payload, key = {"w": torch.randn(40, generator=generator)}, bf.Key(0, number)
        corrected = feedback.corrected(payload, memory)
        message = feedback.encode(corrected, {}, key)
        memory = feedback.residual(corrected, message, key)
        sent, wanted = sent + feedback.decode(message, key)[0]["w"], wanted + payload["w"]
        norms.append(float(payload["w"].norm()))
        # Top-k keeps at least its share of the squared norm: delta = 0.2 (Karimireddy et al., 2019,
        # lemma 3).
        assert float(memory[f"{RESIDUAL}w"].norm()) <= 2 * math.sqrt(0.8) / 0.2 * max(norms)
    assert torch.allclose(sent + memory[f"{RESIDUAL}w"], wanted, atol=1e-5)
    with pytest.raises(UpdateError, match="residual of 'w'"):
        feedback.corrected({"w": torch.zeros(3)}, memory)


def test_a_lossless_codec_leaves_no_residual(net, clients):
    algorithm, pool = bf.dssm(net, share=1.0, training=WORK), bf.InProcess(clients)
    (phase,) = algorithm.phases

    def assign(*arguments):
        return replace(phase.assign(*arguments), up=ErrorFeedback(Coded(Float(32))))

    (report,) = rounds(replace(algorithm, phases=(replace(phase, assign=assign),)), pool, rounds=1)
    assert all(
        not bool(leaf.any())
        for memory in report.snapshot.memories.values()
        for leaf in memory.values()
    )


def test_a_refused_message_leaves_the_old_residual(net, clients):
    algorithm, pool = stc(net), bf.InProcess(clients)
    (phase,) = algorithm.phases
    name = sorted(clients)[0]

    def assign(state, round, profile, key):
        plan = phase.assign(state, round, profile, key)
        return replace(plan, weight=-1.0) if round == 1 and profile.name == name else plan

    reports = list(
        rounds(
            replace(algorithm, phases=(replace(phase, assign=assign),)),
            pool,
            rounds=3,
            on_client_error="drop",
        )
    )
    kept = [report.snapshot.memories[name] for report in reports]
    assert tree_equal(kept[0], kept[1])
    assert not tree_equal(kept[1], kept[2])
    assert name in reports[1].refused


def test_holding_is_a_local():
    local: Local = Holding(Listener())
    assert (local.kind, local.uses_global_randomness) == ("value", False)
