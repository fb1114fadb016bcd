"""Numbers and what they count, as messages say them."""

from __future__ import annotations

# What is not made by an "s" at the end.
IRREGULAR = {
    "child": "children",
    "entry": "entries",
    "class": "classes",
    "leaf": "leaves",
    "query": "queries",
    "is": "are",
    "has": "have",
    "was": "were",
}


def plural(count: int, noun: str, form: str = "") -> str:
    """Return a count and its noun: "1 round", "2 rounds", "1,000 rows of one client".

    Parameters
    ----------
    count
        How many there are.
    noun
        One of them; words behind it, after " of " or " in ", stay as they are.
    form
        Format of the count, such as ``","``.
    """
    return f"{count:{form}} {noun if count == 1 else _several(noun)}"


def _several(noun: str) -> str:
    joints = [joint for joint in (" of ", " in ", " with ", " that ", " for ") if joint in noun]
    joint = min(joints, key=noun.index, default="")
    head, joint, rest = noun.partition(joint) if joint else (noun, "", "")
    before, space, last = head.rpartition(" ")
    return f"{before}{space}{IRREGULAR.get(last, last + 's')}{joint}{rest}"
