"""Clients that hold what they received, servers that send what changed, and clients that keep what
codecs left out.
"""

import math
from dataclasses import dataclass, fields, replace

import pytest
import torch

import bayesfed as bf
from bayesfed.algorithms.d_turbo_vbi import ToDensity
from bayesfed.compress import Coded, ErrorFeedback, Float, Ternary, TopK
from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.federated import Exchange, Fit, Holding, feedback, fraction, rounds
from bayesfed.federated.clients.side import ClientSide
from bayesfed.federated.core.owners import Scope, of, owned
from bayesfed.federated.core.protocols import Local
from bayesfed.federated.core.sums import Sum
from bayesfed.federated.core.update import Update
from bayesfed.federated.engine.assembly import assembled
from tests.conftest import tree_equal

WORK = bf.Training(steps=4, batch_size=16, optimiser=bf.Adam(2e-3))


@dataclass(frozen=True)
class Listener:
    """A local that sends back what it was told."""

    kind: str = "value"

    def fit(self, message, memory, data, key, options):
        return Fit(message, {"own": torch.ones(1)}, {})


def listening(layer):
    return ClientSide(Listener(), (layer,), Scope(layers=(layer.owner,)))


def test_what_changed_is_put_together_with_what_is_held():
    side, data, key = listening(Holding(held=("w", "support/*"))), None, bf.Key(0)
    first = {
        "w": torch.tensor([1.0, 2.0]),
        "support/a": torch.tensor([True, False]),
        "b": torch.zeros(2),
    }
    fit = side.fit(first, {}, data, key, bf.federated.LocalOptions())
    assert tree_equal(fit.payload, first)
    assert set(fit.memory) == {"model/own", "held/held/w", "held/held/support/a"}
    change = {
        "/held/change/w": torch.tensor([0.5, 0.0]),
        "/held/change/support/a": torch.tensor([True, True]),
        "b": torch.ones(2),
    }
    fit = side.fit(change, fit.memory, data, key, bf.federated.LocalOptions())
    assert tree_equal(
        fit.payload,
        {
            "w": torch.tensor([1.5, 2.0]),
            "support/a": torch.tensor([False, True]),
            "b": torch.ones(2),
        },
    )
    with pytest.raises(
        UpdateError, match="change of 'b'.*a held leaf of torch.float32.*found nothing"
    ):
        side.fit(
            {"/held/change/b": torch.ones(2)}, fit.memory, data, key, bf.federated.LocalOptions()
        )
    with pytest.raises(UpdateError, match=r"found torch.float32 of shape \(2,\)"):
        side.fit(
            {"/held/change/w": torch.ones(3)}, fit.memory, data, key, bf.federated.LocalOptions()
        )


@dataclass(frozen=True)
class Unchanging(Exchange):
    """An exchange that sends everything to everyone."""

    def publish(self, own, message, moment, version):
        return super().publish(own, message, moment, None)


@pytest.mark.parametrize(
    "sampler", [pytest.param(fraction(1.0), marks=pytest.mark.slow), fraction(0.5)]
)
def test_sending_what_changed_of_supports_changes_nothing_but_bits(declared, clients, sampler):
    density = ToDensity(patience=1)
    algorithm = bf.d_turbo_vbi(
        declared, observations=sum(map(len, clients.values())), density=density, training=WORK
    )
    (phase,) = algorithm.phases
    (changing,) = phase.layers
    layer = Unchanging(**{part.name: getattr(changing, part.name) for part in fields(changing)})
    whole = replace(algorithm, phases=(replace(phase, layers=(layer,)),))
    ours, twin = (
        [*rounds(each, bf.InProcess(clients), rounds=6, sampler=sampler)]
        for each in (algorithm, whole)
    )
    assert tree_equal(ours[-1].state, twin[-1].state)
    assert ours[-1].server["density"] < 1


def test_up_to_date_clients_hear_flips_and_others_the_support(declared):
    algorithm = bf.d_turbo_vbi(declared, observations=10, training=WORK)
    (phase,) = map(assembled, algorithm.phases)
    state, name = dict(algorithm.initial), next(iter(declared.sites))
    state[f"log_odds/{name}"][0, :3] = -1.0
    heard = phase.server.publish(state, 4, 3)
    assert int(heard[f"/exchange/change/support/{name}"].sum()) == 3
    assert f"support/{name}" not in heard
    for version in (None, 1, 2):
        assert int((~phase.server.publish(state, 4, version)[f"support/{name}"]).sum()) == 3


def stc(net, **changes):
    return bf.stc(net, **{"share": 0.05, "training": WORK, **changes})


def test_clients_of_stc_hold_the_servers_model_bit_for_bit(net, clients):
    algorithm, pool = stc(net), bf.InProcess(clients)
    before = algorithm.initial
    for report in rounds(algorithm, pool, rounds=4):
        for memory in report.snapshot.memories.values():
            held = owned(memory, "exchange/held")
            assert tree_equal(held, owned(before, "model"))
        changes = {name: report.state[f"exchange/sum-1/{name}"] for name in held}
        for change in changes.values():
            assert int((change != 0).sum()) <= math.ceil(0.05 * change.numel())
            assert len(change.unique()) <= 3
        before = report.state


def test_stale_clients_of_stc_get_the_sum_and_staler_ones_the_model(net, clients):
    algorithm = stc(net, cache=2)
    server = assembled(algorithm.phases[0]).server
    *_, last = rounds(algorithm, bf.InProcess(clients), rounds=4)
    model, name = owned(last.state, "model"), "1.weight"
    fresh, late = (server.publish(last.state, 4, version) for version in (3, 2))
    assert set(fresh) == set(late) == {f"/exchange/change/{leaf}" for leaf in model}
    change, older = (told[f"/exchange/change/{name}"] for told in (fresh, late))
    assert torch.equal(change, last.state[f"exchange/sum-1/{name}"])
    assert torch.equal(older, last.state[f"exchange/sum-2/{name}"])
    assert int((older != 0).sum()) >= int((change != 0).sum())
    for version in (None, 1, 0):
        assert tree_equal(server.publish(last.state, 4, version), model)
    # Anybody's copy, however it came about, is the server's model up to rounding.
    *_, mixed = rounds(algorithm, bf.InProcess(clients), rounds=7, sampler=fraction(0.5))
    assert float((mixed.model.parameters[name] - model[name]).abs().max()) < 1


def test_the_servers_residual_keeps_what_was_not_sent(net):
    layers = (Exchange(codec=Ternary(0.1)),)
    algorithm = bf.compose("changes", net, training=WORK, layers=layers)
    (phase,) = map(assembled, algorithm.phases)
    model, state = owned(algorithm.initial, "model"), algorithm.initial
    change = {name: torch.randn_like(leaf) for name, leaf in model.items()}
    for number in range(3):
        reducer = Sum()
        reducer.add("a", Update(change, 1.0, "delta"))
        state, _ = phase.server.step(state, reducer, number)
    for name, leaf in model.items():
        wanted = leaf + 3 * change[name]
        left = state[f"exchange/residual/{name}"]
        assert torch.allclose(state[f"model/{name}"] + left, wanted, atol=1e-5)
    with pytest.raises(ArgumentError, match="Exchange, cache: expected a whole number >= 1"):
        Exchange(codec=Ternary(0.1), cache=0)


@pytest.mark.parametrize("codec", [Coded(Ternary(0.1)), Coded(TopK(0.2, Float(16)))])
def test_error_feedback_leaves_out_only_the_last_residual(codec):
    side, memory, norms = listening(feedback()), {}, []
    sent, wanted = torch.zeros(40), torch.zeros(40)
    generator = torch.Generator().manual_seed(0)
    for number in range(8):
        payload, key = {"w": torch.randn(40, generator=generator)}, bf.Key(0, number)
        fit = side.fit(payload, memory, None, key, bf.federated.LocalOptions())
        decoded = codec.decode(codec.encode(fit.payload, {}, key), key)[0]
        memory = side.coded(fit.memory, fit.payload, lambda decoded=decoded: decoded)
        sent, wanted = sent + decoded["w"], wanted + payload["w"]
        norms.append(float(payload["w"].norm()))
        # Top-k keeps at least its share of the squared norm: delta = 0.2 (Karimireddy et al., 2019,
        # lemma 3).
        assert float(memory["feedback/error/w"].norm()) <= 2 * math.sqrt(0.8) / 0.2 * max(norms)
    assert torch.allclose(sent + memory["feedback/error/w"], wanted, atol=1e-5)
    with pytest.raises(UpdateError, match="residual of 'w'"):
        side.fit({"w": torch.zeros(3)}, memory, None, bf.Key(0), bf.federated.LocalOptions())


def test_a_lossless_codec_leaves_no_residual(net, clients):
    exact = ErrorFeedback(Coded(Float(32)))
    algorithm = bf.compose("exact", net, training=WORK, up=exact)
    (report,) = rounds(algorithm, bf.InProcess(clients), rounds=1)
    assert report.snapshot.memories.keys() == clients.keys()
    for memory in report.snapshot.memories.values():
        assert memory.keys() == of("feedback/error", owned(algorithm.initial, "model")).keys()
        assert not any(bool(leaf.any()) for leaf in memory.values())
    (plain,) = rounds(bf.fed_avg(net, training=WORK), bf.InProcess(clients), rounds=1)
    assert tree_equal(report.state, plain.state)


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


def test_a_side_is_a_local():
    side: Local = listening(Holding())
    assert side.kind == "value"
    assert listening(Exchange()).kind == "delta"
