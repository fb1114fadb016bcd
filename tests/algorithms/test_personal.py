"""Personal models: what stays with a client, what it predicts with, how clients are scored."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import distributions, nn

import bayesfed as bf
from bayesfed.algorithms.personal.bayes.objective import (
    MEAN,
    OWN,
    RHO,
    PersonalElbo,
    divergence,
    sds,
    vectors,
)
from bayesfed.cli.main import main
from bayesfed.errors import ArgumentError
from bayesfed.federated import load
from bayesfed.federated.core import of, owned
from bayesfed.inspect import PersonalScores
from bayesfed.running.experiments import experiment
from bayesfed.running.experiments.build import build
from bayesfed.running.experiments.experiment import ExperimentError
from bayesfed.testing import check_local
from bayesfed.trees import parameters
from tests.conftest import tree_equal
from tests.support.saving import save

WORK = bf.Training(steps=10, batch_size=16, optimiser=bf.Sgd(0.2))
ADAM = bf.Training(steps=20, batch_size=16, optimiser=bf.Adam(5e-3))
METHODS = {
    "fed_per": lambda net: bf.fed_per(net, training=WORK),
    "fed_babu": lambda net: bf.fed_babu(net, steps=20, training=WORK),
    "ditto": lambda net: bf.ditto(net, strength=0.1, training=WORK),
    "p_fed_bayes": lambda net: bf.p_fed_bayes(net, strength=0.02, training=ADAM),
    "p_fed_bayes, moments": lambda net: bf.p_fed_bayes(
        net, strength=0.02, prior_update="moments", training=ADAM
    ),
    "fine-tuned": lambda net: bf.personalised(
        bf.fed_avg(net, training=WORK), steps=20, batch_size=16, optimiser=bf.Sgd(0.2)
    ),
}


@pytest.fixture(scope="module")
def unlike(digits):
    """Four clients, of which two call every digit by another name: no shared model serves all."""
    train, _ = digits
    parts = bf.federate(train[:600], bf.iid(600, 4, bf.Key(0, "unlike")))
    renamed = {
        name: replace(part, targets=(part.targets + 5 * (number % 2)) % 10)
        for number, (name, part) in enumerate(parts.items())
    }
    return bf.data.split_rows(renamed, 0.25)


@pytest.fixture(scope="module")
def shared(unlike):
    """What FedAvg makes of clients that contradict each other."""
    train, test = unlike
    result = bf.run(
        bf.fed_avg(bf.mlp([64, 16, 10], bf.Key(0, "net")), training=WORK),
        train,
        rounds=4,
        progress=False,
    )
    return result, result.personal_scores(test)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_personal_models_serve_clients_that_contradict_each_other(name, unlike, shared, net):
    train, test = unlike
    result = bf.run(METHODS[name](net), train, rounds=4, progress=False)
    scores = result.personal_scores(test, draws=10)
    assert scores.mean() > shared[1].mean() + 0.15
    assert scores.mean("nll") < shared[1].mean("nll")
    first, second = (
        result.clients[client].model.parameters for client in ("client-000", "client-001")
    )
    assert not tree_equal(first, second)
    assert first.keys() == parameters(net).keys()
    phase = result.algorithm.phases[0]
    message, _ = phase.scope.parted(result.snapshot.state)
    check_local(phase.local, message, train["client-000"][:20])


def test_the_state_and_the_messages_have_no_head(unlike, net):
    train, _ = unlike
    result = bf.run(bf.fed_per(net, training=WORK), train, rounds=1, progress=False)
    assert result.snapshot.state.keys() == {"model/1.weight", "model/1.bias"}
    assert all(
        tree.keys() == {"model/3.weight", "model/3.bias"}
        for tree in result.snapshot.memories.values()
    )
    assert (
        result.bits()
        < bf.run(bf.fed_avg(net, training=WORK), train, rounds=1, progress=False).bits()
    )
    chosen = bf.run(
        bf.fed_per(net, local=lambda name, module: name.endswith("bias"), training=WORK),
        train,
        rounds=1,
        progress=False,
    )
    assert chosen.snapshot.state.keys() == {"model/1.weight", "model/3.weight"}


@pytest.mark.parametrize(
    "make",
    [
        lambda net: bf.fed_per(net, local=lambda name, module: False, training=WORK),
        lambda net: bf.ditto(net, strength=0.3, training=WORK),
        lambda net: bf.personalised(bf.fed_avg(net, training=WORK), steps=1),
    ],
    ids=["no local part", "ditto", "fine-tuned"],
)
def test_what_is_shared_is_that_of_fed_avg_bit_for_bit(make, unlike, shared, net):
    assert tree_equal(
        bf.run(make(net), unlike[0], rounds=4, progress=False).snapshot.state,
        shared[0].snapshot.state,
    )


def test_without_a_penalty_clients_train_alone_and_with_a_large_one_they_hold_the_shared_model(
    unlike, net
):
    train, _ = unlike
    alone = {"client-000": train["client-000"]}

    def own(clients, strength):
        return (
            bf.run(
                bf.ditto(net, strength=strength, training=WORK), clients, rounds=3, progress=False
            )
            .clients["client-000"]
            .model.parameters
        )

    assert tree_equal(own(train, 0.0), own(alone, 0.0))
    result = bf.run(bf.ditto(net, strength=1e7, training=WORK), train, rounds=3, progress=False)
    before = bf.run(
        bf.ditto(net, strength=1e7, training=WORK), train, rounds=2, progress=False
    ).model.parameters
    near = result.clients["client-000"].model.parameters
    assert all(torch.allclose(leaf, before[name], atol=1e-5) for name, leaf in near.items())


def test_fine_tuning_touches_what_is_chosen_and_begins_with_the_personal_model(unlike, net):
    train, _ = unlike
    head = bf.personalised(
        bf.fed_avg(net, training=WORK), steps=5, where=lambda name, module: name.startswith("3.")
    )
    result = bf.run(head, train, rounds=2, progress=False)
    received = bf.run(
        bf.fed_avg(net, training=WORK), train, rounds=1, progress=False
    ).model.parameters
    tuned = result.clients["client-002"].model.parameters
    assert {name for name in tuned if torch.equal(tuned[name], received[name])} == {
        "1.weight",
        "1.bias",
    }
    both = bf.run(
        bf.personalised(bf.fed_per(net, training=WORK), steps=5), train, rounds=2, progress=False
    )
    assert both.snapshot.memories["client-000"].keys() == {
        "model/3.weight",
        "model/3.bias",
        *(f"tuned/{name}" for name in parameters(net)),
    }
    # Where clients are sent changes, it begins with the model that they make of them.
    plain = bf.stc(net, training=WORK)
    changes = bf.run(
        bf.personalised(plain, steps=5, where=lambda name, module: name.startswith("3.")),
        train,
        rounds=3,
        progress=False,
    )
    before, after = (bf.run(plain, train, rounds=count, progress=False) for count in (2, 3))
    assert tree_equal(
        {name: changes.snapshot.state[name] for name in after.snapshot.state}, after.snapshot.state
    )
    tuned, received = changes.clients["client-002"].model.parameters, before.model.parameters
    for name, leaf in received.items():
        near = torch.allclose(tuned[name], leaf, atol=1e-6)
        assert near is name.startswith("1."), name
    adapted = bf.lora(net, 2, bf.Key(0, "lora"))
    small = bf.run(
        bf.personalised(bf.fed_lora(adapted, training=bf.Training(steps=2)), steps=2),
        train,
        rounds=1,
        progress=False,
    )
    assert all("lora_" in name for name in small.clients["client-000"].model.parameters)


@pytest.mark.slow
def test_a_resumed_run_has_the_same_personal_models(unlike, net, tmp_path):
    train, _ = unlike
    for number, make in enumerate(METHODS.values()):
        short = bf.run(make(net), train, rounds=1, progress=False)
        save(tmp_path / str(number), short.snapshot)
        whole, again = (
            bf.run(make(net), train, rounds=2, progress=False, resume=one)
            for one in (None, load(tmp_path / str(number)))
        )
        assert all(
            tree_equal(whole.snapshot.memories[name], again.snapshot.memories[name])
            for name in train
        )


# pFedBayes


def test_the_divergence_is_that_of_torch_and_its_gradients_stay_apart(net):
    generator = bf.Key(0, "divergence").generator()
    left, right = (
        {f"{part}/w": torch.randn(3, 2, generator=generator) for part in (MEAN, RHO)}
        for _ in range(2)
    )
    normals = [distributions.Normal(tree["mean/w"], sds(tree)["w"]) for tree in (left, right)]
    assert float(divergence(*vectors(left, "w"), *vectors(right, "w"))) == pytest.approx(
        float(distributions.kl_divergence(*normals).sum()), rel=1e-5
    )


def test_every_client_has_a_posterior_of_its_own(unlike, net):
    train, _ = unlike
    result, strong = (
        bf.run(bf.p_fed_bayes(net, strength=at, training=ADAM), train, rounds=3, progress=False)
        for at in (0.02, 1e4)
    )
    client, names = result.clients["client-001"], list(parameters(net))
    memory = result.snapshot.memories["client-001"]
    mean = client.posterior.mean.items()
    assert all(torch.equal(leaf, memory[f"own/mean/{name}"]) for name, leaf in mean)
    draws = torch.stack(
        [client.posterior.draw(bf.Key(0, "draw", number))["3.weight"] for number in range(60)]
    )
    assert torch.allclose(draws.std(0), client.posterior.sd["3.weight"], rtol=0.6)
    assert result.posterior.constants.keys() == {
        f"{name}.{figure}" for name in names for figure in ("mean", "sd")
    }
    distances = []
    for one in (result, strong):
        own = owned(one.snapshot.memories["client-001"], OWN)
        both = *vectors(own, names), *vectors(one.snapshot.state, names)
        distances.append(float(divergence(*both)))
    assert distances[1] < 0.2 * distances[0]


def test_the_shared_distribution_has_the_moments_of_the_mixture_of_the_clients_posteriors(
    unlike, net
):
    train, _ = unlike
    result = bf.run(
        bf.p_fed_bayes(net, prior_update="moments", training=ADAM), train, rounds=2, progress=False
    )
    memories = result.snapshot.memories
    rows = torch.tensor([float(len(train[name])) for name in memories])
    means, variances = (
        torch.stack([of(memory) for memory in memories.values()]) for of in (mean_of, variance_of)
    )
    mean = torch.einsum("k,kij->ij", rows / rows.sum(), means)
    variance = torch.einsum("k,kij->ij", rows / rows.sum(), variances + (means - mean).square())
    assert torch.allclose(result.posterior.mean["3.weight"], mean, atol=1e-6)
    assert torch.allclose(result.posterior.sd["3.weight"], variance.sqrt(), rtol=1e-3)
    half = bf.run(
        bf.p_fed_bayes(net, prior_update="moments", server_rate=0.5, training=ADAM),
        train,
        rounds=1,
        progress=False,
    )
    whole = bf.run(
        bf.p_fed_bayes(net, prior_update="moments", training=ADAM), train, rounds=1, progress=False
    )
    for name, leaf in whole.algorithm.initial.items():
        assert torch.allclose(
            half.snapshot.state[name], (leaf + whole.snapshot.state[name]) / 2, atol=1e-6
        )


def mean_of(memory):
    return memory["own/mean/3.weight"]


def variance_of(memory):
    return nn.functional.softplus(memory["own/rho/3.weight"]).square()


@pytest.mark.parametrize(
    "layer",
    [nn.Linear(8, 2), nn.Conv1d(2, 2, 4), nn.LayerNorm(8)],
    ids=lambda layer: type(layer).__name__,
)
def test_the_noise_of_a_posterior_has_the_moments_of_drawn_weights(layer):
    """At the outputs of linear and convolution layers each row has its own; other layers'
    parameters are drawn, once for all rows.
    """
    generator, outputs = bf.Key(0, "noise").generator(), []
    row = torch.randn(8, generator=generator)

    class Kept(bf.Categorical):
        def loss(self, output, targets):
            outputs.append(output.detach().flatten(1))
            return output.sum()

    mean = parameters(layer)
    tree = of(MEAN, mean) | of(RHO, {n: torch.full_like(leaf, -1.0) for n, leaf in mean.items()})
    objective = PersonalElbo(layer, Kept(), 1.0)
    trained, fixed = objective.start(tree | of(OWN, tree))
    inputs = (
        row.view(2, 4).expand(4000, 2, 4) if isinstance(layer, nn.Conv1d) else row.expand(4000, 8)
    )
    objective.loss(
        trained, fixed, bf.Dataset(inputs, torch.zeros(4000, dtype=torch.long)), 1.0, generator
    )
    if isinstance(layer, nn.LayerNorm):
        assert torch.equal(outputs[0][0], outputs[0][1])
        assert not torch.allclose(outputs[0][0], layer(row), atol=1e-3)
        return
    sd, exact = sds(tree), layer(inputs[:1]).detach().flatten()
    spread = (sd["weight"].flatten(1).square() @ row.square() + sd["bias"].square()).sqrt()
    assert bool(((outputs[0].mean(0) - exact).abs() < 5 * spread / 4000**0.5).all())
    assert torch.allclose(outputs[0].std(0), spread, rtol=0.06)


# Scores


def test_scores_are_means_over_clients_and_of_the_worst_tenth(unlike, shared, digits):
    result, scores = shared
    _, test = unlike
    first = next(iter(test))
    rows = test[first]
    right = (result.model(rows.inputs).argmax(1) == rows.targets).double().mean()
    assert scores.clients[first]["accuracy"] == pytest.approx(float(right))
    assert scores.clients[first]["rounds"] == 4
    assert scores.clients[first]["nll"] == pytest.approx(
        float(nn.functional.cross_entropy(result.model(rows.inputs), rows.targets)), rel=1e-5
    )
    assert scores.table().splitlines()[-1].startswith("worst decile")
    twenty = PersonalScores(
        {
            str(number): {"rows": 5.0, "rounds": 1.0, "accuracy": number / 20, "nll": float(number)}
            for number in range(20)
        }
    )
    assert twenty.mean() == pytest.approx(0.475)
    assert twenty.worst_decile() == pytest.approx(0.025)
    assert twenty.worst_decile("nll") == pytest.approx(18.5)
    assert twenty.figures() == {
        "own_accuracy": 0.475,
        "own_nll": 9.5,
        "worst_accuracy": 0.025,
        "worst_nll": 18.5,
    }


def test_a_client_that_never_took_part_predicts_as_a_new_one_does(unlike, net):
    train, test = unlike
    result = bf.run(
        bf.fed_per(net, training=WORK),
        train,
        rounds=2,
        sampler=lambda round, names, key: names[:3],
        progress=False,
    )
    assert set(result.clients) == {"client-000", "client-001", "client-002"}
    scores = result.personal_scores(test)
    assert scores.clients["client-003"]["rounds"] == 0
    assert scores.clients["client-003"]["accuracy"] < scores.clients["client-000"]["accuracy"]
    federation = result.to_arviz(own=test)["federation"]
    assert (
        federation["own_accuracy"].sel(client="client-003")
        == scores.clients["client-003"]["accuracy"]
    )
    assert set(federation["own_nll"].dims) == {"client"}


def test_rows_are_split_by_client_and_class(clients):
    train, test = bf.data.split_rows(clients, 0.25)
    for name, part in clients.items():
        assert len(train[name]) + len(test[name]) == len(part)
        for label in part.targets.unique().tolist():
            count = int((part.targets == label).sum())
            assert int((test[name].targets == label).sum()) == count - (count - round(0.25 * count))
    again, _ = bf.data.split_rows(clients, 0.25, key=bf.Key(1))
    assert not torch.equal(again["client-000"].inputs, train["client-000"].inputs)


def over_flower(result, algorithm):
    """What a run over Flower returns: of memories, which clients keep to themselves, the round and
    the phase.
    """
    memories = {
        name: {"slot.round": torch.tensor(0), "slot.phase": torch.zeros(5)}
        for name in result.clients
    }
    return replace(
        result, algorithm=algorithm, snapshot=replace(result.snapshot, memories=memories)
    )


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (
            lambda net, result, test: bf.ditto(net, strength=-1.0),
            "ditto, strength: expected a number",
        ),
        (
            lambda net, result, test: bf.ditto(net, strength=1.0, training=ADAM),
            "ditto, optimiser of training: expected Sgd without momentum",
        ),
        (
            lambda net, result, test: bf.fed_per(net, local=lambda name, module: True),
            "a predicate that leaves a parameter to share",
        ),
        (lambda net, result, test: bf.p_fed_bayes(net, initial_sd=0.0), r"initial_sd: .*\(0, inf"),
        (
            lambda net, result, test: bf.p_fed_bayes(net, prior_update="exact"),
            "'gradient', 'moment",
        ),
        (
            lambda net, result, test: bf.personalised(bf.p_fed_bayes(net)),
            "without posterior, found 1 phase, 0 sizes, a posterior",
        ),
        (
            lambda net, result, test: bf.personalised(
                bf.fed_avg(net), where=lambda name, module: False
            ),
            "a predicate that chooses a parameter",
        ),
        (lambda net, result, test: result.personal_scores({}), "clients with rows, found no rows"),
        (
            lambda net, result, test: result.personal_scores({"nobody": test["client-000"]}),
            "clients of the run: .*found .'nobody'.*",
        ),
        (
            lambda net, result, test: result.personal_scores(test).mean("brier"),
            "one of .*'accuracy'.*found 'brier'",
        ),
        (
            lambda net, result, test: over_flower(result, bf.fed_per(net)).clients,
            "its memory, found one that is kept at the client",
        ),
    ],
    ids=range(11),
)
def test_wrong_settings_are_refused(make, match, unlike, shared, net):
    with pytest.raises(ArgumentError, match=match):
        make(net, shared[0], unlike[1])


# The command line and the example


def test_the_example_of_an_own_method_is_the_shipped_scaffold(tmp_path):
    example = Path(__file__).parents[2] / "examples" / "own_method" / "my_scaffold.toml"
    shipped = tmp_path / "scaffold.toml"
    shipped.write_text(example.read_text().replace("scaffold.py:my_scaffold", "scaffold"))
    states = []
    for path in (example, shipped):
        built = build(experiment.read(path), 0)
        states.append(
            bf.run(
                built.algorithm, dict(list(built.clients.items())[:3]), rounds=2, progress=False
            ).snapshot.state
        )
    assert all(torch.allclose(leaf, states[1][name], atol=1e-5) for name, leaf in states[0].items())


@pytest.mark.slow
def test_compare_has_columns_of_own_scores_where_rows_are_held_out(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parts = (
        "data = { kind = 'digits', test = 1600 }",
        "partition = { kind = 'iid', clients = 3 }",
        "net = { kind = 'mlp', widths = [64, 6, 10] }",
    )
    top = "\n".join(["rounds = 1", *parts, ""])
    for name, more in (("fed_per", "own_rows = 0.25\n"), ("fed_avg", "")):
        Path(f"{name}.toml").write_text(
            f'{top}{more}[recipe]\nkind = "{name}"\ntraining = {{ steps = 2 }}\n'
        )
    assert main(["compare", "fed_per.toml", "fed_avg.toml", "--quiet"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert all(heading in table[0] for heading in ("own %", "worst own %", "own NLL"))
    head, *lines = Path("results/fed_per/seed-0/clients.csv").read_text().splitlines()
    assert (head, len(lines)) == ("client,rows,rounds,accuracy,nll,ece", 3)
    assert not Path("results/fed_avg/seed-0/clients.csv").exists()
    Path("wrong.toml").write_text(Path("fed_per.toml").read_text().replace("0.25", "1.5"))
    with pytest.raises(ExperimentError, match=r"wrong.toml.*own_rows"):
        build(experiment.read(Path("wrong.toml")), 0)
