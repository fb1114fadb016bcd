"""IVON on networks, PVI's relatives, and whether a run has settled."""

import itertools
import math
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import bayesfed as bf
from bayesfed.algorithms.federated_svi import SviLocal
from bayesfed.errors import ArgumentError, ClientError, ConvergenceWarning, PosteriorError
from bayesfed.federated.core.owners import owned
from bayesfed.federated.core.seams import fusion_of
from bayesfed.federated.links.digital import usual_norm
from bayesfed.inference.variational.fusion import (
    PVI,
    MeanParameters,
    ProductOfExperts,
    ReverseKL,
    SummedGradients,
    Wasserstein,
)
from bayesfed.inference.variational.fusion.pace import Pace
from bayesfed.inference.variational.ivon import IvonSteps
from bayesfed.keys import Key
from tests.posteriors.test_federated_svi import fitted, same
from tests.support import recipes


def test_ivon_finds_the_posterior_of_a_quadratic():
    """Per row the loss is 3 (theta - 1)^2 / 2; with 100 rows and a prior N(0, 1 / 20) the answer is
    exact.
    """
    steps = IvonSteps(
        {"w": torch.zeros(50)},
        {"w": torch.full((50,), 50.0)},
        {"w": (torch.zeros(50), torch.full((50,), 20.0))},
        rows=100.0,
        rate=0.1,
        curvature_rate=0.05,
        momentum=0.9,
        clip=math.inf,
        generator=Key(0, "ivon").generator(),
    )
    for _ in range(400):
        steps.step(lambda weights, half: [3 * (weights[0] - 1)])
    mean, precision = steps.result()
    assert mean["w"].numpy() == pytest.approx(300 / 320, abs=0.01)
    assert float(precision["w"].mean()) == pytest.approx(320, rel=0.02)


def network(**changes):
    parts, net = recipes.rows(), recipes.net()
    work = bf.Training(steps=3, batch_size=8)
    settings = {"observations": 48, "example": parts["client-0"][:2], "training": work, **changes}
    return bf.federated_svi(bf.bayesian(net), **settings), parts


def test_a_network_needs_no_more_than_its_rows():
    algorithm, parts = network()
    result = bf.run(algorithm, parts, rounds=3, progress=False)
    assert {"temperature", "held_out_nll", "moved"} <= result.history[-1].server.keys()
    assert result.settled is False
    probabilities = result.model(parts["client-0"].inputs)
    assert probabilities.sum(1).numpy() == pytest.approx(1, abs=1e-5)
    again = bf.run(algorithm, bf.InProcess(parts, workers=2), rounds=3, progress=False)
    assert same(result.snapshot.state, again.snapshot.state)


def of_digits(fusion=None, schedule=None, **settings):
    """A network of 650 weights with a rule, and its clients."""
    train, _ = bf.digits()
    clients = bf.federate(train, bf.iid(len(train), 3, Key(0, "clients")))
    return bf.federated_svi(
        bf.bayesian(bf.mlp([64, 10], Key(0, "net"))),
        fusion=fusion,
        observations=sum(map(len, clients.values())),
        example=next(iter(clients.values()))[:2],
        training=bf.Training(50, 64, bf.federated.Ivon(), schedule or bf.federated.inverse(2)),
        **settings,
    ), clients


@pytest.mark.parametrize("rule", [None, ReverseKL(), Wasserstein(), MeanParameters()], ids=repr)
def test_a_network_that_still_learns_warns_in_the_run(rule):
    algorithm, clients = of_digits(rule, **({"temperature": 0.1} if rule else {}))
    with pytest.warns(ConvergenceWarning, match="has not settled after 6 rounds: the last"):
        result = bf.run(algorithm, clients, rounds=6, progress=False)
    assert result.settled is False
    assert result.settling.adds is False
    assert "not settled: the last rounds moved the means" in repr(result)


@pytest.mark.slow
def test_a_network_that_has_learned_does_not_warn():
    algorithm, clients = of_digits(schedule=bf.federated.cosine(0.02, 16))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        result = bf.run(algorithm, clients, rounds=20, progress=False)
    assert result.settled is True
    settling = result.settling
    assert settling.moved_rms < 0.1
    assert settling.held_out_falls < 0.01
    # The noise of its steps goes on to move the largest of 650 sds, which judges other rules.
    assert settling.moved_sd > 0.1
    assert replace(settling, adds=True).reasons


def test_a_server_around_another_has_its_rule():
    algorithm, _ = of_digits()
    assert isinstance(fusion_of(algorithm.phases[-1].server), ReverseKL)
    adding, _ = of_digits(PVI(0.3), temperature=0.1)
    masked = bf.secure(adding, participants=3, largest=100.0, heaviest=1.0)
    assert fusion_of(masked.phases[-1].server) == PVI(0.3)


def test_dropout_of_a_network_is_named_by_the_seed():
    parts = recipes.rows()
    width = parts["client-0"].inputs.flatten(1).shape[1]
    net = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(width, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 3)
    )
    settings = {
        "observations": 48,
        "example": parts["client-0"][:2],
        "training": bf.Training(steps=2, batch_size=8),
    }
    runs = [
        bf.run(
            bf.federated_svi(bf.bayesian(net), **settings), parts, rounds=2, progress=False
        ).snapshot.state
        for _ in range(2)
    ]
    assert same(*runs)


NETWORK_RULES = [
    PVI(0.3),
    PVI(0.2, proximal=0.5, mixing=0.4),
    PVI(0.2, tied=True),
    PVI(0.2, clip=0.1),
    PVI(),
    ReverseKL(),
]
# BayesADMM is tried every time.
TRIED = [(PVI(0.2, proximal=0.5, mixing=0.4), True)]


@pytest.mark.parametrize(
    ("fusion", "noise"),
    [
        pytest.param(fusion, noise, marks=[pytest.mark.slow] * ((fusion, noise) not in TRIED))
        for fusion, noise in itertools.product(NETWORK_RULES, (True, False))
    ],
    ids=repr,
)
def test_rules_take_a_network(fusion, noise):
    training = bf.Training(steps=3, batch_size=8, optimiser=bf.federated.Ivon(noise=noise))
    algorithm, parts = network(fusion=fusion, training=training, temperature=0.1)
    result = bf.run(algorithm, {**parts, "empty": parts["client-0"][:0]}, rounds=2, progress=False)
    assert all(bool(torch.isfinite(leaf).all()) for leaf in result.snapshot.state.values())


def test_one_rule_with_bayes_admm():
    """Where only the last digits may differ: a weight just off 1 takes the general path."""
    plain = fitted(rule=PVI(0.4), rounds=3).snapshot.state
    near = fitted(rule=PVI(0.4, proximal=1 - 1e-9), rounds=3).snapshot.state
    for name, leaf in plain.items():
        assert torch.allclose(leaf, near[name], rtol=1e-3, atol=1e-3), name
    mixed = fitted(rule=PVI(0.4, mixing=1 - 1e-9), rounds=3).snapshot.state
    for name, leaf in plain.items():
        assert torch.allclose(leaf, mixed[name], rtol=1e-3, atol=1e-3), name


def test_a_short_run_says_what_is_left():
    with pytest.warns(ConvergenceWarning, match="49% of the first guide is left") as caught:
        result = fitted(rule=PVI(0.3), rounds=2)
    assert Path(caught[0].filename).name == "test_federated_svi.py"
    assert result.settled is False
    assert result.settling.first_guide == pytest.approx(0.49)
    assert result.settling.apart > 0
    with pytest.warns(ConvergenceWarning):
        assert fitted(rule=PVI(), rounds=1).settling.first_guide == 0
    assert (
        bf.run(bf.fed_avg(recipes.net()), recipes.rows(), rounds=1, progress=False).settled is None
    )


def test_what_does_not_fit_is_refused():
    for changes, error, words in [
        ({"temperature": "warm"}, ArgumentError, "a number or 'auto'"),
        ({"temperature": "auto", "fusion": PVI(0.3)}, ArgumentError, "ReverseKL"),
        ({"temperature": -1.0}, ArgumentError, "temperature: expected a number in"),
    ]:
        with pytest.raises(error, match=words):
            network(**changes)
    with pytest.raises(PosteriorError, match="a network with Gaussian priors"):
        fitted(rule=PVI(0.3), optimiser=bf.federated.Ivon())
    with pytest.raises(ArgumentError, match="a rule whose clients take steps"):
        network(fusion=SummedGradients(), training=bf.Training(optimiser=bf.federated.Ivon()))
    assert isinstance(network(fusion=SummedGradients())[0].phases[0].local, SviLocal)
    with pytest.raises(ArgumentError, match="a damping in numbers"):
        PVI(mixing=0.5)
    with pytest.raises(ArgumentError, match="PVI, proximal: expected a positive finite number"):
        PVI(proximal=0)
    with pytest.raises(ClientError, match=r"federated_svi of bayesian\(net\)"):
        bf.run(
            bf.fed_avg(recipes.net(), training=bf.Training(optimiser=bf.federated.Ivon())),
            recipes.rows(),
            rounds=1,
            progress=False,
        )


def test_clients_choose_their_damping():
    move = torch.tensor([1.0, 0.5])
    steady, turning = Pace(), Pace()
    for number in range(12):
        steady, turning = steady.after(move), turning.after((-1) ** number * move)
    assert steady.damping == 1
    assert turning.damping == 0.05
    assert Pace.of(turning.leaves()).damping == turning.damping
    with pytest.warns(ConvergenceWarning):
        memories = fitted(rule=PVI(), rounds=3).snapshot.memories
    assert all(
        {"pace/damping", "pace/move", "site/h/slope"} <= owned(memory, "model").keys()
        for memory in memories.values()
    )
    with pytest.raises(
        ArgumentError, match=r"damping: expected a number in \(0, 1\], found \'auto\'"
    ):
        ProductOfExperts("auto")


def test_natural_parameters_may_be_larger_than_changes():
    assert usual_norm("natural", 10_000) == 1e11
    assert usual_norm("delta", 10_000) == usual_norm("value", 1) == 1e6
