"""Golden digests: the state after two rounds of every shipped recipe, serially and with two
workers, the metrics and the ledger's bits of these rounds, and the beliefs of `infer` on eight
graphs.

Bits of a run hold on one kind of processor and one build of torch. So each entry of
``golden_states.json`` has digests, which must be equal where the machine is of the kind that wrote
the file (`machine`), and the mean magnitude of every leaf and the names of metrics, which must
agree everywhere. To write the file anew, knowingly::

    python -m tests.house.test_golden_states --write
"""

import hashlib
import itertools
import json
import sys
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch

import bayesfed as bf
from bayesfed.federated.clients.process_group import machine
from bayesfed.inference import FactorGraph, infer
from bayesfed.models import Grid, Link
from bayesfed.models.random_fields.support_priors import MarkovGrid
from tests.support import recipes

FILE = Path(__file__).parent / "golden_states.json"
KEY = bf.Key(0, "golden states")


def digit_rows(count=12):
    """Four clients with so many digits each, of all ten classes."""
    train, _ = bf.digits()
    return {
        f"client-{number}": train[slice(number * count, (number + 1) * count)]
        for number in range(recipes.CLIENTS)
    }


def on_digits():
    """The shipped recipes with digits as their rows."""
    recipes.FEATURES, recipes.CLASSES, recipes.rows = 64, 10, digit_rows
    return recipes.tiny_recipes()


def after_two_rounds(name, workers=0):
    kept = recipes.FEATURES, recipes.CLASSES, recipes.rows
    try:
        tiny = on_digits()[name]()
        with tiny.pool(workers=workers) as pool:
            return bf.run(tiny.algorithm, pool, rounds=2, progress=False, on_client_error="drop")
    finally:
        recipes.FEATURES, recipes.CLASSES, recipes.rows = kept


def pairs(edges, coupling, count):
    """A graph of binary variables that agree along edges, with drawn fields."""
    graph = nx.Graph()
    fields = torch.randn(
        count, generator=KEY.child("fields").generator(), dtype=torch.float64
    ).tolist()
    for node in range(count):
        graph.add_node(node, type="variable", card=2)
        graph.add_node(
            ("field", node), type="factor", scope=(node,), factor=np.array([0.0, fields[node]])
        )
        graph.add_edge(("field", node), node)
    for left, right in edges:
        graph.add_node(
            (left, right),
            type="factor",
            scope=(left, right),
            factor=np.array([[coupling, 0.0], [0.0, coupling]]),
        )
        graph.add_edges_from([((left, right), left), ((left, right), right)])
    return FactorGraph.from_networkx(graph)


def triples():
    """Three variables of three states around a table of all three, and a chain to a fourth."""
    generator = np.random.default_rng(0)
    graph = nx.Graph()
    for node in "abcd":
        graph.add_node(node, type="variable", card=3)
    for scope in (("a", "b", "c"), ("c", "d"), ("a", "d")):
        graph.add_node(
            scope, type="factor", scope=scope, factor=generator.normal(size=(3,) * len(scope))
        )
        graph.add_edges_from((scope, name) for name in scope)
    return FactorGraph.from_networkx(graph)


def graphs():
    """Eight graphs with the method each is given to."""
    evidence = torch.randn(20, 16, generator=KEY.child("evidence").generator(), dtype=torch.float64)
    link = Link(1.1, -0.6, -0.4)
    grid = Grid((20, 16), link, link, 0.1)
    tree = nx.random_labeled_tree(12, seed=0)
    return {
        "grid exact": (Grid((6, 5), link, link, 0.1), evidence[:6, :5].contiguous(), {}),
        "grid bp": (grid, evidence, {"method": "bp"}),
        "grid strip": (grid, evidence, {"method": "strip"}),
        "markov support": (
            MarkovGrid().lower((9, 30)),
            evidence[:9, :].repeat(1, 2)[:, :30].contiguous(),
            {},
        ),
        "tree": (pairs(tree.edges, 0.9, 12), None, {}),
        "ring": (pairs([(i, (i + 1) % 8) for i in range(8)], 0.7, 8), None, {"method": "bp"}),
        "complete": (pairs(itertools.combinations(range(6), 2), 0.2, 6), None, {"method": "bp"}),
        "tables": (triples(), None, {"method": "bp"}),
    }


def digest(tree):
    """SHA-256 of names, types, shapes and bytes, in the order of the names."""
    found = hashlib.sha256()
    for name, leaf in sorted(tree.items()):
        found.update(f"{name} {leaf.dtype} {tuple(leaf.shape)}".encode())
        found.update(leaf.detach().contiguous().cpu().numpy().tobytes())
    return found.hexdigest()[:32]


def magnitudes(tree):
    return {
        name: float(leaf.double().abs().mean()) if leaf.numel() else 0.0
        for name, leaf in sorted(tree.items())
    }


def metrics(history):
    """The metrics of all rounds as leaves: those of clients, of the server and of callbacks."""
    tables = {
        (record.round, whose): values
        for record in history
        for whose, values in {
            **{f"client {name}": figures for name, figures in record.clients.items()},
            "server": record.server,
            "metrics": record.metrics,
        }.items()
    }
    return {
        f"{number}/{whose}/{name}": torch.tensor([float(value)], dtype=torch.float64)
        for (number, whose), values in tables.items()
        for name, value in values.items()
    }


def costs(history):
    """Bits and channel uses of every message in the ledger, as leaves."""
    return {
        f"{row.round}/{row.phase}/{row.client}/{row.direction}/{number}": torch.tensor(
            [row.cost.bits, row.cost.channel_uses], dtype=torch.float64
        )
        for record in history
        for number, row in enumerate(record.rows)
    }


def packed(result):
    """What the file has of a run."""
    state, figures = result.snapshot.state, metrics(result.history)
    return {
        "digest": digest(state),
        "magnitudes": magnitudes(state),
        "metrics": digest(figures),
        "names of metrics": sorted({name.split("/")[-1] for name in figures}),
        "costs": digest(costs(result.history)),
    }


def canary():
    """The build, the instructions, and the bits of a training that needs nothing of the package."""
    return {name: text for name, text in machine().items() if name != "GPU"}


def beliefs(name):
    graph, evidence, options = graphs()[name]
    result = infer(graph, evidence, tol=1e-9, warn=False, **options)
    return {"marginals": result.marginals, "log_z": result.log_z.reshape(1)}


def agrees(entry, tree, *, loosely=1e-3):
    found = magnitudes(tree)
    assert found == pytest.approx(entry["magnitudes"], rel=loosely, abs=1e-6)
    if json.loads(FILE.read_text())["canary"] == canary():
        assert digest(tree) == entry["digest"]


def entries(kind):
    return json.loads(FILE.read_text())[kind]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", recipes.tiny_recipes())
def test_states_are_what_they_were(name, workers):
    entry, result = entries("states")[name], after_two_rounds(name, workers)
    agrees(entry, result.snapshot.state, loosely=0.05)
    found = packed(result)
    assert found["names of metrics"] == entry["names of metrics"]
    if json.loads(FILE.read_text())["canary"] == canary():
        assert (found["metrics"], found["costs"]) == (entry["metrics"], entry["costs"])


# Strips of four rows take ten seconds to compile.
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name == "grid strip")) for name in graphs()],
)
def test_beliefs_are_what_they_were(name):
    agrees(entries("beliefs")[name], beliefs(name))


def write():
    """Write the file anew."""
    found = {
        "canary": canary(),
        "states": {name: packed(after_two_rounds(name)) for name in recipes.tiny_recipes()},
        "beliefs": {
            name: {"digest": digest(tree), "magnitudes": magnitudes(tree)}
            for name, tree in ((name, beliefs(name)) for name in graphs())
        },
    }
    FILE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    write()
