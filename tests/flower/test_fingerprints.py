"""Experiments over Flower have one fingerprint if, and only if, they are the same."""

import pytest
import torch

import bayesfed as bf
from bayesfed.errors import ArgumentError, ClientError
from bayesfed.flower import Experiment
from bayesfed.flower.fingerprint import differing, parts_of
from bayesfed.flower.letters import Question, read_reply
from bayesfed.flower.site import Site
from tests.flower.flower_grid import FakeGrid, PlainMail, sites
from tests.flower.test_flower_letters import QUESTION
from tests.support.letters import experiments
from tests.support.letters.experiments import ONE, PAIRS, averaged, formula, own, parts, svi
from tests.support.recipes import tiny_recipes


@pytest.mark.parametrize("name", PAIRS)
def test_experiments_that_differ_in_one_thing_are_told_apart(name):
    one, other = (parts(make) for make in PAIRS[name])
    assert differing(one, other)
    assert len(one) <= 128
    assert all(len(digest) == 16 for digest in one.values())


@pytest.mark.slow
def test_the_same_experiment_has_one_fingerprint_in_every_process():
    assert not experiments.unlike()


@pytest.mark.slow
def test_every_recipe_has_one_fingerprint_that_a_run_does_not_change():
    found = set()
    for name, make in tiny_recipes().items():
        one, other = make(), make()
        before = Experiment(algorithm=one.algorithm, data=one.data.get)
        parts = dict(before.parts)
        if name in ("fed_avg", "federated_svi pvi", "d_turbo_vbi"):
            bf.run(one.algorithm, one.pool(), rounds=1, progress=False)
        assert before.parts == parts == parts_of(other.algorithm), name
        found.add(before.fingerprint)
    assert len(found) == len(tiny_recipes())


def test_what_differs_is_named_with_the_formula_first():
    assert differing(parts(formula), parts(PAIRS["formula"][1]))[0].startswith("regression.design")
    assert differing(parts(formula), parts(PAIRS["response"][1])) == ["regression.design.formula"]
    ends = {name.rpartition(".")[2] for name in differing(parts(svi), parts(PAIRS["helper"][1]))}
    assert ends == {"source"}
    assert differing({"a": "1", "a.b": "2", "c": "3"}, {"a": "0", "a.b": "0", "d": "4"}) == [
        *("a", "c", "d")
    ]


def test_a_client_with_another_formula_is_refused_and_the_message_says_so(tmp_path):
    right, wrong = (
        bf.running.prepared(text, {"basel": ONE, "bern": ONE}, "bernoulli")
        for text in ("died ~ age + ward", "died ~ bmi + ward")
    )
    grid = FakeGrid(
        {
            1: sites(right.algorithm, right.clients, tmp_path)[9000],
            2: sites(wrong.algorithm, wrong.clients, tmp_path)[8993],
        }
    )
    server = Experiment(algorithm=right.algorithm, data=right.clients.get)
    told = (
        r"client 'bern' \(node 2\): it has another experiment than the server: "
        r"regression.design.formula, .* are others"
    )
    with pytest.raises(ClientError, match=told):
        bf.flower.Flower(
            grid,
            2,
            hello_s=2.0,
            experiment=server.fingerprint,
            parts=server.parts,
            mail=PlainMail(),
            clock=grid.clock,
            wait=grid.wait,
        )


def test_a_site_refuses_a_question_of_another_experiment(tmp_path):
    rows = bf.Dataset(torch.ones(2, 2), torch.tensor([0, 1]))
    experiment = Experiment(algorithm=averaged(), data=lambda client: rows)
    site = Site(QUESTION.task.client, experiment, tmp_path)
    asked = Question(QUESTION.task, None, experiment="another")
    reply = read_reply(site.handle(asked.write()))
    assert reply.stage == "letter"
    assert "expected one of this client's experiment" in reply.reason


def test_what_has_no_source_text_is_refused_with_what_to_do():
    names = {}
    exec("def model(inputs, targets=None):\n    pass", names)
    with pytest.raises(ArgumentError, match="source text of 'model'.*; try def in a file"):
        parts_of(bf.federated_svi(names["model"]))
    one, two = (lambda round: 0.1 + round), (lambda round: 0.2 + round)
    texts = [
        parts_of(averaged(training=bf.Training(steps=2, schedule=schedule)))
        for schedule in (one, two)
    ]
    assert differing(*texts)


def test_rows_are_no_part_of_it():
    model = own().model

    def fitted(value):
        rows = bf.Dataset(torch.full((2, 2), value), torch.ones(2))
        work = bf.Training(steps=2)
        guide = experiments.AutoNormal
        return parts_of(
            bf.federated_svi(model, guide, fusion=experiments.PVI(), example=rows, training=work)
        )

    assert not differing(fitted(1.0), fitted(7.0))
