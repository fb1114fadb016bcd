"""Priors on one weight tensor, against formulas written out by hand and against numerical
integrals.
"""

import math

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from scipy import integrate, special, stats
from torch import nn

from bayesfed.errors import ArgumentError, PriorError
from bayesfed.geometry.thin import squared_norm
from bayesfed.keys import Key, forked
from bayesfed.models import Gaussian, Horseshoe, Laplace, ProductGaussian, SpikeAndSlab, WeightPrior

MIXTURE = SpikeAndSlab(inclusion=0.3, spike=0.1, slab=2.0)
PRIORS = [
    Gaussian(0.5),
    Gaussian(0.5, centre=1.0),
    Laplace(0.3),
    Horseshoe(0.1),
    MIXTURE,
    ProductGaussian(rank=2, precision=3.0),
]


def normal(*shape):
    return torch.randn(*shape, generator=Key(0, "values", *shape).generator(), dtype=torch.float64)


def traced(prior, like, **values):
    """Trace a draw of the site ``w``; `values` fix sites by the last part of their name, ``w`` the
    weight itself.
    """
    fixed = {"w" if leaf == "w" else f"w.{leaf}": value for leaf, value in values.items()}
    with forked(Key(0, "trace")):
        return poutine.trace(poutine.condition(prior.sample, fixed)).get_trace("w", like)


def log_density(prior, weight):
    return traced(prior, torch.zeros_like(weight), w=weight).log_prob_sum()


# What all of them share


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("prior", "shape"),
    # Products are matrices.
    [
        (prior, shape)
        for prior in PRIORS
        for shape in [(4, 3), (2, 3, 2, 2), (5,), ()]
        if len(shape) >= 2 or not isinstance(prior, ProductGaussian)
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, WeightPrior) else str(value),
)
def test_weights_have_the_shape_and_type_asked_for_and_gradients_reach_every_site(
    prior, shape, dtype
):
    like = torch.full(shape, math.nan, dtype=dtype)  # its values are not read
    trace = traced(prior, like)
    weight = trace.nodes["w"]["value"]
    assert weight.shape == trace.nodes["_RETURN"]["value"].shape == torch.Size(shape)
    assert weight.dtype == dtype
    assert weight.isfinite().all()
    sites = {
        name: trace.nodes[name]["value"].clone().requires_grad_() for name in trace.stochastic_nodes
    }
    assert all(value.dtype == dtype for value in sites.values())
    log = poutine.trace(poutine.condition(prior.sample, sites)).get_trace("w", like).log_prob_sum()
    assert log.dtype == dtype
    assert log.ndim == 0
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(log, sites.values()))
    assert isinstance(prior, WeightPrior)


@pytest.mark.parametrize(
    "prior", [*PRIORS, Gaussian(1.0, torch.zeros(4, 3))], ids=lambda prior: type(prior).__name__
)
def test_every_site_is_on_the_device_of_the_weight(prior):
    with pyro.validation_enabled(False):  # the meta device has no values to check
        trace = traced(prior, torch.empty(4, 3, device="meta"))
        log = trace.log_prob_sum()
    assert {
        site["value"].device.type for site in trace.nodes.values() if site["type"] == "sample"
    } == {"meta"}
    assert log.device.type == "meta"


def test_sites_are_named_after_the_weight():
    found = {
        type(prior): sorted(traced(prior, torch.zeros(3, 2)).stochastic_nodes) for prior in PRIORS
    }
    assert found == {
        Gaussian: ["w"],
        Laplace: ["w"],
        SpikeAndSlab: ["w"],
        Horseshoe: ["w.lambda", "w.tau", "w.z"],
        ProductGaussian: ["w.u", "w.v"],
    }


# Gaussian and Laplace


def test_the_gaussian_and_the_laplace_have_their_textbook_densities():
    weight, centre = normal(4, 3), normal(3, 4).T
    assert float(log_density(Gaussian(0.7), weight)) == pytest.approx(
        stats.norm(0, 0.7).logpdf(weight).sum()
    )
    assert float(log_density(Gaussian(0.7, 1.5), weight)) == pytest.approx(
        stats.norm(1.5, 0.7).logpdf(weight).sum()
    )
    assert float(log_density(Gaussian(0.7, centre), weight)) == pytest.approx(
        stats.norm(centre, 0.7).logpdf(weight).sum()
    )
    assert float(log_density(Laplace(0.7), weight)) == pytest.approx(
        stats.laplace(0, 0.7).logpdf(weight).sum()
    )


def test_a_gaussian_around_a_tensor_pulls_as_the_proximal_term_does():
    weight, centre, strength = normal(4, 3).requires_grad_(), normal(3, 4).T, 0.37
    (pull,) = torch.autograd.grad(-log_density(Gaussian.around(centre, strength), weight), weight)
    torch.testing.assert_close(pull, strength * (weight - centre).detach())
    by_hand = strength / 2 * (weight - centre).square().sum() - 6 * math.log(
        strength / (2 * math.pi)
    )
    torch.testing.assert_close(-log_density(Gaussian.around(centre, strength), weight), by_hand)


def test_a_centre_is_copied():
    layer = nn.Linear(3, 4, bias=False)
    prior, before = Gaussian.around(layer.weight, 2.0), layer.weight.detach().clone()
    with torch.no_grad():
        layer.weight += 1
    assert torch.equal(prior.centre, before)
    log_density(prior, before.requires_grad_()).backward()
    assert layer.weight.grad is None


def test_a_centre_takes_the_type_of_the_weight():
    assert (
        traced(Gaussian(1.0, normal(2, 2)), torch.zeros(2, 2)).nodes["w"]["value"].dtype
        == torch.float32
    )


# Horseshoe


def test_the_horseshoe_is_the_product_of_its_sites():
    tau, local, z = torch.tensor(0.3, dtype=torch.float64), normal(4, 3).exp(), normal(4, 3)
    trace = traced(
        Horseshoe(0.1), torch.zeros(4, 3, dtype=torch.float64), tau=tau, **{"lambda": local}, z=z
    )
    torch.testing.assert_close(trace.nodes["w"]["value"], tau * local * z)
    expected = (
        stats.halfcauchy(scale=0.1).logpdf(tau)
        + stats.halfcauchy().logpdf(local).sum()
        + stats.norm().logpdf(z).sum()
    )
    assert float(trace.log_prob_sum()) == pytest.approx(expected)


@pytest.mark.parametrize("weight", [0.05, 0.5, 3.0])
def test_the_horseshoes_marginal_is_the_papers(weight):
    """Sum lambda out on a grid: ``K exp(w^2 / 2) E1(w^2 / 2)`` at tau = 1, K = (2 pi^3)^-1/2,
    within the paper's theorem 1.
    """
    log_local = torch.linspace(-25, 25, 20001, dtype=torch.float64)
    local = log_local.exp()
    one = torch.tensor(1.0, dtype=torch.float64)
    trace = traced(
        Horseshoe(1.0), torch.zeros_like(local), tau=one, **{"lambda": local}, z=weight / local
    )
    assert torch.allclose(trace.nodes["w"]["value"], torch.tensor(weight, dtype=torch.float64))
    each = {
        leaf: trace.nodes[f"w.{leaf}"]["fn"].base_dist.log_prob(trace.nodes[f"w.{leaf}"]["value"])
        for leaf in ("lambda", "z")
    }
    # p(w | lambda) = N(w / lambda) / lambda, and d lambda = lambda d log lambda: the two cancel.
    marginal = float(torch.trapezoid((each["lambda"] + each["z"]).exp(), log_local))
    scale = (2 * math.pi**3) ** -0.5
    assert marginal == pytest.approx(
        scale * math.exp(weight**2 / 2) * special.exp1(weight**2 / 2), rel=1e-6
    )
    assert scale / 2 * math.log1p(4 / weight**2) < marginal < scale * math.log1p(2 / weight**2)


def test_horseshoe_draws_follow_that_marginal():
    draws = (
        traced(Horseshoe(1.0), torch.zeros(40000), tau=torch.tensor(1.0)).nodes["w"]["value"].abs()
    )
    scale = (2 * math.pi**3) ** -0.5
    for bound in (0.1, 1.0, 10.0):
        share, _ = integrate.quad(
            lambda w: 2 * scale * special.exp1(w**2 / 2) * math.exp(w**2 / 2), 0, bound
        )
        assert float((draws < bound).float().mean()) == pytest.approx(share, abs=0.01)


# Spike and slab


def test_the_mixture_is_normalised_and_its_inclusion_is_bayes_rule():
    grid = torch.linspace(-25, 25, 100001, dtype=torch.float64)
    each = traced(MIXTURE, torch.zeros_like(grid), w=grid).nodes["w"]["fn"].base_dist.log_prob(grid)
    spike, slab = 0.7 * stats.norm(0, 0.1).pdf(grid), 0.3 * stats.norm(0, 2.0).pdf(grid)
    np.testing.assert_allclose(each.exp(), spike + slab, rtol=1e-9)
    assert float(torch.trapezoid(each.exp(), grid)) == pytest.approx(1, abs=1e-9)
    assert float(log_density(MIXTURE, grid)) == pytest.approx(float(each.sum()))
    np.testing.assert_allclose(MIXTURE.included(grid), slab / (spike + slab), rtol=1e-9)
    assert float(torch.trapezoid(each.exp() * MIXTURE.included(grid), grid)) == pytest.approx(
        0.3, abs=1e-9
    )
    assert MIXTURE.included(torch.zeros(2, 3)).shape == (2, 3)


def test_the_mixture_far_out_is_finite_with_its_gradient():
    far = torch.tensor([0.0, 40.0, -1000.0], requires_grad=True)
    log_density(MIXTURE, far).backward()
    np.testing.assert_allclose(far.grad, -far.detach() / 4, atol=1e-4)
    assert MIXTURE.included(far.detach()).tolist()[1:] == [1, 1]


def test_mixture_draws_have_its_variance_and_share():
    draws = traced(MIXTURE, torch.zeros(200, 200)).nodes["w"]["value"]
    assert float(draws.square().mean()) == pytest.approx(0.7 * 0.1**2 + 0.3 * 2.0**2, rel=0.03)
    assert float(MIXTURE.included(draws).mean()) == pytest.approx(0.3, abs=0.01)


# Products


def test_the_gram_matrices_give_the_norm_of_the_product():
    left, right = normal(7, 3), normal(11, 3)
    assert float(squared_norm(left, right)) == pytest.approx(float((left @ right.T).square().sum()))


def test_the_product_decays_as_the_gaussian_of_its_precision_does():
    """The part of the log density that is the decay, against the dense product's Gaussian."""
    prior, (u, v) = ProductGaussian(rank=3, precision=2.5, sd=4.0), (normal(4, 3), normal(6, 3))
    trace = traced(prior, torch.zeros(4, 3, 2, dtype=torch.float64), u=u, v=v)
    weight = trace.nodes["w"]["value"]
    torch.testing.assert_close(weight, (u @ v.T).reshape(4, 3, 2))
    wide = stats.norm(0, 4.0).logpdf(u).sum() + stats.norm(0, 4.0).logpdf(v).sum()
    gaussian = Gaussian(2.5**-0.5)
    decay = float(log_density(gaussian, weight) - log_density(gaussian, torch.zeros_like(weight)))
    assert float(trace.log_prob_sum()) == pytest.approx(wide + decay)


def test_decay_alone_cannot_tell_factors_of_one_product_apart_and_the_gaussians_can():
    u, v, change = (
        normal(4, 2),
        normal(6, 2),
        torch.tensor([[3.0, 1.0], [0.0, 0.2]], dtype=torch.float64),
    )
    other = u @ change, v @ torch.linalg.inv(change).T
    traces = [
        traced(ProductGaussian(2, 1.0), torch.zeros(4, 6, dtype=torch.float64), u=left, v=right)
        for left, right in ((u, v), other)
    ]
    for trace in traces:
        trace.compute_log_prob()
    decays = [trace.nodes["w.decay"]["log_prob_sum"] for trace in traces]
    torch.testing.assert_close(decays[0], decays[1])
    assert float(traces[0].log_prob_sum() - traces[1].log_prob_sum()) > 1


def test_the_best_factors_of_a_product_pay_its_nuclear_norm():
    """What the wide Gaussians cost: ``||W||_* / sd^2`` below their highest point, at the balanced
    factors.
    """
    left, values, right = torch.linalg.svd(normal(4, 6), full_matrices=False)
    u, v = left * values.sqrt(), right.T * values.sqrt()
    trace = traced(
        ProductGaussian(4, 1.0, sd=3.0), torch.zeros(4, 6, dtype=torch.float64), u=u, v=v
    )
    trace.compute_log_prob()
    highest = 10 * 4 * stats.norm(0, 3.0).logpdf(0)
    assert float(
        trace.nodes["w.u"]["log_prob_sum"] + trace.nodes["w.v"]["log_prob_sum"]
    ) == pytest.approx(highest - float(values.sum()) / 9)


def test_a_plain_draw_of_a_product_says_that_the_decay_is_left_out():
    with (
        forked(Key(0, "plain")),
        pytest.warns(RuntimeWarning, match=r"outside of inference at w\.decay"),
    ):
        ProductGaussian(2, 1.0).sample("w", torch.zeros(3, 2))


# Errors


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Gaussian(0.0), "Gaussian, sd: expected a number in .0, inf., found 0.0"),
        (lambda: Gaussian("0.weight"), "Gaussian, sd: expected a number in"),
        (lambda: Gaussian(1.0, math.nan), "Gaussian, centre: expected a number"),
        (
            lambda: Gaussian(1.0, torch.tensor([0.0, math.inf])),
            "Gaussian.centre: expected finite numbers",
        ),
        (lambda: Gaussian.around(0.0, -1.0), "Gaussian.around, precision"),
        (lambda: Laplace(math.inf), "Laplace, scale: expected a number in"),
        (lambda: Horseshoe(-0.1), "Horseshoe, scale: expected a number in"),
        (lambda: SpikeAndSlab(1.0, 0.1, 1.0), "SpikeAndSlab, inclusion: expected a number in"),
        (lambda: SpikeAndSlab(0.5, 0.0, 1.0), "SpikeAndSlab, spike: expected a number in"),
        (lambda: SpikeAndSlab(0.5, 0.1, math.nan), "SpikeAndSlab, slab: expected a number in"),
        (
            lambda: SpikeAndSlab(0.5, 1.0, 1.0),
            "SpikeAndSlab: expected spike < slab, found 1.0 >= 1.0",
        ),
        (
            lambda: ProductGaussian(0, 1.0),
            "ProductGaussian, rank: expected a whole number >= 1, found 0",
        ),
        (lambda: ProductGaussian(2, 0.0), "ProductGaussian, precision: expected a number in"),
        (lambda: ProductGaussian(2, 1.0, sd=0.0), "ProductGaussian, sd: expected a number in"),
    ],
)
def test_impossible_priors_are_refused(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()


@pytest.mark.parametrize(
    ("prior", "words"),
    [
        (
            Gaussian(1.0, torch.zeros(3, 1)),
            (
                r"Gaussian.centre, site 'w': expected shape \(3,\), found shape \(3, 1\); try "
                r"a function of the name"
            ),
        ),
        (
            ProductGaussian(2, 1.0),
            r"ProductGaussian, site 'w': expected a matrix or kernel, found shape \(3,\)",
        ),
    ],
)
def test_priors_that_do_not_fit_a_weight_are_refused(prior, words):
    with pytest.raises(PriorError, match=words):
        prior.sample("w", torch.zeros(3))


def test_priors_leave_pyros_parameters_alone():
    for prior in PRIORS:
        traced(prior, torch.zeros(3, 2))
    assert not list(pyro.get_param_store())
