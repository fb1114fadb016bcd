"""Messages of baselines, of methods for devices of unlike strength, of `compose`, `recipe`,
`citation` and surveys.
"""

from dataclasses import replace
from unittest import mock

import torch
from torch import nn

import bayesfed as bf
from bayesfed.algorithms import registry
from bayesfed.algorithms.baselines.sparse.proximal_descent import penalise
from bayesfed.compress.budgets import fit_flexible
from bayesfed.federated import Keep, Sum
from bayesfed.inference.objectives.proximal_operators import SoftThreshold
from bayesfed.models import lora, merged, weight_matrices
from bayesfed.trees import parameters
from tests.house.wrong_calls import given
from tests.house.wrong_calls.given import DATA, KEY, ONE, go
from tests.support import recipes
from tests.support.recipes import FEATURES

COMPLETE = (
    "bayesfed/algorithms/baselines",
    "bayesfed/algorithms/anycost_fl",
    "bayesfed/algorithms/fed_hm",
    "bayesfed/algorithms/composing.py",
    "bayesfed/algorithms/registry.py",
    "bayesfed/algorithms/surveys.py",
)
SOME = bf.fixed(["a", "b"], 1)
SAMPLE = torch.zeros(1, FEATURES)
EPOCHS = bf.Training(epochs=1.0, batch_size=2)


def fed_pa(training=ONE, **options):
    """Return FedPA."""
    return bf.fed_pa(given.net(), training=training, **{"samples": 2, **options})


def drawn(training):
    """Run `beta_pred_bayes`."""
    go(bf.beta_pred_bayes(given.net(), samples=2, training=training))


def scaffold(training):
    """Return SCAFFOLD."""
    return bf.scaffold(given.net(), training=training)


def ensemble(*members, **options):
    """Return an ensemble of FedAvg and others."""
    return bf.ensemble([given.avg(), *members], **options)


def swag(algorithm):
    """Put a Gaussian through a method's models."""
    return bf.swag(algorithm, begin=1)


def fed_prox(net):
    """Return FedProx."""
    return bf.fed_prox(net, strength=0.1)


def stepped(reducer):
    """Take a step of FedBE with the updates in a reducer."""
    algorithm = bf.fed_be(given.net(), draws=2)
    gathered = reducer()
    gathered.add("a", bf.federated.Update(algorithm.initial, 1.0, "value"))
    algorithm.phases[0].server.step(algorithm.initial, gathered, 0)


def dropping():
    """Return a network with dropout."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))


def planner(*shares):
    """Return a planner of these sizes."""
    graph = bf.models.channel_graph(recipes.net(), SAMPLE)
    sizes = bf.models.shrunk_shares(recipes.net(), graph, SAMPLE, list(shares))
    return replace(recipes.planner(), sizes=tuple(sizes))


def fed_hq(shares=(1.0,), sizes=(1.0,)):
    """Return FedHQ."""
    settings = fit_flexible([parameters(recipes.net())], KEY, shares=shares)
    return bf.fed_hq(recipes.net(), planner(*sizes), settings)


def adapted():
    """Return a network under adapters."""
    return lora(given.net(), 2, KEY)


def split_mix(nets_of):
    """Return Split-Mix."""
    return bf.split_mix(lambda key: bf.mlp([4, 3], key), nets_of, SOME, key=KEY)


def composed(capacity):
    """Compose a method of two locals."""
    return bf.compose("own", given.net(), local=[given.Loc()] * 2, capacity=capacity)


def anycost(net=None, **options):
    """Return AnycostFL."""
    return bf.anycost_fl(net or recipes.net(), SAMPLE, deadline_s=1.0, **options)


def half():
    """Return a network of which a layer is frozen."""
    made = recipes.net()
    made[-1].requires_grad_(False)
    return made


def fed_hm(ratios):
    """Return FedHM."""
    return bf.fed_hm(recipes.net(), ratios, SOME)


def registered(name="own", bibtex="", cites=("doe2026own",)):
    """Register a recipe, for as long as this takes, and return its entry."""

    def own(net): ...

    own.__name__ = name
    with mock.patch.dict(registry._REGISTERED, dict(bf.methods())):
        bf.recipe(cites=cites, bibtex=bibtex)(own)
        return bf.citation(name)


def surveyed(inputs):
    """Put a Gaussian around a network."""
    go(bf.laplace(given.net()), {"a": replace(DATA, inputs=inputs)})


CASES = [
    (lambda: fed_pa(samples=5), "Training(steps=10)", lambda: fed_pa(bf.Training(steps=10))),
    (
        lambda: go(fed_pa(EPOCHS, samples=5)),
        "Training(steps=10)",
        lambda: go(fed_pa(bf.Training(steps=10), samples=5)),
    ),
    (lambda: drawn(ONE), "Training(steps=4)", lambda: drawn(bf.Training(steps=4))),
    (lambda: drawn(EPOCHS), "Training(steps=4)", lambda: drawn(bf.Training(steps=4))),
    (
        lambda: scaffold(bf.Training(optimiser=bf.Adam())),
        "Sgd(0.05)",
        lambda: scaffold(bf.Training(optimiser=bf.Sgd(0.05))),
    ),
    (bf.ensemble, [given.avg()]),
    (
        lambda: ensemble(bf.p_fed_bayes(given.net())),
        "fed_avg(net), fed_prox(net, strength=0.1)",
        lambda: ensemble(given.avg(), fed_prox(given.net())),
    ),
    (
        lambda: ensemble(bf.fed_avg(bf.mlp([4, 8, 3], KEY))),
        "one `mlp` with several keys",
        lambda: ensemble(bf.fed_avg(bf.mlp([4, 3], bf.Key(1)))),
    ),
    (
        lambda: ensemble(given.avg(likelihood=bf.Normal(1.0))),
        "likelihood=",
        lambda: ensemble(given.avg(likelihood=bf.Normal(1.0)), likelihood=bf.Categorical()),
    ),
    (lambda: stepped(Sum), "a phase with reducer=Keep", lambda: stepped(Keep)),
    (
        lambda: bf.mc_dropout(bf.p_fed_bayes(given.net())),
        "fed_avg(net)",
        lambda: bf.mc_dropout(bf.fed_avg(dropping())),
    ),
    (
        lambda: bf.mc_dropout(given.avg()),
        "nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))",
        lambda: bf.mc_dropout(bf.fed_avg(dropping())),
    ),
    (
        lambda: swag(bf.scaffold(given.net())),
        "fed_avg(net), fed_prox(net, strength=0.1)",
        lambda: (swag(given.avg()), swag(fed_prox(given.net()))),
    ),
    (lambda: fed_hq(sizes=(1.0, 0.5)), "shrunk_shares(..., [1.0])", fed_hq),
    (lambda: fed_hq(shares=(1.0, 0.5)), "shares=(1.0,)", fed_hq),
    (lambda nets: bf.hetero_fl(nets, SOME), []),
    (
        lambda: bf.fed_mid(given.net(), training=EPOCHS),
        "Training(steps=50)",
        lambda: bf.fed_mid(given.net(), training=bf.Training(steps=50)),
    ),
    (
        lambda: penalise(given.net(), SoftThreshold(0.1)).figures({}),
        "penalise with the network trained",
        lambda: penalise(given.net(), SoftThreshold(0.1)).figures(parameters(given.net())),
    ),
    (
        lambda: bf.fed_l1(given.net(), where=lambda name, module: False),
        "where=weight_matrices",
        lambda: bf.fed_l1(given.net(), where=weight_matrices),
    ),
    (
        lambda: bf.fed_l1(given.net().requires_grad_(False)),
        "net.requires_grad_()",
        lambda: bf.fed_l1(given.net().requires_grad_(False).requires_grad_()),
    ),
    (
        lambda: bf.fed_l1(adapted()),
        'where=lambda name, module: "lora_" in name',
        lambda: bf.fed_l1(adapted(), where=lambda name, module: "lora_" in name),
    ),
    (lambda: bf.fed_l1(adapted()), "merged(net)", lambda: bf.fed_l1(merged(adapted()))),
    (split_mix, [2, 3]),
    (composed, None),
    (lambda alphas: anycost(alphas=alphas), [0.5, 1.0]),
    (lambda training: anycost(training=training), ONE),
    (lambda: anycost(half()), "alphas=(1,)", lambda: anycost(half(), alphas=(1,))),
    (
        lambda: bf.public_settings(given.net(), DATA[:0], KEY),
        "train[:16]",
        lambda: bf.public_settings(given.net(), DATA[:16], KEY),
    ),
    (fed_hm, [0.5, 1.0]),
    (
        lambda: bf.fed_hm(given.net(), [0.99], SOME),
        "smaller ratios, or fed_avg(net)",
        lambda: (bf.fed_hm(recipes.net(), [0.5], SOME), bf.fed_avg(recipes.net())),
    ),
    (
        lambda: bf.fed_hm(recipes.net(), [0.5], SOME, min_rank=100),
        "min_rank=1",
        lambda: bf.fed_hm(recipes.net(), [0.5], SOME, min_rank=1),
    ),
    (
        lambda: registered("fed_avg", cites=()),
        "another name",
        lambda: registered("own", cites=()),
    ),
    (bf.citation, "fedavg"),
    (
        registered,
        "recipe(cites=..., bibtex=...)",
        lambda: registered(bibtex="@article{doe2026own,\n  title = {Own}\n}\n"),
    ),
    (
        lambda: surveyed(1e9 * DATA.inputs),
        "inputs that are scaled to about 1",
        lambda: surveyed(DATA.inputs),
    ),
]
