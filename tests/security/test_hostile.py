"""One hostile client of four: all 26 ways for three recipes, some ways for one recipe of each kind;
`benchmarks/hostile.py` runs every way, and looks for what was planted, for every recipe.
"""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bayesfed.algorithms.registry import methods
from bayesfed.federated import Digital
from bayesfed.keys import Key
from bayesfed.testing import LawError
from tests.support.hostile.canaries import Canaries
from tests.support.hostile.cases import TRAP, cases
from tests.support.hostile.limits import Attacked, choosing, start_of
from tests.support.hostile.verdict import Hostilities, check_hostile
from tests.support.recipes import tiny_recipes

RECIPES = tiny_recipes()
KINDS = (
    *("fed_avg", "fed_avg on air", "scaffold", "stc", "p_fed_bayes", "d_turbo_vbi ternary"),
    *("fed_rlr", "fed_hm", "anycost_fl", "fs_lora", "federated_svi gradients", "conjugate"),
    *("swag", "laplace", "feature_density", "one_round fisher"),
)
BOUNDED = {
    *("batch_statistics", "calibrated", "feature_density", "laplace", "laplace full", "one_round"),
    *("one_round fisher", "fed_nova", "beta_pred_bayes", *choosing()),
}
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


@pytest.mark.parametrize("name", sorted(BOUNDED))
def test_what_no_rows_can_say_is_refused_by_its_phase(name):
    """In every leaf of every phase; `benchmarks/hostile.py` tries all recipes."""
    tiny = (RECIPES | choosing())[name]()
    run = Attacked(tiny.algorithm, tiny.pool(), "client-0", start_of(tiny.algorithm))
    assert {phase.name for phase in tiny.algorithm.phases} == {one.phase for one in run.attacks()}
    for attack in list(run.attacks())[::3]:
        assert not run.judge(attack), attack


# Values that a norm would let pass, by what they cannot be: a recipe, phase, leaf and value.
IMPOSSIBLE = {
    "a variance below 0": ("batch_statistics", "0.1", "square", 0.0),
    "a negative log likelihood below 0": ("calibrated", "temperature", "nll", -1.0),
    "a fraction of a row": ("calibrated", "scores", "scores", 0.5),
    "half a client": ("calibrated", "scores", "clients", 2.0),
    "more rows than there are": ("feature_density", "moments", "density/counts", 13.0),
    "a sum of no rows": ("feature_density", "moments", "density/sums", 1e7),
    "a square below 0": ("laplace", "curvature", "block/5.input", -1.0),
    "a likelihood above 1": ("laplace", "curvature", "nll", -1.0),
    "a precision below 0": ("one_round fisher", "train", "block/5.diagonal", -1.0),
    "weights of a million": ("one_round fisher", "train", "linear/5", 1e7),
    "a negative number of steps": ("fed_nova", "train", "run/steps", -1.0),
    "an sd of 0": ("p_fed_bayes", "train", "rho/5.bias", -1000.0),
    "a share of votes": ("beta_pred_bayes", "share", "nll", -1.0),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_every_phase_has_bounds_of_its_own(case):
    name, phase, leaf, value = IMPOSSIBLE[case]
    tiny = RECIPES[name]()
    run = Attacked(tiny.algorithm, tiny.pool(), "client-0")
    (first, *_) = [one for one in run.attacks() if one.phase == phase and one.leaf == leaf]
    assert not run.judge(replace(first, value=value))


def test_every_way_is_refused_in_keyed_mode():
    tiny = RECIPES["fed_avg"]()
    secrets = {name: Key(0, "secret", name).numpy().bytes(32) for name in tiny.data}
    found = check_hostile(
        tiny.algorithm, lambda: tiny.pool(secrets=secrets), "client-3", secrets=secrets
    )
    assert found["a stale one"].field == "round"
    assert found["garbage"].field == "message"


@pytest.mark.parametrize("name", KINDS)
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


@pytest.mark.parametrize("name", KINDS)
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


def test_readme_prints_what_the_program_counts():
    count = len(cases()) * len(RECIPES)
    line = f"| {count:,} of {count:,} | | attacks on {len(RECIPES)} recipes"
    assert line in (Path(__file__).parents[2] / "README.md").read_text()


def test_the_list_has_every_recipe_that_is_shipped():
    shipped = {
        name for name, method in methods().items() if method.make.__module__.startswith("bayesfed.")
    }
    listed = {made.split(" ")[0] for made in RECIPES}
    assert shipped <= listed
