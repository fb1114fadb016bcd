"""The precision of the prior on held-out rows: what is tried, scored and chosen, and that the rest
is a run with that precision.
"""

import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.algorithms.wrappers import chosen_prior
from bayesfed.algorithms.wrappers.chosen_prior import PRECISIONS, START
from bayesfed.data import concatenated
from bayesfed.errors import ArgumentError, ClientError, UndeterminedWarning
from bayesfed.federated.core.owners import owned
from bayesfed.trees import without
from tests.support import recipes

ROUNDS = 3


def work(precision, observations=96):
    return bf.Training(
        steps=2,
        batch_size=None,
        optimiser=bf.Sgd(0.3),
        schedule=bf.federated.cosine(0.1, 8),
        prior_precision=precision,
        observations=observations,
    )


def alike(one, other):
    assert one.keys() == other.keys()
    assert all(torch.allclose(leaf, other[name], atol=1e-5) for name, leaf in one.items())


def test_the_best_of_the_precisions_is_chosen_and_trained_with_anew(monkeypatch):
    monkeypatch.setattr(chosen_prior, "ROUNDS", ROUNDS)
    clients, states = recipes.rows(24), []
    algorithm = bf.fed_avg(recipes.net(), training=work("auto"))
    result = bf.run(
        algorithm,
        clients,
        rounds=4 * ROUNDS + 2,
        progress=False,
        callbacks=[lambda report: states.append(report.state)],
    )
    fewer = {name: data[torch.arange(len(data)) % 10 != 9] for name, data in clients.items()}
    held = concatenated([data[torch.arange(len(data)) % 10 == 9] for data in clients.values()])
    scores = []
    for number, precision in enumerate(PRECISIONS):
        # Batches of all rows: draws change no more than the order of sums.
        with pytest.warns(UserWarning, match="expected 88, the rows of the pool, found 96"):
            plain = bf.run(
                bf.fed_avg(recipes.net(), training=work(precision)),
                fewer,
                rounds=ROUNDS,
                progress=False,
            )
        alike(plain.snapshot.state, without(states[(number + 1) * ROUNDS - 1], "prior/"))
        scores.append(float(nn.functional.cross_entropy(plain.model(held.inputs), held.targets)))
    assert [value for _, value in result.series("held_out_nll")] == pytest.approx(scores, rel=1e-4)
    best = PRECISIONS[scores.index(min(scores))]
    assert result.final("prior_precision") == best
    assert [value for _, value in result.series("prior_precision")][::ROUNDS] == [*PRECISIONS, best]
    chosen = bf.run(
        bf.fed_avg(recipes.net(), training=work(best)), clients, rounds=2, progress=False
    )
    alike(owned(chosen.snapshot.state, "model"), result.model.parameters)
    assert any(name.startswith(START) for name in result.snapshot.state)


def test_precisions_that_other_clients_score_are_compared_by_the_mean(monkeypatch):
    """The last rounds of the precisions have 4, 40, 4 and 4 held-out rows."""
    monkeypatch.setattr(chosen_prior, "ROUNDS", 1)
    parts = recipes.rows(40)
    large = concatenated([parts["client-0"]] * 10)
    clients = {"large": large, "small": parts["client-1"]}
    result = bf.run(
        bf.fed_avg(recipes.net(), training=work("auto", 440)),
        clients,
        rounds=5,
        progress=False,
        sampler=lambda round, names, key: ["large" if round == 1 else "small"],
    )
    scores = [value for _, value in result.series("held_out_nll")]
    assert len(scores) == 4
    assert max(scores) < 2.5


def test_a_choice_that_was_not_made_is_told(monkeypatch):
    monkeypatch.setattr(chosen_prior, "ROUNDS", 1)
    algorithm = bf.fed_avg(recipes.net(), training=work("auto"))
    with pytest.warns(
        UndeterminedWarning,
        match=(
            r"after 3 rounds no prior precision is chosen.* with the precision 1; try more "
            r"than 4 rounds"
        ),
    ):
        bf.run(algorithm, recipes.rows(24), rounds=3, progress=False)
    algorithm = bf.fed_avg(recipes.net(), training=work("auto", 24))
    with pytest.warns(
        UndeterminedWarning,
        match=r"no client held out a row, since none has 10 or more; 0.1 is taken; try a number",
    ):
        bf.run(algorithm, recipes.rows(6), rounds=5, progress=False)


def test_methods_that_cannot_choose_say_so():
    with pytest.raises(ArgumentError, match="one phase and one model"):
        bf.ditto(recipes.net(), strength=0.1, training=work("auto"))
    with pytest.raises(ArgumentError, match="point estimates"):
        bf.d_turbo_vbi(bf.declare(recipes.net()), observations=96, training=work("auto"))
    with pytest.raises(ClientError, match="a method that chooses the precision"):
        bf.run(
            bf.beta_pred_bayes(recipes.net(), samples=1, training=work("auto")),
            recipes.rows(),
            rounds=1,
            progress=False,
        )
    with pytest.raises(ArgumentError, match="or 'auto'"):
        work("evidence")
