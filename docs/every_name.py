"""Where the code of pages uses each public name, found by reading the code: what the reference
links to, and what `benchmarks/front.py` counts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import bayesfed

ROOT = Path(__file__).parents[1]


def paths(code: str) -> Iterator[str]:
    """Yield the dotted paths below `bayesfed` that code names, through the names that it imports.

    >>> list(paths("import bayesfed as bf; from bayesfed import data; data.iid(4, 2, bf.Key(0))"))
    ['data', 'data.iid', 'Key']
    """
    known: dict[str, str] = {}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            known |= {
                one.asname or one.name: "" for one in node.names if one.name == "bayesfed"
            }
        elif (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").split(".")[0] == "bayesfed"
        ):
            home = str(node.module).removeprefix("bayesfed").removeprefix(".")
            for one in node.names:
                known[one.asname or one.name] = f"{home}.{one.name}".strip(".")
                yield known[one.asname or one.name]
        elif isinstance(node, ast.Attribute):
            parts = ast.unparse(node).split(".")
            if parts[0] in known:
                yield ".".join([known[parts[0]], *parts[1:]]).strip(".")


def uses(programs: Iterable[tuple[str, str]]) -> dict[int, list[str]]:
    """Return the names of the programs that use an object of the package, by its `id`."""
    found: dict[int, list[str]] = {}
    for title, code in programs:
        for one in {id(_value(name)) for name in paths(code)}:
            found.setdefault(one, []).append(title)
    return found


@cache
def pages(language: str = "python") -> dict[int, list[str]]:
    """Return the pages whose blocks in a language use an object: those in "python" are run by the
    tests, those in "py" need files, an extra or several processes.
    """
    places = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    fence = re.compile(rf"^```{language}\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    # One program a page: a block uses what those before it have imported.
    return uses(
        (
            str(path.relative_to(ROOT)),
            "import bayesfed as bf\n" + "\n".join(fence.findall(path.read_text())),
        )
        for path in places
    )


@cache
def tests() -> dict[int, list[str]]:
    """Return the test files that use an object."""
    return uses(
        (str(path.relative_to(ROOT)), path.read_text())
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
    )


def names() -> list[str]:
    """Return the public names, as the reference's first page lists them."""
    text = (ROOT / "docs/reference/index.md").read_text()
    return re.findall(r"^\| `bf\.([\w.]+)`", text, re.M)


def of(name: str, language: str = "python") -> list[str]:
    """Return the pages whose code uses a public name, those about it first: tutorials, how-to."""
    order = ("tutorials", "how-to", "explanation", "README", "docs")
    where = pages(language).get(id(_value(name)), [])
    return sorted(
        where, key=lambda page: next(n for n, word in enumerate(order) if word in page)
    )


def shown(name: str) -> bool:
    """Return whether a page shows the use of a public name in code that is run: the page's own, or
    a test's where the page's needs files, an extra or several processes.
    """
    return bool(of(name) or (of(name, "py") and tests().get(id(_value(name)))))


def _value(name: str) -> object:
    try:
        return attrgetter(name)(bayesfed)
    except AttributeError:
        home, _, last = f"bayesfed.{name}".rpartition(".")
        try:
            return vars(import_module(home)).get(last)
        except ImportError:
            return None
