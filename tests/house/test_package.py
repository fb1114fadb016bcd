"""The package as a newcomer meets it: imports, names, docstrings, floors."""

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import bayesfed as bf
from bayesfed.inspect import PersonalScores

ROOT = Path(__file__).parents[2]


def modules():
    return [info.name for info in pkgutil.walk_packages(bf.__path__, "bayesfed.")]


def test_importing_it_imports_nothing_heavy():
    code = (
        "import sys, bayesfed; print([m for m in ('torch', 'pyro', 'arviz', 'matplotlib', "
        "'sklearn', 'scipy', 'networkx') if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


@pytest.mark.slow
def test_running_it_imports_no_arviz_and_no_pictures():
    code = (
        "import sys, bayesfed; bayesfed.run, bayesfed.d_turbo_vbi; print([m for m in ('arviz', "
        "'matplotlib', 'sklearn') if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


def test_every_exported_name_resolves_and_strangers_do_not():
    assert bf.__all__
    for name in bf.__all__:
        assert getattr(bf, name) is not None
        assert name in dir(bf)
    assert callable(bf.run)
    with pytest.raises(AttributeError, match="no attribute 'fed_average'; did you mean .*fed_avg"):
        bf.fed_average  # noqa: B018
    for name, home in (("Ivon", "federated.Ivon"), ("Turn", "algorithms.Turn")):
        with pytest.raises(AttributeError, match=rf"^bayesfed\.{name} is bayesfed\.{home}$"):
            getattr(bf, name)


@pytest.mark.parametrize("name", modules())
def test_every_public_name_has_a_docstring(name):
    module = importlib.import_module(name)
    assert module.__doc__
    for attribute, value in vars(module).items():
        if (
            attribute.startswith("_")
            or getattr(value, "__module__", None) != name
            or not (inspect.isclass(value) or inspect.isfunction(value))
        ):
            continue
        assert inspect.getdoc(value), f"{name}.{attribute}"
        for method, function in vars(value).items() if inspect.isclass(value) else ():
            if not method.startswith("_") and inspect.isfunction(function):
                assert function.__doc__, f"{name}.{attribute}.{method}"


def section(value, head):
    parts = re.split(r"^(\w+)\n---+\n", inspect.getdoc(value), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True)).get(head, "")


@pytest.mark.parametrize("name", [name for name in bf.__all__ if callable(getattr(bf, name))])
def test_a_docstring_explains_every_parameter(name):
    value = getattr(bf, name)
    heads = re.findall(r"^([\w*].*)", section(value, "Parameters"), re.MULTILINE)
    told = {one.strip(" *") for head in heads for one in head.split(",")}
    assert [one for one in inspect.signature(value).parameters if one not in told] == []


def examples(name):
    value = getattr(bf, name)
    found = doctest.DocTestParser().get_examples(inspect.getdoc(value)) if callable(value) else []
    return re.sub(r"rounds=\d+", "rounds=1", "".join(one.source for one in found))


# That of `regression` takes long; tests of its own fit what it does.
EXAMPLES = [name for name in bf.__all__ if name != "regression" and examples(name)]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_of_a_docstring_runs(name):
    data = bf.Dataset(torch.randn(60, 4), torch.arange(60) % 3)
    clients = bf.federate(data, bf.iid(60, 4, bf.Key(0)))
    given = {"bf": bf, "clients": clients, "held_out": clients, "inputs": data.inputs}
    own = vars(inspect.getmodule(inspect.unwrap(getattr(bf, name))))
    every = {one: getattr(bf, one) for one in bf.__all__}
    exec(examples(name), every | own | given | {"net": bf.mlp([4, 8, 3], bf.Key(0))})


@pytest.mark.parametrize("name", bf.methods())
def test_the_docstring_of_a_recipe_names_its_paper(name):
    method = bf.methods()[name]
    entry = bf.citation(name).split("\n@")[0]
    title = re.sub("[{}]", "", re.search(r"title\s*= \{(.*)\}", entry)[1])
    assert title in " ".join(section(method.make, "References").split())


@pytest.mark.parametrize(
    "path", sorted((ROOT / "bayesfed").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_no_assert_and_no_seeding_outside_tests(path):
    tree = ast.parse(path.read_text())
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    seeding = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in ("manual_seed", "set_rng_seed", "seed_all")
    ]
    assert not seeding or path.name == "keys.py"


def test_both_halves_open_from_the_front_door():
    for half in ("models", "inference"):
        assert (ROOT / half).is_symlink()
        assert (ROOT / half).resolve() == (ROOT / "bayesfed" / half).resolve()


def test_errors_are_also_the_builtins():
    from bayesfed import errors

    for error, builtin in (
        (errors.ArgumentError, ValueError),
        (errors.DataError, ValueError),
        (errors.PriorError, ValueError),
        (errors.WireError, ValueError),
        (errors.UpdateError, ValueError),
        (errors.CheckpointError, ValueError),
        (errors.ClientError, RuntimeError),
        (errors.MissingExtraError, ImportError),
    ):
        assert issubclass(error, builtin)
        assert issubclass(error, errors.BayesfedError)
    assert "pip install 'bayesfed[examples]'" in str(
        errors.MissingExtraError("matplotlib", "examples")
    )


@pytest.mark.slow
def test_kernels_leave_the_number_of_torchs_threads_alone():
    """Numba's OpenMP layer sets it for the whole process; a fresh process, since the layer starts
    once.
    """
    code = (
        "import torch, bayesfed as bf; torch.set_num_threads(1); "
        "bf.infer(bf.FactorGraph.grid((300, 300), 0.6, 0.6), method='bp'); "
        "print(torch.get_num_threads())"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "1"
    )


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("fedavg", "fed_avg"),
        ("FedAvg", "fed_avg"),
        ("dturbovbi", "d_turbo_vbi"),
        ("categorical", "Categorical"),
    ],
)
def test_the_nearest_names_come_first(wrong, right):
    with pytest.raises(AttributeError, match=f"has no attribute '{wrong}'; did you mean {right}"):
        getattr(bf, wrong)
    with pytest.raises(AttributeError, match="'zzzz'; It has Adam"):
        bf.zzzz  # noqa: B018
    with pytest.raises(
        AttributeError, match="bayesfed.inspect.*'plot_serie'; did you mean plot_ser"
    ):
        bf.inspect.plot_serie  # noqa: B018


@pytest.mark.parametrize(
    ("call", "wrong", "right"),
    [
        (lambda word: bf.regression("y ~ x", {}, family=word), "poison", "poisson"),
        (lambda word: bf.federated_svi(lambda x, y: None, scale=word), "globl", "global"),
        (lambda word: PersonalScores({"a": {"mse": 1.0, "nll": 2.0}}).mean(word), "nlll", "nll"),
    ],
)
def test_of_some_words_the_nearest_is_told(call, wrong, right):
    with pytest.raises(bf.errors.ArgumentError, match=f"; try '{right}'$"):
        call(wrong)
