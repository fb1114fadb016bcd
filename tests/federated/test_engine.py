"""The round loop: determinism, degenerate cases, resuming, failures, the ledger."""

import functools
import io
import operator
import sys
from dataclasses import replace

import pytest
import torch

import bayesfed as bf
from bayesfed.algorithms.d_turbo_vbi import no_field, ramp
from bayesfed.data import Dataset
from bayesfed.errors import CollapseWarning, UpdateError
from bayesfed.federated import (
    Active,
    Assignment,
    Average,
    Descent,
    Digital,
    Keep,
    Phase,
    Sgd,
    Update,
    Whole,
    checkpoint,
    cosine,
    early_stop,
    everyone,
    fraction,
    inverse,
    keep,
    load,
    rounds,
)
from bayesfed.federated.aggregation.rules import added
from bayesfed.federated.core.layering import of_core
from bayesfed.federated.core.owners import owned
from bayesfed.federated.training.batches import batches
from bayesfed.inference import MaximumLikelihood, MeanField, Structured
from bayesfed.keys import Key
from bayesfed.models import Categorical
from bayesfed.testing import check_local, check_sampler, check_view
from bayesfed.trees import parameters, shapes
from tests.conftest import tree_equal
from tests.support.pools import check_pool
from tests.support.records import untimed

WORK = bf.Training(steps=4, batch_size=16)


def turbo(declared, clients, **changes):
    return bf.d_turbo_vbi(
        declared, observations=sum(map(len, clients.values())), **{"training": WORK, **changes}
    )


def final(algorithm, pool, **changes):
    *_, last = rounds(algorithm, pool, **{"rounds": 3, **changes})
    return last


@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"workers": 2, "kind": "thread"}])
def test_pools_obey_the_laws(options):
    check_pool(lambda data: bf.InProcess(data, **options))


@pytest.mark.parametrize("sampler", [everyone, fraction(0.3), fraction(1e-9), fraction(1.0)])
def test_samplers_obey_the_laws(sampler):
    check_sampler(sampler)


def test_views_obey_the_laws():
    mask = torch.rand(4, 5) < 0.5
    check_view(Whole({"a": (4, 5), "b": ()}), {"a": torch.randn(4, 5), "b": torch.tensor(2.0)})
    sparse = Active({"layer": mask}, {"mean/layer": (4, 5), "sd": ()})
    check_view(
        sparse, {"mean/layer": torch.randn(int(mask.sum())), "sd": torch.tensor(2.0)}, "moments"
    )
    tree = {"mean/layer": torch.randn(4, 5), "sd": torch.tensor(0.1)}
    payload = sparse.restrict(tree | {"support/layer": mask})
    assert torch.equal(payload.pop("support/layer"), mask)
    assert torch.equal(
        sparse.lift(payload, 1.0, "moments").total["mean/layer"], tree["mean/layer"] * mask
    )


@pytest.mark.parametrize("sd", [0.0, -0.1])
def test_a_standard_deviation_must_be_positive(sd):
    view = Active({}, {"sd": ()}, ("sd",))
    with pytest.raises(UpdateError, match="leaf 'sd': expected values above 0"):
        view.lift({"sd": torch.tensor(sd)}, 1.0, "moments")


def test_an_entry_that_returns_has_the_spikes_sd(clients):
    """Per-weight sds: what nobody trained must not come back with an sd of zero."""
    declared = bf.declare(
        bf.mlp([64, 16, 10], Key(0, "net")),
        bf.Prior(bf.Independent(0.5)),
        likelihood=Categorical(temperature=0.2),
    )
    pushed = turbo(
        declared, clients, spread="weight", field=lambda round: -3.0 if round < 2 else 6.0
    )
    with pytest.warns(
        CollapseWarning,
        match=r"no weight of 3.weight is active any more; try density=..., which keeps a floor",
    ):
        reports = list(rounds(pushed, bf.InProcess(clients), rounds=4))
    assert reports[2].server["reactivated"] > 0
    assert all(bool(torch.isfinite(leaf).all()) for leaf in reports[-1].state.values())
    assert min(float(reports[-1].state[f"sd/{name}"].min()) for name in declared.sites) > 0


def test_locals_obey_the_laws(net, declared, clients):
    data = clients["client-000"]
    likelihood = MaximumLikelihood(net, Categorical())
    check_local(Descent(likelihood, Sgd(), 3, 8), parameters(net), data)
    noisy = torch.nn.Sequential(net, torch.nn.Dropout(0.5))
    check_local(
        Descent(MaximumLikelihood(noisy, Categorical()), Sgd(), 3, 8),
        parameters(noisy),
        data,
    )
    algorithm = turbo(declared, clients)
    (phase,) = algorithm.phases
    state, _ = phase.scope.parted(algorithm.initial)
    message = phase.assign(state, 0, bf.InProcess(clients).profiles[0], Key(0)).view.restrict(
        phase.server.publish(state, 0, None)
    )
    check_local(phase.local, message, data, bf.federated.LocalOptions(scale=4.0))


def test_batches_pass_over_all_rows_before_repeating():
    data = Dataset(torch.arange(10.0)[:, None], torch.zeros(10))
    seen = [batch.inputs.reshape(-1).tolist() for batch in batches(data, 3, 6, Key(0).generator())]
    assert all(len(set(functools.reduce(operator.iadd, seen[i : i + 3], []))) == 9 for i in (0, 3))
    assert [len(batch) for batch in batches(data, 99, 2, Key(0).generator())] == [10, 10]


# Same bits


@pytest.mark.parametrize(
    "make",
    [
        lambda net, declared, clients: bf.fed_avg(net, training=WORK),
        lambda net, declared, clients: turbo(declared, clients),
    ],
)
def test_workers_and_order_do_not_change_a_bit(net, declared, clients, make):
    algorithm = make(net, declared, clients)
    reference = final(algorithm, bf.InProcess(clients)).state
    reversed_clients = dict(reversed(clients.items()))
    for pool in (
        bf.InProcess(clients, workers=2),
        bf.InProcess(reversed_clients),
        bf.InProcess(clients, workers=2, kind="thread"),
    ):
        with pool:
            assert tree_equal(final(algorithm, pool).state, reference)

    def backwards(round, names, key):
        return list(reversed(names))

    assert tree_equal(final(algorithm, bf.InProcess(clients), sampler=backwards).state, reference)


def test_the_global_stream_does_not_matter(net, clients):
    torch.manual_seed(1)
    first = final(bf.fed_avg(net, training=WORK), bf.InProcess(clients)).state
    torch.manual_seed(2)
    assert tree_equal(final(bf.fed_avg(net, training=WORK), bf.InProcess(clients)).state, first)
    assert not tree_equal(
        final(bf.fed_avg(net, training=WORK), bf.InProcess(clients), seed=1).state, first
    )


@pytest.mark.parametrize(
    "options", [{}, {"blocks": MeanField()}, {"spread": "weight"}, {"sampler": fraction(0.5)}]
)
def test_a_resumed_run_equals_the_uninterrupted_one(declared, clients, tmp_path, options):
    options = dict(options)
    sampler = options.pop("sampler", everyone)
    algorithm = turbo(declared, clients, field=ramp(-1.0, 3), **options)
    whole = bf.run(algorithm, clients, rounds=4, sampler=sampler, progress=False)
    bf.run(
        algorithm,
        clients,
        rounds=2,
        sampler=sampler,
        progress=False,
        callbacks=[checkpoint(tmp_path / "run.bfd", every=2)],
    )
    snapshot = load(tmp_path / "run.bfd")
    assert snapshot.round == 2
    resumed = bf.run(algorithm, clients, rounds=4, sampler=sampler, progress=False, resume=snapshot)
    assert tree_equal(resumed.snapshot.state, whole.snapshot.state)
    assert resumed.snapshot.versions == whole.snapshot.versions
    assert list(map(untimed, resumed.history)) == list(map(untimed, whole.history))


# Degenerate settings


@pytest.mark.parametrize("optimiser", [bf.Sgd(0.05, momentum=0.9), bf.Adam(1e-3)])
@pytest.mark.parametrize("spread", ["shared", "weight"])
def test_without_prior_and_noise_it_is_fed_avg_on_the_means(
    net, declared, clients, optimiser, spread
):
    same = {
        "training": replace(WORK, optimiser=optimiser, schedule=cosine(0.5, 3)),
        "codec": bf.Cast(32),
    }
    average = final(bf.fed_avg(net, **same), bf.InProcess(clients))
    means = final(
        turbo(declared, clients, use_prior=False, sample=False, spread=spread, **same),
        bf.InProcess(clients),
    )
    assert tree_equal(means.model.parameters, average.model.parameters)


def test_fed_prox_without_strength_is_fed_avg(net, clients):
    average = final(bf.fed_avg(net, training=WORK), bf.InProcess(clients)).state
    assert tree_equal(
        final(bf.fed_prox(net, strength=0.0, training=WORK), bf.InProcess(clients)).state, average
    )
    held = final(
        bf.fed_prox(net, strength=100.0, training=replace(WORK, optimiser=bf.Sgd(0.005))),
        bf.InProcess(clients),
    ).state
    start = parameters(net)

    def moved(state):
        return sum(float((state[f"model/{name}"] - start[name]).norm()) for name in start)

    assert moved(held) < moved(
        final(
            bf.fed_avg(net, training=replace(WORK, optimiser=bf.Sgd(0.005))), bf.InProcess(clients)
        ).state
    )


def test_tied_parameters_stay_tied(clients):
    """Trees name a shared parameter once; training through it must reach both places."""
    net = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)
    )
    net[3].weight = net[1].weight
    untouched = parameters(net)
    report = final(
        bf.fed_avg(net, training=WORK), bf.InProcess({"only": clients["client-000"]}), rounds=1
    )
    state = owned(report.state, "model")
    twin = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)
    )
    twin[3].weight = twin[1].weight
    twin.load_state_dict(net.state_dict())
    optimiser = torch.optim.SGD(twin.parameters(), 0.05)
    for batch in batches(
        clients["client-000"], 16, 4, Key(0, "train", 0, "only", "fit", "batches").generator()
    ):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(twin(batch.inputs), batch.targets).backward()
        optimiser.step()
    assert set(state) == {"1.weight", "1.bias", "3.bias"}
    # The caller's network is as it was.
    assert net[3].weight is net[1].weight
    assert isinstance(net[1].weight, torch.nn.Parameter)
    assert tree_equal(parameters(net), untouched)
    assert torch.allclose(state["1.weight"], twin[1].weight, atol=1e-6)


def test_one_client_is_plain_training(net, clients):
    """FedAvg of one client is its own loop: the slow twin, written out."""
    data = clients["client-000"]
    state = final(
        bf.fed_avg(net, training=replace(WORK, optimiser=bf.Sgd(0.1))),
        bf.InProcess({"only": data}),
        rounds=2,
    ).state
    twin = bf.mlp([64, 16, 10], Key(0, "net"))
    twin.load_state_dict(parameters(net))
    for number in range(2):
        optimiser = torch.optim.SGD(twin.parameters(), 0.1)
        for batch in batches(
            data, 16, 4, Key(0, "train", number, "only", "fit", "batches").generator()
        ):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(twin(batch.inputs), batch.targets).backward()
            optimiser.step()
        with torch.no_grad():
            for value in twin.parameters():
                value.copy_((len(data) * value) / len(data))
    assert tree_equal(owned(state, "model"), parameters(twin))


# Memory, phases, reducers


def test_empty_clients_are_legal_and_weightless(net, clients):
    with_empty = {**clients, "zz-empty": clients["client-000"][slice(0, 0)]}
    assert tree_equal(
        final(bf.fed_avg(net, training=WORK), bf.InProcess(with_empty)).state,
        final(bf.fed_avg(net, training=WORK), bf.InProcess(clients)).state,
    )
    final(
        bf.d_turbo_vbi(bf.declare(net), observations=1437, training=WORK), bf.InProcess(with_empty)
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda net: bf.fed_avg(net, training=WORK),
        lambda net: bf.d_turbo_vbi(bf.declare(net), observations=387, training=WORK),
    ],
)
def test_a_round_of_clients_without_data_changes_nothing(net, clients, make):
    data = clients["client-000"]
    algorithm = make(net)
    pool = bf.InProcess({"a": data[slice(0, 0)], "b": data})
    report = final(algorithm, pool, rounds=1, sampler=lambda round, names, key: ["a"])
    assert tree_equal(report.state, algorithm.initial)
    assert not report.refused


class Median:
    """A server that needs every update apart."""

    def publish(self, state, round, version):
        return state

    def step(self, state, reducer, round):
        updates = list(reducer.updates.values())
        return {
            name: torch.stack([u.mean()[name] for u in updates]).median(0).values for name in state
        }, {}


def test_nothing_is_switched_off_while_warming_up(declared, clients):
    densities = [
        report.server["density"]
        for report in rounds(
            turbo(declared, clients, warm_up=2, field=no_field), bf.InProcess(clients), rounds=3
        )
    ]
    assert densities[:2] == [1.0, 1.0]
    assert densities[2] < 1.0


def test_phases_and_keep(net, clients):
    view = Whole(shapes(parameters(net)))
    local = Descent(MaximumLikelihood(net, Categorical()), Sgd(), 2, 8)

    def assign(state, round, profile, key):
        return Assignment(
            view, profile.samples, bf.Cast(16 if profile.name.endswith("0") else 32), bf.Cast(32)
        )

    phases = (
        Phase("median", assign, local, Median(), Digital(), Keep),
        Phase("mean", assign, local, Average(), Digital()),
    )
    report = final(
        of_core("two", parameters(net), phases, lambda state: None),
        bf.InProcess(clients),
        rounds=1,
    )
    assert [row.phase for row in report.rows if row.direction == "down"] == ["median"] * 4 + [
        "mean"
    ] * 4
    down = {
        row.client: row.bits
        for row in report.rows
        if row.direction == "down" and row.phase == "mean"
    }
    assert down["client-000"] < 0.6 * down["client-001"]


def test_a_server_refuses_what_it_does_not_take(net, clients):
    view = Whole(shapes(parameters(net)))
    local = Descent(MaximumLikelihood(net, Categorical()), Sgd(), 2, 8, kind="delta")

    def assign(state, round, profile, key):
        return Assignment(view, profile.samples)

    def make(reducer):
        return of_core(
            "x",
            parameters(net),
            (Phase("train", assign, local, Average(), Digital(), *reducer),),
            lambda state: None,
        )

    with pytest.raises(UpdateError, match="a sum of kind 'value', found kind 'delta'"):
        final(make(()), bf.InProcess(clients))
    with pytest.raises(UpdateError, match="found Keep"):
        final(make((Keep,)), bf.InProcess(clients))


def test_updates_guard_their_sum():
    one = Update({"a": torch.ones(2)}, 1.0, "value")
    for other, words in (
        (replace(one, kind="delta"), "kind 'value', found 'delta'"),
        (replace(one, total={"a": torch.ones(1)}), "shape"),
        (replace(one, weight={"a": torch.ones(2)}), "a number and a tree"),
    ):
        with pytest.raises(UpdateError, match=words):
            added({"one": one, "other": other})
    covered = Update({"a": torch.tensor([2.0, 0.0])}, {"a": torch.tensor([2.0, 0.0])}, "value")
    assert added({"one": covered, "other": covered}).mean()["a"].tolist() == [1.0, 0.0]
    with pytest.raises(UpdateError, match="a positive total weight"):
        replace(one, weight=0.0).mean()


# Callbacks


def test_early_stopping_and_keeping(net, clients, digits):
    frames = {}
    result = bf.run(
        bf.fed_avg(net, training=replace(WORK, optimiser=Sgd(1e-9))),
        clients,
        rounds=20,
        test=digits[1],
        progress=False,
        callbacks=[early_stop("accuracy", patience=2), keep("1.bias", frames, every=2)],
    )
    assert len(result.history) == 3
    assert sorted(frames) == [0, 1]


def test_the_published_and_the_structured_guide_prune_differently(declared, clients):
    """Published blocks and the structured guide both run, and prune differently."""
    densities = {}
    for blocks in (Structured(), MeanField()):
        report = final(
            turbo(declared, clients, blocks=blocks, field=no_field), bf.InProcess(clients)
        )
        densities[blocks] = report.server["density"]
    assert 0 < densities[Structured()] < densities[MeanField()] == 1.0


def test_schedules():
    falling = cosine(0.2, 5)
    assert [round(falling(i), 4) for i in (0, 2, 4, 9)] == [1.0, 0.6, 0.2, 0.2]
    assert cosine(0.2, 1)(0) == 1.0
    assert inverse(10.0)(10) == 0.5
    assert [ramp(-2.0, 4)(i) for i in (0, 2, 4, 8)] == [0.0, -1.0, -2.0, -2.0]


def test_profiles_carry_what_the_server_knows_of_a_device(clients):
    pool = bf.InProcess(clients, devices={"client-001": {"power_w": 0.1}})
    assert [(profile.samples, dict(profile.device)) for profile in pool.profiles][:2] == [
        (len(clients["client-000"]), {}),
        (len(clients["client-001"]), {"power_w": 0.1}),
    ]


@pytest.mark.parametrize(
    ("verdict", "rounds"), [(True, 1), ("done", 3), (1, 3), (torch.tensor(1.0), 3), (None, 3)]
)
def test_a_run_is_ended_by_true_alone(net, clients, verdict, rounds):
    result = bf.run(
        bf.fed_avg(net, training=WORK),
        clients,
        rounds=3,
        callbacks=[lambda report: verdict],
        progress=False,
    )
    assert len(result.history) == rounds


@pytest.mark.parametrize("seen", [True, False])
def test_a_bar_is_drawn_where_somebody_looks(net, clients, monkeypatch, seen):
    screen = io.StringIO()
    screen.isatty = lambda: seen
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    bf.run(bf.fed_avg(net, training=WORK), clients, rounds=1)
    assert ("fed_avg: 100%" in screen.getvalue()) is seen
