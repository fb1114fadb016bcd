"""Which of some words is meant by one that is none of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str], count: int = 1) -> str:
    """Return the known words that begin with one that was written, or are most like it, joined by
    "or"; nothing if none is. How they are capitalised and joined makes no difference.

    Parameters
    ----------
    name
        What was written.
    known
        The words.
    count
        How many are returned at most.
    """
    written, bare = _bare(name), {_bare(one): one for one in known}
    begun = sorted((one for one in bare if written and one.startswith(written)), key=len)
    near = begun[:count] or get_close_matches(written, bare, count)
    return " or ".join(bare[one] for one in near)


def _bare(name: str) -> str:
    return re.sub("[-_ ]", "", name.lower())
