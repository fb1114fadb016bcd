"""Conjugate models: exact in one round, unmoved by more of them, by order and by clients without
rows.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch

import bayesfed as bf
from bayesfed.errors import ArgumentError, ClientError, PosteriorError
from benchmarks.parts.fidelity import problems as fp

PRIOR = {
    "heads": torch.tensor(0.5, dtype=torch.float64),
    "tails": torch.tensor(1.5, dtype=torch.float64),
}


def counts(rows):
    heads = rows.targets.sum()
    return {"heads": heads, "tails": len(rows) - heads}


def coins(*sides):
    targets = torch.tensor(sides)
    return bf.Dataset(torch.zeros(len(sides), 1), targets)


CLIENTS = {"a": coins(1, 0, 1), "b": coins(0), "c": coins(1, 1)}


def found(clients=CLIENTS, rounds=1, algorithm=None, **run):
    return bf.run(
        algorithm or bf.conjugate(PRIOR, counts), clients, rounds=rounds, progress=False, **run
    )


def eta(family, rows):
    return {"eta": family.statistics(rows.targets)}


@pytest.mark.parametrize("count", [1, 2, 5, 10, 50])
@pytest.mark.parametrize("family", fp.CONJUGATE, ids=lambda family: family.name)
def test_one_round_is_exact_for_any_number_of_clients(family, count):
    clients = family.clients(0, count, "sizes")
    result = found(clients, algorithm=bf.conjugate({"eta": family.prior}, partial(eta, family)))
    exact = family.exact(fp.pooled(clients).targets)
    assert result.model.parameters["eta"].dtype == torch.float64
    assert float((result.model.parameters["eta"] - exact).abs().max()) <= 1e-10


def test_more_rounds_change_nothing_and_a_run_resumes():
    once, thrice = found(), found(rounds=3)
    assert once.model.parameters == {"heads": 4.5, "tails": 3.5}
    assert thrice.model.parameters == once.model.parameters
    assert found(rounds=3, resume=once.snapshot).snapshot.state == thrice.snapshot.state
    assert set(once.snapshot.memories["a"]) == {"model/heads", "model/tails"}


def test_clients_take_part_when_they_can():
    result = found(rounds=6, sampler=lambda number, names, key: [sorted(names)[number % 3]])
    assert result.model.parameters == found().model.parameters


def test_a_client_whose_rows_changed_corrects_itself():
    first = found()
    later = CLIENTS | {"b": coins(0, 0, 1), "c": coins()}
    corrected = found(later, rounds=2, resume=first.snapshot, resume_anyway=True)
    assert (
        corrected.model.parameters == found(later).model.parameters == {"heads": 3.5, "tails": 4.5}
    )


def test_a_client_without_rows_changes_nothing():
    def careful(rows):
        assert len(rows)
        return counts(rows)

    algorithm = bf.conjugate(PRIOR, careful)
    assert (
        found(CLIENTS | {"none": coins()}, algorithm=algorithm).model.parameters
        == found().model.parameters
    )
    alone = found(
        CLIENTS | {"none": coins()},
        algorithm=algorithm,
        sampler=lambda number, names, key: ["none"],
    )
    assert alone.model.parameters == PRIOR


def test_workers_give_the_same_bits():
    assert (
        found(bf.InProcess(CLIENTS, workers=2), rounds=2).snapshot.state
        == found(rounds=2).snapshot.state
    )


def test_the_prior_is_copied_and_sets_the_precision():
    prior = {name: leaf.float() for name, leaf in PRIOR.items()}
    algorithm = bf.conjugate(prior, counts)
    prior["heads"].add_(1)
    assert found(algorithm=algorithm).model.parameters["heads"].dtype == torch.float32
    assert float(found(algorithm=algorithm).model.parameters["heads"]) == 4.5
    assert found(algorithm=algorithm).bits("up") < found().bits("up")


def test_what_cannot_be_is_refused_in_words():
    with pytest.raises(PosteriorError, match=r"model\.parameters"):
        found().model(torch.zeros(1, 1))
    with pytest.raises(ArgumentError, match="a Bayesian method"):
        _ = found().posterior
    for prior in ({}, {"heads": torch.tensor(1)}, {"heads": torch.tensor(float("nan"))}):
        with pytest.raises(ArgumentError, match="finite floating-point leaves"):
            bf.conjugate(prior, counts)
    for statistics, words in [
        (lambda rows: {"heads": rows.targets.sum()}, "statistics.*shapes"),
        (lambda rows: {name: torch.tensor(float("inf")) for name in PRIOR}, "finite"),
    ]:
        with pytest.raises(ClientError, match=words):
            found(algorithm=bf.conjugate(PRIOR, statistics))


def test_a_client_that_fails_may_come_back():
    def broken(rows):
        if len(rows) == 1:
            raise RuntimeError("sensor unplugged")
        return counts(rows)

    first = found(algorithm=bf.conjugate(PRIOR, broken), on_client_error="drop")
    assert first.model.parameters == {"heads": 4.5, "tails": 2.5}
    assert (
        found(rounds=2, resume=replace(first.snapshot), resume_anyway=True).model.parameters
        == found().model.parameters
    )
