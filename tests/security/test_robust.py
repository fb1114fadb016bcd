"""Rules in place of the mean: exact twins, laws, how much they bear, and runs with hostile
clients.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import bayesfed as bf
from bayesfed.errors import ArgumentError, ClientError, UpdateError
from bayesfed.federated import Sum, Update, rounds
from bayesfed.federated.aggregation.changes import change, clipped, norm
from bayesfed.federated.aggregation.rules import added
from tests.conftest import tree_equal
from tests.support.hostile.byzantine import byzantine

WORK = bf.Training(steps=4, batch_size=16)
SHAPES = {"w": (3, 4), "b": (5,)}


def drawn(count, key=0, kind="delta", weight=1.0):
    """Updates of `count` clients, float64."""
    generator = bf.Key(key, "updates").generator()
    return {
        f"client-{k:02d}": Update(
            {
                name: torch.randn(shape, generator=generator).double()
                for name, shape in SHAPES.items()
            },
            weight,
            kind,
        )
        for k in range(count)
    }


def flat(tree):
    return torch.cat([tree[name].flatten() for name in sorted(tree)]).numpy()


def mean(rule, updates, state=None):
    return rule(updates, state or {})[0].mean()


def median_twin(rows):
    result = []
    for column in rows.T:
        ordered, n = sorted(column), len(column)
        result.append(ordered[n // 2] if n % 2 else (ordered[n // 2 - 1] + ordered[n // 2]) / 2)
    return np.array(result)


def trimmed_twin(rows, share):
    result = []
    for column in rows.T:
        n = len(column)
        cut = min(math.ceil(share * n - 1e-9), (n - 1) // 2)
        result.append(sum(sorted(column)[cut : n - cut]) / (n - 2 * cut))
    return np.array(result)


def krum_twin(rows, byzantine, keep):
    n, scores = len(rows), []
    for i in range(n):
        distances = sorted(float(((rows[i] - rows[j]) ** 2).sum()) for j in range(n) if j != i)
        scores.append(sum(distances[: n - byzantine - 2]))
    kept = sorted(range(n), key=lambda i: scores[i])[:keep]
    return sum(rows[i] for i in kept) / keep


def gate_twin(rows, factor, refuse):
    lengths = np.sqrt((rows**2).sum(1))
    longest = factor * np.median(lengths)
    if refuse:
        return rows[lengths <= longest].mean(0)
    return (rows * np.minimum(1, longest / lengths)[:, None]).mean(0)


@pytest.mark.parametrize("count", [1, 2, 9, 10])
@pytest.mark.parametrize(
    ("rule", "twin"),
    [
        (bf.federated.Median(), median_twin),
        (bf.federated.TrimmedMean(0.2), lambda rows: trimmed_twin(rows, 0.2)),
        (bf.federated.TrimmedMean(0.49), lambda rows: trimmed_twin(rows, 0.49)),
        (bf.federated.Krum(3), lambda rows: krum_twin(rows, 3, 1)),
        (bf.federated.Krum(2, 4), lambda rows: krum_twin(rows, 2, 4)),
        (bf.federated.NormGate(1.0), lambda rows: gate_twin(rows, 1.0, False)),
        (bf.federated.NormGate(1.1, refuse=True), lambda rows: gate_twin(rows, 1.1, True)),
    ],
    ids=["median", "trimmed", "trimmed-most", "krum", "multi-krum", "gate", "gate-refusing"],
)
def test_rules_are_their_slow_twins(rule, twin, count):
    updates = drawn(count, count)
    if isinstance(rule, bf.federated.Krum) and count < 9:
        with pytest.raises(
            UpdateError, match=f"at least {2 * rule.byzantine + 3} clients, found {count}"
        ):
            mean(rule, updates)
        return
    # A shortened change is shorter by 1e-6 of itself, so that rounding cannot make it longer.
    np.testing.assert_allclose(
        flat(mean(rule, updates)),
        twin(np.stack([flat(u.total) for u in updates.values()])),
        rtol=3e-6,
        atol=1e-5 if isinstance(rule, bf.federated.NormGate) else 1e-12,
    )


RULES = [
    bf.federated.Median(),
    bf.federated.TrimmedMean(0.25),
    bf.federated.Krum(2),
    bf.federated.Krum(2, 5),
    bf.federated.NormGate(1.5),
    bf.federated.NormGate(1.5, refuse=True),
]
NAMES = ["median", "trimmed", "krum", "multi-krum", "gate", "gate-refusing"]


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_of_identical_updates_every_rule_finds_that_update(rule):
    one = drawn(1)["client-00"]
    found = mean(rule, {f"client-{k:02d}": one for k in range(8)})
    assert tree_equal(found, one.total)


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_it_does_not_matter_which_client_sent_what(rule):
    updates = drawn(9)
    order = torch.randperm(9, generator=bf.Key(0, "order").generator()).tolist()
    shuffled = dict(zip(updates, [list(updates.values())[i] for i in order], strict=True))
    for name, leaf in mean(rule, updates).items():
        # Entry by entry sums are of sorted values: the same to the bit.
        exact = isinstance(rule, bf.federated.Median | bf.federated.TrimmedMean)
        torch.testing.assert_close(
            mean(rule, shuffled)[name], leaf, rtol=0 if exact else 1e-12, atol=0 if exact else 1e-12
        )


@pytest.mark.parametrize(
    "rule",
    [
        bf.federated.TrimmedMean(0.0),
        bf.federated.NormGate(math.inf),
        bf.federated.NormGate(math.inf, refuse=True),
    ],
)
def test_rules_that_leave_nothing_out_are_the_mean_to_the_bit(rule):
    updates = drawn(7)
    reducer = Sum()
    for client, update in updates.items():
        reducer.add(client, update)
    assert tree_equal(mean(rule, updates), reducer.total.mean())


def test_krum_by_hand():
    """Points 0, 1, 3 and 10, 100 on a line, f = 1: a score adds the two smallest squared
    distances.
    """
    updates = {
        name: Update({"x": torch.tensor([value])}, 1.0, "delta")
        for name, value in zip("abcde", (0.0, 1.0, 3.0, 10.0, 100.0), strict=True)
    }
    rule = bf.federated.Krum(1)
    # a: 1 + 9, b: 1 + 4, c: 4 + 9, d: 49 + 81, e: 8100 + 9409.
    points = torch.tensor([0.0, 1.0, 3.0, 10.0, 100.0])[:, None]
    assert rule.scores(torch.cdist(points, points).square()).tolist() == [10, 5, 13, 130, 17509]
    chosen, figures = rule(updates, {})
    assert chosen.mean()["x"].tolist() == [1.0]
    assert figures == {
        "left_out": 4.0,
        "a.left_out": 1.0,
        "c.left_out": 1.0,
        "d.left_out": 1.0,
        "e.left_out": 1.0,
    }
    assert bf.federated.Krum(1, 3)(updates, {})[0].mean()["x"].tolist() == pytest.approx([4 / 3])
    ties = {
        name: Update({"x": torch.tensor([value])}, 1.0, "delta")
        for name, value in zip("abcde", (2.0, 1.0, 1.0, 2.0, 1.0), strict=True)
    }
    assert bf.federated.Krum(1)(ties, {})[1]["left_out"] == 4
    assert "b.left_out" not in bf.federated.Krum(1)(ties, {})[1]


@pytest.mark.parametrize(
    ("rule", "bears"),
    [
        (bf.federated.Median(), 4),
        (bf.federated.TrimmedMean(0.3), 3),
        (bf.federated.Krum(3), 3),
        (bf.federated.Krum(3, 4), 3),
    ],
    ids=["median", "trimmed", "krum", "multi-krum"],
)
def test_breakdown_points(rule, bears):
    """What the rule bears stays within the honest range however far the others go; one more and it
    goes along.
    """
    for bad in range(1, bears + 2):
        updates = drawn(9, 3)
        honest = np.stack([flat(update.total) for update in list(updates.values())[bad:]])
        for name in list(updates)[:bad]:
            updates[name] = Update(
                {leaf: torch.full(shape, 1e9).double() for leaf, shape in SHAPES.items()},
                1.0,
                "delta",
            )
        found = flat(mean(rule, updates))
        inside = bool(((found >= honest.min(0) - 1e-9) & (found <= honest.max(0) + 1e-9)).all())
        assert inside is (bad <= bears) or (isinstance(rule, bf.federated.Krum) and bad > bears)


def test_a_norm_gate_bounds_what_a_client_can_do():
    updates = drawn(9)
    honest = mean(bf.federated.NormGate(2.0), updates)
    lengths = sorted(norm(update.total) for update in updates.values())
    for size in (1e3, 1e9):
        updates["client-00"] = Update(
            {name: size * torch.ones(shape).double() for name, shape in SHAPES.items()},
            1.0,
            "delta",
        )
        found, figures = bf.federated.NormGate(2.0)(updates, {})
        moved = norm({name: leaf - honest[name] for name, leaf in found.mean().items()})
        assert moved <= (2 * figures["norm_bound"]) / 9
        assert figures["norm_bound"] <= 2 * lengths[5]
        assert figures["shortened"] == figures["client-00.shortened"] == 1.0


def test_values_are_measured_from_the_state():
    state = {name: 100 * torch.ones(shape).double() for name, shape in SHAPES.items()}
    changes = drawn(6)
    values = {
        client: Update(
            {name: state[name] + leaf for name, leaf in update.total.items()}, 1.0, "value"
        )
        for client, update in changes.items()
    }
    for rule in (
        bf.federated.NormGate(1.0),
        bf.federated.NormGate(1.0, refuse=True),
        bf.federated.Median(),
        bf.federated.Krum(1),
    ):
        by_change, by_value = mean(rule, changes), mean(rule, values, state)
        for name, leaf in by_change.items():
            torch.testing.assert_close(by_value[name] - state[name], leaf, rtol=1e-6, atol=1e-9)
    for wrong in ({}, {**state, "w": torch.ones(1)}):
        with pytest.raises(UpdateError, match="values of the state's leaves"):
            mean(bf.federated.NormGate(1.0), values, wrong)
    with pytest.raises(UpdateError, match="a weight above 0"):
        change(replace(values["client-00"], weight=0.0), state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shortening_never_leaves_more(dtype):
    update = drawn(1)["client-00"]
    update = replace(update, total={name: leaf.to(dtype) for name, leaf in update.total.items()})
    assert clipped(update, {}, norm(update.total)) is update
    for longest in (1e-3, 0.1, 1.0):
        found = clipped(update, {}, longest).total
        assert longest * (1 - 2e-6) < norm(found) <= longest
        assert found["w"].dtype is dtype


def covered(pairs):
    """Updates of one leaf from (values, weights)."""
    leaves = [
        (torch.tensor(values).double(), torch.tensor(weights).double()) for values, weights in pairs
    ]
    return {
        f"client-{k}": Update({"w": values * weights}, {"w": weights}, "value")
        for k, (values, weights) in enumerate(leaves)
    }


def test_entries_are_taken_over_those_who_cover_them():
    updates = covered(
        [
            ([1.0, 5.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]),
            ([2.0, 7.0, 9.0, 0.0], [1.0, 1.0, 1.0, 0.0]),
            ([9.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]),
        ]
    )
    for rule in (bf.federated.Median(), bf.federated.TrimmedMean(0.3)):
        found, _ = rule(updates, {})
        assert found.mean()["w"].tolist() == [2.0, 6.0, 9.0, 0.0]
        assert (found.weight["w"] > 0).tolist() == [True, True, True, False]
    for rule in (bf.federated.Krum(0), bf.federated.NormGate()):
        with pytest.raises(UpdateError, match="a number as weight"):
            rule(updates, {})
    mixed = {**updates, "client-9": Update({"w": torch.zeros(4).double()}, 1.0, "value")}
    with pytest.raises(UpdateError, match="updates of one kind and form"):
        bf.federated.Median()(mixed, {})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: bf.federated.TrimmedMean(0.5),
            r"TrimmedMean, share: expected a number in \[0, 0.5\)",
        ),
        (
            lambda: bf.federated.TrimmedMean(-0.1),
            r"TrimmedMean, share: expected a number in \[0, 0.5\)",
        ),
        (lambda: bf.federated.Krum(-1), "Krum, byzantine: expected a whole number >= 0"),
        (lambda: bf.federated.Krum(1, 0), "Krum, keep: expected a whole number >= 1"),
        (lambda: bf.federated.NormGate(0.5), r"NormGate, factor: expected a number in \[1, inf\]"),
        (
            lambda: bf.federated.NormGate(math.nan),
            r"NormGate, factor: expected a number in \[1, inf\]",
        ),
    ],
)
def test_bad_rules_are_refused(make, words):
    with pytest.raises(ArgumentError, match=words):
        make()


def final(algorithm, clients, **changes):
    *_, last = rounds(algorithm, bf.InProcess(clients), **{"rounds": 2, **changes})
    return last


@pytest.mark.parametrize("recipe", [bf.fed_avg, bf.fed_paq, bf.stc])
def test_a_run_that_trims_nothing_is_the_plain_run_to_the_bit(recipe, net, clients):
    algorithm = recipe(net, training=WORK)
    plain = final(bf.equal_weights(algorithm), clients)
    for rule in (bf.federated.TrimmedMean(0.0), bf.federated.NormGate(math.inf)):
        assert tree_equal(final(bf.robust(algorithm, rule), clients).state, plain.state)
    assert not tree_equal(final(algorithm, clients).state, plain.state)


@pytest.mark.parametrize("recipe", [bf.fed_avg, pytest.param(bf.fed_paq, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "rule",
    [
        bf.federated.Median(),
        bf.federated.TrimmedMean(0.25),
        bf.federated.Krum(1, 3),
        bf.federated.NormGate(1.0),
    ],
    ids=["median", "trimmed", "krum", "gate"],
)
def test_hostile_clients_do_not_get_far(recipe, rule, net, digits):
    train, test = digits
    clients = bf.federate(train, bf.iid(len(train), 8, bf.Key(0, "parts")))
    algorithm = recipe(net, training=bf.Training(steps=15, batch_size=32, optimiser=bf.Sgd(0.5)))
    attacked = byzantine(
        algorithm,
        ["client-002", "client-005"][: 1 if isinstance(rule, bf.federated.Krum) else 2],
        -100.0,
    )
    found = bf.run(bf.robust(attacked, rule), clients, rounds=5, test=test, progress=False)
    assert found.final("accuracy") > 0.75
    # After three rounds the mean is so large that the norm bound refuses it.
    assert bf.run(attacked, clients, rounds=3, test=test, progress=False).final("accuracy") < 0.5
    if not isinstance(rule, bf.federated.Median | bf.federated.TrimmedMean):
        assert all(
            any(name.startswith("client-002.") for name in record.server)
            for record in found.history
        )


def test_widths_of_unlike_devices_have_medians_too(net, clients):
    capacity = bf.fixed(sorted(clients), 2)
    algorithm = bf.hetero_fl([net, bf.mlp([64, 8, 10], bf.Key(0, "net"))], capacity, training=WORK)
    before = algorithm.initial
    for rule in (bf.federated.Median(), bf.federated.TrimmedMean(0.2)):
        after = final(bf.robust(algorithm, rule), clients).state
        assert after.keys() == before.keys()
        assert all(bool(torch.isfinite(leaf).all()) for leaf in after.values())
    with pytest.raises(UpdateError, match="round 0: .*a number as weight"):
        final(bf.robust(algorithm, bf.federated.NormGate()), clients)


def test_clients_without_rows_have_no_say(net, clients, digits):
    empty = {f"nobody-{k}": digits[0][:0] for k in range(3)}
    algorithm = bf.robust(bf.fed_avg(net, training=WORK), bf.federated.Median())
    assert tree_equal(final(algorithm, {**clients, **empty}).state, final(algorithm, clients).state)
    nobody = final(
        algorithm, {**clients, **empty}, rounds=1, sampler=lambda round, names, key: sorted(empty)
    )
    assert tree_equal(nobody.state, algorithm.initial)


def test_what_cannot_be_is_refused(net, clients, declared):
    with pytest.raises(ArgumentError, match="one by one, found OverTheAir"):
        bf.robust(bf.fed_avg(net, link=bf.OverTheAir(snr_db=20.0)), bf.federated.Median())
    with pytest.raises(
        ArgumentError,
        match=r"robust, 'd_turbo_vbi': .*'delta' or 'value', found 'moments' in phase 'train'",
    ):
        bf.robust(bf.d_turbo_vbi(declared, observations=100), bf.federated.Median())
    with pytest.raises(ArgumentError, match="a method without 'robust', found one with 'robust'"):
        bf.robust(bf.robust(bf.fed_avg(net), bf.federated.Median()), bf.federated.Median())
    with pytest.raises(ArgumentError, match="'delta' or 'value'"):
        bf.equal_weights(bf.d_turbo_vbi(declared, observations=100))
    with pytest.raises(UpdateError, match="round 0: Krum: expected at least 5 clients, found 4"):
        final(bf.robust(bf.fed_avg(net, training=WORK), bf.federated.Krum(1)), clients)


def test_a_refused_client_is_not_among_those_the_rule_sees(net, clients):
    bad = {
        **clients,
        "client-001": replace(clients["client-001"], targets=clients["client-001"].targets + 7),
    }
    algorithm = bf.robust(bf.fed_avg(net, training=WORK), bf.federated.Median())
    with pytest.raises(ClientError, match="client-001"):
        final(algorithm, bad)
    without = {name: data for name, data in clients.items() if name != "client-001"}
    assert tree_equal(
        final(algorithm, bad, on_client_error="drop").state, final(algorithm, without).state
    )


def test_adding_in_order_is_the_sum():
    updates = drawn(5, weight=2.0)
    found = added(updates)
    assert found.weight == 10.0
    for name, leaf in found.total.items():
        assert torch.equal(leaf, sum(update.total[name] for update in updates.values()))
