"""Asynchronous rounds in simulated time: equal to synchronous ones where nothing is late, the same
bits after a checkpoint, refusals in words.
"""

import pytest
import torch

import bayesfed as bf
from bayesfed.errors import ArgumentError, ClientError
from bayesfed.federated import checkpoint, load
from bayesfed.federated.core.owners import owned
from bayesfed.trees import parameters
from tests.support.recipes import tiny_recipes

RECIPES = ["fed_avg", "fed_avg with fed_adam", "stc", "federated_svi pvi", "fed_per"]


def tree_equal(left, right):
    return left.keys() == right.keys() and all(
        torch.equal(leaf, right[name]) for name, leaf in left.items()
    )


def same(left, right):
    assert tree_equal(left.snapshot.state, right.snapshot.state)
    assert left.snapshot.memories.keys() == right.snapshot.memories.keys()
    assert all(
        tree_equal(tree, right.snapshot.memories[name])
        for name, tree in left.snapshot.memories.items()
    )
    assert left.snapshot.versions == right.snapshot.versions


def equally(profile, cost):
    return 2.0


def unequally(profile, cost):
    """Client 0 takes three times as long as client 1, and so on; 2 and 3 take equally long."""
    return {"0": 3.0, "1": 1.0}.get(profile.name[-1], 1.7)


def run(algorithm, pool, **options):
    return bf.run(algorithm, pool, progress=False, on_client_error="drop", **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_without_lateness_it_is_the_synchronous_run(name):
    tiny = tiny_recipes()[name]()
    for share, count in ((1.0, 4), (0.5, 2)):
        whole = run(tiny.algorithm, tiny.pool(), rounds=3, sampler=bf.fraction(share))
        buffer = bf.federated.FedBuff(
            size=count, concurrency=count, staleness="constant", seconds=equally
        )
        found = run(tiny.algorithm, tiny.pool(), rounds=3, asynchronous=buffer)
        same(whole, found)
        assert found.series("simulated_s") == [(0, 2.0), (1, 4.0), (2, 6.0)]
        assert found.final("staleness") == 0
        assert found.bits() == whole.bits()


@pytest.mark.parametrize("name", RECIPES)
def test_a_resumed_run_has_the_same_bits(name, tmp_path):
    tiny = tiny_recipes()[name]()
    constant = "pvi" in name
    buffer = bf.federated.FedBuff(
        size=2, concurrency=3, staleness="constant" if constant else "polynomial", seconds=unequally
    )
    whole = run(tiny.algorithm, tiny.pool(), rounds=7, asynchronous=buffer)
    run(
        tiny.algorithm, tiny.pool(), rounds=3, asynchronous=buffer, callbacks=[checkpoint(tmp_path)]
    )
    saved = load(tmp_path)
    assert saved.in_flight
    again = run(tiny.algorithm, tiny.pool(), rounds=7, asynchronous=buffer, resume=saved)
    same(whole, again)
    assert whole.series("simulated_s") == again.series("simulated_s")
    assert max(value for _, value in whole.series("staleness")) > 0
    # Beside the tensors there are measured seconds.
    left, right = (
        {name: leaf for name, leaf in one.snapshot.in_flight.items() if name != "about"}
        for one in (whole, again)
    )
    assert tree_equal(left, right)
    with pytest.raises(ArgumentError, match="sampler FedBuff, now"):
        run(tiny.algorithm, tiny.pool(), rounds=7, resume=saved)


def test_pvi_stays_the_product_of_its_factors():
    tiny = tiny_recipes()["federated_svi pvi"]()
    buffer = bf.federated.FedBuff(size=1, concurrency=3, staleness="constant", seconds=unequally)
    result = run(tiny.algorithm, tiny.pool(), rounds=9, asynchronous=buffer)
    # q = prod_k t_k, whatever is still on its way: a client's factor changes when its answer
    # arrives.
    assert len(result.snapshot.memories) == len(tiny.data)
    for name, leaf in owned(result.snapshot.state, "model").items():
        factors = torch.stack(
            [memory[f"model/site/{name}"] for memory in result.snapshot.memories.values()]
        )
        torch.testing.assert_close(factors.sum(0), leaf, rtol=1e-5, atol=1e-5)


def test_values_are_added_as_changes_of_the_state_they_began_with():
    """Algorithm 1 by hand: clients of one row move by their targets, so that every state is
    known.
    """
    net = torch.nn.Linear(1, 1, bias=False)
    moves = {"a": 1.0, "b": 10.0}
    data = {
        name: bf.Dataset(torch.full((1, 1), move), torch.zeros(1, dtype=torch.long))
        for name, move in moves.items()
    }

    class Moving:
        kind = "value"

        def fit(self, message, memory, data, key, options):
            return bf.federated.Fit({"weight": message["weight"] + data.inputs}, {}, {})

    algorithm = bf.compose("moving", net, Moving())
    begin = parameters(net)["weight"].item()
    seconds = {"a": 2.0, "b": 5.0}
    buffer = bf.federated.FedBuff(
        size=1, concurrency=2, seconds=lambda profile, cost: seconds[profile.name]
    )
    result = run(algorithm, data, rounds=3, asynchronous=buffer)
    # At 2 s and 4 s: a, each time from the newest state. At 5 s: b, begun two steps ago.
    assert result.series("simulated_s") == [(0, 2.0), (1, 4.0), (2, 5.0)]
    assert result.series("staleness") == [(0, 0.0), (1, 0.0), (2, 2.0)]
    assert result.snapshot.state["model/weight"].item() == pytest.approx(
        begin + 1 + 1 + 10 / 3**0.5, rel=1e-6
    )
    assert result.snapshot.versions == {"a": 1, "b": 0}


def test_a_client_that_fails_makes_room_and_nobody_is_asked_twice_between_two_steps():
    tiny = tiny_recipes()["fed_avg"]()
    name = next(name for name in tiny.data if name.endswith("1"))
    data = {**tiny.data, name: bf.Dataset(torch.zeros(3, 5), torch.zeros(3, dtype=torch.long))}
    buffer = bf.federated.FedBuff(size=4, concurrency=3, seconds=unequally)
    result = run(tiny.algorithm, data, rounds=2, asynchronous=buffer)
    # Three others are there: with nobody left to ask, the server steps with three answers.
    assert [len(record.clients) for record in result.history] == [3, 3]
    assert name in result.history[0].refused
    with pytest.raises(ClientError, match=name):
        bf.run(tiny.algorithm, data, rounds=2, asynchronous=buffer, progress=False)


def test_seconds_are_those_of_devices():
    tiny = tiny_recipes()["fed_avg"]()
    slow, fast = (
        bf.Device(max_distance_m=35.0),
        bf.Device(max_frequency_hz=1.5e10, max_distance_m=35.0),
    )
    figures = {name: (slow if name.endswith("0") else fast).figures() for name in tiny.data}
    algorithm = bf.timed(tiny.algorithm, 1e9)
    result = run(
        algorithm,
        bf.InProcess(tiny.data, devices=figures),
        rounds=4,
        asynchronous=bf.federated.FedBuff(size=1, concurrency=4),
    )
    up = {row.client: row.cost for row in result.ledger if row.direction == "up"}
    assert all(cost.compute_s > 0 and cost.uplink_s > 0 for cost in up.values())
    assert len(up) == 3
    late = run(
        bf.timed(tiny.algorithm, 1e9, deadline_s=1.0),
        bf.InProcess(tiny.data, devices=figures),
        rounds=1,
    )
    assert [name[-1] for name in late.history[0].refused] == ["0"]


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("scaffold", {}, "a server that adds changes of single clients"),
        ("d_turbo_vbi", {}, "a server that adds changes of single clients"),
        ("federated_svi gradients", {}, "a server that adds changes of single clients"),
        ("federated_svi wasserstein", {}, "a server that adds changes of single clients"),
        ("fed_avg on air", {}, "answers that arrive one by one, found OverTheAir"),
        (
            "federated_svi pvi",
            {"staleness": "polynomial"},
            "clients keep the change that they sent",
        ),
        ("stc on devices", {"seconds": None}, "no deadline: late answers count"),
        ("fed_avg", {"seconds": None}, "finite seconds of its turn"),
        ("fed_avg", {"size": 9}, "at most the 4 clients of the pool"),
        ("fed_avg", {"size": 0}, "FedBuff, size: expected a whole number >= 1"),
        ("fed_avg", {"staleness": "none"}, "one of 'polynomial', 'constant'"),
    ],
)
def test_what_cannot_be_run_so_is_refused_in_words(name, change, words):
    tiny = tiny_recipes()[name]()
    options = {"size": 2, "concurrency": 2, "staleness": "constant", "seconds": equally} | change
    with pytest.raises(ArgumentError, match=words):
        run(tiny.algorithm, tiny.pool(), rounds=1, asynchronous=bf.federated.FedBuff(**options))


def test_robust_rules_and_samplers_are_refused():
    tiny = tiny_recipes()["fed_avg"]()
    buffer = bf.federated.FedBuff(size=2, concurrency=2, seconds=equally)
    with pytest.raises(ArgumentError, match="adds changes of single clients"):
        run(
            bf.robust(tiny.algorithm, bf.federated.Median()),
            tiny.pool(),
            rounds=1,
            asynchronous=buffer,
        )
    with pytest.raises(ArgumentError, match="FedBuff draws clients"):
        run(tiny.algorithm, tiny.pool(), rounds=1, asynchronous=buffer, sampler=bf.fraction(0.5))
    with pytest.raises(ArgumentError, match="clients of one process, found Ranks"):
        run(tiny.algorithm, bf.federated.Ranks(tiny.pool()), rounds=1, asynchronous=buffer)
