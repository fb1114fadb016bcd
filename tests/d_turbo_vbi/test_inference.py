"""Closed-form blocks, sum-product, the turbo exchange and the local ELBO, each against a slower
exact twin.
"""

import math
from dataclasses import replace

import pytest
import torch
from pyro import poutine
from torch import nn

import bayesfed as bf
from bayesfed.data import Dataset
from bayesfed.federated.core.options import LocalOptions
from bayesfed.federated.training.descent import Descent
from bayesfed.inference import MeanField, MeanFieldElbo, Structured, kl_divergence, support_evidence
from bayesfed.inference.turbo.elbo import decode_inclusion, encode_inclusion, spread_leaf
from bayesfed.inference.turbo.exchange import Exchange, SupportState
from bayesfed.keys import Key, forked
from bayesfed.models import Gammas, MarkovGrid, SiteBelief, guide
from bayesfed.testing import LawError
from bayesfed.trees import under
from tests.support.beliefs import check_blocks, random_state


@pytest.mark.parametrize("blocks", [Structured(), MeanField()])
def test_a_block_update_never_raises_the_negative_elbo(blocks):
    check_blocks(blocks, states=200)


def test_each_mean_field_block_alone_never_raises_it():
    generator = Key(0, "states").generator()
    for _ in range(200):
        belief, prior, gammas = random_state(generator)
        values = [float(kl_divergence(belief, prior, gammas))]
        belief = MeanField().support(belief, prior, gammas)
        values.append(float(kl_divergence(belief, prior, gammas)))
        values.append(float(kl_divergence(MeanField().start(belief, gammas), prior, gammas)))
        assert values[2] <= values[1] + 1e-9 <= values[0] + 2e-9


def test_the_update_as_printed_does_raise_it():
    """(17) with +1 and an unhalved square is for complex weights: from the real optimum it climbs
    in every state.
    """
    generator = Key(0, "states").generator()
    rises = 0
    for _ in range(200):
        belief, _, gammas = random_state(generator)
        prior = torch.zeros(4, 5, dtype=torch.float64)
        best = MeanField().start(belief, gammas)
        printed = MeanField(as_printed=True).start(best, gammas)
        rises += (
            float(kl_divergence(printed, prior, gammas))
            > float(kl_divergence(best, prior, gammas)) + 1e-6
        )
    assert rises == 200
    with pytest.raises(LawError, match="the divergence rose"):
        check_blocks(MeanField(as_printed=True), states=200)


def test_the_structured_guide_is_never_worse():
    generator = Key(1, "states").generator()
    for _ in range(100):
        belief, prior, gammas = random_state(generator)
        mean_field = belief
        for _ in range(50):
            mean_field = MeanField().update(mean_field, prior, gammas)
        structured = Structured().update(belief, prior, gammas)
        assert (
            float(kl_divergence(structured, prior, gammas))
            <= float(kl_divergence(mean_field, prior, gammas)) + 1e-9
        )


def test_the_structured_boundary_is_where_theory_puts_it():
    """With a = a-bar = 1 and even odds: E[w^2]/2 = b^(1/3) b-bar^(2/3) / (1 + (b-bar/b)^(1/3))."""
    spike, slab = 1e-4, 0.05
    half = slab ** (1 / 3) * spike ** (2 / 3) / (1 + (spike / slab) ** (1 / 3))
    evidence = support_evidence(
        torch.tensor([2 * half, 1.9 * half, 2.1 * half], dtype=torch.float64),
        Gammas((1.0, 1.0), (spike, slab)),
    )
    assert float(evidence[0]) == pytest.approx(0, abs=1e-9)
    assert float(evidence[1]) < 0 < float(evidence[2])


def test_the_mean_field_guide_is_bistable_and_the_structured_one_is_not():
    gammas, small = Gammas((1.0, 1.0), (1e-4, 0.05)), torch.full((1, 1), 1e-3, dtype=torch.float64)
    for on, stays in ((20.0, True), (-20.0, False)):
        belief = SiteBelief(
            small, small, torch.full_like(small, on), torch.ones(2, 1, 1), torch.ones(2, 1, 1)
        )
        mean_field, structured = (
            MeanField().start(belief, gammas),
            Structured().start(belief, gammas),
        )
        for _ in range(30):
            mean_field = MeanField().update(mean_field, torch.zeros_like(small), gammas)
            structured = Structured().update(structured, torch.zeros_like(small), gammas)
        assert bool(mean_field.active) is stays
        assert not bool(structured.active)


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("blocks", [Structured(), MeanField()])
def test_the_exact_divergence_agrees_with_pyro_draws(blocks, count):
    """KL(q || p) in closed form against the mean of log q - log p over draws of the Pyro guide,
    scored by the Pyro model.
    """
    declared = bf.declare(
        nn.Sequential(nn.Linear(3, 2, bias=False)), bf.Prior(support=bf.Independent(0.4))
    )
    site = declared.sites["0.weight"]
    generator = Key(0, "kl").generator()
    prior = torch.full(site.matrix, math.log(0.4 / 0.6))
    belief = SiteBelief(
        torch.randn(site.matrix, generator=generator),
        torch.tensor(0.3),
        torch.zeros(site.matrix),
        torch.ones(2, 1, 1),
        torch.ones(2, 1, 1),
    )
    belief = blocks.update(blocks.start(belief, site.precision), prior, site.precision)
    exact, values = float(kl_divergence(belief, prior, site.precision)), []
    with forked(Key(0, "draws")):
        for _ in range(count):
            drawn = poutine.trace(guide).get_trace({"0.weight": belief})
            scored = poutine.trace(
                poutine.block(poutine.replay(declared.model, trace=drawn), hide=["y"])
            ).get_trace({}, torch.zeros(1, 3))
            values.append(float(drawn.log_prob_sum() - scored.log_prob_sum()))
    draws = torch.tensor(values)
    assert abs(float(draws.mean()) - exact) < 5 * float(draws.std()) / math.sqrt(len(draws))


# Turbo


def test_a_neighbours_message_brings_an_inactive_entry_back():
    declared = bf.declare(
        nn.Sequential(nn.Linear(3, 3, bias=False)), bf.Prior(support=MarkovGrid(0.65, 0.65))
    )
    site = declared.sites["0.weight"]
    one = torch.ones(2, 1, 1)
    log_odds = torch.full((3, 3), 5.0)
    log_odds[1, 1] = -0.5
    strong = torch.where(log_odds > 0, 2.0, 0.0)
    belief = SiteBelief(strong, torch.tensor(0.01), log_odds, one, one)
    start = Exchange().start(site)
    after, state, _ = Exchange(tolerance=1e-6).run(site, belief, start, Structured())
    assert bool(after.active[1, 1])
    # Its evidence is that of a mean of 0, in every round.
    assert float(state.evidence[1, 1]) == pytest.approx(
        float(support_evidence(torch.tensor(0.01**2), site.precision))
    )
    weak = replace(belief, mean=torch.zeros(3, 3))
    assert not bool(Exchange(tolerance=1e-6).run(site, weak, start, Structured())[0].active[1, 1])


def test_one_turn_settles_the_structured_guide():
    declared = bf.declare(bf.mlp([8, 6], Key(0, "n")))
    site = declared.sites["1.weight"]
    one = torch.ones(2, 1, 1)
    belief = SiteBelief(
        declared.initial["1.weight"], torch.tensor(0.05), torch.full(site.matrix, 5.0), one, one
    )
    first, second = (
        Exchange(turns=turns, tolerance=1e-7).run(
            site, belief, Exchange().start(site), Structured()
        )[0]
        for turns in (1, 3)
    )
    assert torch.allclose(first.log_odds, second.log_odds, atol=1e-4)


def test_exchanged_messages_are_extrinsic():
    declared = bf.declare(bf.mlp([8, 6], Key(0, "n")))
    site = declared.sites["1.weight"]
    one = torch.ones(2, 1, 1)
    belief = SiteBelief(
        declared.initial["1.weight"], torch.tensor(0.05), torch.full(site.matrix, 5.0), one, one
    )
    after, state, _ = Exchange().run(site, belief, Exchange().start(site), Structured(), field=-0.7)
    assert torch.allclose(after.log_odds, state.evidence + state.prior_log_odds, atol=1e-5)
    assert torch.allclose(state.evidence, support_evidence(belief.second_moment, site.precision))
    without = Exchange().run(site, belief, Exchange().start(site), Structured())[0]
    assert float(after.log_odds.mean()) < float(without.log_odds.mean()) - 0.7 + 1e-4
    assert isinstance(state, SupportState)


# The local ELBO


def message_of(declared, generator, *, sd=0.1, active=0.7):
    message = {name: leaf for name, leaf in declared.initial.items() if name not in declared.sites}
    for name, site in declared.sites.items():
        mask = torch.rand(site.matrix, generator=generator) < active
        message |= {
            f"mean/{name}": declared.initial[name].reshape(site.matrix)[mask],
            f"inclusion/{name}": encode_inclusion(
                0.5 + torch.rand(int(mask.sum()), generator=generator) / 2
            ),
            f"support/{name}": mask,
        }
    return message | {"shared/sd": torch.tensor(sd)}


@pytest.mark.parametrize("levels", [2, 16, 256])
def test_inclusion_survives_one_byte(levels):
    values = torch.linspace(0.5, 1, 1000)
    code = encode_inclusion(values, levels)
    assert len(code.unique()) == levels
    assert float((decode_inclusion(code) - values).abs().max()) <= 0.25 / (levels - 1) + 1e-6


@pytest.mark.parametrize(
    "make",
    [
        lambda: bf.mlp([16, 8, 3], Key(0, "n")),
        lambda: bf.cnn((1, 8, 8), 3, Key(0, "n"), channels=(4,), hidden=8),
    ],
)
def test_sampled_outputs_have_the_moments_of_sampled_weights(make):
    """Local reparameterisation against the slow twin that draws a weight matrix for every row, on
    the first site.
    """
    net = make()
    shape = (1, 16) if isinstance(net[1], nn.Linear) else (1, 8, 8)
    declared = bf.declare(net)
    name, site = next(iter(declared.sites.items()))
    layer = net.get_submodule(site.module)
    generator = Key(0, "m").generator()
    objective = MeanFieldElbo(declared)
    trained, fixed = objective.start(message_of(declared, generator))
    inputs = (
        torch.randn(shape, generator=generator).unsqueeze(1)
        if isinstance(layer, nn.Conv2d)
        else torch.randn(shape, generator=generator)
    )
    mean, mask = trained[f"mean/{name}"], fixed[f"mask/{name}"]

    def run(weights):
        """Outputs (S, B, ...) under each of some matrices (S, M, N)."""
        weights = weights.view(-1, *site.shape)
        if not isinstance(layer, nn.Conv2d):
            return inputs @ weights.mT
        return (
            layer._conv_forward(inputs, weights.flatten(0, 1), None)
            .unflatten(1, weights.shape[:2])
            .movedim(1, 0)
        )

    slow = run((mean + 0.1 * torch.randn(4000, *site.matrix, generator=generator)) * mask)
    _, noises = objective._weights(trained, fixed)
    variance = noises[name].variance_of(layer, inputs.square())
    ratio = variance / slow.var(dim=0)
    assert 0.85 < float(ratio.min()) <= float(ratio.max()) < 1.15
    assert torch.allclose(
        run(mean * mask)[0], slow.mean(dim=0), atol=5 * 0.1 * float(inputs.norm()) / math.sqrt(4000)
    )


@pytest.mark.parametrize("spread", ["shared", "layer", "weight"])
def test_the_divergence_is_that_of_the_closed_form_up_to_a_constant(spread):
    """Moving q(w) moves `divergence` by as much as it moves the exact KL with q(rho, s) held."""
    declared = bf.declare(bf.mlp([5, 4, 3], Key(0, "n")))
    generator = Key(0, "m").generator()
    message = message_of(declared, generator)
    if spread != "shared":
        sd = message.pop("shared/sd")
        for name in declared.sites:
            message[f"sd/{name}"] = (
                sd if spread == "layer" else sd.expand(len(message[f"mean/{name}"])).clone()
            )
    objective = MeanFieldElbo(declared, spread)
    trained, fixed = objective.start(message)

    def exact(tree):
        total = 0.0
        for name, site in declared.sites.items():
            mask = fixed.get(f"mask/{name}", torch.ones(site.matrix)).bool()
            mean, sd = (
                tree[f"mean/{name}"],
                tree["shared/sd" if spread == "shared" else f"sd/{name}"].exp(),
            )
            inclusion = torch.zeros(site.matrix)
            inclusion[mask] = decode_inclusion(message[f"inclusion/{name}"])
            before = SiteBelief(
                trained[f"mean/{name}"],
                torch.tensor(0.1),
                torch.logit(inclusion.clamp(1e-6, 1 - 1e-6)),
                torch.ones(2, 1, 1),
                torch.ones(2, 1, 1),
            )
            held = Structured().start(before, site.precision)
            moved = replace(held, mean=mean, sd=sd)
            weight = -torch.log(moved.sd) + moved.expected_precision * moved.second_moment / 2
            total += float(weight.expand(site.matrix)[mask].sum())
        return total

    moved = {
        name: leaf + 0.1 * torch.randn(leaf.shape, generator=generator)
        for name, leaf in trained.items()
    }
    masked = {
        name: leaf * fixed[f"{name[:-5]}.mask"] if f"{name[:-5]}.mask" in fixed else leaf
        for name, leaf in moved.items()
    }
    gap = float(objective.divergence(moved, fixed)) - float(objective.divergence(trained, fixed))
    assert gap == pytest.approx(exact(masked) - exact(trained), rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("count", [400, 1000])
def test_the_loss_is_the_elbo_of_the_declared_pyro_model(count):
    """Changes of the loss under a move of q(w) against Pyro's own trace densities, over shared
    draws.
    """
    precision = bf.BernoulliGamma(2.8 * 0.5**0.5, 0.28 * 0.5**0.5, relative=False)
    declared = bf.declare(
        nn.Sequential(nn.Linear(4, 3)),
        bf.Prior(bf.Independent(0.5), precision),
        likelihood=bf.Categorical(temperature=1.0),
    )
    site = declared.sites["0.weight"]
    generator = Key(0, "m").generator()
    data = Dataset(
        torch.randn(30, 4, generator=generator), torch.randint(0, 3, (30,), generator=generator)
    )
    points = {"point/0.bias": torch.zeros(3)}
    one = torch.ones(2, 1, 1)

    def pyro_elbo(mean, sd, held):
        values = []
        belief = {"0.weight": replace(held, mean=mean, sd=sd)}
        with forked(Key(0, "draws")):
            for _ in range(count):
                drawn = poutine.trace(guide).get_trace(belief)
                scored = poutine.trace(poutine.replay(declared.model, trace=drawn)).get_trace(
                    under(points, "point/"), data.inputs, data.targets, scale=2.0
                )
                values.append(float(scored.log_prob_sum() - drawn.log_prob_sum()))
        return torch.tensor(values)

    start_mean = declared.initial["0.weight"]
    message = points | {
        "mean/0.weight": start_mean.reshape(-1),
        "inclusion/0.weight": torch.full((12,), 255, dtype=torch.uint8),
        "support/0.weight": torch.ones(3, 4, dtype=torch.bool),
        "shared/sd": torch.tensor(0.2),
    }
    objective = MeanFieldElbo(declared)
    trained, fixed = objective.start(message)
    held = Structured().start(
        SiteBelief(start_mean, torch.tensor(0.2), torch.full((3, 4), 15.0), one, one),
        site.precision,
    )
    moved = {**trained, "mean/0.weight": 3 * start_mean, "shared/sd": torch.tensor(0.4).log()}
    noise = Key(0, "noise").generator()

    def ours(tree):
        return -60 * torch.stack(
            [objective.loss(tree, fixed, data, 60.0, noise).loss for _ in range(count)]
        )

    gap = (ours(moved) - ours(trained)).detach()
    reference = pyro_elbo(3 * start_mean, torch.tensor(0.4), held) - pyro_elbo(
        start_mean, torch.tensor(0.2), held
    )
    error = 5 * math.sqrt(float(gap.var() + reference.var()) / count)
    assert error < 4 < abs(float(reference.mean()))
    assert abs(float(gap.mean() - reference.mean())) < error


def test_inactive_entries_get_no_gradient_and_no_noise():
    declared = bf.declare(bf.mlp([6, 5, 3], Key(0, "n")))
    generator = Key(0, "m").generator()
    objective = MeanFieldElbo(declared)
    trained, fixed = objective.start(message_of(declared, generator, active=0.4))
    for leaf in trained.values():
        leaf.requires_grad_()
    data = Dataset(torch.randn(8, 6, generator=generator), torch.arange(8) % 3)
    objective.loss(trained, fixed, data, 8.0, generator).loss.backward()
    for name in declared.sites:
        gradient, mask = trained[f"mean/{name}"].grad, fixed[f"mask/{name}"].bool()
        assert bool((gradient[~mask] == 0).all())
        assert bool((gradient[mask] != 0).any())


def test_layers_of_other_kinds_sample_their_weights():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.matrix = nn.Parameter(torch.ones(3, 4))

        def forward(self, inputs):
            return inputs @ self.matrix.T

    declared = bf.declare(nn.Sequential(Twice()), where=lambda name, module: True)
    objective = MeanFieldElbo(declared)
    trained, fixed = objective.start(message_of(declared, Key(0, "m").generator()))
    data = Dataset(torch.ones(2, 4), torch.tensor([0, 2]))
    losses = {
        float(objective.loss(trained, fixed, data, 2.0, Key(i, "n").generator()).nll)
        for i in range(3)
    }
    assert len(losses) == 3


@pytest.mark.slow
@pytest.mark.parametrize("spread", ["shared", "layer", "weight"])
@pytest.mark.parametrize("rate", [5e-3, 3e-2])
def test_sds_reach_their_optimum_whatever_the_rate_of_the_means(spread, rate):
    """Of a linear model with normal targets, where 1 / sigma^2 = <rho> + x'x / (T s^2), in the mean
    over the active weights that share sigma.
    """
    temperature, noise, generator = 0.5, 0.5, Key(0, "m").generator()
    declared = bf.declare(
        nn.Sequential(nn.Linear(6, 2, bias=False)),
        likelihood=bf.Normal(noise, temperature=temperature),
    )
    inputs = torch.randn(300, 6, generator=generator) * torch.tensor([2.0, 1.5, 1.0, 1.0, 0.7, 0.5])
    data = Dataset(inputs, inputs @ torch.randn(6, 2, generator=generator))
    message = message_of(declared, generator, active=0.6)
    count = len(message["mean/0.weight"])
    sd = message.pop("shared/sd") * (5.0 if rate < 1e-2 else 0.5)
    message[spread_leaf("0.weight", spread)] = (
        sd.expand(count).clone() if spread == "weight" else sd
    )
    objective = MeanFieldElbo(declared, spread)
    _, fixed = objective.start(message)
    curvature = inputs.square().sum(0).expand(2, 6) / (temperature * noise**2)
    optimum = (fixed["precision/0.weight"] + curvature)[message["support/0.weight"]]
    optimum = optimum if spread == "weight" else optimum.mean()
    # Twice as many observations as rows: the likelihood counts double, so that the curvature does.
    doubled = optimum + (
        curvature[message["support/0.weight"]]
        if spread == "weight"
        else curvature[message["support/0.weight"]].mean()
    )
    for scale, expected in ((1.0, optimum), (2.0, doubled))[: 2 if spread == "shared" else 1]:
        sent = (
            Descent(objective, bf.Adam(rate), 600, None, "moments")
            .fit(message, {}, data, Key(0, "fit"), LocalOptions(scale=scale))
            .payload
        )
        assert torch.allclose(sent[spread_leaf("0.weight", spread)], expected.rsqrt(), rtol=0.12)


def test_without_a_prior_or_noise_the_optimiser_has_the_sds():
    declared = bf.declare(bf.mlp([6, 5, 3], Key(0, "n")))
    message = message_of(declared, Key(0, "m").generator())
    data = Dataset(torch.randn(8, 6, generator=Key(0, "d").generator()), torch.arange(8) % 3)
    for without in ({"use_prior": False}, {"sample": False}, {"use_prior": False, "sample": False}):
        objective = MeanFieldElbo(declared, **without)
        sent = (
            Descent(objective, bf.Adam(1e-2), 5, None, "moments")
            .fit(message, {}, data, Key(0, "fit"), LocalOptions())
            .payload
        )
        kept = float(sent["shared/sd"]) == pytest.approx(float(message["shared/sd"]))
        assert kept is (without == {"use_prior": False, "sample": False})
