"""Clients score the model of every round on rows that they hold out: against the same scores from
outside, whoever runs the clients; the best round is kept.
"""

import math
import statistics
from dataclasses import replace

import pytest
import torch

import bayesfed as bf
from bayesfed.algorithms import evaluate_clients
from bayesfed.errors import ArgumentError
from bayesfed.federated import fraction, keep_best
from tests.conftest import tree_equal

ROWS = bf.digits()[0][:500]
CLIENTS = bf.federate(ROWS, bf.dirichlet(ROWS.targets, 12, 0.3, bf.Key(0, "parts"), minimum=8))
HELD = {name: data[torch.arange(len(data)) % 10 == 9] for name, data in CLIENTS.items()}
KEPT = {name: data[torch.arange(len(data)) % 10 != 9] for name, data in CLIENTS.items()}
NET = bf.mlp([64, 8, 10], bf.Key(0, "net"))
WORK = bf.Training(steps=10, batch_size=16, optimiser=bf.Sgd(0.2))


def run(algorithm, clients=CLIENTS, rounds=3, **options):
    return bf.run(algorithm, clients, rounds=rounds, progress=False, **options)


def test_the_model_is_that_of_a_run_on_the_rows_that_are_not_held_out():
    """But for weights, which are by all rows."""
    even = bf.equal_weights(bf.fed_avg(NET, training=WORK))
    found = run(evaluate_clients(even)).model.parameters
    assert tree_equal(found, run(even, KEPT).model.parameters)


@pytest.mark.parametrize("metric", ["accuracy", "nll"])
def test_figures_are_those_of_the_rounds_model_at_the_clients_that_took_part(metric):
    best, seen = keep_best(f"own_{metric}", larger_is_better=metric == "accuracy"), []
    result = run(
        evaluate_clients(bf.fed_avg(NET, training=WORK), metric=metric),
        sampler=fraction(0.8),
        callbacks=[best, seen.append],
    )
    for report in seen:
        point = report.model
        each = {}
        for name in report.clients:
            if len(HELD[name]):
                logits = point(HELD[name].inputs).log_softmax(1)
                nll = torch.nn.functional.nll_loss(logits, HELD[name].targets)
                right = (logits.argmax(1) == HELD[name].targets).float().mean()
                each[name] = float(nll if metric == "nll" else right)
        assert 5 < len(each) < len(report.clients) < len(CLIENTS)
        for name, figures in report.clients.items():
            assert figures.get(f"own_{metric}") == (
                pytest.approx(each[name]) if name in each else None
            )
            # Those of the training are still there.
            assert figures["samples"] == len(KEPT[name])
        worst = sorted(each.values(), reverse=metric == "nll")[: math.ceil(len(each) / 10)]
        rows = [len(HELD[name]) for name in each]
        expected = {
            f"own_{metric}": statistics.fmean(each.values()),
            f"own_{metric}_by_rows": statistics.fmean(each.values(), rows),
            f"worst_{metric}": statistics.fmean(worst),
        }
        for name, value in expected.items():
            assert report.server[name] == pytest.approx(value), name
    values = [value for _, value in result.series(f"own_{metric}")]
    top = values.index(max(values) if metric == "accuracy" else min(values))
    assert best.snapshot is seen[top].snapshot
    kept = replace(result, snapshot=best.snapshot)
    assert tree_equal(kept.model.parameters, seen[top].model.parameters)


def test_workers_give_the_same_figures_and_personal_methods_score_their_own_models():
    for recipe in (bf.fed_avg, bf.fed_per):
        algorithm = evaluate_clients(recipe(NET, training=WORK))
        found = run(algorithm, rounds=2)
        if recipe is bf.fed_per:
            with bf.InProcess(CLIENTS, workers=2) as pool:
                again = run(algorithm, pool, rounds=2)
            for one, two in zip(found.history, again.history, strict=True):
                assert (one.server, one.clients) == (two.server, two.clients)
        own = found.personal_scores({name: data for name, data in HELD.items() if len(data)})
        assert found.final("own_accuracy") == pytest.approx(own.mean())
        assert found.final("worst_accuracy") == pytest.approx(own.worst_decile())


@pytest.mark.parametrize("recipe", [bf.fed_avg, bf.fed_per])
@pytest.mark.parametrize("masks", [False, True])
def test_under_secure_sums_the_server_has_the_means_of_the_scores_alone(recipe, masks):
    plain = bf.equal_weights(recipe(NET, training=WORK))
    hidden = bf.secure(
        evaluate_clients(plain, worst=False),
        participants=12,
        largest=8.0,
        bits=64,
        masks=masks,
    )
    found, open_ = run(hidden, rounds=2), run(evaluate_clients(plain), rounds=2)
    for one, other in zip(found.history, open_.history, strict=True):
        for name in ("own_accuracy", "own_accuracy_by_rows"):
            assert one.server[name] == pytest.approx(other.server[name], abs=1e-6)
        assert "worst_accuracy" not in one.server
        assert not any("own_accuracy" in figures for figures in one.clients.values())
    own = open_.model.parameters
    for name, leaf in found.model.parameters.items():
        assert torch.allclose(leaf, own[name], atol=1e-4)
    mine = found.personal_scores({name: data for name, data in HELD.items() if len(data)})
    assert mine.mean() == pytest.approx(found.final("own_accuracy"))


def test_posteriors_and_numbers_are_scored_too():
    data = bf.Dataset(ROWS.inputs.flatten(1), ROWS.targets[:, None].float())
    clients = bf.federate(data, bf.iid(len(data), 3, bf.Key(0)))
    model = bf.bayesian(torch.nn.Linear(64, 1), bf.Gaussian(1.0), likelihood=bf.Normal())
    work = bf.Training(steps=5, optimiser=bf.Adam(0.01))
    svi = bf.federated_svi(model, observations=len(data), example=data[:2], training=work)
    result = run(evaluate_clients(svi, metric="mse"), clients, rounds=1)
    held = bf.data.concatenated(
        [part[torch.arange(len(part)) % 10 == 9] for part in clients.values()]
    )
    errors = (result.model(held.inputs) - held.targets).square().mean()
    assert result.final("own_mse_by_rows") == pytest.approx(float(errors), rel=1e-5)


def test_what_a_score_would_break_is_refused():
    plain = bf.fed_avg(NET, training=WORK)
    evaluated = evaluate_clients(plain)
    with pytest.raises(ArgumentError, match="found others, without noise"):
        evaluate_clients(bf.private(plain, clip=1.0, noise=1.0, participants=9, key=bf.Key(0)))
    with pytest.raises(
        ArgumentError, match=r"try secure\(evaluate_clients\(algorithm, worst=False"
    ):
        evaluate_clients(bf.secure(plain, participants=9, largest=8.0, masks=False))
    with pytest.raises(ArgumentError, match="whose worst decile is of single scores"):
        bf.secure(evaluated, participants=9, largest=8.0, masks=False)
    with pytest.raises(ArgumentError, match="a method of one phase"):
        bf.secure(bf.ensemble([plain, plain]), participants=9, largest=8.0, masks=False)
    with pytest.raises(ArgumentError, match="a method without 'held out'"):
        evaluate_clients(evaluated)
    with pytest.raises(ArgumentError, match=r"keep_best: expected one of \[.*'own_accuracy'"):
        run(evaluated, callbacks=[keep_best("accuracy")])


def test_scores_that_cannot_be_are_refused(monkeypatch):
    from bayesfed.algorithms.wrappers import evaluated

    monkeypatch.setattr(evaluated, "score", lambda *given, **more: 1.5)
    result = run(evaluate_clients(bf.fed_avg(NET, training=WORK)), on_client_error="drop")
    assert "accuracy" in " ".join(result.history[-1].refused.values())
    assert "own_accuracy" not in result.history[-1].server


def test_the_best_round_of_an_earlier_part_of_a_run_has_no_snapshot():
    scores = {0: 0.9, 1: 0.5, 2: 0.6, 3: 0.7}
    entered = [lambda report: report.metrics.update(told=scores[report.round]), keep_best("told")]
    first = run(bf.fed_avg(NET, training=WORK), rounds=2, callbacks=entered)
    assert entered[1].snapshot.round == 1
    later = [entered[0], keep_best("told")]
    again = run(bf.fed_avg(NET, training=WORK), rounds=4, resume=first.snapshot, callbacks=later)
    assert again.final("told") == 0.7
    assert later[1].snapshot is None
    run(bf.fed_avg(NET, training=WORK), rounds=1, callbacks=later)
    assert later[1].snapshot.round == 1
