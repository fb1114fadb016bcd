"""Every recipe says what to cite, in BibTeX that can be read."""

import re

import pytest

import bayesfed as bf
from bayesfed.algorithms.registry import _RULES, _entries, methods
from bayesfed.errors import ArgumentError
from bayesfed.models.elastic.shares import Share

RECIPES = [
    name for name, method in methods().items() if method.make.__module__.startswith("bayesfed.")
]
ENTRY = re.compile(
    r"@(?P<kind>article|inproceedings|misc|book)\{(?P<key>[a-z]+\d{4}[a-z]+),\n(?P<fields>(?: "
    r" \w+ +=.*\n)+)\}"
)
REQUIRED = {
    "article": {"journal", "volume"},
    "inproceedings": {"booktitle"},
    "misc": {"eprint", "archiveprefix"},
    "book": {"publisher"},
}


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
    cited = [methods()[name].cites for name in RECIPES]
    assert {key for keys in [*cited, *_RULES.values()] for key in keys} == set(_entries())


def test_the_five_papers_come_first():
    for name, word in (
        ("fed_rlr", "Riemannian"),
        ("fed_hm", "FedHM"),
        ("d_turbo_vbi", "Xia"),
        ("anycost_fl", "AnycostFL"),
        ("fs_lora", "Sketching"),
    ):
        assert word in bf.citation(name).split("\n\n")[0]
    assert "McMahan" in bf.citation("fed_avg")


def test_an_algorithm_is_cited_by_its_name_and_its_rule(net, digits):
    plain = bf.fed_avg(net)
    assert bf.citation(plain) == bf.citation("fed_avg")
    from pyro.infer.autoguide import AutoNormal

    train, _ = digits
    fitted = bf.federated_svi(
        bf.bayesian(net, bf.Gaussian(0.5)),
        AutoNormal,
        fusion=bf.PVI(),
        scale="local",
        observations=len(train),
        example=train[:2],
    )
    assert bf.citation(fitted) == bf.citation("federated_svi") + "\n\n" + bf.citation("PVI")


def test_what_is_put_around_a_method_is_cited_after_it(net, digits):
    plain = bf.fed_avg(net)

    def both(*names):
        return "\n\n".join(bf.citation(name) for name in names)

    assert bf.citation(bf.robust(plain, bf.federated.Median())) == both("fed_avg", "Median")
    assert bf.citation(bf.robust(plain, bf.federated.Krum(1))) == both("fed_avg", "Krum")
    assert (
        bf.citation(bf.robust(plain, bf.federated.NormGate()))
        == bf.citation(bf.equal_weights(plain))
        == both("fed_avg")
    )
    noisy = bf.private(plain, clip=1.0, noise=1.0, participants=3, key=bf.Key(0, "noise"))
    assert bf.citation(noisy) == both("fed_avg", "private")
    assert "Differentially Private" in bf.citation(noisy)
    assert bf.citation(bf.secure(plain, participants=3, largest=8.0)) == both("fed_avg", "secure")
    assert bf.citation("robust") == both("Median", "Krum")
    assert bf.citation(
        bf.fed_avg(net, link=bf.OverTheAir(bf.wireless.Gbma(), snr_db=10.0))
    ) == both("fed_avg", "Gbma")
    assert bf.citation(
        bf.fed_rlr(net, 2, link=bf.OverTheAir(bf.wireless.ChannelInversion(0.3), snr_db=10.0))
    ) == both("fed_rlr", "ChannelInversion")
    planner = bf.Planner((Share(1.0, 1e3, 10, 1.0, 1.0),), deadline_s=1.0)
    assert bf.citation(bf.on_devices(bf.fed_paq(net), planner)) == both("fed_paq", "on_devices")
    from pyro.infer.autoguide import AutoNormal

    model, rows = bf.bayesian(net, bf.Gaussian(0.5)), digits[0]
    fitted = bf.federated_svi(
        model,
        AutoNormal,
        fusion=bf.inference.MeanParameters(),
        scale="local",
        observations=len(rows),
        example=rows[:2],
    )
    assert bf.citation(bf.robust(fitted, bf.federated.Median())) == both("federated_svi", "Median")


def test_strange_names_are_refused_with_the_nearest():
    with pytest.raises(
        ArgumentError, match="citation: expected a recipe or a rule, found 'fed_average'; try 'fed_"
    ):
        bf.citation("fed_average")
    with pytest.raises(ArgumentError, match="'anycost_fl'.*'PVI'"):
        bf.citation("zzz")
