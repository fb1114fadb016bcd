"""Errors of a user's network, posterior or file: whole, with client and round, and with advice only
where a layer says its cause.
"""

import pickle
import re

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoNormal
from torch import nn

import bayesfed as bf
from bayesfed.errors import ArgumentError, ClientError, DataError
from bayesfed.models.misfits import misfit
from tests.house.wrong_calls.given import DATA, KEY, TEST, avg, done, go, net, svi_done


class Faulty(nn.Module):
    """Its own code is wrong, and the message of torch speaks of sizes."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, inputs):
        return self.inner(inputs) + torch.zeros(5)


def test_an_error_of_the_network_comes_through_whole():
    algorithm = bf.fed_avg(Faulty(), training=bf.Training(steps=1))
    for call in (lambda: go(algorithm), lambda: go(algorithm, workers_of_two())):
        with pytest.raises(ClientError) as caught:
            call()
        text = str(caught.value)
        assert "client 'a', round 0, stage 'fit': RuntimeError: The size of tensor a (3)" in text
        assert "width" not in text
    with pytest.raises(ClientError) as caught:
        go(algorithm)
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(DataError, match="model: the network raised RuntimeError: The size of tens"):
        go(algorithm, rounds=1, test=DATA)


def workers_of_two():
    return bf.InProcess({"a": DATA[:3], "b": DATA[3:]}, workers=1)


@pytest.mark.parametrize(
    ("layer", "given", "words"),
    [
        (nn.Linear(4, 3), torch.zeros(2, 5), "Linear.*of float32 was given a tensor .2, 5."),
        (nn.Linear(4, 3), torch.zeros(2, 4).double(), "was given a tensor .2, 4. of float64"),
        (nn.Conv2d(3, 2, 1), torch.zeros(2, 4, 4), "Conv2d.3, 2"),
        (nn.Embedding(9, 2), torch.zeros(2, 4), "Embedding.9, 2.*of float32"),
        (nn.LSTM(4, 2), torch.zeros(2, 3, 5), "LSTM.4, 2"),
        (nn.Unflatten(1, (3, 2)), torch.zeros(2, 4), ""),
    ],
    ids=["width", "type", "channels", "ids", "recurrent", "other"],
)
def test_a_layer_that_was_given_another_width_or_type_is_named(layer, given, words):
    try:
        nn.Sequential(layer)(given)
    except (RuntimeError, ValueError) as problem:
        found = misfit(problem)
    assert bool(found) == bool(words)
    assert not words or re.search(words, found)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: go(bf.laplace(net())).posterior.draw(0), r"draw, key: expected a Key, found 0"),
        (lambda: svi_done().posterior.draw_prior(0), r"draw_prior, key: expected a Key, found 0"),
        (lambda: go(bf.laplace(net())).predictive(TEST.inputs).draws(0), "draws, key: expected"),
        (lambda: done().personal_scores(TEST), "personal_scores, data: expected a mapping"),
        (lambda: go(bf.laplace(net())).predictive(TEST.inputs, client="c"), "one of 'a', 'b'"),
        (lambda: bf.models.compact(done().model), "compact, net|compact: expected"),
        (lambda: bf.inspect.partition_table([DATA]), "partition_table, clients: expected"),
        (lambda: go(sampler=lambda round: None), "sampler: expected a function that chooses"),
        (lambda: go(sampler=lambda *_: None), "sampler, round 0: expected names of clients"),
        (lambda: done().save(__file__), "Result.save: expected a path to write to"),
        (lambda: done().save_model("/proc/m"), "Result.save_model: expected a path to write to"),
        (lambda: bf.Training(steps=5, epochs=1.0), "Training: expected steps or epochs"),
        (lambda: bf.private(avg(), clip=[1.0], noise=1.0, participants=2, key=KEY), "clip"),
    ],
)
def test_wrong_arguments_of_results_and_posteriors_are_named(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()


@pytest.mark.parametrize("rows", [torch.tensor([9]), torch.tensor([0.5]), torch.zeros(2, 2).long()])
def test_rows_that_a_set_does_not_have_are_refused(rows):
    with pytest.raises(DataError, match=r"rows of a Dataset: .* try data\[:5\]"):
        DATA[rows]


def test_other_widths_are_refused_by_predictions():
    with pytest.raises(DataError, match="Linear.in_features=4.*try rows of the width"):
        go(bf.laplace(net())).scores(bf.Dataset(torch.zeros(2, 5), torch.zeros(2).long()))


def test_a_function_of_the_model_makes_its_guide():
    """As Pyro's own examples hide sites: of a function by its arguments, not by its name."""

    def model(inputs, targets=None):
        weight = pyro.sample("w", dist.Normal(torch.zeros(4), 1.0).to_event(1))
        with pyro.plate("data", len(inputs)):
            return pyro.sample("y", dist.Normal(inputs @ weight, 1.0), obs=targets)

    rows = bf.Dataset(DATA.inputs, DATA.inputs[:, 0])
    options = {"observations": 6, "example": rows[:2], "training": bf.Training(steps=1)}
    states = []
    for guide in (AutoNormal, lambda given: AutoNormal(poutine.block(given, hide=["z"]))):
        result = go(bf.federated_svi(model, guide, **options), {"a": rows})
        states.append(result.snapshot.state)
        assert pickle.dumps(result)
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(leaf, states[1][name]) for name, leaf in states[0].items())
