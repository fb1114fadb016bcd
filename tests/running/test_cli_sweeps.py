"""Sweeps from the command line: an experiment for each combination of values, one table in four
forms, differences over the same seeds, and several processes.
"""

import csv
import itertools

import pytest
from scipy.stats import ttest_rel

from bayesfed.cli.main import main
from bayesfed.errors import ArgumentError
from bayesfed.running.experiments.experiment import parse, read
from bayesfed.running.experiments.sweeps import swept

TEXT = """\
rounds = 2
seeds = [0, 1, 2]
data = { kind = "blobs", samples = 60 }
partition = { kind = "iid", clients = 2 }
net = { kind = "mlp", widths = [8, 3] }

[recipe]
kind = "fed_paq"
training = { steps = 1, optimiser = { kind = "Sgd", learning_rate = 0.1 } }
"""


def command(path, out, *given):
    assert main(["compare", str(path), "--out", str(out), "--quiet", *given]) == 0
    with (out / "compare" / "table.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "base.toml"
    file.write_text(TEXT)
    return file


def test_there_is_an_experiment_for_each_combination(path):
    file = parse(TEXT + '\n[sweep]\n"recipe.bits" = [4, 8]\n', path)
    found = swept(file, ["recipe.training.steps=1,3", "recipe.kind=fed_paq", "seeds=[5]"])
    assert [one.name for one in found] == [
        f"base-bits={bits}-steps={steps}" for bits, steps in itertools.product((4, 8), (1, 3))
    ]
    for one, (bits, steps) in zip(found, itertools.product((4, 8), (1, 3)), strict=True):
        wanted = parse(TEXT, path).tree
        wanted["recipe"] |= {"bits": bits, "kind": "fed_paq"}
        wanted["recipe"]["training"]["steps"] = steps
        # What is kept in the folder of results is what is run.
        assert one.tree == wanted | {"seeds": [5]} == parse(one.text).tree
        assert one.path.parent == path.parent
    assert "bits" not in file.tree["recipe"]
    assert swept(parse(TEXT, path)) == [parse(TEXT, path)]


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("recipe.bits", r"expected KEY=VALUE\[,VALUE...\], found recipe.bits"),
        ("recpie.bits=4", "expected a table 'recpie' in base.toml.*--set recipe.bits=..."),
        ("recipe.kind.bits=4", "expected a table 'recipe.kind'"),
    ],
)
def test_a_setting_that_changes_nothing_is_refused(path, setting, told):
    with pytest.raises(ArgumentError, match=told):
        swept(parse(TEXT, path), [setting])


@pytest.mark.slow
def test_one_table_has_them_all_and_their_differences(path, tmp_path, capsys):
    rows = command(path, tmp_path / "out", "--set", "recipe.training.steps=1,4")
    names = ["base-steps=1", "base-steps=4"]
    assert [(row["experiment"], row["seed"]) for row in rows] == [
        (name, seed) for name in names for seed in "012"
    ]
    few, many = ([float(r["nll"]) for r in rows if r["experiment"] == name] for name in names)
    low, high = ttest_rel(many, few).confidence_interval(0.95)
    mean = sum(many) / 3 - sum(few) / 3
    told = f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"
    into = tmp_path / "out" / "compare"
    assert told in capsys.readouterr().out
    assert all(told in (into / f"table.{ending}").read_text() for ending in ("txt", "md", "tex"))
    latex = (into / "table.tex").read_text()
    assert r"accuracy \%" in latex
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == 2
    assert all((into / f"curves.{ending}").stat().st_size > 5000 for ending in ("pdf", "svg"))


def test_a_file_with_a_sweep_is_no_single_run(path, tmp_path, capsys):
    path.write_text(TEXT + '\n[sweep]\n"recipe.bits" = [4, 8]\n')
    assert main(["run", str(path), "--out", str(tmp_path / "out")]) == 2
    assert f"try bayesfed compare {path}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_two_processes_make_the_table_of_one(path, tmp_path):
    given = ["--set", "recipe.bits=4,8"]
    tables = [command(path, tmp_path / workers, *given, "--workers", workers) for workers in "12"]
    for row in itertools.chain(*tables):
        del row["seconds"]
    assert tables[0] == tables[1]


def test_a_key_is_set_once_and_by_one_worker_at_least(path, capsys):
    with pytest.raises(ArgumentError, match=r"every key once.*--set rounds=4,8"):
        swept(parse(TEXT, path), ["rounds=4", "rounds=8"])
    assert main(["compare", str(path), "--workers", "0", "--out", str(path.parent)]) != 0
    assert "compare, --workers: expected a whole number >= 1" in capsys.readouterr().err


def test_a_file_may_begin_with_a_byte_order_mark(path):
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    assert read(path).tree == parse(TEXT).tree
