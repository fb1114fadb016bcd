"""The lines on which keys of a TOML text stand: `tomllib` does not tell, but it can be asked where
a mark ends up.
"""

from __future__ import annotations

import re
import tomllib
from functools import reduce
from operator import getitem
from typing import Any

Place = tuple[str | int, ...]

MARK = "a-mark-that-no-file-has"


def line_of(text: str, path: Place) -> int | None:
    """Return the line, from 1, of a key or of a table in an array of tables; None if the text does
    not have it there, as it has entries of other arrays.
    """
    *above, last = path
    if isinstance(last, str):
        # The first place where the key's name can be exchanged for the mark, so that the mark
        # stands where the key stood.
        for one in re.finditer(re.escape(last), text):
            if _has(text[: one.start()] + MARK + text[one.end() :], (*above, MARK)):
                return text.count("\n", 0, one.start()) + 1
        return None
    # The first header below which the mark falls into the entry.
    lines = text.splitlines()
    for number in range(1, len(lines) + 1):
        if _has("\n".join([*lines[:number], f"{MARK} = 0", *lines[number:]]), (*path, MARK)):
            return number
    return None


def _has(text: str, path: Place) -> bool:
    try:
        tree: Any = tomllib.loads(text)
        reduce(getitem, path, tree)
    except (tomllib.TOMLDecodeError, KeyError, IndexError, TypeError):
        return False
    return True
