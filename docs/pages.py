"""Run the code of pages and keep what it makes: `python docs/pages.py docs/tutorials/count-bits.md ...`.

The text blocks under python blocks become what was printed, and SVG files that the code saved go to
docs/pictures. Then the notebooks of tutorials are written anew: without arguments, nothing else is
done.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent
BLOCK = re.compile(
    r"^```python\n(.*?)^```$(?:\n+```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE
)
SEPARATOR = "<end of block>"
# Text stays text, and the same run gives the same file.
STYLE = """\
import matplotlib
matplotlib.use("svg")
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "bayesfed", "font.family": "sans-serif", "legend.frameon": False})
matplotlib.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
"""


def run(path: Path) -> None:
    """Run a page, and write its output and pictures."""
    page = path.read_text()
    code = STYLE + "\n".join(
        f"{found[1]}\nprint({SEPARATOR!r})" for found in BLOCK.finditer(page)
    )
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=folder,
            env={**os.environ, "SOURCE_DATE_EPOCH": "0"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        for drawn in Path(folder).glob("*.svg"):
            text = re.sub(r"(?m)[ \t]+$", "", drawn.read_text())
            (DOCS / "pictures" / drawn.name).write_text(text)
            print(f"{path.name}: {drawn.name}, {len(text) / 1e3:.0f} kB")
    printed = iter(done.stdout.split(SEPARATOR + "\n")[:-1])

    def written(found: re.Match[str]) -> str:
        text = next(printed)
        return f"```python\n{found[1]}```" + (
            f"\n\n```text\n{text.rstrip()}\n```" if text else ""
        )

    path.write_text(BLOCK.sub(written, page))


def write_notebooks() -> None:
    """Write the notebooks of the tutorials that have one; nothing is run."""
    for path in (DOCS / "tutorials").glob("*.ipynb"):
        path.write_text(notebook(path.with_suffix(".md").read_text()))


def notebook(page: str) -> str:
    """Return the notebook of a page: its text and its code in cells, without the output, and links that lead to the pages."""
    page = re.sub(r"```text\n.*?^```\n", "", page, flags=re.DOTALL | re.MULTILINE)
    page = re.sub(r"^!\[.*?\]\(.*?\)\n", "", page, flags=re.MULTILINE)
    cells = []
    for number, part in enumerate(
        re.split(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    ):
        if not part.strip():
            continue
        lines = part.strip().splitlines(keepends=True)
        cell = {"id": f"cell-{number}", "metadata": {}, "source": lines}
        if number % 2:
            cells.append(
                {"cell_type": "code", "execution_count": None, "outputs": [], **cell}
            )
        else:
            cells.append({"cell_type": "markdown", **cell})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    made = {
        "cells": cells,
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        run(Path(name))
    write_notebooks()
