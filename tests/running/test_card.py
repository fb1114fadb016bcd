"""The model card beside the results, and the estimate of a run before it starts."""

import json
import re

import torch
from torch import nn

import bayesfed as bf
from bayesfed.cli.main import main
from tests.house.wrong_calls.given import CLIENTS, avg, rows

TEXT = """\
rounds = 4
data = { kind = "digits", test = 1600 }
partition = { kind = "iid", clients = 3 }
net = { kind = "mlp", widths = [64, 6, 10] }
recipe = { kind = "RECIPE", training = { steps = 2 } }
seeds = [0, 1]
"""


def section(card, name):
    return re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", card, re.DOTALL | re.MULTILINE)[1]


def run(tmp_path, recipe="fed_avg"):
    (tmp_path / "one.toml").write_text(TEXT.replace("RECIPE", recipe))
    assert main(["run", str(tmp_path / "one.toml"), "--out", str(tmp_path), "--quiet"]) == 0
    return tmp_path / "one"


def test_a_card_says_what_was_learned_of_whom_and_how_well(tmp_path):
    folder = run(tmp_path)
    card = (folder / "card.md").read_text()
    assert card.startswith("# one\n\nMethod `fed_avg`, 4 rounds,")
    share = json.loads((folder / "seed-1" / "metrics.json").read_text())["accuracy"]
    # Wilson's interval by its formula.
    z, count = 1.959964, 1600
    centre = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * (share * (1 - share) / count + z**2 / (4 * count**2)) ** 0.5
    said = f"on {count} rows: {share:.4f}, 95 % interval (Wilson) {centre - half:.4f} to"
    assert f"{said} {centre + half:.4f}." in section(card, "Scores")
    assert re.search(r"\| one \| 2 \| 4 \| [\d.]+ ± [\d.]+ \|", card)
    data = section(card, "Data")
    assert data.startswith("\n197 rows of 3 clients:")
    assert "| client-000 | 66 |" in data
    assert "No differential privacy" in section(card, "Privacy")
    limits = section(card, "Limits")
    assert "without a posterior" in limits
    assert "One seed" not in limits


def test_a_card_says_what_is_promised_and_what_is_missing(tmp_path):
    clients = {"a|1": rows(6), "b": rows(2), "c": rows(4)}
    two = {"rounds": 2, "progress": False, "sampler": lambda round, names, key: ["a|1", "c"]}
    bf.run(avg(), clients, **two).save(tmp_path / "few")
    card = (tmp_path / "few" / "card.md").read_text()
    assert "Never heard, and so not in the model: b." in section(card, "Limits")
    assert "One seed" in section(card, "Limits")
    assert r"| a\|1 | 6 |" in section(card, "Data")
    noise = {"clip": 1.0, "noise": 5.0, "delta": 1e-5, "key": bf.Key(0, "noise")}
    private = bf.run(bf.private(avg(), participants=2, **noise), CLIENTS, rounds=2, progress=False)
    private.save(tmp_path / "private")
    said = section((tmp_path / "private" / "card.md").read_text(), "Privacy")
    assert f"Epsilon {private.health.epsilon:.4g} at delta 1e-05, for all rounds." in said


def test_a_card_of_labels_by_place_has_no_interval_of_rows(tmp_path):
    data = bf.Dataset(torch.randn(40, 3, 4), torch.randint(0, 2, (40, 3)))
    algorithm = bf.fed_avg(nn.Linear(4, 2), likelihood=bf.models.Labels())
    result = bf.run(algorithm, {"a": data}, rounds=1, test=data, progress=False)
    result.save(tmp_path / "labels", test=data)
    scores = section((tmp_path / "labels" / "card.md").read_text(), "Scores")
    assert f"| {100 * result.final('accuracy'):.2f} |" in scores
    assert "interval" not in scores


def test_a_card_loads_no_rows_of_a_population(tmp_path):
    loaded = []

    def load(name):
        loaded.append(name)
        return rows(6)

    many = bf.data.Population([f"c{i}" for i in range(30)], [6] * 30, load)
    one = {"sampler": lambda round, names, key: ["c3"]}
    bf.run(avg(), many, rounds=1, progress=False, **one).save(tmp_path / "many")
    assert set(loaded) <= {"c0", "c3"}
    assert "180 rows of 30 clients: 6 to 6 rows each." in (tmp_path / "many/card.md").read_text()


def test_an_estimate_is_what_the_run_then_costs(tmp_path, capsys):
    spent = json.loads((run(tmp_path) / "seed-0" / "metrics.json").read_text())
    capsys.readouterr()
    assert main(["doctor", "--estimate", str(tmp_path / "one.toml")]) == 0
    lines = [re.split("  +", line) for line in capsys.readouterr().out.splitlines()]
    found = {line[0]: line[1:] for line in lines}
    for way in ("down", "up"):
        assert int(found[f"bytes {way}"][2].replace(",", "")) * 8 == spent[f"bits_{way}"]
    assert float(found["seconds"][2]) >= 0
    assert lines[-1][0].startswith("most memory of this process: ")


def test_an_estimate_says_what_a_run_would_be_refused_for(tmp_path, capsys):
    (tmp_path / "one.toml").write_text(
        TEXT.replace("RECIPE", "fed_avg") + "[sweep]\nrounds = [1]\n"
    )
    assert main(["doctor", "--estimate", str(tmp_path / "one.toml")]) == 2
    assert "expected one experiment, found a sweep; try bayesfed compare" in capsys.readouterr().err
