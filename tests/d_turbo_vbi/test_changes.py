"""Changes as messages, in both directions: the layer `Exchange`, and D-Turbo-VBI within it."""

from dataclasses import replace

import pytest
import torch

import bayesfed as bf
from bayesfed.algorithms.composing import compose
from bayesfed.algorithms.d_turbo_vbi import Changes, ToDensity
from bayesfed.algorithms.d_turbo_vbi.changes import Drawn, densities
from bayesfed.algorithms.d_turbo_vbi.server import TurboStep
from bayesfed.compress import Float, Ternary
from bayesfed.compress.support import gather_active
from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.federated import (
    Add,
    Exchange,
    FedAdam,
    Sum,
    Update,
    fraction,
    layered,
    published,
    rounds,
)
from bayesfed.federated.clients.side import ClientSide
from bayesfed.federated.core.owners import owned, unwired
from bayesfed.federated.engine.assembly import assembled
from bayesfed.inference.turbo.elbo import MeanFieldElbo
from bayesfed.trees import parameters
from tests.conftest import tree_equal

WORK = bf.Training(steps=4, batch_size=16, optimiser=bf.Adam(5e-3))


def turbo(declared, clients, **options):
    changes = Changes.ternary(0.5, **options)
    density = ToDensity(0.3, keep=0.8, patience=1)
    return bf.d_turbo_vbi(
        declared,
        observations=sum(map(len, clients.values())),
        training=WORK,
        changes=changes,
        density=density,
    )


def held(memory):
    return owned(memory, "exchange/held")


def exchanging(net, **options):
    layer = Exchange(**options)
    return compose("changes", net, WORK.fitting(net), training=WORK, layers=(layer,))


def told(algorithm, state, round, version):
    """What the layer tells a client, beside the core's leaves."""
    server = assembled(algorithm.phases[0]).server
    return unwired(published(server, state, round, version))[1].get("exchange", {})


def a_sum(net):
    tree = {name: torch.randn_like(leaf) for name, leaf in parameters(net).items()}
    return Sum(Update(tree, 1.0, "delta"))


def test_lossless_changes_are_fed_avg_of_changes_bit_for_bit(net, clients):
    ours = exchanging(net, codec=Float(32))
    plain = compose("changes", net, WORK.fitting(net, kind="delta"), Add(), training=WORK)
    left, right = (
        owned([*rounds(each, bf.InProcess(clients), rounds=3)][-1].state, "model")
        for each in (ours, plain)
    )
    assert tree_equal(left, right)


def test_clients_hold_what_the_server_says_they_hold_while_supports_move(declared, clients):
    algorithm = turbo(declared, clients)
    before, switched, sizes = algorithm.initial, 0.0, []
    for report in rounds(algorithm, bf.InProcess(clients), rounds=4):
        for memory in report.snapshot.memories.values():
            for name in declared.sites:
                active = before[f"log_odds/{name}"] > 0
                assert torch.equal(held(memory)[f"support/{name}"], active)
                assert torch.equal(held(memory)[f"mean/{name}"], before[f"mean/{name}"][active])
                assert memory[f"exchange/error/mean/{name}"].shape == (int(active.sum()),)
        before, switched = report.state, switched + report.server["switched_off"]
        for name in declared.sites:
            off = before[f"log_odds/{name}"] <= 0
            assert not before[f"mean/{name}"][off].any()
            assert not report.state[f"exchange/residual/mean/{name}"][off].any()
        sizes.append([row.cost.bits for row in report.rows if row.direction == "down"])
    assert switched > 0
    # The first message has nothing but what the model is drawn from, and the points.
    assert sum(sizes[0]) < sum(sizes[1])
    assert not told(algorithm, report.state, 4, None)


@pytest.mark.parametrize("cache", [1, 2])
def test_clients_that_skipped_rounds_catch_up(declared, clients, cache):
    algorithm = turbo(declared, clients, cache=cache)
    states, checked = [algorithm.initial], 0
    for report in rounds(algorithm, bf.InProcess(clients), rounds=6, sampler=fraction(0.5)):
        for client in report.clients:
            memory = held(report.snapshot.memories[client])
            for name in declared.sites:
                mean = states[-1][f"mean/{name}"][states[-1][f"log_odds/{name}"] > 0]
                torch.testing.assert_close(memory[f"mean/{name}"], mean, atol=1e-6, rtol=1e-6)
                checked += 1
        states.append(report.state)
    assert checked
    means = {f"change/mean/{name}" for name in declared.sites}
    assert means <= told(algorithm, report.state, 6, 6 - cache).keys()
    assert not means & told(algorithm, report.state, 6, 5 - cache).keys()


def test_a_round_in_which_nobody_is_heard_changes_nothing(net):
    algorithm = exchanging(net, codec=Ternary(0.1), cache=2)
    server = assembled(algorithm.phases[0]).server
    first, _ = server.step(algorithm.initial, a_sum(net), 0)
    state, _ = server.step(first, Sum(), 1)
    assert tree_equal(owned(state, "model"), owned(first, "model"))
    residual, change = "exchange/residual/1.weight", "change/1.weight"
    assert first[residual].any()
    assert torch.equal(state[residual], first[residual])
    assert not told(algorithm, state, 2, 1)[change].any()
    missed = told(algorithm, first, 1, 0)[change]
    assert missed.any()
    assert torch.equal(told(algorithm, state, 2, 0)[change], missed)


def test_a_resumed_run_is_the_same_and_a_dropped_answer_leaves_what_is_held(declared, clients):
    algorithm, name = turbo(declared, clients), sorted(clients)[0]
    whole = list(rounds(algorithm, bf.InProcess(clients), rounds=4))
    resumed = list(rounds(algorithm, bf.InProcess(clients), rounds=4, resume=whole[1].snapshot))
    assert tree_equal(whole[-1].state, resumed[-1].state)
    (phase,) = algorithm.phases

    def assign(state, round, profile, key):
        plan = phase.assign(state, round, profile, key)
        return replace(plan, weight=-1.0) if round == 1 and profile.name == name else plan

    odd = replace(algorithm, phases=(replace(phase, assign=assign),))
    first, second, third = (
        report.snapshot.memories[name]
        for report in rounds(odd, bf.InProcess(clients), rounds=3, on_client_error="drop")
    )
    assert tree_equal(first, second)
    assert not tree_equal(second, third)


def test_a_support_that_is_not_learned_stays_that_of_the_key(declared, clients):
    algorithm = turbo(declared, clients, learn=False, key=bf.Key(3))
    *_, last = rounds(algorithm, bf.InProcess(clients), rounds=2)
    drawn = Drawn({name: site.matrix for name, site in declared.sites.items()})
    first = drawn(drawn.told(declared, Changes(start=0.5, key=bf.Key(3))))
    for name in declared.sites:
        assert torch.equal(last.state[f"log_odds/{name}"] > 0, first[f"support/{name}"])
    share = sum(int(first[f"support/{name}"].sum()) for name in declared.sites) / sum(
        first[f"support/{name}"].numel() for name in declared.sites
    )
    assert last.server["density"] == pytest.approx(share)
    shares = densities({"a": (100, 100), "b": (4, 5)}, 0.1)
    assert shares["b"] == 1
    assert 100 * 100 * shares["a"] + 20 == pytest.approx(0.1 * 10020)


def test_what_cannot_be_is_refused(declared, clients, net):
    with pytest.raises(ArgumentError, match="a share above 0"):
        Changes(start=0.0)
    with pytest.raises(ArgumentError, match="a start, if the support is not learned"):
        Changes(start=None, learn=False)
    with pytest.raises(ArgumentError, match="changes, or a codec or link of values"):
        bf.d_turbo_vbi(declared, observations=10, changes=Changes(), codec=bf.Cast(16))
    with pytest.raises(ArgumentError, match="private"):
        bf.private(
            turbo(declared, clients), clip=1.0, noise=1.0, delta=1e-5, key=bf.Key(0), participants=3
        )
    (phase,) = turbo(declared, clients).phases
    layers = tuple(replace(layer, drawn=None) for layer in phase.layers)
    side = ClientSide.of(replace(phase, layers=layers))
    with pytest.raises(UpdateError, match="to draw them from"):
        side.fit(
            {"/exchange/start/seed": torch.tensor(1)},
            {},
            None,
            bf.Key(0),
            bf.federated.LocalOptions(),
        )
    # Neither an optimiser around the exchange nor one within it leaves clients with the model.
    averaging = compose("average", net, WORK.fitting(net), training=WORK)
    with pytest.raises(ArgumentError, match="clients that are sent the model whole"):
        bf.server_optimised(exchanging(net, codec=Ternary(0.1)), FedAdam())
    within = layered(bf.server_optimised(averaging, FedAdam()), Exchange(codec=Ternary(0.1)))
    with pytest.raises(UpdateError, match="the values that were handed on"):
        assembled(within.phases[0]).server.step(within.initial, a_sum(net), 0)


def test_clients_compute_the_inclusion_that_the_server_has(net, clients):
    """Without couplings the mean prior log-odds are each entry's own, so that precisions are those
    of the q(s) that is not sent.
    """
    declared = bf.declare(
        net, bf.Prior(bf.Independent(0.5)), likelihood=bf.Categorical(temperature=0.2)
    )
    algorithm = bf.d_turbo_vbi(
        declared,
        observations=sum(map(len, clients.values())),
        training=WORK,
        field=lambda round: -1.0,
        changes=Changes(),
    )
    last = [*rounds(algorithm, bf.InProcess(clients), rounds=3)][-1]
    (phase,), state = algorithm.phases, last.state
    supports = {name: state[f"log_odds/{name}"] > 0 for name in declared.sites}
    message = gather_active(phase.server.publish(state, 3, None), supports)
    told, silent = (
        MeanFieldElbo(declared).start(each)[1]
        for each in (message, {k: v for k, v in message.items() if not k.startswith("prior/")})
    )
    for name, belief in TurboStep(declared).belief(state).items():
        wanted = torch.where(supports[name], belief.expected_precision, 0.0)
        assert 0 < int((wanted > 0).sum()) < wanted.numel()
        torch.testing.assert_close(told[f"precision/{name}"], wanted, rtol=1e-4, atol=1e-6)
        assert not torch.allclose(silent[f"precision/{name}"], wanted, rtol=1e-2)
