"""A finished run is opened, or returned again, with the algorithm that made it and no other."""

import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.errors import ArgumentError
from tests.conftest import tree_equal
from tests.support import recipes

WORK = bf.Training(steps=2, batch_size=8)


def net(nonlinearity):
    """A network of one architecture but for what is between its layers, which has no parameters."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(recipes.FEATURES, 4), nonlinearity(), nn.Linear(4, 3))


def algorithm(nonlinearity=nn.ReLU, training=WORK):
    return bf.fed_avg(net(nonlinearity), training=training)


@pytest.fixture(scope="module")
def result():
    return bf.run(algorithm(), recipes.rows(), rounds=2, progress=False)


OTHERS = {
    "network": (lambda: algorithm(nn.Tanh), "train.local.*net Sequential .*, now Sequential"),
    "setting": (lambda: algorithm(training=bf.Training(steps=3, batch_size=8)), "steps 2, now 3"),
    "method": (
        lambda: bf.fed_prox(net(nn.ReLU), strength=0.1, training=WORK),
        "expected the algorithm of the run, 'fed_avg', found 'fed_prox'",
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_algorithm_opens_nothing(result, tmp_path, other):
    make, words = OTHERS[other]
    folder = result.save(tmp_path / "mine").parent
    with pytest.raises(ArgumentError, match=f"algorithm: .*{words}"):
        bf.open(folder, algorithm=make())
    again = bf.open(folder, algorithm=algorithm())
    assert tree_equal(again.snapshot.state, result.snapshot.state)


def test_a_finished_run_is_returned_to_its_own_algorithm_alone(result):
    options = {"rounds": 2, "resume": result.snapshot, "progress": False}
    for clients in (recipes.rows(), {}):
        with pytest.raises(ArgumentError, match="algorithm: .*now Sequential"):
            bf.run(algorithm(nn.Tanh), clients, **options)
        again = bf.run(algorithm(), clients, **options)
        assert tree_equal(again.snapshot.state, result.snapshot.state)
    changed = bf.run(algorithm(nn.Tanh), {}, resume_anyway=True, **options)
    assert tree_equal(changed.snapshot.state, result.snapshot.state)
