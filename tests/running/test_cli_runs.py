"""The command line as it is used: run, interrupt and go on, compare, plot, list, doctor."""

import csv
import json
import subprocess
import sys

import pytest
from safetensors.torch import load_file

import bayesfed as bf
from bayesfed.cli import runs
from bayesfed.cli.main import main
from bayesfed.errors import ArgumentError
from bayesfed.inspect.learning_curves import plot_curves
from bayesfed.running.comparison import comparison
from bayesfed.running.folders import Folder
from tests.conftest import tree_equal
from tests.support.records import untimed

TEXT = """\
rounds = 3
data = {{ kind = "digits", test = 1600 }}
partition = {{ kind = "iid", clients = 3 }}
net = {{ kind = "mlp", widths = [64, 6, 10] }}
draws = 3
seeds = {seeds}

[recipe]
kind = "{recipe}"
training = {{ steps = 2 }}
"""


@pytest.fixture
def make(tmp_path):
    def made(recipe="fed_avg", seeds="[0]", name=None, more=""):
        path = tmp_path / f"{name or recipe}.toml"
        path.write_text(TEXT.format(recipe=recipe, seeds=seeds) + more)
        return str(path)

    return made


def command(*given):
    return main([*map(str, given), "--quiet"])


def test_run_leaves_one_folder_with_everything(make, tmp_path, capsys):
    out = tmp_path / "results"
    assert command("run", make("d_turbo_vbi", "[0, 4]"), "--out", out) == 0
    folder = out / "d_turbo_vbi"
    found = {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and "checkpoints" not in path.parts
    }
    each = {
        "rounds.jsonl",
        "ledger.csv",
        "method.json",
        "metrics.json",
        "model.safetensors",
        "posterior.nc",
    }
    pictures = {"pictures/curves.png", "pictures/partition.png", "pictures/reliability.png"}
    whole = {"experiment.toml", "settings.json", "versions.json", "card.md"}
    assert found == whole | pictures | {f"seed-{seed}/{name}" for seed in (0, 4) for name in each}
    history = Folder(folder).history(4)
    assert [record.round for record in history] == [0, 1, 2]
    assert all({"accuracy", "nll", "ece", "elbo"} <= set(record.metrics) for record in history)
    metrics = json.loads((folder / "seed-4" / "metrics.json").read_text())
    with (folder / "seed-4" / "ledger.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert sum(int(row["bits"]) for row in rows) == metrics["bits_up"] + metrics["bits_down"]
    assert json.loads((folder / "versions.json").read_text())[-1]["torch"]
    again = bf.open(folder, seed=4)
    assert again.history == tuple(history)
    assert tree_equal(again.model.parameters, load_file(folder / "seed-4" / "model.safetensors"))
    assert set(again.belief) <= set(again.model.parameters)
    assert len(again.data) == 3
    printed = capsys.readouterr().out
    assert "d_turbo_vbi" in printed
    assert "±" in printed
    (folder / "pictures" / "curves.png").unlink()
    assert main(["plot", str(folder)]) == 0
    assert str(folder / "pictures" / "curves.png") in capsys.readouterr().out
    assert (folder / "pictures" / "curves.png").is_file()


@pytest.mark.slow
def test_what_is_finished_is_not_run_again_and_never_written_over(make, tmp_path, capsys):
    out, path = tmp_path / "results", make()
    assert command("run", path, "--out", out) == 0
    before = {
        file: file.read_bytes()
        for file in (out / "fed_avg" / "seed-0").rglob("*")
        if file.is_file()
    }
    assert command("run", path, "--out", out) == 0
    assert "finished before" in capsys.readouterr().out
    assert {file: file.read_bytes() for file in before} == before
    make(seeds="[1]")
    assert command("run", path, "--out", out) == 0
    assert {file: file.read_bytes() for file in before} == before
    assert (out / "fed_avg-2" / "seed-1" / "metrics.json").is_file()


@pytest.mark.parametrize("recipe", ["fed_avg", pytest.param("d_turbo_vbi", marks=pytest.mark.slow)])
def test_an_interrupted_run_goes_on_to_the_same_numbers(
    make, tmp_path, monkeypatch, recipe, capsys
):
    path, whole, broken = make(recipe), tmp_path / "whole", tmp_path / "broken"
    assert command("run", path, "--out", whole) == 0

    def power_cut(*given, **named):
        raise KeyboardInterrupt

    scored = runs.scoring

    def once(*given, **named):
        callback = scored(*given, **named)
        return lambda report: power_cut() if report.round == 2 else callback(report)

    with monkeypatch.context() as patch:
        patch.setattr(runs, "scoring", once)
        assert command("run", path, "--out", broken) == 1
    assert not (broken / recipe / "seed-0" / "metrics.json").exists()
    assert command("run", path, "--out", broken) == 0
    assert "going on after round 1" in capsys.readouterr().out
    first, second = (Folder(out / recipe).history(0) for out in (whole, broken))
    assert [untimed(record) for record in first] == [untimed(record) for record in second]
    models = [
        (out / recipe / "seed-0" / "model.safetensors").read_bytes() for out in (whole, broken)
    ]
    assert models[0] == models[1]


@pytest.mark.slow
def test_compare_runs_reads_prints_and_draws(make, tmp_path, capsys):
    out = tmp_path / "results"
    assert command("run", make(), "--out", out) == 0
    assert command("compare", out / "fed_avg", make("fed_paq", "[0, 1]"), "--out", out) == 0
    printed = capsys.readouterr().out
    table = (out / "compare" / "table.txt").read_text()
    assert table.strip() in printed
    heading, _, first, second, *_ = table.splitlines()
    assert all(
        name in heading for name in ("accuracy %", "NLL", "ECE", "MB down", "MB up", "clock s")
    )
    assert "joules" not in heading
    assert first.split()[:3] == ["fed_avg", "1", "3"]
    assert second.split()[:3] == ["fed_paq", "2", "3"]
    assert (out / "compare" / "curves.png").stat().st_size > 10_000
    assert {path.name for path in (out / "fed_paq" / "pictures").iterdir()} == {
        "curves.png",
        "partition.png",
        "reliability.png",
    }
    assert command("compare", out / "fed_avg", out / "fed_paq", "--out", out) == 0
    assert (out / "compare-2" / "table.txt").read_text() == table


@pytest.mark.slow
def test_curves_are_means_and_deviations_over_seeds(make, tmp_path):
    from bayesfed.inspect.learning_curves import curves

    assert command("run", make(seeds="[0, 1, 2]"), "--out", tmp_path) == 0
    histories = [Folder(tmp_path / "fed_avg").history(seed) for seed in (0, 1, 2)]
    panel = curves({"fed_avg": histories})["accuracy"]
    found = panel["megabytes"]["fed_avg"]
    last = [history[-1].metrics["accuracy"] for history in histories]
    assert found.mean[-1] == pytest.approx(sum(last) / 3)
    assert found.sd[-1] == pytest.approx(
        (sum((one - sum(last) / 3) ** 2 for one in last) / 2) ** 0.5
    )
    spent = [
        sum(row.bits for record in history for row in record.rows) / 8e6 for history in histories
    ]
    assert found.x[-1] == pytest.approx(sum(spent) / 3)
    assert panel["joules"] == {}


@pytest.mark.slow
def test_devices_have_joules_and_seconds(make, tmp_path, capsys):
    more = (
        'kind = "on_devices"\nplanner = { sizes = [1.0], deadline_s = 100.0 }\nalgorithm = { '
        'kind = "fed_avg" }\n'
    )
    more += '[devices]\nkind = "fleet"\nenergy_j = [100, 200]\n'
    path = make("x", name="placed")
    text = (tmp_path / "placed.toml").read_text()
    (tmp_path / "placed.toml").write_text(
        text.replace('kind = "x"\ntraining = { steps = 2 }\n', more)
    )
    assert command("run", path, "--out", tmp_path / "results") == 0
    assert "joules" in capsys.readouterr().out
    assert (
        json.loads((tmp_path / "results/placed/seed-0/metrics.json").read_text())["latency_s"] > 0
    )
    assert command("run", make(), "--out", tmp_path / "results") == 0
    placed, plain = (Folder(tmp_path / "results" / name) for name in ("placed", "fed_avg"))
    # Who has no devices has no joules, which is not nothing; and a clock is not compared with
    # devices.
    cells = {
        line.split()[0]: line.split()
        for line in comparison({"placed": placed, "plain": plain}).splitlines()
    }
    assert cells["plain"][-3:-1] == ["-", "-"]
    assert "-" not in cells["placed"]

    def panels(**folders):
        figure = plot_curves({name: [folder.history(0)] for name, folder in folders.items()})
        return [
            axes.get_xlabel().removesuffix(" (log)") for axes in figure.axes if axes.get_xlabel()
        ]

    shared = ["round", "megabytes sent, down and up"]
    joules, device, clock = (
        "joules of all devices",
        "seconds of the devices",
        "seconds of this computer's clock",
    )
    assert panels(placed=placed) == [*shared, joules, device]
    assert panels(plain=plain) == [*shared, clock]
    assert panels(placed=placed, plain=plain) == [*shared, joules, device, clock]


def test_numbers_from_a_table_are_scored_as_numbers(make, tmp_path, capsys):
    rows = [[(7 * row + 3 * i) % 11 / 11 for i in range(4)] for row in range(60)]
    (tmp_path / "rows.csv").write_text(
        "\n".join(["a,b,c,d,y", *(",".join(map(str, [*row, sum(row)])) for row in rows)])
    )
    text = (
        'rounds = 2\ndata = { kind = "from_csv", path = "rows.csv", label = "y", regression = '
        'true }\npartition = { kind = "iid", clients = 3 }\n'
    )
    text += (
        'net = { kind = "mlp", widths = [4, 6, 1] }\nrecipe = { kind = "fed_avg", training = { '
        'steps = 2 }, likelihood = "Normal" }\n'
    )
    (tmp_path / "numbers.toml").write_text(text)
    assert command("run", tmp_path / "numbers.toml", "--out", tmp_path / "results") == 0
    printed = capsys.readouterr().out
    assert "RMSE" in printed
    assert "accuracy %" not in printed


def test_check_runs_nothing(make, tmp_path, capsys):
    assert command("run", make(), "--check", "--out", tmp_path / "results") == 0
    assert "fits together" in capsys.readouterr().out
    assert not (tmp_path / "results").exists()


def test_check_tells_that_a_likelihood_does_not_take_the_targets(make, tmp_path, capsys):
    (tmp_path / "rows.csv").write_text("a,y\n" + "".join(f"{row},{row / 7}\n" for row in range(30)))
    (tmp_path / "numbers.toml").write_text(
        "rounds = 1\n"
        'data = { kind = "from_csv", path = "rows.csv", label = "y", regression = true }\n'
        'net = { kind = "mlp", widths = [1, 1] }\nrecipe = "fed_avg"\n'
    )
    assert command("run", tmp_path / "numbers.toml", "--check") == 2
    told = capsys.readouterr().err
    assert "line 4, recipe: Categorical: expected logits (B, C) and integer labels" in told
    assert "try likelihood=Normal() for numbers" in told


def test_errors_are_one_line_and_status_2(make, tmp_path, capsys):
    assert command("run", tmp_path / "no.toml") == 2
    assert "expected an experiment file" in capsys.readouterr().err
    assert command("run", make("fed_average"), "--out", tmp_path) == 2
    assert 'try "fed_avg"' in capsys.readouterr().err
    assert main(["plot", str(tmp_path)]) == 2
    assert "no experiment.toml in it" in capsys.readouterr().err
    assert command("compare", make(), make(), "--out", tmp_path) == 2
    assert "different names" in capsys.readouterr().err


def test_commands_of_other_rooms_are_handed_what_follows(tmp_path, capsys):
    assert main(["new", str(tmp_path / "app")]) == 0
    assert (tmp_path / "app" / "experiment.py").is_file()
    with pytest.raises(SystemExit):
        main(["worker", "--client", "ward-a"])
    assert (
        "bayesfed worker: error: the following arguments are required: --socket"
        in capsys.readouterr().err
    )


@pytest.mark.slow
def test_it_says_its_version_as_a_command_and_as_a_module(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"bayesfed {bf.__version__}\n"
    given = [sys.executable, "-m", "bayesfed", "list", "iid"]
    assert subprocess.run(given, capture_output=True, text=True, check=True).stdout.startswith(
        "iid: Shuffle the rows"
    )


def test_list_names_the_keys_of_a_pool_that_a_file_may_give(capsys, make, tmp_path):
    from bayesfed.running.experiments.kinds import keys

    assert main(["list", "experiment"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("pool "))
    listed = line.partition(": ")[2].split(", ")
    assert set(listed) == {*keys(bf.InProcess)} - {"data", "devices", "secrets"}
    assert command("run", make(more="[pool]\nworkers = 1\nkind = 'thread'\n"), "--check") == 0
    assert command("run", make(more="[pool]\ndevices = 1\n"), "--check") == 2
    assert (
        "pool.devices: expected a key of InProcess: samples, workers, kind, "
        in capsys.readouterr().err
    )
    assert command("run", make(more="[pool]\nworker = 1\n"), "--check") == 2
    assert "line 12, pool.worker: expected a key of InProcess" in capsys.readouterr().err
    (tmp_path / "x.toml").write_text(
        'pool = "InProcess"\nrounds = 1\ndata = "digits"\nrecipe = "fed_avg"'
    )
    assert command("run", tmp_path / "x.toml", "--check") == 2
    told = capsys.readouterr().err
    assert (
        f"line 1, pool: expected a table with keys of InProcess: {', '.join(listed)}, "
        'found "InProcess"'
    ) in told


@pytest.mark.slow
def test_a_reader_who_has_enough_ends_the_output_quietly():
    given = [sys.executable, "-m", "bayesfed", "list"]
    with subprocess.Popen(
        given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as started:
        started.stdout.close()
        assert started.stderr.read() == ""
    assert started.returncode == 0


@pytest.mark.parametrize("quiet", [True, False])
def test_quiet_silences_bars_that_others_draw(make, tmp_path, capfd, monkeypatch, quiet):
    from tqdm import tqdm

    scored = runs.scoring

    def with_bar(*given, **named):
        # As message passing does in a server's step that takes longer than two seconds.
        list(tqdm(range(3), desc="message passing"))
        return scored(*given, **named)

    monkeypatch.setattr(runs, "scoring", with_bar)
    assert main(["run", make(), "--out", str(tmp_path / "results"), *["--quiet"][:quiet]]) == 0
    assert ("message passing" in capfd.readouterr().err) is not quiet
    assert not tqdm(range(0)).disable


def test_list_has_a_line_for_everything(capsys):
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    for name in (
        "fed_avg",
        "d_turbo_vbi",
        "digits",
        "dirichlet",
        "OverTheAir",
        "PosteriorGrid",
        "MarkovGrid",
        "Horseshoe",
        "Adam",
        "Krum",
    ):
        assert any(
            line.startswith(f"  {name} ") and len(line.split()) > 3 for line in printed.splitlines()
        ), name
    # A sentence, or its beginning.
    assert all(line.endswith((".", " ...")) for line in printed.splitlines() if " fed_" in line)
    assert main(["list", "fedavg"]) == 2
    assert "try fed_avg" in capsys.readouterr().err
    assert main(["list", "fed_prox"]) == 0
    printed = capsys.readouterr().out
    assert bf.fed_prox.__doc__.splitlines()[0] in printed
    assert ["strength", "required", "a", "number"] in [
        line.split() for line in printed.splitlines()
    ]
    assert main(["list", "experiment"]) == 0
    assert main(["list", "fedprox"]) == 2
    assert "try fed_prox" in capsys.readouterr().err


def test_doctor_says_what_is_missing_and_how_to_get_it(capsys, monkeypatch):
    from bayesfed.cli import doctor
    from bayesfed.errors import DataError

    def nowhere():
        raise DataError("fashion_mnist", "four files", "none", "apt install dataset-fashion-mnist")

    monkeypatch.setattr(
        doctor, "installed", lambda package: "" if package == "cryptography" else "1.0"
    )
    monkeypatch.setattr(
        doctor,
        "options",
        lambda hint: {"fashion_mnist": nowhere, "digits": bf.digits, "from_csv": bf.data.from_csv},
    )
    assert main(["doctor"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "secure missing: cryptography pip install 'bayesfed[secure]'" in lines
    assert "dp installed" in lines
    assert "digits 1,437 rows + 360 rows" in lines
    assert (
        "fashion_mnist missing: fashion_mnist: expected four files, found none apt install "
        "dataset-fashion-mnist"
    ) in lines
    assert any(
        line.startswith("from_csv reads your files path = ..., label = ...") for line in lines
    )


@pytest.mark.slow
def test_a_run_made_in_python_is_saved_once_and_compared_with_files(
    make, tmp_path, clients, digits, capsys
):
    test = digits[1]
    for seed in (0, 3):
        algorithm = bf.fed_avg(bf.mlp((64, 6, 10), bf.Key(seed)), training=bf.Training(steps=2))
        result = bf.run(algorithm, clients, rounds=2, test=test, seed=seed, progress=False)
        assert result.save(tmp_path / "mine", test=test) == tmp_path / "mine" / f"seed-{seed}"
    assert Folder(tmp_path / "mine").history(3) == list(result.history)
    again = bf.open(tmp_path / "mine", seed=3, algorithm=algorithm)
    assert again.history == result.history
    assert tree_equal(again.snapshot.state, result.snapshot.state)
    with pytest.raises(ArgumentError, match=r"expected the algorithm.*algorithm=algorithm"):
        bf.open(tmp_path / "mine")
    with pytest.raises(ArgumentError, match="open, seed: expected"):
        bf.open(tmp_path / "mine", seed=1, algorithm=algorithm)
    with pytest.raises(ArgumentError, match="a folder of results, found no experiment.toml in it"):
        bf.open(tmp_path)
    with pytest.raises(ArgumentError, match=r"Result.save: expected a folder without this run"):
        result.save(tmp_path / "mine")
    assert main(["plot", str(tmp_path / "mine")]) == 0
    assert command("compare", tmp_path / "mine", make(), "--out", tmp_path / "out") == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("mine"))
    assert row.split()[1:3] == ["2", "2"]
