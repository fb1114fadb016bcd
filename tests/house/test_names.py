"""Names: whatever somebody calls a parameter, a buffer or a latent site, the bits stay the same.

Every leaf of a state, a message, a payload and a memory is named by its owner and its kind first,
so that no name that a user gave can meet one of ours. Here a network has extra parameters and
buffers that are called like every string that the package itself uses as a key of a tree, and like
paths. Each run must give the bits of a run with neutral names in their places. Streams of random
numbers are named by leaves: the run with neutral names draws from those of the given ones.
"""

import ast
import re
from contextlib import contextmanager
from pathlib import Path

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.keys import Key
from tests.support import recipes

PATHS = (
    "x.mean",
    "own.w",
    "layer/w",
    "/w",
    "model/w",
    "exchange/change/w",
    "control/net.0.weight",
    "nll",
    "net.lora_sketch",
    "//model//w",
)
# Constants of these packages become keys of trees.
PLACES = ("algorithms", "federated", "inference", "compress", "models")
CALLS = {"owned", "of", "under", "without", "startswith", "owner_of"}
PACKAGE = Path(bf.__file__).parent


def modules():
    for place in PLACES:
        for path in sorted((PACKAGE / place).rglob("*.py")):
            yield ast.parse(path.read_text())


def texts(node):
    """The strings of a constant, or of a tuple of constants."""
    nodes = node.elts if isinstance(node, ast.Tuple) else [node]
    return [
        one.value if isinstance(one, ast.Constant) and isinstance(one.value, str) else None
        for one in nodes
    ]


def assigned(tree):
    """Module-level constants that are strings, by name."""
    for node in tree.body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                found = texts(node.value)
                if len(names) != len(found):
                    found = [None] * len(names)
                for name, text in zip(names, found, strict=True):
                    if isinstance(name, ast.Name) and name.id.isupper() and text:
                        yield name.id, text


def used(tree):
    """Expressions that a file uses as a key of a tree or as the beginning of one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            yield node.slice
        elif isinstance(node, ast.Dict):
            yield from filter(None, node.keys)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            yield node.left
        elif isinstance(node, ast.JoinedStr):
            yield from (one.value for one in node.values if isinstance(one, ast.FormattedValue))
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in CALLS:
                yield from node.args


def heads(tree):
    """Parts of f-strings that end with a slash."""
    for node in ast.walk(tree):
        for part in node.values if isinstance(node, ast.JoinedStr) else ():
            if isinstance(part, ast.Constant) and part.value.endswith("/"):
                yield part.value


def constants():
    """Every string of the package that is a key of a tree or the beginning of one."""
    trees = list(modules())
    keys = {one.id for tree in trees for one in used(tree) if isinstance(one, ast.Name)}
    found = {text for tree in trees for name, text in assigned(tree) if name in keys}
    found |= {head for tree in trees for head in heads(tree)}
    return sorted(text for text in found if len(text) <= 30 and " " not in text)


def carried():
    """The constants as names, those that end with a slash with a letter behind it, and paths."""
    found = list(PATHS)
    for text in constants():
        found.append(f"{text}w" if text.endswith("/") else text)
    # A module that a path has cannot be a parameter as well.
    modules = {name.rpartition(".")[0] for name in found}
    return sorted({name for name in found if allowed(name) and name not in modules})


def allowed(name):
    """Whether torch takes a name: attributes of modules are taken, and parts are not empty."""
    parts, every = name.split("."), nn.Module()
    return all(parts) and not any(hasattr(every, part) for part in parts)


class Named(nn.Module):
    """A network with extra parameters and buffers under given names, which scale and move its
    inputs.
    """

    def __init__(self, net, parameters, buffers):
        super().__init__()
        self._extra = tuple(parameters), tuple(buffers)
        names = list(enumerate((*parameters, *buffers)))
        # The network's own layers are the last.
        inside = [pair for pair in names if pair[1].startswith("net.")]
        for number, name in (pair for pair in names if pair not in inside):
            self._register(name, number, number < len(parameters))
        self.net = net
        for number, name in inside:
            self._register(name, number, number < len(parameters))

    def _register(self, name, number, trained):
        (owner, leaf), value = self._place(name), torch.full((3,), 0.01 * (number % 7))
        if trained:
            owner.register_parameter(leaf, nn.Parameter(value))
        else:
            owner.register_buffer(leaf, value)

    def _place(self, name):
        owner, (*path, leaf) = self, name.split(".")
        for part in path:
            if part not in owner._modules:
                owner.add_module(part, nn.Module())
            owner = owner._modules[part]
        return owner, leaf

    def _sum(self, names):
        values = [self._place(name) for name in names]
        return sum((getattr(owner, leaf).mean() for owner, leaf in values), torch.zeros(()))

    def forward(self, inputs):
        parameters, buffers = self._extra
        return self.net(inputs * (1 + 0.1 * self._sum(parameters)) + 0.1 * self._sum(buffers))


def neutral(names):
    """Names of the same form, and in the same order among each other and beside ``net``, that
    nothing in the package resembles.
    """
    places = {name: number for number, name in enumerate(sorted(names))}
    modules, found = {}, {}
    for name in names:
        *path, _ = name.split(".")
        begin = f"{'AA' if name < 'net' else 'zz'}{places[name]:03}"
        parts = [
            modules.setdefault(
                tuple(path[: depth + 1]), "net" if path[0] == "net" else f"{begin}m{depth}"
            )
            for depth in range(len(path))
        ]
        found[name] = ".".join([*parts, f"{begin}z"])
    return found


def given_of(name, table):
    """A leaf's name with the given one in the place of a neutral one, which nothing else is; a
    guide's parameter has it amid its own name.
    """
    kind, slash, plain = name.rpartition("/")
    known = next((one for one in table if re.search(rf"(^|\.){one}(_unconstrained)?$", plain)), "")
    return kind + slash + (plain.replace(known, table[known]) if known else plain)


def stream(part, table):
    """Part of the path of a key. On the wire names that begin with a slash have one more."""
    return re.sub("^/+", "/", given_of(part, table)) if isinstance(part, str) else part


@contextmanager
def renamed(monkeypatch, parameters, buffers, table):
    """The recipes on networks and models with these names, and streams by those of a table."""
    mlp, plain, line = recipes.mlp, Key.integer, recipes.line

    def named_line(inputs, targets=None):
        slope = pyro.sample("w0", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        extra = sum(pyro.sample(name, dist.Normal(0.0, 1.0)) for name in parameters)
        with pyro.plate("data", len(inputs)):
            mean = inputs @ slope + 0.1 * extra
            return pyro.sample("y0", dist.Normal(mean, 0.4), obs=targets)

    with monkeypatch.context() as patch:
        patch.setattr(recipes, "mlp", lambda *a, **k: Named(mlp(*a, **k), parameters, buffers))
        patch.setattr(recipes, "line", named_line if parameters else line)
        patch.setattr(
            Key,
            "integer",
            lambda key: plain(Key(key.seed, *(stream(part, table) for part in key.path))),
        )
        yield


def state_of(name, monkeypatch, parameters, buffers, table=None, rounds=1):
    """The leaves after some rounds; neutral names are replaced by those of a table."""
    table = table or {}
    with renamed(monkeypatch, parameters, buffers, table):
        tiny = recipes.tiny_recipes()[name]()
        result = bf.run(tiny.algorithm, tiny.pool(), rounds=rounds, progress=False)
        return {given_of(name, table): leaf for name, leaf in result.snapshot.state.items()}


def compared(name, monkeypatch, parameters, buffers, rounds=1):
    table = neutral([*parameters, *buffers])
    plain = [table[one] for one in parameters], [table[one] for one in buffers]
    inverse = {one: given for given, one in table.items()}
    expected = state_of(name, monkeypatch, *plain, inverse, rounds)
    found = state_of(name, monkeypatch, parameters, buffers, rounds=rounds)
    assert sorted(found) == sorted(expected)
    assert [one for one in expected if not torch.equal(found[one], expected[one])] == []


def test_constants_are_found():
    found = constants()
    assert {"control", "lag", "stack", "svd", "run/nll", "statistics/"} <= set(found)
    assert len(found) > 40


@pytest.mark.parametrize("name", ["fed_avg", "stc", "d_turbo_vbi ternary", "scaffold"])
def test_names_that_look_like_paths_change_nothing(name, monkeypatch):
    names = [one for one in PATHS if allowed(one)]
    compared(name, monkeypatch, names[::2], names[1::2], rounds=2)


def every():
    """The recipes on networks of this kind; channels of such networks cannot be traced."""
    traced = ("hetero_fl", "anycost_fl", "fed_hq", "stc on devices")
    for name in recipes.tiny_recipes():
        if name not in traced:
            yield pytest.param(name)


@pytest.mark.slow
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", list(every()))
def test_no_name_changes_anything(name, turned, monkeypatch):
    names = carried()
    halves = names[turned::2], names[1 - turned :: 2]
    compared(name, monkeypatch, *halves)
