"""Metrics: one figure a row, a name, or an object that adds batches up; callbacks with a memory
begin with each run.
"""

from dataclasses import replace

import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.errors import ArgumentError
from bayesfed.federated import early_stop, evaluate, progress, rounds, score
from tests.house.wrong_calls.given import CLIENTS, DATA, TEST, avg, go, rows

NUMBERS = bf.Dataset(DATA.inputs, DATA.inputs @ torch.tensor([[1.0], [-2.0], [0.5], [0.0]]))
FLAT = replace(NUMBERS, targets=NUMBERS.targets[:, 0])


def line(inputs):
    return inputs[:, :1] * 0.9 + 0.1


class Spread:
    """What metrics of other libraries look like."""

    def __init__(self):
        self.batches = ["left over"]

    def reset(self):
        self.batches = []

    def update(self, outputs, targets):
        self.batches.append((outputs[:, 0] - targets.flatten()).abs())

    def compute(self):
        return torch.cat(self.batches).max()


@pytest.mark.parametrize(
    ("metric", "found"),
    [
        (nn.functional.mse_loss, r"shape \(\)"),
        (lambda outputs, targets: float(outputs.mean()), r"shape \(\)"),
        (lambda outputs, targets: (outputs[:, 0] - targets).square(), r"shape \(6, 6\)"),
        (lambda outputs, targets: (outputs - targets).square().T, r"shape \(1, 6\)"),
        (lambda outputs, targets: None, "None"),
    ],
)
def test_anything_but_one_figure_a_row_is_refused(metric, found):
    words = rf"metric: expected one figure per row \(6,\), found {found}; try reduction='none'"
    with pytest.raises(ArgumentError, match=words):
        score(line, NUMBERS, metric)


def test_a_row_by_itself_and_columns_of_one_have_one_figure_a_row():
    squares = (line(DATA.inputs) - NUMBERS.targets).square()
    for metric in (lambda o, t: (o - t).square(), lambda o, t: (o - t).square()[:, 0]):
        assert score(line, NUMBERS, metric) == pytest.approx(float(squares.mean()))
    # The last batch has one row, and a squeeze leaves no axis.
    squeezed = lambda o, t: (o.squeeze() - t.squeeze()).square()  # noqa: E731
    assert score(line, NUMBERS, squeezed, batch_size=5) == pytest.approx(float(squares.mean()))


@pytest.mark.parametrize("data", [NUMBERS, FLAT], ids=["(N, 1)", "(N,)"])
def test_named_scores_of_numbers(data):
    away = line(DATA.inputs) - NUMBERS.targets
    assert score(line, data, "mse", batch_size=4) == pytest.approx(float(away.square().mean()))
    assert score(line, data, "rmse") == pytest.approx(float(away.square().mean().sqrt()))
    assert score(line, data, "mae") == pytest.approx(float(away.abs().mean()))


def test_named_scores_of_classes():
    logits = torch.randn(6, 3, generator=bf.Key(0, "logits").generator())
    surprise = float(nn.functional.cross_entropy(logits, DATA.targets))
    assert score(lambda inputs: logits, DATA, "nll") == pytest.approx(surprise)
    # Models that return probabilities are scored by them.
    assert score(lambda inputs: logits.softmax(1), DATA, "nll") == pytest.approx(surprise)
    right = float((logits.argmax(1) == DATA.targets).float().mean())
    assert score(lambda inputs: logits, DATA, "accuracy") == pytest.approx(right)


@pytest.mark.parametrize(
    ("data", "metric", "words"),
    [
        (DATA, "f1", r"score, metric: expected a function .* one of \('accuracy', .* found 'f1'"),
        (DATA, "mse", r"metric: expected outputs like the targets, found outputs \(6, 3\)"),
        (NUMBERS, "nll", r"metric 'nll': expected class labels, .*; try metric=lambda outputs"),
        (NUMBERS, "accuracy", "accuracy: expected class labels, .*; try metric='mse'"),
        (replace(DATA, targets=DATA.targets[:, None]), "accuracy", r"labels \(B,\), found"),
    ],
)
def test_named_scores_that_do_not_suit_the_targets_are_refused(data, metric, words):
    with pytest.raises(ArgumentError, match=words):
        score(nn.Linear(4, 3), data, metric)


def test_objects_that_add_batches_up_are_copied_and_begin_anew():
    given = Spread()
    worst = float((line(DATA.inputs) - NUMBERS.targets).abs().max())
    assert score(line, NUMBERS, given, batch_size=2) == pytest.approx(worst)
    assert given.batches == ["left over"]


def test_torchmetrics():
    metrics = pytest.importorskip("torchmetrics")
    f1 = metrics.classification.MulticlassF1Score(num_classes=3, average="macro")
    model = nn.Linear(4, 3)
    alone = float(f1(model(DATA.inputs), DATA.targets))
    assert score(model, DATA, f1, batch_size=4) == pytest.approx(alone)
    assert evaluate(DATA, metric=f1).name == "MulticlassF1Score"


def test_an_entry_has_the_name_of_its_metric():
    # A loss under the name of another would be taken for an accuracy.
    result = go(callbacks=[evaluate(TEST, metric="nll"), evaluate(TEST)])
    assert set(result.history[0].metrics) == {"nll", "accuracy"}
    assert evaluate(TEST, metric=nn.functional.mse_loss).name == "mse_loss"
    assert evaluate(TEST, metric=lambda o, t: t, name="mine").name == "mine"


def test_what_the_refused_test_set_says_to_try_works():
    algorithm = bf.fed_avg(nn.Linear(4, 1), likelihood=bf.Normal(), training=bf.Training(steps=1))
    with pytest.raises(ArgumentError, match=r"try callbacks=\[evaluate\(test, metric='mse'\)\]"):
        go(algorithm, {"a": NUMBERS}, test=NUMBERS)
    for test in (NUMBERS, FLAT):
        found = go(algorithm, {"a": NUMBERS}, callbacks=[evaluate(test, metric="mse")])
        exact = (found.model(DATA.inputs) - NUMBERS.targets).square().mean()
        assert found.final("mse") == pytest.approx(float(exact))


def entered(report):
    report.metrics["flat"] = 1.0


def test_a_callback_shared_by_runs_begins_with_each():
    shared = [entered, early_stop("flat", patience=2)]
    lengths = [len(go(rounds=6, seed=seed, callbacks=shared).history) for seed in (0, 1, 1)]
    assert lengths == [3, 3, 3]
    # In a loop of one's own, too.
    for _ in range(2):
        made = rounds(avg(), bf.InProcess(CLIENTS), rounds=6)
        assert [shared[1](report) for report in made if not entered(report)][:3] == [
            False,
            False,
            True,
        ]


def test_each_round_is_a_line_of_the_log(caplog):
    with caplog.at_level("INFO", logger="bayesfed"):
        result = go(rounds=2, test=TEST)
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("fed_avg, round 0: accuracy ")
    sent = result.bits("up") / 8e3 / 2
    assert f"accuracy {result.final('accuracy'):.4g}, kB down" in second
    assert second.endswith(f"kB up {sent:.4g}")


def test_a_bar_shared_by_runs_counts_from_the_start(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    bar = [progress(2, label="shared")]
    for seed in (0, 1):
        go(rounds=2, seed=seed, callbacks=bar)
    assert capsys.readouterr().err.count("2/2") >= 2


@pytest.mark.parametrize(
    "callbacks",
    [
        lambda: [evaluate(TEST), early_stop("acuracy", patience=3)],
        lambda: [early_stop("accuracy", patience=3), evaluate(TEST)],
    ],
    ids=["misspelt", "before what enters it"],
)
def test_a_figure_that_nobody_enters_is_refused_after_the_first_round(callbacks):
    with pytest.raises(ArgumentError, match=r"early_stop: expected one of \[.*\], found 'ac"):
        go(rounds=5, callbacks=callbacks())


def test_figures_of_some_rounds_of_the_server_and_of_earlier_rounds_count():
    seldom = [evaluate(TEST, every=2), early_stop("accuracy", patience=50)]
    assert len(go(rounds=3, callbacks=seldom).history) == 3
    begun = go(rounds=2, callbacks=[entered])
    stop = early_stop("flat", patience=3)
    ended = go(rounds=9, resume=begun.snapshot, callbacks=[entered, stop])
    assert len(ended.history) == 4


def test_a_series_that_was_never_entered_is_refused():
    result = go(test=rows(4, seed=1))
    assert [number for number, _ in result.series("accuracy")] == [0]
    with pytest.raises(ArgumentError, match="Result.series: expected one of 'accuracy'"):
        result.series("typo")
