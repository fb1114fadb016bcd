"""The product of doors: every public callable, called wrongly in one argument, refuses it with an
error of the package, or has a documented meaning for it.
"""

import pytest

from tests.support.doors.calls import callables, outcome, right, wrong_calls


@pytest.mark.parametrize("name", callables())
def test_the_call_that_is_made_wrong_is_right(name):
    callables()[name](**right(name, callables()[name]))


def test_wrong_calls_are_refused_or_mean_something():
    found = {f"{number}: {call}": outcome(call) for number, call in enumerate(wrong_calls())}
    assert len(found) >= 4000
    assert not {call: end for call, end in found.items() if end not in ("refused", "meant")}
