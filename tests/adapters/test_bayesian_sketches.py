"""Posteriors of slices: sketches against whole ones, what travels and what is left alone."""

import itertools
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from pyro.infer import TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal

import bayesfed as bf
from bayesfed.algorithms.lora import SketchedSvi
from bayesfed.algorithms.lora.sketches import SKETCH
from bayesfed.algorithms.lora.slices import cut_slices, sliced
from bayesfed.errors import ArgumentError
from bayesfed.federated.core.owners import of, owned
from bayesfed.federated.core.protocols import Profile
from bayesfed.models import Drawn
from bayesfed.trees import shapes, size
from tests.adapters.bayesian_pieces import (
    AVERAGES,
    FIRST,
    KEY,
    RULES,
    K,
    R,
    adapted,
    declared,
    few,
    message_of,
    run,
    settings,
)
from tests.conftest import tree_equal

# Sketches


@pytest.mark.parametrize("rule", RULES)
def test_all_slices_are_the_run_without_a_sketch_to_the_bit(digits, rule):
    clients, data = few(digits)
    model = declared()
    plain = run(
        bf.federated_svi(model, bf.models.SliceNormal(model), **settings(data, rule)), clients
    )
    whole = run(bf.bayesian_lora(model, [R, K], **FIRST, **settings(data, rule)), clients)
    assert tree_equal(plain.snapshot.state, whole.snapshot.state)
    small = run(
        bf.bayesian_lora(model, [R, K], lambda profile, round, key: 1, **settings(data, rule)),
        clients,
    )
    assert not tree_equal(whole.snapshot.state, small.snapshot.state)


@pytest.mark.parametrize("rule", RULES)
def test_a_sketch_of_all_slices_fits_as_the_whole_does(digits, rule):
    clients, data = few(digits)
    model = declared()
    algorithm = bf.bayesian_lora(model, [R], **FIRST, **settings(data, rule))
    message, _, options = message_of(algorithm)
    local = algorithm.phases[0].local.locals[0]
    plain = local.fit(message, {}, clients["client-0"], KEY, options)
    sketched = SketchedSvi(
        replace(local, sites={"1.lora_a": 1.0, "1.lora_b": 1.0}),
        model,
        model.net,
        owned(algorithm.initial, "model"),
    )
    found = sketched.fit(
        {**of("model", message), "sketch/1": torch.arange(R)}, {}, clients["client-0"], KEY, options
    )
    assert tree_equal(plain.payload, found.payload)
    assert tree_equal(plain.memory, found.memory)


def exact_gradients(digits, model, k, drawn, guide=bf.models.SliceNormal):
    """The gradient that a client of these slices sends with no weight on its rows: that of its
    share of KL(q || p).
    """
    clients, data = few(digits)
    work = settings(
        data,
        elbo=TraceMeanField_ELBO(),
        training=bf.Training(steps=1, batch_size=None, optimiser=bf.Adam(0.02)),
        guide=guide,
    )
    algorithm = bf.bayesian_lora(model, [k], **FIRST, **work)
    _, view, options = message_of(algorithm)
    published = algorithm.phases[0].server.publish(owned(algorithm.initial, "model"), 0, None)
    published = {
        name: leaf + 0.1 * torch.randn(leaf.shape, generator=KEY.child(name).generator())
        for name, leaf in published.items()
    }
    if k < R:
        view = replace(view, drawn={"1": drawn})
    options = replace(options, scale=0.0)
    fit = algorithm.phases[0].local.fit(
        view.restrict(published), {}, clients["client-0"], KEY, options
    )
    return view.lift(fit.payload, 1.0, "gradient").total


def test_the_prior_and_entropy_of_slices_are_whole_on_average(digits):
    model = declared()
    whole = exact_gradients(digits, model, R, None)
    sets = [
        Drawn(torch.tensor(chosen), torch.full((K,), R / K))
        for chosen in itertools.combinations(range(R), K)
    ]
    parts = [exact_gradients(digits, model, K, drawn) for drawn in sets]
    for drawn, part in zip(sets, parts, strict=True):
        outside = [j for j in range(R) if j not in drawn.indices.tolist()]
        for name, (_, axis) in sliced(part, ["1"]).items():
            assert not bool(part[name].index_select(axis, torch.tensor(outside)).any())
        assert torch.allclose(
            part["value/3.weight.scale"], whole["value/3.weight.scale"], atol=1e-6
        )
    for name, leaf in whole.items():
        assert leaf.abs().max() > 0.01
        assert torch.allclose(
            torch.stack([part[name] for part in parts]).mean(0), leaf, atol=1e-4, rtol=1e-4
        )


@pytest.mark.parametrize("rule", RULES)
def test_slices_that_nobody_had_are_untouched(digits, rule):
    clients, data = few(digits, 1)
    algorithm = bf.bayesian_lora(declared(), [K], **FIRST, **settings(data, rule))
    seen = []
    phase = algorithm.phases[0]

    def assign(state, round, profile, key):
        seen.append(phase.assign(state, round, profile, key))
        return seen[-1]

    result = run(replace(algorithm, phases=(replace(phase, assign=assign),)), clients, rounds=1)
    chosen = seen[0].view.indices["1"]
    outside = torch.tensor([j for j in range(R) if j not in chosen.tolist()])
    before, after = (owned(state, "model") for state in (algorithm.initial, result.snapshot.state))
    names = {
        name: axis
        for name, (_, axis) in sliced(before, ["1"]).items()
        if not name.startswith("adam/")
    }
    assert names
    for name, axis in names.items():
        left, found = (tree[name].index_select(axis, outside) for tree in (before, after))
        # An average is a sum over clients by their rows, divided again.
        assert (
            torch.allclose(left, found, rtol=1e-6, atol=0)
            if rule in AVERAGES
            else torch.equal(left, found)
        )
        assert bool(
            (
                before[name].index_select(axis, chosen) != after[name].index_select(axis, chosen)
            ).any()
        )


def test_averages_count_who_lacks_a_slice_at_its_present_value(digits):
    _, data = few(digits)
    algorithm = bf.bayesian_lora(declared(), [K], **FIRST, **settings(data, "mean"))
    phase, state = algorithm.phases[0], owned(algorithm.initial, "model")
    views = [phase.assign(state, 0, Profile(name, 20), KEY.child(name)).view for name in ("a", "b")]
    sums = [
        view.lift(
            {name: leaf + 1 for name, leaf in cut_slices(state, view.indices).items()},
            20.0,
            "value",
        )
        for view in views
    ]
    mean = {name: (sums[0].total[name] + sums[1].total[name]) / 40 - state[name] for name in state}
    held = sum(torch.bincount(view.indices["1"], minlength=R) for view in views) / 2
    assert torch.allclose(mean["value/1.lora_a.loc"], held[:, None].expand(R, 64), atol=1e-5)
    assert torch.allclose(mean["value/1.lora_b.scale"], held[None].expand(12, R), atol=1e-5)
    assert torch.allclose(mean["value/3.bias.loc"], torch.ones(10), atol=1e-5)
    assert sorted(set(held.tolist())) != [1.0]


def test_what_pvi_keeps_of_a_client_is_whole(digits):
    clients, data = few(digits, 1)
    result = run(
        bf.bayesian_lora(declared(), [K], **FIRST, **settings(data, "pvi")), clients, rounds=4
    )
    (memory,) = result.snapshot.memories.values()
    kept, state = owned(memory, "model/site"), owned(result.snapshot.state, "model")
    # One client's factor is the posterior, however it came by its slices.
    assert kept.keys() == state.keys()
    assert all(
        torch.allclose(leaf, state[name], rtol=1e-4, atol=1e-3) for name, leaf in kept.items()
    )


def test_priors_are_cut_to_the_slices_of_a_client(digits):
    model = declared()
    clients, data = few(digits, 1)
    algorithm = bf.bayesian_lora(
        model,
        [K],
        **FIRST,
        **settings(
            data,
            elbo=TraceMeanField_ELBO(),
            training=bf.Training(steps=1, batch_size=None, optimiser=bf.Adam(0.02)),
        ),
    )
    message, view, options = message_of(algorithm)
    assert view.indices["1"].tolist() != list(range(K))
    fit = algorithm.phases[0].local.fit(
        message, {}, clients["client-0"], KEY, replace(options, scale=0.0)
    )
    # q begins at the prior's centres, where its pull is nil.
    assert not any(bool(fit.payload[f"value/{name}.loc"].any()) for name in model.priors)
    assert bool(fit.payload["value/1.lora_a.scale"].any())


def test_slices_are_all_that_travels(digits):
    clients, data = few(digits)
    model = declared()
    algorithm = bf.bayesian_lora(
        model,
        [R, K],
        lambda profile, round, key: 1,
        **settings(data),
    )
    message, view, options = message_of(algorithm)
    each = 2 * (K * (12 + 64) + 10 * 12 + 10)
    indices = message.pop(f"{SKETCH}/1")
    assert (indices.dtype, indices.tolist()) == (torch.uint8, view.indices["1"].tolist())
    assert size(message) == each
    fit = algorithm.phases[0].local.fit(
        {**message, "sketch/1": indices}, {}, clients["client-0"], KEY, options
    )
    assert size(fit.payload) == each
    result = run(algorithm, clients, rounds=1)
    rows = [row for row in result.ledger if row.direction == "up"]
    assert all(32 * each < row.bits < 32 * each + 8 * 1500 for row in rows)


@pytest.mark.parametrize("rule", ["pvi", "gradients"])
def test_other_guides_are_sketched_too(digits, rule):
    clients, data = few(digits)
    result = run(
        bf.bayesian_lora(declared(), [K], **FIRST, guide=AutoNormal, **settings(data, rule)),
        clients,
    )
    assert all(
        math.isfinite(value) for value in result.scores(digits[1][:20], draws=3)["all"].values()
    )


def test_clients_without_rows_change_nothing(digits):
    clients, data = few(digits, 1)
    model = declared()
    for rule in RULES:
        for ranks in ([R], [K]):
            algorithm = bf.bayesian_lora(model, ranks, **FIRST, **settings(data, rule))
            one, more = run(algorithm, clients), run(algorithm, {**clients, "empty": data[:0]})
            assert tree_equal(one.snapshot.state, more.snapshot.state), (rule, ranks)


# Anchored


@pytest.mark.parametrize("rule", ["mean", "pvi", "gradients"])
def test_anchored_slices_are_fitted_over_the_mean_of_the_others(digits, rule):
    clients, data = few(digits)
    make = partial(bf.bayesian_lora, declared(), anchored=True, **settings(data, rule))
    whole, plain = (
        run(one, clients).snapshot.state
        for one in (make([R, K], **FIRST), make([R], **FIRST, anchored=False))
    )
    assert tree_equal(whole, plain)
    algorithm = make([K], **FIRST)
    message, view, options = message_of(algorithm)
    local = algorithm.phases[0].local.locals[0]
    assert message["sketch/1"].tolist() == view.indices["1"].tolist()
    assert local.local.sites == {}
    fit = local.fit(message, {}, clients["client-0"], KEY, options)
    assert shapes(fit.payload) == view.expected
    weights = local._anchors(
        local.anchor,
        owned(message, "model"),
        view.indices,
        KEY,
    )
    net, rest = (
        adapted(),
        torch.tensor([j for j in range(R) if j not in view.indices["1"].tolist()]),
    )
    layer = net.get_submodule("1")
    mean = layer.base.weight + layer.scale * layer.lora_b[:, rest] @ layer.lora_a[rest]
    # Eight draws of sd 0.01.
    assert (weights["1.base.weight"] - mean).abs().max() < 0.03
    assert not tree_equal(run(algorithm, clients).snapshot.state, whole)


def test_means_of_posteriors_take_momentum(digits):
    clients, data = few(digits)
    algorithm = bf.bayesian_lora(
        declared(), [R, K], bf.fixed(sorted(clients), 2), anchored=True, **settings(data, "mean")
    )
    plain, zero, carried = (
        run(one, clients, 3)
        for one in (
            algorithm,
            *(bf.server_optimised(algorithm, bf.FedAvgM(1.0, m)) for m in (0.0, 0.5)),
        )
    )
    assert tree_equal(plain.snapshot.state, zero.snapshot.state)
    assert not torch.equal(
        plain.posterior.draw(KEY)["3.weight"], carried.posterior.draw(KEY)["3.weight"]
    )
    with pytest.raises(ArgumentError, match="server_optimised"):
        bf.server_optimised(
            bf.bayesian_lora(declared(), [K], **FIRST, **settings(data, "gradients")), bf.FedAvgM()
        )
