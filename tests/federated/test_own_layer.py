"""A layer of one's own, in 30 lines of one file outside the package, runs around every method,
over workers, ranks and Flower, and a run with it goes on from a snapshot.
"""

import inspect
from pathlib import Path

import pytest

import bayesfed as bf
from bayesfed.federated import layered
from tests.conftest import tree_equal
from tests.flower.flower_grid import pool_over
from tests.support import logged, recipes
from tests.support.logged import Logged

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "write-your-own.md"
QUICK = ("fed_avg", "stc", "d_turbo_vbi", "laplace")


def run(algorithm, pool, rounds=2, **options):
    with pool:
        return bf.run(
            algorithm,
            pool,
            rounds=rounds,
            progress=False,
            on_client_error="drop",
            **options,
        )


def around(tiny):
    return layered(tiny.algorithm, Logged(), one_phase=False)


def parted(tree):
    """The layer's leaves of a tree, and all others."""
    own = {name: leaf for name, leaf in tree.items() if "log/" in name}
    return own, {name: leaf for name, leaf in tree.items() if name not in own}


def test_the_how_to_prints_it():
    source = inspect.getsource(Logged)
    assert source in PAGE.read_text(encoding="utf-8")
    assert len(inspect.getsource(logged).splitlines()) <= 30


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in recipes.tiny_recipes()
    ],
)
def test_it_changes_nothing_else_and_runs_over_workers_with_a_resume(name):
    tiny = recipes.tiny_recipes()[name]()
    algorithm = around(tiny)
    alone, whole = run(tiny.algorithm, tiny.pool()), run(algorithm, tiny.pool())
    own, others = parted(whole.snapshot.state)
    assert tree_equal(others, alone.snapshot.state)
    turns = 2 * len(algorithm.phases) / len(own)
    assert {float(leaf) for leaf in own.values()} == {turns}
    for client, memory in whole.snapshot.memories.items():
        assert tree_equal(parted(memory)[1], alone.snapshot.memories.get(client, {}))
    first = run(algorithm, tiny.pool(workers=2), rounds=1)
    again = run(algorithm, tiny.pool(workers=2), resume=first.snapshot)
    assert tree_equal(again.snapshot.state, whole.snapshot.state)
    assert again.snapshot.memories.keys() == whole.snapshot.memories.keys()
    for client, memory in whole.snapshot.memories.items():
        assert tree_equal(memory, again.snapshot.memories[client])


def test_it_runs_over_flower(tmp_path):
    tiny = recipes.tiny_recipes()["stc"]()
    algorithm = around(tiny)
    pool, _ = pool_over(algorithm, tiny.data, tmp_path)
    over = bf.run(algorithm, pool, rounds=2, progress=False)
    assert tree_equal(over.snapshot.state, run(algorithm, tiny.pool()).snapshot.state)
    assert float(over.snapshot.state["log/rounds"]) == 2
