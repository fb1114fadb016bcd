"""The front door: README's length, figures and sentences, what the pages lack, and how long a
newcomer waits for a first picture.

    python benchmarks/front.py [--check] [--no-clone] [--list] [--mark]

A figure is a number of README's prose and tables outside of code. It is found in the records where
the comment at the end of its line names the keys of `parts/front/figures.py`, the line says their
setting, each number of the line is one of theirs. On the ledger, index and choose-a-method a line
may instead say by a dagger that it is of an earlier version of the code, and a row of the ledger
name the test that says its figures. Collapsed docstrings are counted with the extra
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
from collections.abc import Sequence
from pathlib import Path

from parts.front.ages import changed, told
from parts.front.figures import figures
from parts.front.pages import DATED, ROOT, Page, dated, measured, numbers, site, words
from parts.front.record import Figure
from parts.house.surface import names
from parts.shared.targets import at_least, target

sys.path.insert(0, str(ROOT / "docs"))
README, LEDGER = ROOT / "README.md", ROOT / "docs" / "ledger.md"
# Pages on which, as on README, no figure is typed; of the ledger, the column of what was measured.
PAGES = ROOT / "docs" / "index.md", ROOT / "docs" / "how-to" / "choose-a-method.md"
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
        "--mark", action="store_true", help="mark what is older than its code, and nothing else"
    )
    options = parser.parse_args()
    page, known = Page(README), figures()
    if options.mark:
        mark(known)
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
    aged = [unmarked(one, known) for one in [page, *site()]]
    wrong, old = [one for told, _ in aged for one in told], aged[0][1]
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
        *(one for path in PAGES for one in unfounded(Page(path), known, marked=False)),
        *unfounded_rows(known),
        *(one for other in site() for one in misquoted(other, known)),
    ]
    met.append(target("typed figures of index, choose-a-method and ledger", len(typed), 0))
    unsaid = outdated()
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


def outdated() -> list[str]:
    """Return rows of the ledger whose code has changed since their day and which do not say so."""
    rows = dated(Page(LEDGER))
    return [row for row, of, day, marked in rows if not marked and changed(of, day)]


def mark(known: dict[str, Figure]) -> None:
    """Mark these rows, and lines whose record is older than its code; unmark lines whose record is
    not.
    """
    for page in [Page(README), *site()]:
        text, lines = page.text, [line for line, _ in misplaced(page, known)]
        for line in lines + outdated() * (page.path == LEDGER):
            marked = DATED.sub(rf"| \1 {MARK} |", line)
            if marked == line:
                marked = line.replace(" <!-- figures", f" {MARK} <!-- figures", 1)
            new = line.replace(f" {MARK}", "", 1) if MARK in line else marked
            text = text.replace(line, new, 1)
        page.path.write_text(text)


def unfounded_rows(known: dict[str, Figure]) -> list[str]:
    """Return the figures of rows of the ledger, as measured here, that neither a key nor a test
    accounts for, of rows without a mark.
    """
    lines = Page(LEDGER).lines
    return [one for line, keys in lines for one in lacking(line, keys, known, measured(line))]


def unfounded(page: Page, known: dict[str, Figure], *, marked: bool = True) -> list[str]:
    """Return the numbers of a page that no key of their line accounts for, with what is wrong;
    without lines that say that they are of an earlier version where `marked` is False.
    """
    lines = [one for one in page.lines if marked or MARK not in one[0]]
    return [one for line, keys in lines for one in lacking(line, keys, known, numbers(line))]


def misquoted(page: Page, known: dict[str, Figure]) -> list[str]:
    """Return the values that lines of a page do not say although they name their keys."""
    return [one for line, keys in page.lines for one in lacking(line, keys, known, [])]


def lacking(
    line: str, keys: Sequence[str], known: dict[str, Figure], found: Sequence[str]
) -> list[str]:
    """Return those of a line's numbers that no key of it accounts for, and the values and settings
    of keys that it does not say.
    """
    missing = [key for key in keys if key not in known]
    of_line = {key: known[key] for key in keys if key in known}
    told = [n for figure in of_line.values() for n in (*figure.values, *numbers(figure.setting))]
    return [
        *(f"{key}: no such figure" for key in missing),
        *(
            f"{number}: not in the records of its line: {line.strip()[:60]}"
            for number in found
            if number not in told
        ),
        *(
            f"{key}: {value} is not in its line"
            for key, figure in of_line.items()
            for value in figure.values
            if value not in numbers(line)
        ),
        *(
            f"{key}: its line does not say {figure.setting!r}"
            for key, figure in of_line.items()
            if figure.setting not in line
        ),
    ]


def unmarked(page: Page, known: dict[str, Figure]) -> tuple[list[str], int]:
    """Return the lines whose mark of a record that is older than the code it measures (†) is
    missing or no longer needed, and how many figures are of such records; none where the history
    is not there.
    """
    keyed = [key for _, keys in page.lines for key in keys if key in known] if told() else []
    old = sum(len(known[key].values) for key in keyed if known[key].older)
    wrong = misplaced(page, known)
    return [f"{aged} older than its code: {line[:60]}" for line, aged in wrong], old


def misplaced(page: Page, known: dict[str, Figure]) -> list[tuple[str, str]]:
    """Return the lines whose mark is missing or no longer needed, with the keys that are older. A
    row of the ledger has a mark as well where the code of its program has changed since its day.
    """
    wrong = []
    rows = dated(page) if page.path == LEDGER else []
    changed_rows = {row.strip() for row, of, day, _ in rows if changed(of, day)}
    for line, keys in page.lines if told() else []:
        aged = [key for key in keys if key in known and known[key].older]
        is_old = bool(aged) or line.strip() in changed_rows
        if keys and is_old != (MARK in line):
            wrong.append((line, ", ".join(aged) or "no figure"))
    return wrong


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
