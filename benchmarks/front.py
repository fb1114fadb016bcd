"""The front door: README's length, figures and sentences, what the pages lack, and how long a
newcomer waits for a first picture.

    python benchmarks/front.py [--check] [--no-clone] [--list] [--mark]

A figure is a number of README's prose and tables outside of code. It is found in the records where
the comment at the end of its line names the keys of `parts/front/figures.py`, the line says their
setting, each number of the line is one of theirs. Collapsed docstrings are counted with the extra
`docs`. The last target makes a fresh clone with README's main command, so that pip's cache should
be warm; --no-clone leaves it out. --list prints what misses a target, and the figures by key.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from parts.front.ages import changed, told
from parts.front.figures import Figure, figures
from parts.front.pages import ROOT, Page, dated, numbers, site, words
from parts.house.surface import names
from parts.shared.targets import at_least, target

sys.path.insert(0, str(ROOT / "docs"))
README, LEDGER = ROOT / "README.md", ROOT / "docs" / "ledger.md"
MARK = "†"
SECTION = re.compile(
    r"^\s*(Parameters|Returns|Raises|References|Notes|Yields)\n\s*---", re.MULTILINE
)


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="as without it; exit 1 if a target is missed"
    )
    parser.add_argument("--no-clone", action="store_true", help="leave out the fresh clone")
    parser.add_argument(
        "--list", action="store_true", help="print figures by key, and what misses a target"
    )
    parser.add_argument(
        "--mark", action="store_true", help="mark rows of the ledger that are older than their code"
    )
    options = parser.parse_args()
    if options.mark:
        mark()
    page, known = Page(README), figures()
    if options.list:
        for key, figure in known.items():
            print(f"{key}: {' '.join(figure.values)} ({figure.setting}; {figure.source})")
    found = [number for line, _ in page.lines for number in numbers(line)]
    lost = unfounded(page, known)
    bare = [
        str(one.path.relative_to(ROOT))
        for one in site()
        if one.path.parent.name == "tutorials" and one.path.stem != "index" and not one.pictures
    ]
    wrong, old = unmarked(page, known)
    broken = [link for one in [page, *site()] for link in one.broken]
    print(f"{old} of README's figures are older than their code, and marked")
    met = [
        target("lines of README", len(page.text.splitlines()), 200),
        target("figures in README", len(found), 60),
        at_least(
            "share of README's figures found in records", 1 - len(lost) / max(1, len(found)), 1.0
        ),
        target("marks of figures older than their code that are wrong", len(wrong), 0),
        target("words a sentence in README", words(page), 18),
        target("tutorials without a picture", len(bare), 0),
        target("broken links inside README and pages", len(broken), 0),
    ]
    typed = [
        f"{name}: {one}"
        for name in ("docs/index.md", "docs/how-to/choose-a-method.md")
        for one in unfounded(Page(ROOT / name), known, marked=False)
    ]
    met.append(target("typed figures of index and choose-a-method without a mark", len(typed), 0))
    unsaid = [row for row, _ in outdated()]
    met.append(target("rows of the ledger older than their code and not marked", len(unsaid), 0))
    flat, bare_names = collapsed(), without_example()
    met.append(target("collapsed docstrings", len(flat), 0))
    met.append(target("names on bayesfed", len(names()), 120))
    met.append(target("public names without example", len(bare_names), 0))
    if options.list:
        for name in (*lost, *wrong, *bare, *broken, *flat, *bare_names, *typed, *unsaid):
            print(f"  {name}")
    if not options.no_clone:
        met.append(target("seconds from clone to first picture", first_picture(), 60))
    return 0 if all(met) else 1


def outdated() -> list[tuple[str, str]]:
    """Return rows of the ledger, with their days, whose code has changed since and which do not say
    so.
    """
    rows = dated(Page(LEDGER))
    return [(row, day) for row, of, day, marked in rows if not marked and changed(of, day)]


def mark() -> None:
    """Mark these rows."""
    text = LEDGER.read_text()
    for row, day in outdated():
        text = text.replace(row, row.replace(f"| {day} ", f"| {day} {MARK} ", 1))
    LEDGER.write_text(text)


def unfounded(page: Page, known: dict[str, Figure], *, marked: bool = True) -> list[str]:
    """Return the numbers of a page that no key of their line accounts for, with what is wrong;
    without lines that say that they are of an earlier version where `marked` is False.
    """
    lost = []
    for line, keys in page.lines:
        if MARK in line and not marked:
            continue
        missing = [key for key in keys if key not in known]
        lost += [f"{key}: no such figure" for key in missing]
        of_line = [known[key] for key in keys if key not in missing]
        told = [part for figure in of_line for part in (*figure.values, *numbers(figure.setting))]
        lost += [
            f"{number}: not in the records of its line: {line.strip()[:60]}"
            for number in numbers(line)
            if number not in told
        ]
        lost += [
            f"{key}: {value} is not in its line"
            for key in keys
            if key in known
            for value in known[key].values
            if value not in numbers(line)
        ]
        lost += [
            f"{key}: its line does not say {known[key].setting!r}"
            for key in keys
            if key in known and known[key].setting not in line
        ]
    return lost


def unmarked(page: Page, known: dict[str, Figure]) -> tuple[list[str], int]:
    """Return the lines whose mark of a record that is older than the code it measures (†) is
    missing or no longer needed, and how many figures are of such records; none where the history
    is not there.
    """
    wrong, old = [], 0
    for line, keys in page.lines if told() else []:
        aged = [key for key in keys if key in known and known[key].older]
        old += sum(len(known[key].values) for key in aged)
        if bool(aged) != (MARK in line) and keys:
            wrong.append(f"{', '.join(aged) or 'no figure'} older than its code: {line[:60]}")
    return wrong, old


def collapsed() -> list[str]:
    """Return the members shown in the reference whose docstring has sections that are not shown as
    such.
    """
    griffe = importlib.import_module("griffe")
    extensions = griffe.load_extensions(str(ROOT / "docs" / "docstrings.py"))
    package = griffe.load(
        "bayesfed", search_paths=[str(ROOT)], extensions=extensions, docstring_parser="numpy"
    )
    found = set()
    for path in {
        path
        for page in site()
        for path in re.findall(r"^::: bayesfed\.(\S+)$", page.text, re.MULTILINE)
    }:
        # mkdocstrings gives the object itself its parser; members read by the one that they carry.
        for name, member in package[path].members.items():
            docstring = None if name.startswith("_") or member.is_alias else member.docstring
            if docstring and SECTION.search(docstring.value) and len(docstring.parsed) < 2:
                found.add(f"{path}.{name}")
    return sorted(found)


def without_example() -> list[str]:
    """Return the public names that no code of a page uses that is run."""
    every = importlib.import_module("every_name")
    return [name for name in every.names() if not every.shown(name)]


def first_picture() -> float:
    """Return the seconds from the start of a clone of this repository to the first picture of
    README's main command.
    """
    command = re.findall(
        r"<!-- main command -->\n```bash\n(.*?)\n```", README.read_text(), re.DOTALL
    )[0]
    with tempfile.TemporaryDirectory() as folder:
        start, copy = time.perf_counter(), Path(folder, "bayesfed")
        subprocess.run(["git", "clone", "-q", str(ROOT), str(copy)], check=True)
        null = subprocess.DEVNULL
        with subprocess.Popen(
            ["bash", "-c", command], cwd=copy, start_new_session=True, stdout=null, stderr=null
        ) as process:
            while process.poll() is None and not list(copy.glob("results/*/*.png")):
                time.sleep(0.2)
            seconds = time.perf_counter() - start
            if process.poll() is None:
                # The shell and what it started: the run goes on after its first picture.
                os.killpg(process.pid, signal.SIGTERM)
        if not list(copy.glob("results/*/*.png")):
            raise RuntimeError(
                f"README's main command ended with {process.returncode} and made no picture"
            )
    return seconds


if __name__ == "__main__":
    sys.exit(main())
