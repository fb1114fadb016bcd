"""What is wrong with a table of a file, as parts of an error: what was expected, what was found and
what to try.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any, cast

from bayesfed.running.experiments import names, words
from bayesfed.running.experiments.experiment import Settings
from bayesfed.running.experiments.kinds import keys, reader_of
from bayesfed.running.experiments.lines import Place


def wrong(
    schemas: Mapping[str, words.Schema], errors: Sequence[Any], table: Mapping[str, Any]
) -> tuple[Place, dict[str, Any]]:
    """Return the place of a value of another type, and the parts of its error.

    Parameters
    ----------
    schemas
        JSON schemas of the table's keys.
    errors
        Pydantic's errors.
    """
    # Of the members of a union the one that got deepest into the table is meant. Parts of a place
    # that name a member are left out.
    at = max((words.place(error["loc"], table) for error in errors), key=len)
    schema, raw = words.inside(schemas[str(at[0])], at[1:]), reduce(getitem, at, cast(Any, table))
    near = words.nearest(raw, map(str, words.literals(schema))) if isinstance(raw, str) else ""
    expected = words.words(schema)
    hint = "" if expected.startswith("a list") else words.unquoted(raw)
    return at, {
        "expected": expected,
        "actual": words.shown(raw),
        "hint": f'"{near}"' if near else hint or words.example(schema, raw),
    }


def unknown(
    name: str, made_by: Any, known: Sequence[str], file: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the parts of the error of a key that a callable does not have."""
    recipe = file.get("recipe")
    kind = recipe.get("kind") if isinstance(recipe, dict) else recipe
    expected = "a key" if made_by is Settings else f"a key of {made_by.__name__}"
    if made_by is Settings:
        public = names.public()
        below = isinstance(kind, str) and kind in public and name in keys(public[kind])
        place = f"`{name}` below [recipe]" if below else ""
    elif name in (own := names.parameters(made_by)):
        place = (
            f"a type of `{name}` in the signature"
            if own[name].annotation is object
            else "leaving it out, or Python: a file cannot write this one"
        )
    else:
        top = name in names.parameters(Settings)
        place = f"`{name}` at the top of the file, above the first [table]" if top else ""
    near = f"`{words.nearest(name, known) or known[0]}`" if known else ""
    return {
        "expected": f"{expected}: {', '.join(known) or 'no more keys'}",
        "actual": f"`{name}`",
        "hint": place or near or "`bayesfed list`, which says what there is",
    }


def missing(name: str, made_by: Any) -> dict[str, Any]:
    """Return the parts of the error of a key that is required."""
    schema = reader_of(made_by).json_schema()["properties"].get(name)
    wanted, near = (
        (words.words(schema), f"{name} = {words.example(schema)}")
        if schema
        else ("a Python value, which no file can write", "Python")
    )
    hint = {"net": '[net] with kind = "mlp"', "count": "count = 2"}.get(name, near)
    return {"expected": f"`{name}`: {wanted}", "actual": "nothing", "hint": hint}
