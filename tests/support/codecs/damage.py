"""Damage to sections, and what a reader may return for a damaged one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from bayesfed.errors import WireError
from bayesfed.testing.law import LawError, law

T = TypeVar("T")


def damaged(raw: bytes, random: np.random.Generator) -> bytes:
    """Return a section that is truncated, changed, extended, filled with large counts or
    replaced.
    """
    place = int(random.integers(len(raw) + 1))
    match int(random.integers(5)):
        case 0:
            return raw[:place]
        case 1:
            return raw[:place] + random.bytes(1) + raw[place + 1 :]
        case 2:
            return raw[:place] + random.bytes(int(random.integers(1, 9))) + raw[place:]
        case 3:
            # The front of a section holds counts of what follows.
            return b"\xff" * min(place, 12) + raw[min(place, 12) :]
        case _:
            return random.bytes(int(random.integers(40)))


def survives(read: Callable[[], T], as_promised: Callable[[T], bool], what: str) -> bool:
    """Check that a reader raises `WireError` or returns what was promised, and return whether it
    returned.

    Parameters
    ----------
    read
        The call to check.
    as_promised
        Whether a result is what was promised.
    what
        What is read, for the message.

    Raises
    ------
    LawError
        If it raises anything else, or returns something else.
    """
    try:
        result = read()
    except WireError:
        return False
    except Exception as other:
        raise LawError(
            f"{what}: raised {type(other).__name__} in place of WireError: {other}"
        ) from other
    law(as_promised(result), f"{what}: was read as something other than was promised")
    return True
