"""Posteriors of adapters: priors, closed forms, the guide, predictions, refusals."""

import math
from functools import partial

import pyro
import pytest
import torch
from pyro.infer.autoguide import AutoLowRankMultivariateNormal
from torch import nn

import bayesfed as bf
from bayesfed.algorithms.lora.slices import cut_slices, put_slices, sliced
from bayesfed.errors import ArgumentError, PosteriorError
from bayesfed.federated.core.owners import owned
from bayesfed.federated.core.protocols import Profile
from bayesfed.inference.evaluation.predictive import Predictive
from bayesfed.models import merged
from bayesfed.trees import shapes, trainable
from tests.adapters.bayesian_pieces import FIRST, KEY, K, R, adapted, declared, few, run, settings
from tests.conftest import tree_equal

# Priors


def test_only_what_is_trained_has_a_prior_and_the_base_is_shared():
    net = adapted()
    model = bf.bayesian(net, bf.models.adapter_prior(net))
    assert list(model.priors) == ["1.lora_b", "1.lora_a", "3.weight", "3.bias"]
    assert model.values["1.base.weight"].data_ptr() == net.get_parameter("1.base.weight").data_ptr()
    assert model.values["1.lora_a"].data_ptr() != net.get_parameter("1.lora_a").data_ptr()
    assert tree_equal({name: prior.centre for name, prior in model.priors.items()}, trainable(net))
    told = bf.bayesian(net, bf.models.adapter_prior(net, a=0.1, b=0.2, head=0.3)).priors
    assert [prior.sd for prior in told.values()] == [0.2, 0.1, 0.3, 0.3]


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
    model = bf.bayesian(
        net,
        bf.Gaussian(sd),
        likelihood=bf.Normal(noise),
        where=lambda name, module: name.endswith("lora_a"),
    )
    b = net[0].lora_b.detach()
    precision = torch.kron(b.T @ b, x.T @ x) / noise**2 + torch.eye(rank * inputs) / sd**2
    residual = y - torch.nn.functional.linear(x, base.weight, base.bias).detach()
    mean = torch.linalg.solve(precision, (b.T @ residual.T @ x).flatten() / noise**2)
    return model, bf.Dataset(x, y), precision, mean.reshape(rank, inputs)


def summed(model, data, parts, begin, *, steps=200):
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
    algorithm = bf.bayesian_lora(model, [model.net[0].rank], **FIRST, **rule)
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


# The guide


def test_the_guide_is_independent_normals_around_the_networks_values():
    model = declared()
    guide = bf.models.SliceNormal(model, init_scale=0.1)
    pyro.clear_param_store()
    with pyro.poutine.trace() as tracer:
        guide(torch.zeros(2, 64))
    store = {name: value.detach().clone() for name, value in pyro.get_param_store().items()}
    pyro.clear_param_store()
    drawn = {name: tracer.trace.nodes[name]["value"].detach() for name in model.priors}
    assert all(drawn[name].shape == model.values[name].shape for name in model.priors)
    assert all(torch.equal(store[f"{name}.loc"], model.values[name]) for name in model.priors)
    assert all(bool((store[f"{name}.scale"] - 0.1).abs().max() < 1e-6) for name in model.priors)
    total = sum(
        torch.distributions.Normal(store[f"{name}.loc"], 0.1).log_prob(value).sum()
        for name, value in drawn.items()
    )
    assert float(tracer.trace.log_prob_sum().detach()) == pytest.approx(float(total), rel=1e-4)


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


# Predictions


def test_predictions_are_means_over_merged_networks(digits):
    clients, data = few(digits)
    model = declared()
    result = run(
        bf.bayesian_lora(
            model,
            [K],
            **FIRST,
            guide=partial(bf.models.SliceNormal, init_scale=0.1),
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
            **settings(data, "mean", guide=AutoLowRankMultivariateNormal),
        )
    plain = bf.mlp([64, 5, 10], KEY)
    with pytest.raises(ArgumentError, match="adapters of one rank"):
        bf.bayesian_lora(bf.bayesian(plain, bf.Gaussian(1.0)), [1], **FIRST, **settings(data))
    with pytest.raises(ArgumentError, match="adapters of one rank"):
        bf.models.adapter_prior(plain)
    for bad in ({"a": 0.0}, {"b": -1.0}, {"head": math.inf}):
        with pytest.raises(ArgumentError):
            bf.models.adapter_prior(net, **bad)
    for bad in ({"init_scale": 0.0}, {"init_scale": math.inf}):
        with pytest.raises(ArgumentError, match="SliceNormal"):
            bf.models.SliceNormal(model, **bad)
