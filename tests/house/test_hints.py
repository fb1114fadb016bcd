"""Every error and warning is provoked, and what it says to try works (`tests.support.hints`)."""

import warnings

import pytest

import bayesfed as bf
from tests.house.wrong_calls.given import net
from tests.support import hints
from tests.support.hints.places import places
from tests.support.hints.roles import wanted
from tests.support.hints.unreachable import UNREACHABLE
from tests.support.hints.walking import missing, rooms, walk

ROOMS = rooms()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=getattr(pytest.mark, room.MARK) if hasattr(room, "MARK") else ())
        for name, room in ROOMS.items()
    ],
)
def test_what_a_message_says_to_try_works_and_none_is_missing(name):
    walked = walk(ROOMS[name].CASES)
    assert walked.problems == []
    assert list(map(str, missing(ROOMS[name].COMPLETE, walked.reached))) == []


@pytest.mark.slow
def test_what_roles_and_annotations_say_to_pass_fits_them():
    found = list(wanted())
    assert len(found) > 1000
    assert [problem for one in found if (problem := one.problem())] == []


@pytest.mark.slow
def test_every_file_with_messages_is_in_a_room_that_is_complete():
    covered = [one for room in ROOMS.values() for one in room.COMPLETE]
    left = {
        place.file
        for place in places()
        if not any(place.file == one or place.file.startswith(f"{one}/") for one in covered)
    }
    assert not hints.ALL or left == set()


def test_what_no_call_can_reach_is_there_and_has_its_reason():
    assert all(reason for parts in UNREACHABLE.values() for reason in parts.values())
    for file, parts in UNREACHABLE.items():
        for part in parts:
            assert sum(part in one.text for one in places() if one.file == file) == 1, (file, part)


def refused(rows=2):
    """Refuse a partition of two rows into three clients."""
    return bf.iid(rows, 3, bf.Key(0), minimum=1)


@pytest.mark.parametrize(
    ("case", "problem"),
    [
        ((refused, "a smaller minimum", refused), "what it says to try ends in ArgumentError"),
        ((refused, "a larger minimum", dict), "'a larger minimum' is not in"),
        ((dict, "a smaller minimum", dict), "no message of the package"),
        ((lambda rows: refused(), 2), "no expression in 'a smaller minimum"),
        ((lambda share: bf.fed_prox(net(), strength=-1.0), -1.0), "0.01: what it says to try"),
        (
            (refused, "a smaller minimum", lambda: warnings.warn("odd", stacklevel=1)),
            "what it says to try warns: odd",
        ),
    ],
)
def test_a_hint_that_does_not_work_is_found(case, problem):
    assert [problem in found for found in walk([case]).problems] == [True]


def test_a_message_without_a_case_is_found_where_it_is_made():
    every = missing(["bayesfed/data/partition.py"], set())
    left = missing(["bayesfed/data/partition.py"], walk([(refused, "minimum", dict)]).reached)
    assert len(left) == len(every) - 1 > 3
    assert str(left[0]).startswith("bayesfed/data/partition.py:")
