"""The lines on which keys of a TOML text stand: `tomllib` does not tell, but it can be asked where
a mark ends up.
"""

from __future__ import annotations

import re
import tomllib
from functools import reduce
from operator import getitem
from typing import Any

Path = tuple[str | int, ...]

MARK = "a-mark-that-no-file-has"


def line_of(text: str, path: Path) -> int | None:
    """Return the line, from 1, of a key or of an entry of an array; None if the text, one that
    `tomllib` reads, does not have it.
    """
    lines = text.splitlines()
    if not path or _at(tomllib.loads(text), path) is None:
        return None
    *above, last = path
    if isinstance(last, str):
        # The first place where the key's name can be exchanged for the mark, so that the mark
        # stands where the key stood.
        for one in re.finditer(re.escape(last), text):
            if (
                _at(_parsed(text[: one.start()] + MARK + text[one.end() :]), (*above, MARK))
                is not None
            ):
                return text.count("\n", 0, one.start()) + 1
        return line_of(text, tuple(above))
    for number in range(1, len(lines) + 1):
        # The first header below which the mark falls into the entry, or the last line of an array
        # before which it comes in front of the entry.
        below = _parsed("\n".join([*lines[:number], f"{MARK} = 0", *lines[number:]]))
        if _at(below, (*path, MARK)) is not None:
            return number
    before = [
        (n, _at(_parsed("\n".join([*lines[:n], f'"{MARK}",', *lines[n:]])), tuple(above)))
        for n in range(len(lines))
    ]
    places = [
        n + 1
        for n, array in before
        if isinstance(array, list) and MARK in array and array.index(MARK) <= last
    ]
    return places[-1] if places else line_of(text, tuple(above))


def _parsed(text: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _at(tree: Any, path: Path) -> Any:
    try:
        return reduce(getitem, path, tree)
    except (KeyError, IndexError, TypeError):
        return None
