"""`Result.health`: what is known, of four methods; where it is shown."""

import pytest

import bayesfed as bf
from bayesfed.running import Folder, comparison, report
from tests.house.wrong_calls.given import CLIENTS, avg, rows, svi
from tests.support.recipes import tiny_recipes

ONLY_A = {"rounds": 2, "progress": False, "sampler": lambda round, names, key: ["a"]}


def test_a_variational_run_says_what_speaks_against_it_and_a_k_hat_that_was_asked_for():
    with pytest.warns(bf.errors.ConvergenceWarning):
        result = bf.run(svi(), CLIENTS, rounds=2, progress=False)
    assert result.health.settling == result.settling
    assert not result.settled
    assert "not settled: " + ", ".join(result.settling.reasons) in repr(result)
    assert result.health.k_hat is None
    found = result.k_hat(rows(), draws=200)
    assert result.health.k_hat == found
    assert f"k-hat {found:.2f}" in repr(result)


def test_clients_that_were_never_heard_are_named_with_their_share_of_the_rows():
    clients = {"a": rows(6), "b": rows(3), "c": rows(9), "empty": rows(0)}
    result = bf.run(avg(), clients, **ONLY_A)
    assert result.health.unheard == {"c": 9 / 18, "b": 3 / 18}
    assert repr(result) == (
        "Result(fed_avg, 2 rounds, seed 0; never heard: c, b (2, with 66.7% of the rows))"
    )
    # Of a run that was finished before, and of a population, whose rows are not loaded for it.
    again = bf.run(avg(), clients, resume=result.snapshot, **ONLY_A)
    assert again.health.unheard == result.health.unheard
    many = bf.data.Population(["a", *"bcdef"], [6] * 6, lambda name: {"a": rows(6)}[name])
    assert bf.run(avg(), many, **ONLY_A).health.unheard == dict.fromkeys("bcdef", 1 / 6)
    everyone = bf.run(avg(), clients, rounds=1, progress=False)
    assert everyone.health.unheard == {}
    assert repr(everyone) == "Result(fed_avg, 1 round, seed 0)"


def test_density_asked_and_got():
    tiny = tiny_recipes()["d_turbo_vbi"]()
    result = bf.run(tiny.algorithm, tiny.pool(), rounds=2, progress=False)
    found = result.health
    assert found.density_asked == 0.3
    assert found.density == result.final("density")
    assert f"density {found.density:.3f}, asked 0.300" in repr(result)


@pytest.mark.parametrize(
    ("make", "more"), [(bf.private, {"participants": 2}), (bf.local_privacy, {})]
)
def test_epsilon_that_is_promised(make, more):
    private = make(avg(), clip=1.0, noise=5.0, delta=1e-5, key=bf.Key(0, "noise"), **more)
    result = bf.run(private, CLIENTS, rounds=2, progress=False)
    figures = result.history[-1].server
    assert result.health.epsilon in (figures.get("epsilon"), figures.get("local_epsilon"))
    assert f"epsilon {result.health.epsilon:.3g} at delta 1e-05" in repr(result)


def test_compare_and_report_show_it(tmp_path):
    clients = {"a": rows(6), "b": rows(2)}
    bf.run(avg(), clients, **ONLY_A).save(tmp_path / "few")
    bf.run(avg(), clients, rounds=1, progress=False).save(tmp_path / "all")
    few, everyone = (Folder(tmp_path / name) for name in ("few", "all"))
    shown = comparison({"few": few, "all": everyone})
    assert "never heard %" in shown
    assert "25.0" in shown
    assert few.metrics(0)["unheard"] == 0.25
    page = report(tmp_path / "few", tmp_path / "page.html").read_text()
    assert "never heard: b (1, with 25.0% of the rows)" in page


def test_bits_of_no_direction_are_refused():
    result = bf.run(avg(), CLIENTS, rounds=1, progress=False)
    rows = result.ledger
    ways = [bf.federated.bits(rows, way) for way in ("up", "down")]
    assert bf.federated.bits(rows) == sum(ways)
    with pytest.raises(bf.errors.ArgumentError, match="bits, direction: expected one of"):
        bf.federated.bits(rows, "sideways")
