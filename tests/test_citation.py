"""Every recipe says what to cite, in BibTeX that can be read."""

import inspect
import re

import pytest

import bayesfed as bf
from bayesfed import algorithms
from bayesfed.algorithms.citing import _KEYS, _RULES, _entries
from bayesfed.errors import ArgumentError

RECIPES = [name for name in algorithms.__all__ if inspect.signature(getattr(algorithms, name)).return_annotation == "Algorithm"]
ENTRY = re.compile(r"@(?P<kind>article|inproceedings|misc|book)\{(?P<key>[a-z]+\d{4}[a-z]+),\n(?P<fields>(?:  \w+ +=.*\n)+)\}")
REQUIRED = {"article": {"journal", "volume"}, "inproceedings": {"booktitle"}, "misc": {"eprint", "archiveprefix"}, "book": {"publisher"}}


def fields(entry):
    found = ENTRY.fullmatch(entry)
    assert found, entry
    pairs = [re.fullmatch(r"  (\w+) += \{(.+)\},?", line) for line in found["fields"].splitlines()]
    assert all(pairs), entry
    assert all(line.endswith(",") for line in found["fields"].splitlines()[:-1]), entry
    return found["kind"], {pair[1]: pair[2] for pair in pairs}


def test_there_are_recipes_and_each_has_a_paper():
    assert len(RECIPES) >= 27
    for name in RECIPES:
        entries = bf.citation(name).split("\n\n")
        assert len(entries) == len(set(entries)) >= 1
        for entry in entries:
            kind, found = fields(entry)
            assert {"author", "title", "year", *REQUIRED[kind]} <= found.keys()
            assert 1900 < int(found["year"]) < 2027
            assert all(value.count("{") == value.count("}") for value in found.values())


def test_nothing_is_cited_by_nobody_and_no_name_is_left_over():
    assert set(_KEYS) == set(RECIPES)
    assert {key for keys in [*_KEYS.values(), *_RULES.values()] for key in keys} == set(_entries())


def test_the_five_papers_come_first():
    for name, word in (("fed_rlr", "Riemannian"), ("fed_hm", "FedHM"), ("d_turbo_vbi", "Xia"), ("anycost_fl", "AnycostFL"), ("fs_lora", "Sketching")):
        assert word in bf.citation(name).split("\n\n")[0]
    assert "McMahan" in bf.citation("fed_avg")


def test_an_algorithm_is_cited_by_its_name_and_its_rule(net, digits):
    plain = bf.fed_avg(net)
    assert bf.citation(plain) == bf.citation("fed_avg")
    from pyro.infer.autoguide import AutoNormal

    train, _ = digits
    fitted = bf.federated_svi(
        bf.bayesian(net, bf.Gaussian(0.5)), AutoNormal, fusion=bf.PVI(), scale="local", observations=len(train), example=train[:2]
    )
    assert bf.citation(fitted) == bf.citation("federated_svi") + "\n\n" + bf.citation("PVI")


def test_strange_names_are_refused_with_the_nearest():
    with pytest.raises(ArgumentError, match="citation: expected a recipe or a rule of fusion, found 'fed_average'; try 'fed_"):
        bf.citation("fed_average")
    with pytest.raises(ArgumentError, match="'anycost_fl'.*'PVI'"):
        bf.citation("zzz")
