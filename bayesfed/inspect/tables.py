"""Tables: aligned plain text, text to the left and numbers to the right, and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

from bayesfed.errors.checks import checked
from bayesfed.federated import Record, bits


def table(headings: Sequence[str], rows: Sequence[Sequence[str | float | int]]) -> str:
    """Return an aligned plain-text table, with floats to four significant digits."""
    cells = [
        [
            value
            if isinstance(value, str)
            else f"{value:,}"
            if isinstance(value, int)
            else f"{value:.4g}"
            for value in row
        ]
        for row in rows
    ]
    widths = [max(len(row[i]) for row in [list(headings), *cells]) for i in range(len(headings))]
    text = _text(headings, cells)

    def line(row: Sequence[str]) -> str:
        return "  ".join(
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(row, widths, text, strict=True)
        ).rstrip()

    return "\n".join([line(headings), line(["-" * width for width in widths]), *map(line, cells)])


def csv_of(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as CSV."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([headings, *rows])
    return out.getvalue()


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of cells as Markdown, numbers to the right."""
    rule = ["---" if left else "--:" for left in _text(headings, rows)]
    lines = ([cell.replace("|", r"\|") for cell in row] for row in [headings, rule, *rows])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def latex(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of cells as a LaTeX ``tabular`` with the rules of booktabs."""
    special = {"\\": r"\textbackslash{}", "±": r"$\pm$", "~": r"\textasciitilde{}"}
    special |= {"^": r"\textasciicircum{}"} | {sign: f"\\{sign}" for sign in "&%$#_{}"}
    head, *lines = (
        " & ".join("".join(special.get(sign, sign) for sign in cell) for cell in row) + " \\\\\n"
        for row in [headings, *rows]
    )
    columns = "".join("l" if left else "r" for left in _text(headings, rows))
    body = f"\\toprule\n{head}\\midrule\n{''.join(lines)}\\bottomrule\n"
    return f"\\begin{{tabular}}{{{columns}}}\n{body}\\end{{tabular}}\n"


def _text(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[bool]:
    """Return which columns are text."""
    return [not all(_is_number(row[i]) for row in rows) for i in range(len(headings))]


def _is_number(cell: str) -> bool:
    try:
        float(cell.replace(",", ""))
    except ValueError:
        return False
    return True


@checked()
def round_table(history: Sequence[Record], *, every: int = 1) -> str:
    """Return a table of the rounds of a run: metrics, density, kilobytes down and up, refused
    clients, seconds.

    Parameters
    ----------
    history
        History of the run.
    every
        Show the first, the last and every `every`-th round.
    """
    metrics = list(dict.fromkeys(name for record in history for name in record.metrics))
    sparse = any("density" in record.server for record in history)
    headings = [
        "round",
        *metrics,
        *(["density", "returned"] if sparse else []),
        "kB down",
        "kB up",
        "refused",
        "seconds",
    ]
    rows: list[list[str | float | int]] = []
    for record in history:
        if record.round and (record.round + 1) % every and record is not history[-1]:
            continue
        figures: list[str | float | int] = [
            record.metrics.get(name, float("nan")) for name in metrics
        ]
        if sparse:
            figures += [record.server.get("density", 1.0), int(record.server.get("reactivated", 0))]
        figures += [f"{bits(record.rows, way) / 8e3:,.1f}" for way in ("down", "up")]
        rows.append([record.round, *figures, len(record.refused), f"{record.seconds:.2f}"])
    return table(headings, rows)


@checked()
def score_table(
    scores: Mapping[str, Mapping[str, float | str]], *, heading: str = "rows of"
) -> str:
    """Return a table of scores, one line for each name.

    Parameters
    ----------
    scores
        Scores by name, such as `Result.scores`, those of several methods, or
        `ExactPosterior.by_site`.
    heading
        Heading of the first column.
    """
    names = list(dict.fromkeys(name for line in scores.values() for name in line))
    return table(
        [heading, *names],
        [[who, *(line.get(name, float("nan")) for name in names)] for who, line in scores.items()],
    )
