"""Scores of uncertainty that an experiment file asks for: in the records, in the table, and the
same as computed by hand.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import bayesfed as bf
from bayesfed.cli.main import main
from bayesfed.data import concatenated
from bayesfed.errors import ArgumentError
from bayesfed.inference.evaluation.detection import detection
from bayesfed.keys import Key
from bayesfed.running.experiments import experiment
from bayesfed.running.experiments.build import build
from bayesfed.running.experiments.experiment import ExperimentError

TEXT = """\
rounds = 2
data = { kind = "from_npz", path = "images.npz" }
partition = { kind = "iid", clients = 3 }
net = { kind = "mlp", widths = [36, 6, 3] }
own_rows = 0.2
scores = ["calibration", "selective", "detection", "conformal"]

[recipe]
kind = "fed_avg"
training = { steps = 20 }
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    noise = np.random.default_rng(0)
    labels = np.arange(300) % 3
    images = np.clip(
        noise.random((300, 6, 6)) / 2 + 0.5 * (np.arange(6)[:, None] // 2 == labels[:, None, None]),
        0,
        1,
    )
    labels = np.where(noise.random(300) < 0.2, (labels + 1) % 3, labels)
    np.savez(tmp_path / "images.npz", inputs=images.astype(np.float32), targets=labels)
    (tmp_path / "point.toml").write_text(TEXT)
    return tmp_path


@pytest.mark.slow
def test_they_are_entered_after_the_last_round_and_compared(folder, capsys):
    assert main(["compare", "point.toml", "--quiet"]) == 0
    found = json.loads(Path("results/point/seed-0/metrics.json").read_text())
    built = build(experiment.read(folder / "point.toml"), 0)
    model = bf.run(built.algorithm, built.pool, rounds=2, progress=False).model
    outside = bf.data.out_of_distribution(built.test, Key(0, "outside")).values()
    areas = [
        detection(-model(built.test.inputs).amax(1), -model(rows).amax(1))["auroc"]
        for rows in outside
    ]
    assert found["auroc_max_logit"] == pytest.approx(sum(areas) / 4, abs=1e-6)
    assert "auroc_mutual_information" not in found
    held = concatenated(list(built.own.values()))
    scores = 1 - model(held.inputs).softmax(1).gather(1, held.targets[:, None])[:, 0]
    # Thresholds are rounded up to thousandths.
    limit = float(
        torch.ceil(1000 * scores.sort().values[int(np.ceil(0.9 * (len(held) + 1))) - 1]) / 1000
    )
    p = model(built.test.inputs).softmax(1)
    right = p.gather(1, built.test.targets[:, None])[:, 0] >= 1 - limit
    likeliest = p.argmax(1) == built.test.targets
    assert found["conformal_coverage"] == pytest.approx(
        float((right | likeliest).double().mean()), abs=1e-6
    )
    assert {
        "adaptive_ece",
        "brier",
        "aurc",
        "coverage_at_risk",
        "fpr95_entropy",
        "conformal_size",
    } <= found.keys()
    first, last = (
        json.loads(line)["metrics"]
        for line in Path("results/point/seed-0/rounds.jsonl").read_text().splitlines()
    )
    assert "aurc" in last
    assert "aurc" not in first
    heading = next(
        line for line in capsys.readouterr().out.splitlines() if line.startswith("experiment")
    )
    assert all(
        name in heading
        for name in (
            "adaptive ECE",
            "AURC",
            "AUROC max logit",
            "90 % sets cover %",
            "classes a set",
        )
    )


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ("own_rows = 0.2\n", "", "rows that clients hold out"),
        ('"selective"', '"sharpness"', "scores"),
        ('path = "images.npz"', 'path = "images.npz", scale = 3.0', "from 0 to 1"),
        ("[36, 6, 3]", "[36, 6, 1]", None),
    ],
)
def test_what_cannot_be_scored_is_told_with_its_line(folder, before, after, what):
    text = TEXT.replace(before, after)
    if what is None:
        text, what = (
            text.replace('"images.npz"', '"images.npz", regression = true'),
            "targets that are classes",
        )
    (folder / "wrong.toml").write_text(text)
    with pytest.raises((ExperimentError, ArgumentError), match=what):
        build(experiment.read(folder / "wrong.toml"), 0)
