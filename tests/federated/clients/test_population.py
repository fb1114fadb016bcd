"""Populations: the same bits as mappings of the same clients, nothing loaded before it is asked
for, memories and records on disk.
"""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch

import bayesfed as bf
from bayesfed.data.population import Names
from bayesfed.errors import ArgumentError, CheckpointError, ClientError, DataError
from bayesfed.federated import RecordFile, checkpoint, load, rounds
from bayesfed.federated.clients.memory import table as memory_table
from bayesfed.federated.clients.memory.table import Memories, StoredMemories
from bayesfed.federated.engine.files import snapshots
from bayesfed.federated.engine.files.records import to_line
from tests.support.recipes import tiny_recipes
from tests.support.records import untimed

RECIPES = ["fed_avg", "stc", "scaffold", "federated_svi pvi"]


def tree_equal(left, right):
    return left.keys() == right.keys() and all(
        torch.equal(leaf, right[name]) for name, leaf in left.items()
    )


def population(data):
    """The same clients, named in another order."""
    names = sorted(data, reverse=True)
    return bf.data.Population(names, {name: len(data[name]) for name in names}, data.__getitem__)


def same(left, right):
    assert tree_equal(left.snapshot.state, right.snapshot.state)
    assert list(left.snapshot.memories) == list(right.snapshot.memories)
    assert all(
        tree_equal(tree, right.snapshot.memories[name])
        for name, tree in left.snapshot.memories.items()
    )
    assert left.snapshot.versions == right.snapshot.versions
    assert left.snapshot.settings == right.snapshot.settings
    assert [to_line(untimed(record)) for record in left.history] == [
        to_line(untimed(record)) for record in right.history
    ]


def check_recipe(name, folder):
    tiny = tiny_recipes()[name]()
    run = functools.partial(
        bf.run, tiny.algorithm, on_client_error="drop", progress=False, sampler=bf.fraction(0.75)
    )
    pool = functools.partial(
        bf.InProcess, population(tiny.data), devices=lambda client: tiny.devices.get(client, {})
    )
    whole = run(tiny.pool(), rounds=3)
    same(whole, run(pool(), rounds=3))
    saved = {"callbacks": [checkpoint(folder / "checkpoints")], "records": folder / "records"}
    half = run(pool(memory_bytes=0), rounds=2, **saved)
    assert isinstance(half.snapshot.memories, StoredMemories) == bool(half.snapshot.memories)
    # From a checkpoint of memories on disk, to memories on disk, and to memories in this process.
    same(
        whole,
        run(
            pool(memory_bytes=0),
            rounds=3,
            **saved | {"callbacks": []},
            resume=load(folder / "checkpoints"),
        ),
    )
    same(whole, run(tiny.pool(), rounds=3, resume=load(folder / "checkpoints")))
    return half


@pytest.mark.parametrize("name", RECIPES)
def test_a_population_has_the_bits_of_a_mapping(name, tmp_path, monkeypatch):
    monkeypatch.setattr(snapshots, "SHORT", 1)
    half = check_recipe(name, tmp_path)
    assert bool(half.snapshot.memories) == (name != "fed_avg")
    assert isinstance(load(tmp_path / "checkpoints").history, RecordFile)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(tiny_recipes().keys() - set(RECIPES)))
def test_every_recipe_has_the_bits_of_a_mapping(name, tmp_path):
    check_recipe(name, tmp_path)


def blobs(clients=6):
    return {
        name: bf.Dataset(torch.full((4, 2), float(i)), torch.arange(4) % 2)
        for i, name in enumerate(Names(clients))
    }


def avg():
    return bf.fed_avg(bf.mlp([2, 3, 2], bf.Key(0)), training=bf.Training(steps=1, batch_size=4))


def test_nothing_is_loaded_before_it_is_sampled():
    data, asked = blobs(), []

    def read(name):
        asked.append(name)
        return data[name]

    lazy = bf.data.Population(6, 4, read)
    result = bf.run(
        avg(), lazy, rounds=2, sampler=bf.fraction(0.34), test=data["client-000"], progress=False
    )
    assert len(asked) == 4
    assert asked == [row.client for row in result.ledger if row.direction == "up"]
    assert len(lazy) == 6
    assert "client-005" in lazy
    assert "client-006" not in lazy
    assert list(lazy) == sorted(data)
    assert result.data is lazy
    bf.run(
        avg(),
        bf.InProcess(lazy, samples=dict.fromkeys(data, 4)),
        rounds=1,
        sampler=bf.federated.in_turn,
        progress=False,
    )
    assert len(asked) == 5
    repr(lazy), lazy == bf.data.Population(6, 4, read)
    assert len(asked) == 5


@pytest.mark.parametrize(
    "options", [{}, {"cohort": 2}, {"workers": 1, "kind": "thread"}, {"workers": 1}], ids=str
)
def test_rows_that_cannot_be_loaded_cost_their_client_only(options):
    data = blobs()
    data["client-001"] = data["client-001"][:3]

    def read(name):
        if name == "client-003":
            raise OSError("no such file")
        return data[name]

    with bf.InProcess(bf.data.Population(6, 4, read), **options) as pool:
        (report,) = rounds(avg(), pool, rounds=1, on_client_error="drop")
        assert set(report.refused) == {"client-001", "client-003"}
        assert "expected a Dataset of 4 rows, found 3 rows" in report.refused["client-001"]
        assert report.refused["client-003"] == "load: OSError: no such file"
        with pytest.raises(ClientError, match="client-001"):
            list(rounds(avg(), pool, rounds=1))


def test_records_are_on_disk_and_go_on(tmp_path):
    data, folder = blobs(), tmp_path / "records"
    watched = bf.federated.evaluate(data["client-000"])
    whole = bf.run(avg(), data, rounds=4, callbacks=[watched], progress=False)
    first = bf.run(avg(), data, rounds=3, callbacks=[watched], progress=False, records=folder)
    assert isinstance(first.history, RecordFile)
    assert len(first.history) == 3
    assert first.final("accuracy") == whole.series("accuracy")[2][1]
    assert first.history[-1] == tuple(first.history)[2] == first.history[1:][1]
    assert first.history == list(first.history)
    assert first.clients.keys() == data.keys()
    assert first.bits() == sum(row.bits for row in whole.ledger if row.round < 3)
    # The process ended after the checkpoint of round 3 and before the record was whole.
    path, kept = folder / "records.jsonl", tuple(first.history)
    path.write_bytes(path.read_bytes()[:-9])
    again = bf.run(
        avg(),
        data,
        rounds=4,
        callbacks=[watched],
        progress=False,
        records=folder,
        resume=replace(first.snapshot, history=kept),
    )
    assert [to_line(untimed(record)) for record in again.history] == [
        to_line(untimed(record)) for record in whole.history
    ]
    again.save(tmp_path / "saved")
    with pytest.raises(CheckpointError, match="expected no records, found 4 records"):
        bf.run(avg(), data, rounds=1, progress=False, records=folder)
    with pytest.raises(CheckpointError, match="the 4 records that the run goes on from"):
        bf.run(avg(), data, rounds=5, progress=False, records=folder, resume=whole.snapshot)


def test_memories_beyond_the_bound_are_on_disk_and_snapshots_stay_what_they_are(monkeypatch):
    monkeypatch.setattr(memory_table, "WASTE", 4000)
    names = Names(20)
    memories = Memories(names, bound=4 * 2000)
    for turn in range(6):
        for number, name in enumerate(names):
            memories.pend(
                name,
                {"x": torch.full((100,), float(turn * 100 + number), dtype=torch.float64)}
                if number % 3
                else {},
            )
            memories.settle(name, accepted=turn < 5 or number == 1)
        if turn == 2:
            before = memories.taken()
    now = memories.taken()
    assert isinstance(now, StoredMemories)
    assert list(now) == list(before) == [name for i, name in enumerate(names) if i % 3]
    assert {
        float(tree["x"][0]) - number % 100
        for number, tree in zip([i for i in range(20) if i % 3], now.values(), strict=True)
    } >= {400.0}
    assert float(now["client-001"]["x"][0]) == 501
    assert float(before["client-001"]["x"][-1]) == 201
    assert "client-000" not in now
    assert [float(tree["x"][0]) for tree in before.values()] == [
        200.0 + i for i in range(20) if i % 3
    ]
    memories.restore({"client-004": {}, "stranger": {"x": torch.ones(2000)}})
    assert list(memories.taken()) == ["stranger"]
    assert memories.read("client-001") == {}


def test_names_sizes_and_unseen_clients():
    assert list(Names(1001)[998:]) == ["client-0998", "client-0999", "client-1000"]
    assert Names(3)[-1] == "client-002"
    sizes = bf.data.power_law(20_000, bf.Key(0, "sizes"), exponent=2.0, least=2, most=500)
    assert int(sizes.min()) == 2
    assert 400 < int(sizes.max()) <= 500
    # P(N >= 20) of the law, (1/20 - 1/501) / (1/2 - 1/501).
    assert abs(float((sizes >= 20).double().mean()) - 0.0964) < 0.007
    assert torch.equal(bf.data.power_law(10, bf.Key(0, "sizes"), least=2, most=500), sizes[:10])
    data = blobs()
    seen, unseen = bf.data.split_clients(data, 0.34)
    assert len(unseen) == 2
    assert seen.keys() | unseen.keys() == data.keys()
    assert not seen.keys() & unseen.keys()
    lazy = bf.data.Population(6, np.arange(6), lambda name: pytest.fail("loaded"))
    left, right = bf.data.split_clients(lazy, 0.34)
    assert set(right) == set(unseen)
    assert left.samples.sum() + right.samples.sum() == 15
    assert list(left) == sorted(left)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: bf.data.Population(0, 1, blobs), "a number of clients, or their names"),
        (
            lambda: bf.data.Population(["a", "b", "a"], 1, blobs),
            r"distinct names, found twice \['a'\]",
        ),
        (lambda: bf.data.Population(["a", "b"], [1, -1], blobs), "2 whole numbers from 0"),
        (
            lambda: bf.data.Population(["a", "b"], {"a": 1}, blobs),
            r"one for each name, found none for \['b'\]",
        ),
        (lambda: bf.data.Population(["a", 3], 1, blobs), "texts"),
        (lambda: bf.data.Population(3, 1, None), "a function"),
        (lambda: bf.data.power_law(3, bf.Key(0), exponent=1.0), "a number above 1"),
        (lambda: bf.data.power_law(3, bf.Key(0), least=5, most=4), "1 <= least <= most"),
        (lambda: bf.data.split_clients({"a": blobs()["client-000"]}, 0.5), "at least two clients"),
        (lambda: bf.InProcess(blobs(), memory_bytes=-1), "InProcess, memory_bytes"),
    ],
)
def test_what_does_not_fit_is_said(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()


def test_a_population_without_rows_is_refused():
    with pytest.raises(DataError, match="all empty"):
        bf.InProcess(bf.data.Population(3, 0, blobs))
