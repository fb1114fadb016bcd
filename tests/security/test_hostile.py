"""One hostile client of four: all 26 ways for some recipes, some ways for all of them;
`benchmarks/hostile.py` runs every way for every recipe.
"""

import os
from dataclasses import replace

import pytest
import torch

from bayesfed.algorithms.registry import methods
from bayesfed.federated import Digital
from bayesfed.keys import Key
from bayesfed.testing import LawError
from tests.support.hostile.canaries import Canaries
from tests.support.hostile.cases import TRAP, cases
from tests.support.hostile.verdict import Hostilities, check_hostile
from tests.support.recipes import tiny_recipes

RECIPES = tiny_recipes()
# A number that is none, a shape, a leaf less, a weight of one's own, a second answer.
SOME = [
    case
    for case in cases()
    if case.name
    in {"one NaN", "a leading dimension", "a leaf missing", "weight 1e+18", "a duplicate"}
]


@pytest.mark.parametrize("name", ["fed_avg", "fed_avg on air", "federated_svi pvi"])
def test_every_way_is_refused_or_cast(name):
    tiny = RECIPES[name]()
    found = check_hostile(tiny.algorithm, tiny.pool, "client-0")
    fields = {case: verdict.field for case, verdict in found.items()}
    assert len(fields) == 26
    assert fields["float64"] == "cast"
    expected = {
        "one NaN": "values",
        "values 1e12": "norm",
        "a scalar": "shape",
        "integers": "dtype",
        "a leaf more": "leaves",
        "weight 0": "meta",
    }
    expected |= {
        "weight nan": "header",
        "a pickle": "message",
        "a header bomb": "size",
        "a duplicate": "duplicate",
        "a stale one": "round",
    }
    assert expected.items() <= fields.items()
    assert not os.path.exists(TRAP)


def test_every_way_is_refused_in_keyed_mode():
    tiny = RECIPES["fed_avg"]()
    secrets = {name: Key(0, "secret", name).numpy().bytes(32) for name in tiny.data}
    found = check_hostile(
        tiny.algorithm, lambda: tiny.pool(secrets=secrets), "client-3", secrets=secrets
    )
    assert found["a stale one"].field == "round"
    assert found["garbage"].field == "message"


@pytest.mark.parametrize("name", RECIPES)
def test_no_recipe_is_spoilt(name):
    tiny = RECIPES[name]()
    run = Hostilities(tiny.algorithm, tiny.pool, "client-0")
    for case in SOME:
        verdict = run.judge(case)
        assert verdict.good, (case.name, verdict)


def test_the_law_can_fail():
    """A link without a bound takes what it should not."""
    tiny = RECIPES["fed_avg"]()
    phases = tuple(
        replace(phase, link=Digital(max_norm=float("inf"))) for phase in tiny.algorithm.phases
    )
    with pytest.raises(LawError, match="values 1e12: TAKEN"):
        check_hostile(replace(tiny.algorithm, phases=phases), tiny.pool, "client-0")


@pytest.mark.parametrize("name", RECIPES)
def test_nothing_planted_is_sent(name):
    tiny = RECIPES[name]()
    canaries = Canaries(tiny.data)
    assert canaries.watch(tiny.algorithm, tiny, 1) >= 8


@pytest.mark.parametrize("what", ["rows", "memory", "name"])
def test_a_leak_is_found(what):
    class Leaky:
        kind = "value"

        def __init__(self, local):
            self.local = local

        def fit(self, message, memory, data, key, options):
            fit = self.local.fit(message, {}, data, key, options)
            bias = next(name for name, leaf in fit.payload.items() if leaf.ndim == 1)
            spoilt = torch.full_like(fit.payload[bias], 0.25)
            source = data.inputs[0] if what == "rows" else next(iter(memory.values()))
            spoilt[:2] = source.reshape(-1)[:2]
            more = {next(iter(memory)): torch.zeros(1)} if what == "name" else {}
            return fit._replace(
                payload={**fit.payload, **({} if what == "name" else {bias: spoilt}), **more}
            )

    tiny = RECIPES["fed_avg"]()
    (phase,) = tiny.algorithm.phases
    with pytest.raises(LawError, match="canary"):
        Canaries(tiny.data).watch(
            replace(tiny.algorithm, phases=(replace(phase, local=Leaky(phase.local)),)), tiny, 1
        )


def test_the_list_has_every_recipe_that_is_shipped():
    shipped = {
        name for name, method in methods().items() if method.make.__module__.startswith("bayesfed.")
    }
    listed = {made.split(" ")[0] for made in RECIPES}
    assert shipped <= listed
