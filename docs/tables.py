"""Change tables as the site shows them: names get the first sentence of their docstrings, rows of the ledger begin with the verdict, and the page of
benchmarks gets the last value of every target and what a round of every recipe costs.
"""

from __future__ import annotations

import csv
import inspect
import re
from operator import attrgetter
from pathlib import Path
from typing import Any

import bayesfed

import every_name

HEAD = "| name | defined on the page of |\n|---|---|"
ROW = re.compile(r"^(\| `bf\.([\w.]+)` \|) (.*\|)$", re.MULTILINE)
RECORDS = Path(__file__).parents[1] / "benchmarks" / "records"
TABLE = re.compile(r"(?:^\|.*\|[ \t]*\n)+", re.MULTILINE)


def sentence(name: str) -> str:
    """Return the first sentence of a public name's docstring, as the cell of a table."""
    text = (inspect.getdoc(attrgetter(name)(bayesfed)) or "").split("\n\n")[0]
    if not text:
        raise ValueError(f"bf.{name} has no docstring to show in the table of names")
    first = re.split(r"(?<=[\w)`]{3}[.:]) (?=[A-Z])", " ".join(text.split()))[0]
    return re.sub(r"(?<!\\)\|", r"\\|", first)


def described(markdown: str) -> str:
    """Return the first page of the reference, whose table of names has a column of descriptions, and links to examples."""
    if HEAD not in markdown:
        raise ValueError(f"reference/index.md has no table that begins with {HEAD!r}")
    head = "| name | what it is | page |\n|---|---|---|"
    wider = markdown.replace(HEAD, head)
    return ROW.sub(
        lambda row: f"{row[1]} {sentence(row[2])} | {row[3][:-2]}{example(row[2])} |", wider
    )


def example(name: str) -> str:
    """Return a link to a page whose code uses a public name, to stand after the page that defines it."""
    found = [
        page
        for page in (*every_name.of(name), *every_name.of(name, "py"))
        if page.startswith("docs/")
    ]
    if not found:
        return ""
    page = Path(found[0])
    return f', [example](../{page.relative_to("docs")} "{page.stem.replace("-", " ")}")'


def verdict_first(markdown: str) -> str:
    """Return a page in whose tables the column of verdicts is the first, so that a narrow screen shows it."""

    def turned(table: re.Match[str]) -> str:
        rows = [
            [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]
            for line in table[0].splitlines()
        ]
        if "verdict" not in rows[0][1:]:
            return table[0]
        at = rows[0].index("verdict")
        moved = [[row[at], *row[:at], *row[at + 1 :]] for row in rows]
        lines = "".join(f"| {' | '.join(row)} |\n" for row in moved)
        return f'<div class="verdicts" markdown="1">\n\n{lines}\n</div>\n'

    return TABLE.sub(turned, markdown)


def recorded(markdown: str) -> str:
    """Return the page of benchmarks with the tables of targets and of costs."""
    for name in ("targets", "costs"):
        mark = f"<!-- {name} -->"
        if mark not in markdown:
            raise ValueError(f"benchmarks.md has no line {mark!r}")
        with (RECORDS / f"{name}.tsv").open(encoding="utf-8", newline="") as lines:
            rows = [line for line in csv.reader(lines, delimiter="\t") if line]
        rows.insert(1, ["---"] * len(rows[0]))
        table = (" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows)
        markdown = markdown.replace(mark, "\n".join(f"| {row} |" for row in table))
    return markdown


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Change the tables of the two pages."""
    change = {
        "reference/index.md": described,
        "ledger.md": verdict_first,
        "benchmarks.md": recorded,
    }
    return change.get(page.file.src_uri, str)(markdown)
