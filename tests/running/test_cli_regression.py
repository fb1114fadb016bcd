"""A regression by formula from TOML and CSV: tables of coefficients and of predictions."""

import re

import numpy as np
import pandas as pd
import pytest

import bayesfed as bf
from bayesfed.cli import runs
from bayesfed.cli.main import main
from bayesfed.inspect import intervals
from bayesfed.running import Folder
from bayesfed.running.experiments.build import build
from bayesfed.running.experiments.experiment import ExperimentError, parse

FILE = """\
[regression]
formula = "stay ~ age"
data = "rows.csv"
site = "hospital"
test = "new.csv"
"""


def rows_in(folder):
    draw = np.random.default_rng(0)
    age = draw.normal(60, 10, 90)
    rows = pd.DataFrame({"age": age, "hospital": np.repeat([*"abc"], 30)})
    rows = rows.assign(stay=3 + 0.1 * age + draw.normal(size=90))
    rows.to_csv(folder / "rows.csv", index=False)
    rows[["age", "hospital"]][::30].to_csv(folder / "new.csv", index=False)
    (folder / "stays.toml").write_text(FILE)


def test_coefficients_and_predictions_are_written(tmp_path, capsys, monkeypatch):
    rows_in(tmp_path)
    assert main(["run", str(tmp_path / "stays.toml"), "--out", str(tmp_path), "--quiet"]) == 0
    folder = tmp_path / "stays" / "seed-0"
    table = pd.read_csv(folder / "coefficients.csv", index_col=["without", "coefficient"])
    assert abs(table.loc[("a", "age"), "mean"] - 0.1) < 4 * table.loc[("a", "age"), "sd"]
    assert len(table) == 3 * 4
    predictions = pd.read_csv(folder / "predictions.csv")
    assert np.abs(predictions["mean"] - (3 + 0.1 * predictions["age"])).max() < 1
    assert "stay ~ age, normal; status exact" in capsys.readouterr().out
    fit = bf.open(tmp_path / "stays")
    found = table.loc["a"].loc[["Intercept", "age", "sigma"]]
    assert np.allclose(fit.without("a").table(), found[["mean", "sd", "low", "high"]])
    lines = (folder / "coefficients.tex").read_text().splitlines()
    row = next(line for line in lines if line.startswith("age"))
    cells = [float(cell) for cell in row.removesuffix(r" \\").split(" & ")[1:]]
    assert np.allclose(cells, fit.table().loc["age"], rtol=6e-3)
    assert main(["plot", str(tmp_path / "stays"), "--format", "pdf", "svg"]) == 0
    begins = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}
    for ending, mark in begins.items():
        drawn = tmp_path / "stays" / "pictures" / f"coefficients.{ending}"
        assert drawn.read_bytes().startswith(mark)
    # More coefficients than a picture has do not fail what ran.
    monkeypatch.setattr(intervals, "MOST", 2)
    assert runs.drawn(Folder(tmp_path / "stays")).startswith("no pictures: plot_intervals: expec")


@pytest.mark.slow
def test_regressions_are_compared_by_their_evidence(tmp_path, capsys):
    rows_in(tmp_path)
    (tmp_path / "level.toml").write_text(FILE.replace("~ age", "~ 1"))
    files = [str(tmp_path / name) for name in ("stays.toml", "level.toml")]
    assert main(["compare", *files, "--out", str(tmp_path), "--quiet"]) == 0
    said = capsys.readouterr().out
    assert f"table.txt: {tmp_path / 'compare'}" in said
    lines = (tmp_path / "compare" / "table.txt").read_text().splitlines()
    heads, one, other = (re.split("  +", line.strip()) for line in (lines[0], *lines[2:4]))
    place = heads.index("log evidence")
    assert float(one[place]) > float(other[place]) + 10
    for command in ("plot", "report"):
        assert main([command, str(tmp_path / "stays")]) == 0


def test_classes_as_a_response(tmp_path):
    rows_in(tmp_path)
    rows = pd.read_csv(tmp_path / "rows.csv")
    rows.assign(stay=(rows["stay"] > 9).astype(int)).to_csv(tmp_path / "rows.csv", index=False)
    (tmp_path / "long.toml").write_text(FILE + 'family = "bernoulli"\n')
    assert main(["run", str(tmp_path / "long.toml"), "--out", str(tmp_path), "--quiet"]) == 0
    table = pd.read_csv(tmp_path / "long/seed-0/coefficients.csv", index_col="coefficient")
    assert (table.loc["age", "low"] > 0).any()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (FILE + "[net]\nkind = 'mlp'\n", r"line 6, net: expected \[regression\] beside none but"),
        (FILE.replace("formula", "formla"), r"line 2.*formula"),
        (FILE, r"line 1, regression: .*rows.csv: expected a readable table"),
        (FILE + 'family = "poison"\n', r"line 6.*poisson"),
        (FILE + "delimiter = '(a+)+$'\n", r"line 1, .*expected one character, found '\(a\+"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text, words, tmp_path):
    with pytest.raises(ExperimentError, match=words):
        build(parse(text, tmp_path / "stays.toml"), 0)


HOSTILE = "stay ~ np.savetxt('canary', age)"


def test_a_formula_of_a_file_is_read_before_any_row(tmp_path, capsys):
    """The CSV is not there: what is told is the formula."""
    path = tmp_path / "stays.toml"
    path.write_text(FILE.replace("stay ~ age", HOSTILE))
    with pytest.raises(ExperimentError, match="a function of log, .*, found 'np.savetxt' at char"):
        build(parse(path.read_text(), path), 0)
    assert main(["run", str(path), "--out", str(tmp_path), "--quiet"]) == 2
    assert main(["doctor", "--estimate", str(path)]) == 2
    rows_in(tmp_path)
    path.write_text(FILE)
    setting = "regression.formula=stay ~ np.fromfile(age)"
    assert main(["compare", str(path), "--set", setting, "--out", str(tmp_path), "--quiet"]) == 2
    assert "a function of log" in (said := capsys.readouterr().err)
    assert "found 'np.fromfile' at character 8" in said
    assert not list(tmp_path.rglob("canary*"))
