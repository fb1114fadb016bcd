"""Words for what a file may say, for what it says and for what is wrong with it: read off the JSON
schema that pydantic makes of a signature.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import reduce
from operator import getitem
from typing import Any, cast

from bayesfed.running.experiments import names
from bayesfed.running.experiments.experiment import Place, Settings
from bayesfed.running.experiments.kinds import keys, reader_of, ready

Schema = Mapping[str, Any]
# What was expected, what was found and what to try.
Parts = tuple[str, str, str]
_WORDS = {
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "string": "text in quotes",
    "path": "text in quotes or a path in quotes",
    "value": "any value",
}
_EXAMPLES = {
    "boolean": "true",
    "integer": "10",
    "number": "0.1",
    "string": '"..."',
    "path": '"data"',
    "object": "{ ... }",
}
_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a table",
}


def choices(schema: Schema) -> list[Schema]:
    """Return the schemas of a union without that of "none", or the schema itself."""
    return [one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"]


def words(schema: Schema, *, short: bool = False) -> str:
    """Return what a value looks like in a file."""
    return " or ".join(dict.fromkeys(_words(one, short) for one in choices(schema)))


def _words(schema: Schema, short: bool) -> str:  # noqa: PLR0911
    if "words" in schema:
        return str(schema["words"])
    if "enum" in schema or "const" in schema:
        return "one of " + ", ".join(f'"{one}"' for one in literals(schema))
    if kinds := schema.get("kinds"):
        if schema.get("whole"):
            return " or ".join(f'{{ kind = "{one}" }}' for one in kinds)
        if len(kinds) == 1 and not short:
            return f"a table with the keys of {kinds[0]}"
        return (
            "one of "
            + ", ".join(f'"{one}"' for one in kinds)
            + ("" if short else ", as text or as { kind = ..., ... }")
        )
    if parts := schema.get("prefixItems"):
        return f"a list of {len(parts)}: " + ", ".join(words(one, short=short) for one in parts)
    if schema.get("type") == "array":
        return f"a list, each {words(schema['items'], short=short)}"
    if schema.get("type") == "object":
        return f"a table of names, each {words(schema['additionalProperties'], short=short)}"
    return _WORDS[schema["type"]]


def example(schema: Schema, raw: Any = None) -> str:
    """Return a value that would do, made of the one that was written where that can be."""
    one = choices(schema)[0]
    if said := literals(one):
        return f'"{said[0]}"'
    if kinds := one.get("kinds"):
        number = (
            next(iter(one["numbers"].items()), None)
            if isinstance(raw, int | float) and not isinstance(raw, bool)
            else None
        )
        return f'{{ kind = "{number[0]}", {number[1]} = {raw} }}' if number else f'"{kinds[0]}"'
    if one.get("type") == "array":
        inner = one["prefixItems"][0] if "prefixItems" in one else one["items"]
        several = {"integer": "8, 4", "number": "1.0, 0.5"}.get(
            inner.get("type", ""), example(inner)
        )
        return f"[{several if raw is None or isinstance(raw, str | dict | list) else raw}]"
    if one.get("type") == "integer" and isinstance(raw, float):
        return str(max(1, round(raw)))
    return _EXAMPLES.get(one.get("type", ""), "`bayesfed list`")


def literals(schema: Schema) -> list[Any]:
    """Return the words that may stand for a value."""
    return [
        said
        for one in choices(schema)
        for said in one.get("enum", [one["const"]] if "const" in one else [])
    ]


def place(loc: Place, table: Any) -> Place:
    """Return the place in a table that an error of pydantic is about, without the parts that name a
    member of a union.
    """
    path: Place = ()
    for part in loc:
        if part in (
            table
            if isinstance(table, dict)
            else range(len(table))
            if isinstance(table, list)
            else ()
        ):
            path, table = (*path, part), table[part]
    return path


def inside(schema: Schema, path: Place) -> Schema:
    """Return the schema of an entry of a list or of a table."""
    for part in path:
        inner = [
            one["prefixItems"][part]
            if "prefixItems" in one
            else one.get("items", one.get("additionalProperties"))
            for one in choices(schema)
        ]
        schema = next(one for one in inner if one)
    return schema


def shown(raw: Any) -> str:
    """Return a value as the file has it, shortened, and what it is."""
    text = (
        "true"
        if raw is True
        else "false"
        if raw is False
        else f'"{raw}"'
        if isinstance(raw, str)
        else str(raw)
    )
    return (
        f"{text if len(text) <= 60 else text[:57] + '...'} "
        f"({_KINDS.get(type(raw), type(raw).__name__)})"
    )


def unquoted(raw: Any) -> str:
    """Return the hint for a number that was written as text, or nothing."""
    try:
        return f"{float(raw):g}, without quotes" if isinstance(raw, str) else ""
    except ValueError:
        return ""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name nearest to one that was written, or nothing."""
    lower = {one.lower().replace("-", "_"): one for one in known}
    if same := [
        one
        for key, one in lower.items()
        if key.replace("_", "") == name.lower().replace("-", "").replace("_", "")
    ]:
        return same[0]
    close = get_close_matches(name.lower().replace("-", "_"), list(lower), n=1, cutoff=0.6)
    return lower[close[0]] if close else ""


def in_a_file(hint: str) -> str:
    """Add to a hint that calls a function what stands for the call in a file: what is a number or
    text there becomes a key.
    """
    calls = re.finditer(r"(?<!\w)(\w+)\(([^()]*)", hint)
    if (call := next((one for one in calls if one[1] in ready()), None)) is None:
        return hint
    keys, said = iter(names.parameters(names.public()[call[1]])), [f'kind = "{call[1]}"']
    arguments = call[2].split(",")
    for argument in arguments:
        key, _, value = argument.rpartition("=")
        key = key.strip() or next(keys, "")
        if re.fullmatch(r"""-?[\d.]+(e-?\d+)?|'.*'|".*\"""", value.strip()):
            said.append(f"{key} = {value.strip()}")
    if len(said) <= len(arguments):
        said.append("...")
    return f"{hint}, which is {{ {', '.join(said)} }} in a file"


def wrong(
    schemas: Mapping[str, Schema], errors: Sequence[Any], table: Mapping[str, Any]
) -> tuple[Place, Parts]:
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
    at = max((place(error["loc"], table) for error in errors), key=len)
    schema, raw = inside(schemas[str(at[0])], at[1:]), reduce(getitem, at, cast(Any, table))
    near = nearest(raw, map(str, literals(schema))) if isinstance(raw, str) else ""
    expected = words(schema)
    hint = "" if expected.startswith("a list") else unquoted(raw)
    return at, (expected, shown(raw), f'"{near}"' if near else hint or example(schema, raw))


def unknown(name: str, made_by: Any, known: Sequence[str], file: Mapping[str, Any]) -> Parts:
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
    near = f"`{nearest(name, known) or known[0]}`" if known else ""
    return (
        f"{expected}: {', '.join(known) or 'no more keys'}",
        f"`{name}`",
        place or near or "`bayesfed list`, which says what there is",
    )


def missing(name: str, made_by: Any) -> Parts:
    """Return the parts of the error of a key that is required."""
    schema = reader_of(made_by).json_schema()["properties"].get(name)
    wanted, near = (
        (words(schema), f"{name} = {example(schema)}")
        if schema
        else ("a Python value, which no file can write", "Python")
    )
    hint = {"net": '[net] with kind = "mlp"', "count": "count = 2"}.get(name, near)
    return f"`{name}`: {wanted}", "nothing", hint
