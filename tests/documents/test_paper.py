"""The way from a CSV of sites to a paper, as its page says: every file and every command."""

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import bayesfed as bf
from bayesfed.cli.main import main

PAGE = (Path(__file__).parents[2] / "docs/how-to/regression-over-hospitals.md").read_text()


def csv(path, rows):
    draw = np.random.default_rng(0)
    age, dose = draw.normal(0, 1, rows), draw.normal(0, 1, rows)
    ward = draw.choice(["east", "west"], rows)
    stay = 5 + age + 0.5 * dose + draw.normal(0, 0.5, rows)
    frame = pd.DataFrame({"hospital": ["a", "b", "c"] * (rows // 3), "age": age, "ward": ward})
    frame = frame.assign(dose=dose, stay=stay, died=(draw.random(rows) < 0.4).astype(int))
    frame.to_csv(path, index=False)


@pytest.mark.slow
def test_every_command_of_the_page_does_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, rows in (("hospitals", 300), ("new", 9), ("stays", 300)):
        csv(f"{name}.csv", rows)
    died, stays = re.findall(r"^```ini\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    for name, text in (
        ("died", died),
        ("died_by_ward", died.replace("age + ward", "ward")),
        ("stays", stays.replace("rounds = 20", "rounds = 2")),
    ):
        Path(f"{name}.toml").write_text(text)
    assert main(["run", "died.toml", "--quiet"]) == 0
    for block in re.findall(r"^```bash\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            assert words[0] == "bayesfed"
            quiet = [] if words[1] in ("plot", "doctor") else ["--quiet"]
            assert main([*words[1:], *quiet]) == 0, line
    capsys.readouterr()
    table = PAGE.partition("| file in `results/died` |")[2].partition("\n\n")[0]
    written = re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)
    assert len(written) == 5
    assert all((Path("results/died") / name).is_file() for name in written)
    for ending in ("pdf", "svg"):
        assert Path(f"results/died/pictures/coefficients.{ending}").is_file()
        assert Path(f"results/compare-2/curves.{ending}").is_file()
    table = Path("results/compare-2/table.tex").read_text()
    assert "RMSE" in table
    assert "steps=50" in table
    assert " to " in table
    network = bf.open("results/stays-steps=25").network()
    inputs = bf.open("results/stays-steps=25").data["a"].inputs
    assert network(inputs).shape == (len(inputs), 1)
