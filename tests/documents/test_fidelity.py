"""The small form of `benchmarks/fidelity.py`: what is closed form is exact, and simulation-based
calibration tells honest from narrow.
"""

import importlib
from pathlib import Path

import pytest

from bayesfed.federated.clients.turn import one_thread

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    # Small matrices gain nothing from threads, which wait for each other on a busy machine.
    with one_thread():
        yield


def module(name):
    return importlib.import_module(f"parts.fidelity.{name}")


def test_a_linear_posterior_is_exact_in_one_round():
    assert module("closed").linear_in_one_round((1, 5))


def test_clients_with_no_rows_and_with_one():
    assert module("closed").edges()


def test_conjugate_families():
    assert module("closed").families((1, 5))


def test_rules_that_are_exact_do_not_depend_on_the_partition():
    closed, tiny = module("closed"), importlib.import_module("parts.shared.targets").tiny
    for rule in (closed.experts, closed.partitioned):
        found = [
            rule(closed.linear(0, count, split)) for split in closed.SAME_ROWS for count in (1, 5)
        ]
        assert closed.invariance(rule.__name__, found, tiny, means=1e-6, sds=1e-6)


def test_quadratics_are_minimised_in_one_round():
    assert module("closed").quadratics()


def test_more_bits_are_nearer():
    assert module("codecs").codecs()
    assert module("codecs").rises([(1, 0.5), (2, 0.6), (2, 0.1)]) == 2


@pytest.mark.slow
def test_calibration_tells_honest_posteriors_from_narrow_ones(capsys):
    assert module("sbc").calibration(200)
    assert "missed" not in capsys.readouterr().out


@pytest.mark.slow
def test_planted_supports_are_found_as_by_enumeration():
    assert module("supports").supports()


def test_a_target_that_is_missed_says_so(capsys):
    targets = importlib.import_module("parts.shared.targets")
    assert not targets.tiny("a", 2e-8, 1e-8)
    assert not targets.between("b", 1.05, 0.97, 1.03)
    assert capsys.readouterr().out.count("missed") == 2
