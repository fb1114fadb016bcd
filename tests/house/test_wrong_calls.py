"""Over two hundred wrong calls: each ends at the entry that was called, with an error of the
package that says what to pass instead.

A row is a call, the class of its error, and words that must appear in it. None may end in a
traceback from below, or run on in silence.
"""

from types import SimpleNamespace
from typing import Protocol

import numpy as np
import pytest

import bayesfed as bf
from bayesfed.errors import BayesfedError, KeywordError
from bayesfed.errors.roles import role_of
from tests.house.wrong_calls import data, models, parts, recipes, results, runs
from tests.house.wrong_calls.given import DATA, KEY, net

ROOMS = (data, models, recipes, runs, results, parts)
WRONG = {name: row for room in ROOMS for name, row in room.WRONG.items()}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_are_named_where_they_are_made(name):
    call, kind, words = WRONG[name]
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    assert words in str(caught.value)


def test_there_are_enough_of_them_and_all_are_of_the_package():
    assert len(WRONG) == sum(len(room.WRONG) for room in ROOMS)
    assert len(WRONG) > 200
    # A name that a module does not have is Python's own error.
    assert {
        name for name, (_, kind, _) in WRONG.items() if not issubclass(kind, BayesfedError)
    } == {"fedavg name", "FedAvg name"}


def test_keywords_are_those_of_python_as_well():
    with pytest.raises(TypeError):
        bf.fed_avg(net(), lr=0.1)
    with pytest.raises(
        KeywordError,
        match="fed_prox: expected net, strength, .* missing a required .*argument: 'strength'",
    ):
        bf.fed_prox(net())
    with pytest.raises(
        KeywordError,
        match=(
            r"Training: expected steps, batch_size, .*, found too many positional arguments; try "
            r"each argument by its name"
        ),
    ):
        bf.Training(1, 2, None, bf.federated.cosine(0.1, 3), None, 3)


def test_numbers_of_numpy_are_numbers():
    assert len(bf.iid(np.int64(6), np.int32(2), KEY)) == 2
    assert len(bf.dirichlet(DATA.targets, 2, np.float64(0.5), KEY)) == 2


def test_what_a_later_python_writes_into_a_protocol_is_not_asked_of_a_value():
    class Named(Protocol):
        name: str

        def greet(self) -> str: ...

    # As 3.12 and 3.13 do.
    Named.__protocol_attrs__, Named.__static_attributes__ = {"name", "greet"}, ()
    made = SimpleNamespace(name="a", greet=str)
    assert role_of(Named).fits(made)
    assert not role_of(Named).fits(SimpleNamespace(name="a"))
