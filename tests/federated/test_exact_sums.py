"""Sums whose bits depend neither on the order of the clients nor on who adds which of them."""

import math
import tracemalloc
from dataclasses import replace
from fractions import Fraction

import pytest
import torch

import bayesfed as bf
from bayesfed.errors import UpdateError
from bayesfed.federated import Keep, Sum, Update, rounds
from bayesfed.federated.aggregation.rules import added
from bayesfed.federated.core import limbs
from bayesfed.trees import size

SHAPES = {"b": (7,), "empty": (0, 3), "scalar": (), "w": (150, 120)}


def drawn(number, dtype=torch.float32, *, by_entry=False):
    """An update of numbers between 1e-12 and 1e9 in size."""
    generator = torch.Generator().manual_seed(number)

    def leaf(shape):
        return (
            torch.randn(shape, generator=generator, dtype=torch.float64)
            * 10 ** (21 * torch.rand(shape, generator=generator) - 12)
        ).to(dtype)

    total = {name: leaf(shape) for name, shape in SHAPES.items()}
    return Update(
        total,
        {name: leaf(shape).abs() for name, shape in SHAPES.items()}
        if by_entry
        else 1.0 + number / 3,
        "natural",
    )


def summed(updates):
    reducer = Sum()
    for number, update in enumerate(updates):
        reducer.add(str(number), update)
    return reducer


def same(left, right):
    weights = (
        tree if isinstance(tree, dict) else {"": torch.tensor(tree, dtype=torch.float64)}
        for tree in (left.weight, right.weight)
    )
    return all(
        torch.equal(leaf, tree[name])
        for one, tree in ((left.total, right.total), weights)
        for name, leaf in one.items()
    )


@pytest.mark.parametrize("by_entry", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.complex64])
def test_neither_order_nor_partition_nor_backend_changes_a_bit(dtype, by_entry, monkeypatch):
    updates = [
        drawn(number, torch.float32 if dtype.is_complex else dtype, by_entry=by_entry)
        for number in range(5)
    ]
    if dtype.is_complex:
        updates = [
            Update(
                {name: torch.complex(leaf, -leaf) for name, leaf in one.total.items()},
                1.0,
                one.kind,
            )
            for one in updates
        ]
    if dtype is torch.float16:
        updates = [
            Update(
                {name: leaf.nan_to_num(posinf=1, neginf=1) for name, leaf in one.total.items()},
                1.0,
                one.kind,
            )
            for one in updates
        ]
    expected = summed(updates).total
    parts = [summed(updates[at]).partial for at in (slice(3, 5), slice(0, 1), slice(1, 3))]
    reducer = Sum()
    for part in (parts[0], parts[1].carried(), parts[2]):
        reducer.include(part)
    assert same(expected, summed(updates[::-1]).total)
    assert same(expected, reducer.total)
    monkeypatch.setattr(limbs, "LARGE", 1 << 62)
    assert same(expected, summed(updates).total)
    assert reducer.total.kind == "natural"
    assert {leaf.dtype for leaf in expected.total.values()} == {dtype}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_are_as_close_as_their_type_allows(dtype):
    updates = [drawn(number, dtype) for number in range(9)]
    total, lowest = summed(updates).total, Fraction(1, 2 ** (71 if dtype is torch.float32 else 111))
    for name, entry in (("b", (3,)), ("scalar", ()), *(("w", (row, 5)) for row in range(40))):
        exact = sum(Fraction(float(update.total[name][entry])) for update in updates)
        unit = Fraction(torch.finfo(dtype).eps) * abs(exact)
        assert (
            abs(Fraction(float(total.total[name][entry])) - exact)
            <= Fraction(51, 100) * unit + len(updates) * lowest
        )
    assert total.weight == math.fsum(update.weight for update in updates)


def test_cancellation_loses_nothing_and_large_sums_are_carried(monkeypatch):
    numbers = [2.0**49, 1e-9, -(2.0**49), 3.0, -3.0]
    updates = [
        Update({"w": torch.tensor([number], dtype=torch.float64)}, 1.0, "delta")
        for number in numbers
    ]
    assert summed(updates).total.total["w"].item() == pytest.approx(1e-9, rel=1e-15)
    monkeypatch.setattr(limbs, "ROOM", 2)
    carried = summed(updates)
    assert carried.partial.count <= 3
    assert carried.total.total["w"].item() == pytest.approx(1e-9, rel=1e-15)
    assert carried.total.weight == 5.0


def test_a_running_sum_has_limbs_only_where_floats_would_lose_a_bit():
    updates = []
    for number, odd in enumerate([2.0**40, 2.0**-60, -(2.0**40), 2.0**-80, -0.0]):
        update = drawn(number)
        update = replace(update, total={"a": torch.ones(3000), "w": torch.randn(20_000)})
        update.total["w"][5000] = odd
        updates.append(update)
    limbed, running = Sum(), Sum()
    for number, update in enumerate(updates):
        limbed.include(summed([update]).partial)
        running.add(str(number), update)
    assert (limbed._floats.keys(), running._floats.keys()) == (set(), {3})
    inside = running._floats[3].isnan()
    assert inside.sum() == 1024
    assert inside[3000 + 5000]
    assert same(running.total, limbed.total)
    assert running.total.total["w"][5000] == 2.0**-60
    again = Sum()
    again.include(running.partial)
    assert same(running.total, again.total)
    for reducer in (running, again):
        reducer.include(summed(updates[:1]).partial)
        reducer.add("more", updates[1])
    assert same(running.total, again.total)
    assert same(running.total, added(dict(enumerate([*updates, *updates[:2]]))))


@pytest.mark.parametrize("size", [5, 20_000])
def test_a_running_sum_of_zeros_has_no_sign(size):
    reducer = summed([Update({"w": torch.full((size,), -0.0)}, 1.0, "delta")] * 2)
    assert not reducer.total.total["w"].signbit().any()


BAD = {"NaN": math.nan, "infinity": math.inf, "too large": 2.0**50}


@pytest.mark.parametrize("size", [5, 20_000])
@pytest.mark.parametrize("reducer", [Sum, Keep])
@pytest.mark.parametrize("value", BAD.values(), ids=BAD)
def test_what_cannot_be_added_is_refused_and_nothing_changes(value, reducer, size):
    summing, good = reducer(), Update({"a": torch.ones(3), "w": torch.ones(size)}, 1.0, "delta")
    summing.add("good", good)
    for leaf in ("a", "w"):
        wrong = {name: values.clone() for name, values in good.total.items()}
        wrong[leaf][-1] = value
        with pytest.raises(
            UpdateError, match=f"leaf '{leaf}': expected finite numbers below 2\\^50"
        ) as problem:
            summing.add("bad", Update(wrong, 1.0, "delta"))
        assert problem.value.field == "values"
    with pytest.raises(UpdateError, match="weight: expected a finite number"):
        summing.add("bad", Update(good.total, value, "delta"))
    if isinstance(summing, Sum):
        assert same(summing.total, good)
        with pytest.raises(UpdateError, match=r"torch.float32, found torch.float64"):
            summing.add(
                "other",
                Update({name: leaf.double() for name, leaf in good.total.items()}, 1.0, "delta"),
            )
        with pytest.raises(UpdateError, match="numbers, found torch.bool"):
            Sum().add("other", Update({"w": torch.ones(2, dtype=torch.bool)}, 1.0, "delta"))
    else:
        assert list(summing.updates) == ["good"]


def test_a_client_that_cannot_be_added_is_left_out_of_the_round(clients, net):
    class Huge(bf.federated.Digital):
        def collect(self, arrivals, reducer, key):
            def enlarged():
                for arrival in arrivals:
                    if arrival.client == "client-001":
                        arrival.assignment = bf.federated.Assignment(
                            arrival.assignment.view, 2.0**60
                        )
                    yield arrival

            return super().collect(enlarged(), reducer, key)

    algorithm = bf.fed_avg(net, training=bf.Training(steps=1), link=Huge())
    (report,) = rounds(algorithm, bf.InProcess(clients), rounds=1, on_client_error="drop")
    others = {name: rows for name, rows in clients.items() if name != "client-001"}
    (expected,) = rounds(
        bf.fed_avg(net, training=bf.Training(steps=1)), bf.InProcess(others), rounds=1
    )
    assert list(report.refused) == ["client-001"]
    assert "below 2^50" in report.refused["client-001"]
    assert report.refusals[0].field == "values"
    assert all(torch.equal(leaf, expected.state[name]) for name, leaf in report.state.items())


def test_a_round_keeps_no_message_longer_than_it_is_needed():
    net = bf.mlp([1000, 250, 10], bf.Key(0, "net"))
    rows = bf.Dataset(torch.rand(4, 1000), torch.zeros(4, dtype=torch.int64))
    pool = bf.InProcess({f"client-{k}": rows for k in range(4)})
    algorithm = bf.fed_avg(net, training=bf.Training(steps=1))
    list(rounds(algorithm, pool, rounds=1))
    tracemalloc.start()
    list(rounds(algorithm, pool, rounds=1))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # What Python and NumPy allocate: limbs are six models (never written to), floats two, and a
    # message in and out of its envelope, or out and decoded, two.
    assert peak < 10.5 * 4 * size(algorithm.initial)
