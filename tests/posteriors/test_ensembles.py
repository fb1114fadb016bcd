"""Rivals of a posterior: what SWAG, FedBE, ensembles, dropout, beta-PredBayes and FedPA keep, draw
and send, each by its own formula.
"""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.algorithms.baselines.drift.fed_pa import posterior_change
from bayesfed.algorithms.baselines.ensembles.langevin import Langevin
from bayesfed.data import concatenated
from bayesfed.errors import ArgumentError, UndeterminedWarning
from bayesfed.federated.core.options import LocalOptions
from bayesfed.federated.core.owners import owned
from bayesfed.federated.training.held_out_scores import split_held
from bayesfed.inference.ensembles.weight_clouds import SwagPosterior
from bayesfed.inference.objectives.likelihood import MaximumLikelihood
from bayesfed.keys import Key
from bayesfed.trees import parameters
from tests.conftest import tree_equal
from tests.support import recipes

WORK = bf.Training(steps=4, batch_size=8, optimiser=bf.Sgd(0.2))


def ran(algorithm, rounds=3, **options):
    return bf.run(algorithm, recipes.rows(), rounds=rounds, progress=False, **options)


def test_swag_has_the_moments_of_the_models_after_its_rounds():
    models = []
    plain = bf.fed_avg(recipes.net(), training=WORK)
    ran(plain, 6, callbacks=[lambda report: models.append(owned(report.state, "model"))])
    result = ran(bf.swag(plain, begin=1, every=2, rank=2), 6)
    assert tree_equal(result.model.parameters, models[-1])
    taken, posterior = [models[number] for number in (1, 3, 5)], result.posterior
    for name in models[0]:
        stack = torch.stack([model[name] for model in taken])
        assert torch.allclose(posterior.mean[name], stack.mean(0), atol=1e-6)
        assert torch.allclose(posterior.square[name], stack.square().mean(0), atol=1e-6)
        running = [stack[: number + 1].mean(0) for number in range(3)]
        expected = torch.stack([stack[number] - running[number] for number in (1, 2)])
        assert torch.allclose(posterior.deviations[name], expected, atol=1e-6)
    assert posterior.filled == 2
    assert result.final("swag_models") == 3
    with pytest.warns(
        UndeterminedWarning,
        match=(
            r"a point, since 0 of two models or more were taken in 2 rounds; try rounds=11 or "
            r"more"
        ),
    ):
        early = ran(bf.swag(plain, begin=9), 2)
    assert tree_equal(early.posterior.draw(Key(0)), early.model.parameters)


def test_swag_draws_have_its_covariance():
    noise = Key(0, "swag").generator()
    deviations, mean = torch.randn(3, 2, generator=noise), torch.tensor([1.0, -2.0])
    variance = torch.tensor([0.3, 1.2])
    net = nn.Linear(2, 1, bias=False)
    posterior = SwagPosterior(
        net,
        bf.Normal(),
        {"weight": mean},
        {"weight": variance + mean**2},
        {"weight": deviations},
        3,
        2.0,
    )
    drawn = torch.stack([posterior.draw(Key(number))["weight"] for number in range(2000)])
    expected = torch.diag(variance) + deviations.mT @ deviations / 2
    assert torch.allclose(drawn.mean(0), mean, atol=0.1)
    assert torch.allclose(drawn.mT.cov(), expected, atol=0.08 * float(expected.max()))
    assert torch.allclose(posterior.constants["weight.sd"], expected.diagonal().sqrt())


def test_fed_be_is_fed_avg_with_the_clients_models_and_draws_through_them():
    plain, result = (
        ran(bf.fed_avg(recipes.net(), training=WORK)),
        ran(bf.fed_be(recipes.net(), draws=100, training=WORK)),
    )
    assert all(
        torch.allclose(leaf, plain.model.parameters[name], atol=1e-6)
        for name, leaf in result.model.parameters.items()
    )
    assert result.bits() == plain.bits()
    mean, clients, draws = (
        result.posterior.members[part] for part in (slice(1), slice(1, 5), slice(5, None))
    )
    assert tree_equal(mean[0], result.model.parameters)
    assert len(draws) == 100
    for name, centre in mean[0].items():
        stack = torch.stack([one[name] for one in clients])
        assert torch.allclose(stack.mean(0), centre, atol=1e-6)
        changes = stack - centre
        norms = changes.reshape(4, -1).norm(dim=1)
        units = changes / norms.reshape(-1, *[1] * centre.ndim)
        drawn = torch.stack([one[name] for one in draws])
        assert torch.allclose(
            drawn.mean(0), centre + norms.mean() * units.mean(0), atol=0.05 * float(norms.mean())
        )
        assert torch.allclose(
            drawn.std(0), 0.1 * norms.mean() * units.std(0, correction=0), rtol=0.4, atol=1e-6
        )
    assert result.predictive(recipes.rows()["client-0"].inputs, draws=3).probabilities.shape == (
        105,
        12,
        3,
    )


def test_an_ensemble_is_its_members_side_by_side():
    nets = [recipes.mlp([6, 4, 3], Key(number)) for number in range(3)]
    members = [
        bf.fed_avg(nets[0], training=WORK),
        bf.fed_prox(nets[1], strength=0.1, training=WORK),
        bf.fed_avg(nets[2], training=WORK),
    ]
    result, inputs = ran(bf.ensemble(members)), recipes.rows()["client-0"].inputs
    assert result.bits() == pytest.approx(3 * ran(members[0]).bits(), rel=0.01)
    predictive = result.predictive(inputs, draws=100)
    assert len(predictive.probabilities) == 3
    assert torch.allclose(result.model(inputs).exp(), predictive.mean, atol=1e-6)
    assert float(predictive.uncertainties["mutual_information"].min()) > 0
    drawn = result.posterior.draw(Key(0))
    assert any(tree_equal(drawn, member) for member in result.posterior.members)
    assert all(
        bool((leaf != nets[number].state_dict()[name]).any())
        for number, own in enumerate(result.posterior.members)
        for name, leaf in own.items()
        if name.endswith("weight")
    )
    with pytest.raises(ArgumentError, match="two algorithms"):
        bf.ensemble(members[:1])
    with pytest.raises(ArgumentError, match="one architecture"):
        bf.ensemble([members[0], bf.fed_avg(recipes.mlp([6, 5, 3], Key(0)))])


@pytest.mark.slow
def test_dropout_is_on_where_the_posterior_predicts_and_off_in_the_model():
    net = recipes.dropping()
    result, inputs = (
        ran(bf.mc_dropout(bf.fed_avg(net, training=WORK))),
        recipes.rows()["client-0"].inputs,
    )
    again = result.predictive(inputs, draws=40)
    assert torch.equal(again.probabilities, result.predictive(inputs, draws=40).probabilities)
    assert float(again.probabilities.std(0).max()) > 0.01
    own = copy.deepcopy(net)
    own.load_state_dict(result.model.parameters)
    own.eval()
    assert torch.equal(result.model(inputs), own(inputs))
    # The mean output of passes is that of the network without dropout, for what follows dropout is
    # linear.
    logits = torch.stack(
        [
            result.posterior.observe(dict(own.named_parameters()), inputs, Key(number)).logits
            for number in range(200)
        ]
    )
    centred = own(inputs).detach() - own(inputs).detach().mean(1, keepdim=True)
    assert torch.allclose((logits - logits.mean(2, keepdim=True)).mean(0), centred, atol=0.3)
    with pytest.raises(ArgumentError, match="a network with dropout"):
        bf.mc_dropout(bf.fed_avg(recipes.net()))


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(1, 8)
        self.body = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
        self.leave = nn.Linear(8, 3)

    def forward(self, inputs):
        return self.leave(self.body(self.enter(inputs[:, :, None])).mean(1))


class Recurring(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.LSTM(1, 8, num_layers=2, dropout=0.5, batch_first=True)
        self.leave = nn.Linear(8, 3)

    def forward(self, inputs):
        return self.leave(self.body(inputs[:, :, None])[0][:, -1])


@pytest.mark.parametrize("kind", [Attending, Recurring])
def test_dropout_inside_of_layers_is_on(kind):
    torch.manual_seed(0)
    result = ran(bf.mc_dropout(bf.fed_avg(kind(), training=WORK)), 1)
    drawn = result.predictive(recipes.rows()["client-0"].inputs, draws=8).probabilities
    assert float(drawn.std(0).mean()) > 1e-3


def test_numbers_are_predicted_by_the_likelihood_of_the_method():
    clients = {
        name: bf.Dataset(rows.inputs, rows.inputs[:, :1] + 0.1)
        for name, rows in recipes.rows().items()
    }
    gentle = bf.Training(4, None, bf.Sgd(1e-3))
    plain = bf.fed_avg(recipes.mlp([6, 4, 1], Key(0)), likelihood=bf.Normal(0.1), training=gentle)
    twice = bf.ensemble(
        [
            plain,
            bf.fed_prox(
                recipes.mlp([6, 4, 1], Key(1)),
                strength=0.1,
                likelihood=bf.Normal(0.1),
                training=gentle,
            ),
        ]
    )
    for algorithm in (bf.swag(plain, begin=0), twice):
        result = bf.run(algorithm, clients, rounds=2, progress=False)
        inputs = clients["client-0"].inputs
        both = torch.cat([result.predictive(inputs, draws=400).mean, result.model(inputs)], 1)
        assert float(both.mT.corrcoef()[0, 1]) > 0.9
    with pytest.raises(
        ArgumentError, match=r"methods with one likelihood.*try the likelihood to predict with"
    ):
        bf.ensemble([plain, bf.fed_avg(recipes.mlp([6, 4, 1], Key(1)))])


def test_sure_members_have_a_finite_likelihood():
    members = [
        bf.fed_avg(recipes.mlp([6, 4, 3], Key(number)), training=WORK) for number in range(2)
    ]
    outputs = ran(bf.ensemble(members), 1).model(1e6 * recipes.rows()["client-0"].inputs)
    assert bool(outputs.isfinite().all())
    assert torch.allclose(outputs.logsumexp(1), torch.zeros(len(outputs)), atol=1e-4)


def test_beta_pred_bayes_is_between_the_mean_and_the_product_of_the_clients():
    clients = {name: concatenated([data, data]) for name, data in recipes.rows().items()} | {
        "none": recipes.rows()["client-0"][:0]
    }
    algorithm = bf.beta_pred_bayes(
        recipes.net(),
        samples=2,
        training=bf.Training(steps=40, batch_size=8, optimiser=bf.Sgd(0.1)),
    )
    result = bf.run(algorithm, clients, rounds=1, progress=False)
    model, inputs = result.model, recipes.rows()["client-0"].inputs
    assert model.parameters["1.weight"].shape == (4, 2, 8, 6)
    assert not torch.equal(model.parameters["1.weight"][:, 0], model.parameters["1.weight"][:, 1])
    p = model.by_client(inputs).exp()
    direct = p.prod(0) ** model.share * p.mean(0) ** (1 - model.share)
    assert torch.allclose(model(inputs).exp(), direct / direct.sum(1, keepdim=True), atol=1e-5)
    # Beta has the least NLL of the rows that were held out.
    held = concatenated([data[torch.arange(len(data)) % 10 == 9] for data in clients.values()])
    nll = {
        share: float(nn.functional.nll_loss(replace(model, share=share)(held.inputs), held.targets))
        for share in (0.0, 0.5, 1.0)
    }
    assert (
        float(nn.functional.nll_loss(model(held.inputs), held.targets)) <= min(nll.values()) + 1e-6
    )
    assert result.predictive(inputs, draws=50).probabilities.shape == (1, 12, 3)
    assert torch.allclose(result.predictive(inputs).mean, model(inputs).exp(), atol=1e-6)


@pytest.mark.slow
def test_langevin_steps_draw_from_the_posterior_of_a_line():
    noise = Key(0, "line").generator()
    inputs = torch.randn(40, 1, generator=noise)
    data = bf.Dataset(inputs, 0.5 * inputs + torch.randn(40, 1, generator=noise))
    net = nn.Linear(1, 1, bias=False)
    work = bf.Training(steps=3000, batch_size=None, optimiser=bf.Sgd(0.1))
    local = Langevin(work.descent(MaximumLikelihood(net, bf.Normal()), net), 150, 1.0)
    drawn = local.fit(parameters(net), {}, data, Key(0), LocalOptions()).payload["weight"].flatten()
    rows, _ = split_held(data)
    precision = float(rows.inputs.square().sum())
    assert float(drawn.mean()) == pytest.approx(
        float((rows.inputs * rows.targets).sum()) / precision, abs=4 / math.sqrt(150 * precision)
    )
    assert float(drawn.std()) == pytest.approx(1 / math.sqrt(precision), rel=0.25)


def test_fed_pa_solves_with_the_shrunk_covariance():
    noise = Key(0, "fed_pa").generator()
    samples, start = (
        torch.randn(4, 7, generator=noise, dtype=torch.float64),
        torch.randn(7, generator=noise, dtype=torch.float64),
    )
    own = 1 / (1 + 3 * 0.2)
    covariance = own * torch.eye(7, dtype=torch.float64) + (1 - own) * samples.mT.cov()
    assert torch.allclose(
        posterior_change(samples, start, 0.2),
        torch.linalg.solve(covariance, samples.mean(0) - start),
    )
    assert torch.equal(posterior_change(samples, start, 0.0), samples.mean(0) - start)
    # Without a window the round is FedAvg's; with one of a single step as well.
    plain = ran(bf.fed_avg(recipes.net(), training=WORK)).model.parameters
    for options in ({"begin": 9, "samples": 1}, {"samples": 1, "burn_in": 0.75}):
        again = ran(
            bf.fed_pa(recipes.net(), training=WORK, **options | {"shrinkage": 0.3})
        ).model.parameters
        assert all(torch.allclose(leaf, plain[name], atol=1e-6) for name, leaf in again.items())


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (
            lambda: bf.swag(bf.fed_avg(recipes.net()), begin=-1),
            "begin: expected a whole number >= 0",
        ),
        (lambda: bf.swag(bf.p_fed_bayes(recipes.net()), begin=1), "one model and no posterior"),
        (lambda: bf.swag(bf.scaffold(recipes.net()), begin=1), "whose state is its model"),
        (lambda: bf.fed_be(recipes.net(), spread=-1.0), "spread: expected a number in"),
        (
            lambda: bf.beta_pred_bayes(recipes.net(), samples=0),
            "samples: expected a whole number >= 1",
        ),
        (
            lambda: bf.beta_pred_bayes(recipes.net(), training=bf.Training(steps=3)),
            "two steps for each of 3 networks",
        ),
        (
            lambda: bf.beta_pred_bayes(recipes.net(), training=bf.Training(optimiser=bf.Adam())),
            "Sgd without momentum",
        ),
        (lambda: bf.fed_pa(recipes.net(), burn_in=1.0), r"burn_in: expected a number in \[0, 1\)"),
        (lambda: bf.fed_pa(recipes.net(), training=bf.Training(steps=4)), "a step for each sample"),
    ],
)
def test_wrong_arguments_are_refused(make, what):
    with pytest.raises(ArgumentError, match=what):
        make()
