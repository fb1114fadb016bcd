"""Posteriors of adapters: closed forms, sketches of them against whole ones, what travels and what
is left alone.
"""

import itertools
import math
from dataclasses import replace
from functools import partial

import pyro
import pytest
import torch
from pyro.infer import TraceMeanField_ELBO
from pyro.infer.autoguide import AutoLowRankMultivariateNormal, AutoNormal
from torch import nn

import bayesfed as bf
from bayesfed.algorithms.lora import SketchedSvi
from bayesfed.algorithms.lora.sketch_view import SKETCH
from bayesfed.algorithms.lora.slices import cut_slices, put_slices, sliced
from bayesfed.errors import ArgumentError, PosteriorError
from bayesfed.federated.core.owners import of, owned
from bayesfed.federated.core.protocols import Profile
from bayesfed.inference.evaluation.predictive import Predictive
from bayesfed.models import Drawn, merged
from bayesfed.trees import shapes, size, trainable
from tests.conftest import tree_equal

KEY, R, K = bf.Key(0, "bayesian_lora"), 4, 2
FIRST = {"capacity": lambda profile, round, key: 0}
AVERAGES = {
    "mean": (bf.inference.MeanParameters(), "global"),
    "wasserstein": (bf.inference.Wasserstein(), "global"),
    "reverse KL": (bf.inference.ReverseKL(), "global"),
}
RULES = AVERAGES | {"pvi": (bf.PVI(0.5), "local"), "gradients": (bf.SummedGradients(0.05), "local")}


def adapted(rank=R):
    net = bf.lora(
        bf.mlp([64, 12, 10], bf.Key(0, "net")),
        rank,
        bf.Key(0, "lora"),
        where=lambda name, module: name == "1.weight",
        head=["3"],
    )
    for name, leaf in net.named_parameters():
        if name.endswith("lora_b"):
            leaf.data = 0.1 * torch.randn(leaf.shape, generator=bf.Key(0, "b").generator())
    return net


def declared(**changes):
    net = adapted()
    return bf.bayesian(net, bf.models.adapter_prior(net, a=0.1, b=0.2, head=0.3, **changes))


def settings(data, rule="gradients", **changes):
    fusion, scale = RULES[rule]
    work = bf.Training(steps=3, batch_size=8, optimiser=bf.Adam(0.02))
    return {
        "fusion": fusion,
        "scale": scale,
        "observations": len(data),
        "example": data[:3],
        "training": work,
        **changes,
    }


def few(digits, clients=2, each=20):
    data = digits[0][: clients * each]
    return {f"client-{k}": data[each * k : each * (k + 1)] for k in range(clients)}, data


def run(algorithm, clients, rounds=2):
    return bf.run(algorithm, clients, rounds=rounds, progress=False)


def message_of(algorithm, name="client-0", rows=20):
    """What a client is sent in round 0, with the view that cut it and its options."""
    phase = algorithm.phases[0]
    state = owned(algorithm.initial, "model")
    given = phase.assign(state, 0, Profile(name, rows), KEY)
    return (
        given.view.restrict(phase.server.publish(state, 0, None)),
        given.view,
        given.options,
    )


# Priors


def test_only_what_is_trained_has_a_prior_and_the_base_is_shared():
    net = adapted()
    model = bf.bayesian(net, bf.models.adapter_prior(net))
    assert list(model.priors) == ["1.lora_b", "1.lora_a", "3.weight", "3.bias"]
    assert model.values["1.base.weight"].data_ptr() == net.get_parameter("1.base.weight").data_ptr()
    assert model.values["1.lora_a"].data_ptr() != net.get_parameter("1.lora_a").data_ptr()
    assert tree_equal({name: prior.centre for name, prior in model.priors.items()}, trainable(net))
    zero = bf.bayesian(
        net, bf.models.adapter_prior(net, a=0.1, b=0.2, head=0.3, around="zero")
    ).priors
    assert [(prior.sd, prior.centre) for prior in zero.values()] == [
        (0.2, 0.0),
        (0.1, 0.0),
        (0.3, 0.0),
        (0.3, 0.0),
    ]


# Closed forms: with B fixed, y = W x + scale B A x + noise is linear in A


def linear(rank, inputs=3, outputs=4, sd=0.5, noise=0.3, rows=40):
    base = nn.Linear(inputs, outputs)
    with torch.no_grad():
        for leaf in base.parameters():
            leaf.copy_(torch.randn(leaf.shape, generator=bf.Key(0, "base", leaf.ndim).generator()))
    net = bf.lora(nn.Sequential(base), rank, bf.Key(0, "lora"), alpha=float(rank))
    generator = bf.Key(0, "linear").generator()
    net[0].lora_b.data = torch.randn(outputs, rank, generator=generator)
    x = torch.randn(rows, inputs, generator=generator)
    y = net(x).detach() + noise * torch.randn(rows, outputs, generator=generator)
    prior = bf.models.adapter_prior(net, a=sd, around="zero")
    model = bf.bayesian(
        net, prior, likelihood=bf.Normal(noise), where=lambda name, module: name.endswith("lora_a")
    )
    b = net[0].lora_b.detach()
    precision = torch.kron(b.T @ b, x.T @ x) / noise**2 + torch.eye(rank * inputs) / sd**2
    residual = y - torch.nn.functional.linear(x, base.weight, base.bias).detach()
    mean = torch.linalg.solve(precision, (b.T @ residual.T @ x).flatten() / noise**2)
    return model, bf.Dataset(x, y), precision, mean.reshape(rank, inputs)


def summed(model, data, parts, begin, *, q=0, steps=200):
    """The gradient of the negative ELBO at a posterior, added up over clients; draws come in pairs
    that mirror each other.
    """
    work = bf.Training(steps=steps, batch_size=None)
    rule = {
        "fusion": bf.SummedGradients(),
        "scale": "local",
        "observations": len(data),
        "example": data[:2],
        "training": work,
    }
    algorithm = bf.bayesian_lora(
        model, [model.net[0].rank], **FIRST, guide=partial(bf.models.SliceNormal, rank=q), **rule
    )
    phase, found, state = algorithm.phases[0], [], owned(algorithm.initial, "model")
    for name, part in bf.federate(data, bf.iid(len(data), parts, KEY)).items():
        given = phase.assign(state, 0, Profile(name, len(part)), KEY)
        found.append(phase.local.fit(begin, {}, part, KEY.child(name), given.options).payload)
    return {name: sum(payload[name] for payload in found) for name in begin}


@pytest.mark.parametrize("parts", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_the_mean_field_optimum_of_a_linear_layer_is_where_gradients_end(parts):
    model, data, precision, mean = linear(2)
    sd = precision.diagonal().rsqrt().reshape(mean.shape)
    shift = torch.randn(mean.shape, generator=bf.Key(0, "shift").generator()) * sd
    at = summed(model, data, parts, {"value/0.lora_a.loc": mean, "value/0.lora_a.scale": sd.log()})
    off = summed(
        model,
        data,
        parts,
        {"value/0.lora_a.loc": mean + shift, "value/0.lora_a.scale": sd.log()},
        steps=2,
    )
    # Of a quadratic, mirrored pairs give the location's gradient exactly, however rows are dealt.
    slope = (precision @ shift.flatten()).reshape(mean.shape)
    assert torch.allclose(
        off["value/0.lora_a.loc"], slope, rtol=1e-2, atol=1e-2 * float(slope.abs().max())
    )
    assert at["value/0.lora_a.loc"].abs().max() < 1e-2 * slope.abs().max()
    # Of a log sd it is the mean of 1 - z^2 and of products of other draws.
    assert at["value/0.lora_a.scale"].abs().max() < 0.8
    assert at["value/0.lora_a.scale"].mean().abs() < 0.3
    wide = summed(
        model, data, parts, {"value/0.lora_a.loc": mean, "value/0.lora_a.scale": (2 * sd).log()}
    )
    assert torch.allclose(wide["value/0.lora_a.scale"], torch.full_like(sd, 3.0), atol=3.0)
    assert float(wide["value/0.lora_a.scale"].mean()) == pytest.approx(3.0, abs=0.8)


def test_the_low_rank_guide_can_be_the_whole_covariance_of_a_slice():
    model, data, precision, mean = linear(1)
    rule = {
        "fusion": bf.SummedGradients(),
        "scale": "local",
        "observations": len(data),
        "example": data[:2],
    }
    algorithm = bf.bayesian_lora(
        model, [1], **FIRST, guide=partial(bf.models.SliceNormal, rank=3), **rule
    )
    values, vectors = torch.linalg.eigh(precision.inverse())
    least = 0.9 * values[0]
    exact = {
        "value/0.lora_a.loc": mean,
        "value/0.lora_a.scale": least.sqrt().log().expand(mean.shape).clone(),
        "value/0.lora_a.factor": (vectors * ((values - least) / least).sqrt())[None],
    }
    alone = {
        **exact,
        "value/0.lora_a.scale": precision.diagonal().rsqrt().log()[None],
        "value/0.lora_a.factor": torch.zeros(1, 3, 3),
    }
    # At the exact posterior, log p(D, z) - log q(z) is log p(D), whatever z.
    spread = [
        float(
            algorithm.posterior(algorithm.initial | of("model", at))
            .log_weights(data, KEY, draws=20)
            .std()
        )
        for at in (exact, alone)
    ]
    assert spread[0] < 0.01
    assert spread[1] > 0.05


# The guide


@pytest.mark.parametrize("q", [0, 2])
def test_the_guides_density_is_a_product_over_slices(q):
    model = declared()
    guide = bf.models.SliceNormal(model, rank=q, init_scale=0.1)
    data = torch.zeros(2, 64)
    pyro.clear_param_store()
    with pyro.poutine.trace() as tracer:
        guide(data)
    store = {name: value.detach().clone() for name, value in pyro.get_param_store().items()}
    pyro.clear_param_store()
    drawn = {name: tracer.trace.nodes[name]["value"].detach() for name in model.priors}
    assert all(drawn[name].shape == model.values[name].shape for name in model.priors)

    def log_density(names, rows):
        """Of one slice, or of one other parameter: a dense Gaussian."""
        loc, scale, value = (
            torch.cat([rows(name, tree) for name in names]) for tree in ("loc", "scale", None)
        )
        covariance = scale.square().diag()
        if q:
            factor = scale[:, None] * torch.cat([rows(name, "factor") for name in names])
            covariance = covariance + factor @ factor.T
        return torch.distributions.MultivariateNormal(loc, covariance).log_prob(value)

    def leaf(name, what):
        return drawn[name] if what is None else store[f"{name}.{what}"]

    def slice_of(j, name, what):
        return leaf(name, what)[:, j] if name.endswith("lora_b") else leaf(name, what)[j]

    def flat(name, what):
        return leaf(name, what).flatten(0, model.values[name].ndim - 1)

    total = sum(log_density(["1.lora_b", "1.lora_a"], partial(slice_of, j)) for j in range(R))
    total = total + log_density(["3.weight"], flat) + log_density(["3.bias"], flat)
    assert float(tracer.trace.log_prob_sum().detach()) == pytest.approx(float(total), rel=1e-4)
    # It begins at the network's own values, as wide as told, F F^T having half of the variance on
    # average.
    assert all(torch.equal(store[f"{name}.loc"], model.values[name]) for name in model.priors)
    assert all(
        bool((store[f"{name}.scale"] - 0.1 * (0.5 if q else 1.0) ** 0.5).abs().max() < 1e-6)
        for name in model.priors
    )


def test_leaves_are_found_whatever_stands_around_their_names():
    names = [
        "guide.scales.0.1.lora_a_unconstrained",
        "precision/1.lora_b",
        "lora_a",
        "1.lora_c",
        "guide.loc",
        "2.lora_a",
    ]
    assert sliced(names, ["1", "0.1"]) == {names[0]: ("0.1", 0), names[1]: ("1", 1)}
    assert sliced(["x.lora_a"], [""]) == {"x.lora_a": ("", 0)}
    whole = {
        "value/1.lora_b.scale": torch.arange(8.0).reshape(2, 4),
        "value/1.lora_a.factor": torch.arange(24.0).reshape(4, 3, 2),
        "head": torch.ones(2),
    }
    chosen = {"1": torch.tensor([1, 3])}
    part = cut_slices(whole, chosen)
    assert shapes(part) == {
        "value/1.lora_b.scale": (2, 2),
        "value/1.lora_a.factor": (2, 3, 2),
        "head": (2,),
    }
    zeros = {name: torch.zeros_like(leaf) for name, leaf in whole.items()}
    back = put_slices(part, chosen, zeros)
    assert torch.equal(
        back["value/1.lora_a.factor"][[1, 3]], whole["value/1.lora_a.factor"][[1, 3]]
    )
    assert not bool(back["value/1.lora_a.factor"][[0, 2]].any())
    assert not bool(zeros["value/1.lora_b.scale"].any())


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
    model = declared(around="initial")
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


@pytest.mark.parametrize("q", [0, 2])
def test_slices_are_all_that_travels(digits, q):
    clients, data = few(digits)
    model = declared()
    algorithm = bf.bayesian_lora(
        model,
        [R, K],
        lambda profile, round, key: 1,
        guide=partial(bf.models.SliceNormal, rank=q),
        **settings(data),
    )
    message, view, options = message_of(algorithm)
    each = (2 + q) * (K * (12 + 64) + 10 * 12 + 10)
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


@pytest.mark.parametrize(
    ("guide", "rule"),
    [
        (AutoNormal, "pvi"),
        (AutoNormal, "gradients"),
        (partial(bf.models.SliceNormal, rank=2), "gradients"),
    ],
)
def test_other_guides_are_sketched_too(digits, guide, rule):
    clients, data = few(digits)
    result = run(
        bf.bayesian_lora(declared(), [K], **FIRST, guide=guide, **settings(data, rule)), clients
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


# Predictions


def test_predictions_are_means_over_merged_networks(digits):
    clients, data = few(digits)
    model = declared()
    result = run(
        bf.bayesian_lora(
            model,
            [K],
            **FIRST,
            guide=partial(bf.models.SliceNormal, rank=1, init_scale=0.1),
            **settings(data),
        ),
        clients,
    )
    inputs, key = digits[1].inputs[:7], bf.Key(0, "predictive")
    draws = [result.posterior.draw(key.child("draw", number)) for number in range(5)]
    with torch.no_grad():
        slow = torch.stack([merged(model.net, draw)(inputs).softmax(1) for draw in draws]).mean(0)
    assert torch.allclose(Predictive(result.posterior, inputs, key, count=5).mean, slow, atol=1e-5)
    assert not torch.equal(draws[0]["1.lora_a"], draws[1]["1.lora_a"])


# Bad input


def test_bad_input_is_refused(digits):
    _, data = few(digits)
    model, net = declared(), adapted()
    with pytest.raises(ArgumentError, match="many rounds"):
        bf.bayesian_lora(
            model, [K], **FIRST, **settings(data, fusion=bf.inference.ProductOfExperts())
        )
    with pytest.raises(ArgumentError, match="named after every adapter"):
        bf.bayesian_lora(model, [K], **FIRST, **settings(data, guide=AutoLowRankMultivariateNormal))
    assert bf.bayesian_lora(
        model, [R], **FIRST, **settings(data, guide=AutoLowRankMultivariateNormal)
    ).initial
    with pytest.raises(ArgumentError, match="falling numbers from 1 to 4"):
        bf.bayesian_lora(model, [R + 1], **FIRST, **settings(data))
    with pytest.raises(PosteriorError):
        bf.bayesian_lora(
            model,
            [R],
            **FIRST,
            **settings(data, "mean", guide=partial(bf.models.SliceNormal, rank=1)),
        )
    plain = bf.mlp([64, 5, 10], KEY)
    with pytest.raises(ArgumentError, match="adapters of one rank"):
        bf.bayesian_lora(bf.bayesian(plain, bf.Gaussian(1.0)), [1], **FIRST, **settings(data))
    with pytest.raises(ArgumentError, match="adapters of one rank"):
        bf.models.adapter_prior(plain)
    for bad in ({"a": 0.0}, {"b": -1.0}, {"head": math.inf}, {"around": "one"}):
        with pytest.raises(ArgumentError):
            bf.models.adapter_prior(net, **bad)
    for bad in ({"rank": -1}, {"init_scale": 0.0}, {"init_scale": math.inf}):
        with pytest.raises(ArgumentError, match="SliceNormal"):
            bf.models.SliceNormal(model, **bad)


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
