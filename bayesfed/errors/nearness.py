"""Which of some words is meant by one that is none of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str], count: int = 1) -> str:
    """Return the known words that begin with one that was written, or are most like it, joined by
    "or"; nothing if none is. How they are capitalised makes no difference.

    Parameters
    ----------
    name
        What was written.
    known
        The words.
    count
        How many are returned at most.
    """
    written, words = _bare(name), sorted(known, key=lambda one: len(_bare(one)))
    begun = [one for one in words if written and _bare(one).startswith(written)]
    lower = {one.lower(): one for one in words}
    like = get_close_matches(name.lower(), lower, count)
    return " or ".join(begun[:count] or [lower[one] for one in like])


def _bare(name: str) -> str:
    return re.sub("[-_ ]", "", name.lower())
