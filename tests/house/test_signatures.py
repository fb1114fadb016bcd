"""What can be called by the names of `import bayesfed`, and with which arguments: a change of it is
a change of a file that is read.

`signatures.txt` has a line for every public name, and of classes for making one and for every
public method and property of ours. After a change that is meant::

    python -m tests.house.test_signatures --write
"""

import dataclasses
import inspect
import re
import sys
from pathlib import Path

import bayesfed as bf

ROOMS = (
    *("algorithms", "compress", "data", "federated"),
    *("inspect", "models", "running", "wireless"),
)
FILE = Path(__file__).parent / "signatures.txt"
WRITE = "python -m tests.house.test_signatures --write"


def value(default):
    """A default as its code would say it; of what has no literal, its name or its type."""
    if inspect.isroutine(default) or inspect.isclass(default):
        return default.__qualname__.replace("<", "").replace(">", "")
    if default is dataclasses.MISSING or repr(default) == "<factory>":
        return "..."
    if isinstance(default, Path):
        return repr(str(default))
    # The last digits of a number that was worked out are the platform's.
    text = re.sub(
        r"\d+\.\d{13,}(?:e-?\d+)?", lambda found: f"{float(found[0]):.12g}", repr(default)
    )
    return f"{type(default).__name__}(...)" if " at 0x" in text else text


def annotation(hint):
    # The fields of a `NamedTuple`.
    hint = getattr(hint, "__forward_arg__", hint)
    return (
        hint
        if isinstance(hint, str)
        else getattr(hint, "__qualname__", None) or re.sub(r"\b(?:\w+\.)+", "", str(hint))
    )


def arguments(signature, *, bound=False):
    """The signature as it is written in code; only names, kinds, annotations and defaults, which no
    version of Python changes.
    """
    listed = list(signature.parameters.values())[bound:]
    parts, starred = [], False
    for place, one in enumerate(listed):
        if one.kind is one.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        name = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "") + one.name
        starred |= one.kind is one.VAR_POSITIONAL
        hint = "" if one.annotation is one.empty else f": {annotation(one.annotation)}"
        default = (
            ""
            if one.default is one.empty
            else f" = {value(one.default)}"
            if hint
            else f"={value(one.default)}"
        )
        parts.append(name + hint + default)
        if one.kind is one.POSITIONAL_ONLY and (
            place + 1 == len(listed) or listed[place + 1].kind is not one.POSITIONAL_ONLY
        ):
            parts.append("/")
    returned = signature.return_annotation
    return f"({', '.join(parts)})" + (
        "" if returned is signature.empty else f" -> {annotation(returned)}"
    )


def of_class(name, kind):
    if not getattr(kind, "_is_protocol", False):
        yield name + arguments(inspect.signature(kind)).removesuffix(" -> None")
    ours = [base for base in kind.__mro__ if base.__module__.startswith("bayesfed")]
    fields = (
        [one.name for one in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
    )
    for member in sorted(
        {
            member
            for base in ours
            for member in vars(base)
            if not member.startswith("_") or member == "__call__"
        }
        - {*fields}
    ):
        found = inspect.getattr_static(kind, member)
        if isinstance(found, property):
            yield f"{name}.{member}: {annotation(inspect.signature(found.fget).return_annotation)}"
        elif isinstance(found, staticmethod | classmethod):
            yield f"{name}.{member}{arguments(inspect.signature(getattr(kind, member)))}"
        elif inspect.isfunction(found):
            yield f"{name}.{member}{arguments(inspect.signature(found), bound=True)}"


def signatures():
    lines = []
    for name, found in public():
        lines += (
            of_class(f"bayesfed.{name}", found)
            if inspect.isclass(found)
            else [f"bayesfed.{name}{arguments(inspect.signature(found))}"]
        )
    return lines


def public():
    """The names on `bayesfed`, and those of the rooms from which users take the rest."""
    yield from ((name, getattr(bf, name)) for name in bf.__all__)
    for room in ROOMS:
        for name in sorted({*getattr(bf, room).__all__} - {*bf.__all__}):
            found = getattr(getattr(bf, room), name)
            if inspect.isclass(found) or inspect.isfunction(found):
                yield f"{room}.{name}", found


def test_signatures_are_those_that_are_written_down():
    found, known = signatures(), FILE.read_text(encoding="utf-8").splitlines()
    changes = [f"- {line}" for line in known if line not in found] + [
        f"+ {line}" for line in found if line not in known
    ]
    assert not changes, "\n".join(
        [
            f"public signatures changed; if that is meant: {WRITE}, and say it in CHANGELOG.md",
            *changes,
        ]
    )
    assert found == known


def test_lines_are_the_same_on_every_machine():
    text = FILE.read_text(encoding="utf-8")
    assert not re.search(r"0x[0-9a-f]{4,}|<[a-z]|/home|site-packages", text)
    assert len(set(text.splitlines())) == len(text.splitlines())
    missing = [
        name for name, _ in public() if not re.search(rf"^bayesfed\.{name}[(.]", text, re.MULTILINE)
    ]
    assert not missing


def test_a_signature_is_written_as_in_code():
    def given(a, /, b: int, *rest: str, c: float = 0.5, d=None, **more: bool) -> "list[int]": ...

    assert (
        arguments(inspect.signature(given))
        == "(a, /, b: int, *rest: str, c: float = 0.5, d=None, **more: bool) -> list[int]"
    )
    assert arguments(inspect.signature(lambda a, *, b=print: 0)) == "(a, *, b=print)"


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(f"usage: {WRITE}")
    FILE.write_text("\n".join(signatures()) + "\n", encoding="utf-8")
