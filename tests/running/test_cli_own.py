"""Recipes, networks and data of a user's own files in an experiment."""

from pathlib import Path

import pytest
import torch

import bayesfed as bf
from bayesfed.cli.main import main
from bayesfed.running.experiments import experiment, own
from bayesfed.running.experiments.build import build
from bayesfed.running.experiments.experiment import ExperimentError

SHIPPED = Path(__file__).parents[2] / "examples" / "experiments" / "own"
TOP = """\
rounds = 2
data = { kind = "digits", test = 1600 }
partition = { kind = "iid", clients = 3 }
net = { kind = "mlp", widths = [64, 6, 10] }
draws = 2

[recipe]
"""
PROX = 'kind = "my_method.py:my_prox"\nstrength = 0.1\ntraining = { steps = 2 }\n'
MORE = """

import dataclasses
import torch
from bayesfed.federated import Optimiser
from torch import nn


@dataclasses.dataclass(frozen=True)
class Work:
    steps: int
    optimiser: Optimiser | None = None


def by_work(net: nn.Module, *, work: Work, strength: float = 0.0) -> Algorithm:
    training = bf.Training(steps=work.steps, optimiser=work.optimiser)
    return my_prox(net, strength=strength, training=training)


def untyped(net, steps=2, strength=0.0, optimiser=None):
    return my_prox(net, strength=strength, training=bf.Training(steps=steps))


def no_recipe(net: nn.Module) -> Algorithm:
    return 3


def refuses(net: nn.Module, steps: int = 1) -> Algorithm:
    raise ValueError("steps must be even")


def net(key: bf.Key, hidden: int) -> nn.Module:
    return bf.mlp([64, hidden, 10], key)


def rows(count: int) -> bf.Dataset:
    train, test = bf.digits()
    return train[slice(0, count)]


def split(count: int = 100) -> tuple[bf.Dataset, bf.Dataset]:
    train, test = bf.digits()
    return train[slice(0, count)], test
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "my_method.py").write_text((SHIPPED / "my_prox.py").read_text() + MORE)
    (tmp_path / "broken.py").write_text("import a_package_that_is_not_there\n")
    return tmp_path


def write(folder, recipe, top=TOP, name="mine"):
    path = folder / f"{name}.toml"
    path.write_text(top + recipe)
    return path


def built(folder, recipe, top=TOP, seed=0):
    return build(experiment.read(write(folder, recipe, top)), seed)


def state(made, seed=0):
    return bf.run(
        made.algorithm, made.pool, seed=seed, progress=False, **made.options
    ).snapshot.state


@pytest.mark.slow
def test_a_recipe_of_one_s_own_runs_and_is_compared_beside_a_shipped_one(folder, capsys):
    mine, shipped = write(folder, PROX), write(folder, 'kind = "fed_avg"\n', name="fed_avg")
    out = str(folder / "results")
    assert main(["run", str(mine), "--out", out, "--quiet"]) == 0
    assert main(["compare", str(mine), str(shipped), "--out", out, "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert "mine/seed-0: finished before" in printed
    rows = (folder / "results" / "compare" / "table.txt").read_text().splitlines()
    assert [row.split()[0] for row in rows[2:4]] == ["mine", "fed_avg"]
    assert main(["plot", str(folder / "results" / "mine")]) == 0


def test_it_is_the_method_that_its_parts_make(folder):
    made = built(folder, PROX)
    assert (
        made.algorithm.phases[0].local.objective.strength,
        made.algorithm.phases[0].local.steps,
    ) == (0.1, 2)
    mine, plain = state(made), state(built(folder, PROX.replace("0.1", "0.0")))
    assert any(not torch.equal(leaf, plain[name]) for name, leaf in mine.items())
    again = state(built(folder, 'kind = "my_method.py:untyped"\n'))
    assert all(torch.equal(leaf, plain[name]) for name, leaf in again.items())


@pytest.mark.parametrize("work", ["work = { steps = 2 }", "[recipe.work]\nsteps = 2"])
def test_a_value_of_values_is_a_table_by_its_annotation(folder, work):
    nested, flat = (
        state(built(folder, f'kind = "my_method.py:by_work"\n{work}\n')),
        state(built(folder, PROX.replace("0.1", "0.0"))),
    )
    assert all(torch.equal(leaf, flat[name]) for name, leaf in nested.items())


def test_networks_and_data_of_one_s_own(folder):
    top = TOP.replace(
        '{ kind = "digits", test = 1600 }', '{ kind = "my_method.py:rows", count = 50 }'
    )
    top = top.replace('kind = "mlp", widths = [64, 6, 10]', 'kind = "my_method.py:net", hidden = 5')
    made = built(folder, 'kind = "fed_avg"\n', top, seed=3)
    assert len(made.train) + len(made.test) == 50
    expected = bf.mlp([64, 5, 10], bf.Key(3, "net")).state_dict()
    assert all(
        torch.equal(leaf, made.algorithm.initial[f"model/{name}"])
        for name, leaf in expected.items()
    )
    assert (
        len(
            built(
                folder,
                PROX,
                TOP.replace('{ kind = "digits", test = 1600 }', '"my_method.py:split"'),
            ).train
        )
        == 100
    )


SMALL = """
from torch import nn

import bayesfed as bf


class Small(nn.Sequential):
    pass


def small(key: bf.Key) -> nn.Module:
    return Small(bf.mlp([64, 6, 10], key))
"""


@pytest.mark.slow
def test_a_class_of_one_s_own_reaches_a_worker_that_was_not_forked(folder):
    (folder / "small.py").write_text(SMALL)
    top = TOP.replace('{ kind = "mlp", widths = [64, 6, 10] }', '{ kind = "small.py:small" }')
    recipe = 'kind = "fed_avg"\ntraining = { steps = 1 }\n'
    serial = state(built(folder, recipe, top))
    made = built(folder, recipe + '[pool]\nworkers = 1\nstart = "forkserver"\n', top)
    with made.pool:
        there = state(made)
    assert all(torch.equal(leaf, there[name]) for name, leaf in serial.items())


def test_results_of_another_text_of_the_file_are_others(folder):
    path = write(folder, PROX)
    before = experiment.read(path).digest
    (folder / "my_method.py").write_text((folder / "my_method.py").read_text() + "\n# changed\n")
    assert experiment.read(path).digest != before


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        (
            'kind = "my_metod.py:my_prox"',
            "line 8, recipe.kind: my_metod.py:my_prox: expected a Python file, found no file",
        ),
        ('kind = "my_metod.py:my_prox"', "my_metod.py; try my_method.py"),
        ('kind = "elsewhere/x.py:my_prox"', "try a path that begins at"),
        (
            'kind = "my_method.py:my_pros"',
            (
                "line 8, recipe.kind: my_method.py:my_pros: expected a function of my_method.py: "
                "my_prox, by_work"
            ),
        ),
        (
            'kind = "my_method.py:my_pros"',
            'found no function `my_pros`; try "my_method.py:my_prox"',
        ),
        (
            'kind = "broken.py:x"',
            (
                "line 8, recipe.kind: broken.py: expected a Python file that runs, found "
                "ModuleNotFoundError: No module named"
            ),
        ),
        (
            'kind = "my_method.py:no_recipe"',
            (
                "line 7, recipe: expected Algorithm from my_method.py:no_recipe, found 3 (a whole "
                "number); try"
            ),
        ),
        (
            'kind = "my_method.py:refuses"',
            (
                "line 7, recipe: expected arguments that fit together, found ValueError: "
                "steps must be "
                "even"
            ),
        ),
        (
            'kind = "my_method.py:my_prox"\nstrenght = 1',
            (
                "line 9, recipe.strenght: expected a key of my_prox: net, strength, "
                "training, link, "
                "found"
            ),
        ),
        ('kind = "my_method.py:my_prox"\nstrenght = 1', "try `strength`"),
        (
            'kind = "my_method.py:my_prox"',
            (
                "line 7, recipe.strength: expected `strength`: a number, found nothing; "
                "try strength = "
                "0.1"
            ),
        ),
        (
            'kind = "my_method.py:by_work"\nwork = { step = 2 }',
            "line 9, recipe.work.step: expected a key of Work: steps, optimiser, found `step`",
        ),
        (
            'kind = "my_method.py:by_work"\nwork = { steps = "2" }',
            'line 9, recipe.work.steps: expected a whole number, found "2" (text); try 2, without',
        ),
        (
            'kind = "my_method.py:untyped"\noptimiser = "Adam"',
            "recipe.optimiser: expected a key of untyped: steps, strength, found",
        ),
        (
            'kind = "my_method.py:untyped"\noptimiser = "Adam"',
            "try a type of `optimiser` in the signature",
        ),
        ('kind = "my_method:my_prox"', "line 8, recipe.kind: expected one of anycost_fl"),
        ('kind = "os.path:join"', "line 8, recipe.kind: expected one of anycost_fl"),
    ],
)
def test_wrong_recipes_are_told(folder, recipe, told):
    with pytest.raises(ExperimentError) as caught:
        built(folder, recipe + "\n")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nothing_is_imported_that_a_file_does_not_name_as_its_own(folder, monkeypatch):
    monkeypatch.setattr(own, "load", lambda *given: pytest.fail("nothing is to be loaded"))
    for kind in ("my_method:my_prox", "bayesfed.fed_avg", "os.system", "my_method.py"):
        with pytest.raises(ExperimentError, match="expected one of anycost_fl"):
            built(folder, f'kind = "{kind}"\n')


def test_the_shipped_example_fits_together():
    made = build(experiment.read(SHIPPED / "my_prox.toml"), 1)
    assert made.algorithm.name == "my_prox"
    assert made.algorithm.phases[0].local.objective.strength == 0.1
