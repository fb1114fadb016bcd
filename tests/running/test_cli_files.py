"""Experiment files: what a right one builds, and what a wrong one is told."""

import pickle
import re
from pathlib import Path

import pytest
import torch

import bayesfed as bf
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.running.experiments import experiment, names
from bayesfed.running.experiments.build import build, seeds
from bayesfed.running.experiments.experiment import ExperimentError
from bayesfed.running.experiments.kinds import keys, options

RIGHT = """\
rounds = 2
seeds = [0, 1]
data = "digits"

[partition]
kind = "dirichlet"
clients = 10
alpha = 0.5

[net]
kind = "mlp"
widths = [64, 8, 10]

[recipe]
kind = "fed_avg"
training = { steps = 2, optimiser = { kind = "Adam", learning_rate = 5e-3 } }
codec = { kind = "Cast", bits = 16 }
"""
FED_AVG = 'kind = "fed_avg"\n'
AIR = '\n[link]\nkind = "OverTheAir"\nsnr_db = 20\n'

# What is written wrong, what is told: line, key, and what to try.
WRONG = {
    "what other packages call a rate": (
        "steps = 2",
        "lr = 2",
        "line 16, recipe.training.lr: expected a key of Training",
        "try `optimiser`",
    ),
    "a key that is nearly right": (
        "steps = 2",
        "step = 2",
        "line 16, recipe.training.step: expected a key of Training",
        "try `steps`",
    ),
    "a number in quotes": (
        "steps = 2",
        'steps = "2"',
        'line 16, recipe.training.steps: expected a whole number, found "2" (text)',
        "try 2, without quotes",
    ),
    "half a step": (
        "steps = 2",
        "steps = 2.5",
        "line 16, recipe.training.steps: expected a whole number, found 2.5",
        "try 2",
    ),
    "true for a number": (
        "rounds = 2",
        "rounds = true",
        "line 1, rounds: expected a whole number, found true",
        "try 10",
    ),
    "a key of the top that is nearly right": (
        "rounds = 2",
        "round = 2",
        "line 1, round: expected a key",
        "try `rounds`",
    ),
    "no rounds": (
        "rounds = 2\n",
        "",
        "rounds: expected `rounds`: a whole number, found nothing",
        "try rounds = 10",
    ),
    "rounds below 1": (
        "rounds = 2",
        "rounds = 0",
        "line 1, rounds: expected a whole number from 1, found 0",
        "try rounds = 10",
    ),
    "one seed without a list": (
        "[0, 1]",
        "7",
        "line 2, seeds: expected a list, each a whole number, found 7",
        r"try [7]",
    ),
    "a seed twice": (
        "[0, 1]",
        "[3, 3]",
        "line 2, seeds: expected different whole numbers",
        "try [0, 1, 2]",
    ),
    "data that are nearly right": (
        '"digits"',
        '"digit"',
        "line 3, data: expected one of",
        'try "digits"',
    ),
    "text without quotes": (
        '"digits"',
        "digits",
        "expected a TOML file, found Invalid value (at line 3",
        "text in quotes",
    ),
    "a table twice": (
        "[recipe]",
        "[net]",
        "expected a TOML file, found Cannot declare ('net',) twice (at line 14",
        "try every key and every [table] once",
    ),
    "a partition that is nearly right": (
        '"dirichlet"',
        '"direchlet"',
        "line 6, partition.kind: expected one of dirichlet, iid",
        'try "dirichlet"',
    ),
    "alpha below 0": (
        "alpha = 0.5",
        "alpha = -0.5",
        "line 5, partition: dirichlet, alpha: expected alpha > 0, found -0.5",
        "try 0.5",
    ),
    "no alpha": (
        "alpha = 0.5\n",
        "",
        "line 5, partition.alpha: expected `alpha`: a number, found nothing",
        "try alpha = 0.1",
    ),
    "too few inputs": (
        "[64, 8, 10]",
        "[32, 8, 10]",
        "line 10, net: expected a network that takes the data",
        "try widths = [64, 8, 10]; rows of the data are (8, 8), 64 numbers each, in 10 classes",
    ),
    "too few classes": (
        "[64, 8, 10]",
        "[64, 8, 3]",
        "line 10, net: expected outputs (10,) a row, found (3,)",
        "try widths = [64, 8, 10]",
    ),
    "text for a list": (
        "[64, 8, 10]",
        '"64"',
        "line 12, net.widths: expected a list, each a whole number",
        'found "64" (text); try [',
    ),
    "text in a list": (
        "[64, 8, 10]",
        '[64, "8", 10]',
        "line 12, net.widths[1]: expected a whole number",
        "try 8, without quotes",
    ),
    "a recipe that is nearly right": (
        '"fed_avg"',
        '"fedavg"',
        "line 15, recipe.kind: expected one of anycost_fl",
        'try "fed_avg"',
    ),
    "a recipe of Python alone": (
        '"fed_avg"',
        '"conjugate"',
        "line 15, recipe.kind: expected one of anycost_fl",
        "try one of these; conjugate is for another place, or for Python alone",
    ),
    "another case": (
        '"Adam"',
        '"adam"',
        "line 16, recipe.training.optimiser.kind: expected one of Adam, Ivon, NaturalGradient, Sgd",
        'try "Adam"',
    ),
    "a number for an optimiser": (
        '{ kind = "Adam", learning_rate = 5e-3 }',
        "0.01",
        'line 16, recipe.training.optimiser: expected one of "Adam"',
        'try { kind = "Adam", learning_rate = 0.01 }',
    ),
    "a rate below 0": (
        "5e-3",
        "-1",
        "line 16, recipe.training.optimiser: Adam, learning_rate: expected a number in (0, inf)",
        "try 1e-3",
    ),
    "bits that there are not": (
        "bits = 16",
        "bits = 12",
        "line 17, recipe.codec: Cast, bits: expected one of 16, 32, 64",
        '{ kind = "Cast", bits = 32 } in a file',
    ),
    "a key at the wrong place": (
        FED_AVG,
        FED_AVG + "seeds = [1]\n",
        "line 16, recipe.seeds: expected a key of fed_avg",
        "at the top of the file",
    ),
    "a recipe's key at the top": (
        "rounds = 2",
        "rounds = 2\nmasked = true",
        "line 2, masked: expected a key",
        "try `masked` below [recipe]",
    ),
    "a word that is none": (
        FED_AVG,
        FED_AVG + 'buffers = "means"\n',
        'line 16, recipe.buffers: expected one of "static"',
        'try "mean"',
    ),
    "a link that is nearly right": (
        FED_AVG,
        FED_AVG,
        "line 22, link.snr: expected a key of OverTheAir",
        "try `snr_db`",
    ),
    "a net for what builds its own": (
        FED_AVG,
        (
            'kind = "split_mix"\nmake = { kind = "mlp", widths = [64, 4, 10] }\nnets_of = [2, '
            '1]\ncapacity = "fixed"\n'
        ),
        "line 10, net: expected no [net]",
        "try leaving it out",
    ),
    "adapters that are not there": (
        FED_AVG,
        'kind = "fed_lora"\n',
        "line 14, recipe: lora_rank: expected adapters",
        '{ kind = "lora", rank = 8, ... } in a file',
    ),
    "ratios that are not there": (
        FED_AVG,
        'kind = "fed_hm"\ncapacity = "fixed"\n',
        "line 14, recipe.ratios: expected `ratios`: a list",
        "try ratios = [1.0, 0.5]",
    ),
    "what only Python can say": (
        FED_AVG,
        'kind = "federated_svi"\nelbo = "Trace_ELBO"\n',
        "line 16, recipe.elbo: expected a key of federated_svi",
        "Python: a file cannot write this one",
    ),
    "a file that is not there": (
        '"digits"',
        '{ kind = "from_csv", path = "rows.csv", label = "y" }',
        "line 3, data: rows.csv: expected a file, found none of this name",
        "paths begin at the folder of mine.toml, or where the command is run",
    ),
    "no kind": (
        'kind = "dirichlet"\n',
        "",
        'line 5, partition: expected kind = "..."',
        'try kind = "dirichlet"',
    ),
    "no clients": (
        "clients = 10",
        "clients = 0",
        "line 5, partition: partition: expected at least one client, found 0",
        "try clients=10",
    ),
    "a list of one": (
        "[64, 8, 10]",
        "[64]",
        "net: mlp, widths: expected a list of two or more whole numbers from 1, found [64]",
        "try [64, 32, 10]",
    ),
    "domains that there are not": (
        'kind = "dirichlet"\nclients = 10\nalpha = 0.5',
        'kind = "by_domain"',
        "line 5, partition: partition by domain: expected rows with domains, found none",
        'or kind = "iid"',
    ),
    "what is frozen": (
        'kind = "mlp"\nwidths = [64, 8, 10]\n\n[recipe]\nkind = "fed_avg"',
        (
            'kind = "lora"\nrank = 2\nnet = { kind = "mlp", widths = [64, 8, 10] '
            '}\n\n[recipe]\nkind = "fed_l1"'
        ),
        "line 15, recipe: fed_l1, where: expected parameters that are trained",
        '{ kind = "merged", ... } in a file',
    ),
}
ADDED = {"a link that is nearly right": AIR + "snr = 3\n", "a link for what has none": AIR}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_told_where_what_and_what_to_try(case):
    old, new, *told = WRONG[case]
    assert old in RIGHT
    text = RIGHT.replace(old, new, 1) + ADDED.get(case, "")
    with pytest.raises(ExperimentError) as caught:
        build(file := experiment.parse(text, "mine.toml"), seeds(file)[0])
    message = str(caught.value)
    assert message.startswith("mine.toml")
    assert [part for part in told if part not in message] == [], message
    assert "\n" not in message


def test_an_error_keeps_its_parts_on_its_way_between_processes():
    with pytest.raises(ExperimentError) as caught:
        build(experiment.parse(RIGHT.replace('"digits"', '"digit"')), 0)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.line, copy.key, copy.complaint.hint, str(copy)) == (
        3,
        "data",
        '"digits"',
        str(caught.value),
    )


def test_there_are_twenty_cases_and_more():
    assert len({tuple(told) for _, _, *told in WRONG.values()}) == len(WRONG) >= 20


def told(path):
    with pytest.raises(ExperimentError) as caught:
        experiment.read(path)
    return str(caught.value)


def test_who_names_no_experiment_is_told_the_nearest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert told("fed_avg.toml").endswith(
        "found no such file; try `bayesfed list`, which says what a file may say; at the "
        "least rounds, data, [net] and [recipe]"
    )
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'mine'\n")
    (tmp_path / "broken.toml").write_text("data = digits\nrecipe = fed_avg")
    assert "try `bayesfed list`" in told("fed_avg.toml")
    (tmp_path / "experiments").mkdir()
    for name in ("fed_avg", "fed_paq", "anycost", "stc"):
        (tmp_path / "experiments" / f"{name}.toml").write_text(RIGHT)
    assert told("fedavg.toml").endswith(
        "; try experiments/fed_avg.toml or experiments/fed_paq.toml or experiments/anycost.toml"
    )
    assert "expected an experiment file, found a folder; try experiments/" in told("experiments")
    assert (
        "expected an experiment file, with data, recipe and rounds, found none of them; "
        "try experiments/"
    ) in told("pyproject.toml")
    (tmp_path / "latin.toml").write_bytes("name = 'é'".encode("latin-1"))
    assert "try a text file in UTF-8 that may be read" in told("latin.toml")


def test_the_right_file_is_the_readme_s_experiment():
    built = build(experiment.parse(RIGHT), 0)
    train, test = bf.digits()
    expected = bf.federate(train, bf.dirichlet(train.targets, 10, 0.5, bf.Key(0, "partition")))
    assert all(
        torch.equal(built.clients[name].inputs, part.inputs) for name, part in expected.items()
    )
    net = bf.mlp([64, 8, 10], bf.Key(0, "net"))
    algorithm = bf.fed_avg(
        net, training=bf.Training(steps=2, optimiser=bf.Adam(5e-3)), codec=bf.Cast(16)
    )
    by_hand = bf.run(algorithm, expected, rounds=2, test=test, progress=False)
    by_file = bf.run(
        built.algorithm, built.pool, test=built.test, seed=0, progress=False, **built.options
    )
    assert by_file.bits() == by_hand.bits()
    assert all(
        torch.equal(leaf, by_hand.snapshot.state[name])
        for name, leaf in by_file.snapshot.state.items()
    )


@pytest.mark.parametrize(
    "path",
    sorted((Path(__file__).parents[2] / "examples" / "experiments").glob("*.toml")),
    ids=lambda path: path.stem,
)
def test_examples_fit_together(path):
    file = experiment.read(path)
    assert build(file, seeds(file)[0]).algorithm.name == path.stem
    assert len(seeds(file)) > 1


def test_the_files_of_the_page_fit_together():
    page = (
        Path(__file__).parents[2] / "docs" / "how-to" / "compare-from-the-command-line.md"
    ).read_text()
    shown = [
        text for text in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if "[recipe]" in text
    ]
    assert [build(experiment.parse(text), 0).algorithm.name for text in shown] == [
        "fed_paq",
        "d_turbo_vbi",
    ]


def test_seeds_name_partition_and_first_weights():
    first, second = (build(experiment.parse(RIGHT), seed) for seed in (0, 1))
    assert not torch.equal(
        first.algorithm.initial["model/1.weight"], second.algorithm.initial["model/1.weight"]
    )
    assert [len(part) for part in first.clients.values()] != [
        len(part) for part in second.clients.values()
    ]


TABLES = """\
# a = 0
a = '''
x = 1'''
"b.c" = "[not.a.table] # nor a comment"
[t] # t
x = [
  1,
  { kind = 'a,]b', more = [1, 2] },
]
[t.s]
deep.er = 1

[[many]]
n = 1
[[many]]
n = 2
[many.sub]
k = 2020-01-01
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("a",), 2),
        (("b.c",), 4),
        (("t", "x", 1, "kind"), 8),
        (("t", "s"), 10),
        (("t", "s", "deep"), 11),
        (("many", 0, "n"), 14),
        (("many", 1, "n"), 16),
        (("many", 1, "sub", "k"), 18),
        (("after",), None),
    ],
)
def test_lines_of_keys(path, line):
    assert experiment.line_of(TABLES, path) == line


def test_what_a_file_may_name_is_what_the_package_exports():
    assert set(options(Algorithm)) <= {*bf.__all__, *bf.algorithms.__all__}
    assert {
        "fed_avg",
        "d_turbo_vbi",
        "fed_hm",
        "fs_lora",
        "federated_svi",
        "split_mix",
        "hetero_fl",
        "anycost_fl",
        "fed_hq",
    } <= set(options(Algorithm))
    assert set(names.makers(Algorithm)) - set(options(Algorithm)) == {
        "Algorithm",
        "batch_statistics",
        "conjugate",
    }


@pytest.mark.parametrize("recipe", list(options(Algorithm)))
def test_the_signature_is_the_schema(recipe):
    """Every parameter is a key, or its type is one that the list here says no file can write."""
    python_only = {"elbo", "sample", "key", "example", "up", "parameters", "rows"}
    assert (
        set(names.parameters(names.public()[recipe])) - set(keys(names.public()[recipe]))
        <= python_only
    )
