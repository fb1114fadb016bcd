"""How tables are compiled: factors that speak together, tables that are shared, programs that are
kept.
"""

import gc
import weakref

import numpy as np
import pytest
import torch

from bayesfed.inference.sum_product.methods.tables import schedule as table_schedule
from bayesfed.inference.sum_product.methods.tables.propagation import pass_tables
from bayesfed.inference.sum_product.methods.tables.schedule import COLOURS, compile_tables
from tests.message_passing.table_graphs import (
    TIGHT,
    Graph,
    assert_agrees,
    flood,
    random_evidence,
    random_graph,
    random_loops,
)

CPU = torch.device("cpu")


def compiled(model):
    return compile_tables(model, torch.float64, CPU)


def test_factors_that_speak_together_share_no_variable():
    generator = np.random.default_rng(0)
    scopes = [
        tuple(int(i) for i in generator.choice(300, int(generator.integers(2, 5)), replace=False))
        for _ in range(400)
    ]
    graph, _ = random_graph(generator, [2] * 300, scopes)
    program = compiled(graph.lower())
    assert not program.forest
    assert sorted(
        (batch.group, f) for batch in program.batches for f in batch.factors.tolist()
    ) == [(g, f) for g, numbers in enumerate(graph.groups) for f in range(len(numbers))]
    for batch in program.batches:
        assert batch.apart
        assert batch.scope.unique().numel() == batch.scope.numel()


@pytest.mark.slow
def test_a_hub_of_very_many_factors_still_settles_where_flooding_does():
    generator = np.random.default_rng(1)
    leaves = COLOURS + 20
    scopes = [(0, i) for i in range(1, leaves + 1)] + [(i, i + 1) for i in range(1, leaves, 2)]
    graph, planted = random_graph(generator, [2] * (leaves + 1), scopes, scale=0.3)
    model, evidence = graph.lower(), random_evidence(generator, graph, planted, batch=1)
    assert not all(batch.apart for batch in compiled(model).batches)
    outcome = pass_tables(model, evidence, TIGHT)
    *expected, change = flood(graph, evidence[0].numpy(), damping=0.3, rounds=60)
    assert change < 1e-9
    assert_agrees(graph, outcome, 0, *expected, within=1e-6)


@pytest.mark.parametrize("arity", [2, 3, 4])
def test_a_shared_table_gives_what_copies_of_it_give(arity, monkeypatch):
    generator = np.random.default_rng(arity)
    scopes = [tuple(int(i) for i in generator.choice(12, arity, replace=False)) for _ in range(14)]
    tables = [0.4 * generator.normal(size=(3,) * arity) for _ in range(2)]
    graph = Graph(
        [3] * 12, [np.zeros(3)] * 12, [(scope, tables[f % 2]) for f, scope in enumerate(scopes)]
    )
    evidence = torch.from_numpy(generator.normal(size=(3, 12, 3)))
    copies = pass_tables(graph.lower(), evidence, TIGHT)
    monkeypatch.setattr(table_schedule, "_SHARE", 1)
    model = graph.lower()
    assert {batch.weights.shape[2] for batch in compiled(model).batches} == {1}
    shared = pass_tables(model, evidence, TIGHT)
    assert torch.allclose(shared.belief, copies.belief, atol=1e-9, rtol=0)
    assert torch.allclose(shared.log_z(), copies.log_z(), atol=1e-9, rtol=0)
    assert torch.allclose(shared.pairs()[0], copies.pairs()[0], atol=1e-9, rtol=0)


def test_a_model_is_compiled_once_and_forgotten_with_it():
    model = random_loops(np.random.default_rng(0))[0].lower()
    program = compiled(model)
    assert compiled(model) is program
    assert compile_tables(model, torch.float32, CPU) is not program
    gone = weakref.ref(program)
    del model, program
    gc.collect()
    assert gone() is None


def test_the_root_is_in_the_middle_of_its_tree():
    graph, _ = random_graph(np.random.default_rng(0), [2] * 101, [(i, i + 1) for i in range(100)])
    assert len(compiled(graph.lower()).batches) == 50
