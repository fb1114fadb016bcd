"""What README and the pages of the documentation hold: figures, sentences, links, pictures."""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[3]
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
# A number, but not part of a name (UVeQFed-3) or of a shape (784-256-256-10); ranges are two
# numbers.
NUMBER = re.compile(r"(?<![\w.,-])[-+\u2212]?\d[\d,]*(?:\.\d+)?(?![\w-])")
KEYS = re.compile(r"<!-- figures: (.*?) -->")
LINK = re.compile(r"\]\(([^()\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")


@dataclass(frozen=True)
class Page:
    """A Markdown file."""

    path: Path

    @cached_property
    def text(self) -> str:
        """The file's text."""
        return self.path.read_text()

    @cached_property
    def prose(self) -> str:
        """The text without fenced blocks, code, comments, tags and the targets of links."""
        text = re.sub(r"<!--.*?-->|<[^>]+>", "", FENCE.sub("", self.text), flags=re.DOTALL)
        return re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`\n]*`", "CODE", text))

    @property
    def lines(self) -> list[tuple[str, list[str]]]:
        """Every line of the source outside of fenced blocks, with the keys that its comment
        names.
        """
        lines = FENCE.sub("", self.text).splitlines()
        return [(line, found[1].split() if (found := KEYS.search(line)) else []) for line in lines]

    @property
    def sentences(self) -> list[str]:
        """The sentences of paragraphs and lists; tables and headings have none."""
        kept = [line for line in self.prose.splitlines() if not re.match(r"\s*(\||#|\[!\[)", line)]
        blocks = re.split(r"\n\s*\n|\n(?=- )", "\n".join(kept))
        parts = [
            part
            for block in blocks
            for part in re.split(r"(?<=[.!?])\s+", block.replace("*", ""))
            if "·" not in part
        ]
        return [part for part in parts if len(part.split()) > 1]

    @property
    def pictures(self) -> list[str]:
        """The pictures that it shows."""
        return [
            first or second
            for first, second in re.findall(
                r"!\[[^\]]*\]\(([^)]+)\)|<img[^>]*src=\"([^\"]+)\"", FENCE.sub("", self.text)
            )
        ]

    @cached_property
    def anchors(self) -> set[str]:
        """The anchors of its headings, as the site makes them."""
        heads = re.findall(r"^#+ +(.+?)\s*$", FENCE.sub("", self.text), re.MULTILINE)
        own = re.findall(r"\{#([\w.-]+)\}|id=\"([\w.-]+)\"", self.text)
        return {slug(head) for head in heads} | {first or second for first, second in own}

    @property
    def broken(self) -> list[str]:
        """The links to files and headings that are not there."""
        found = []
        for markdown, tag in LINK.findall(FENCE.sub("", self.text)):
            address = markdown or tag
            if re.match(r"\w+:", address):
                continue
            name, _, anchor = address.partition("#")
            target = (self.path.parent / name).resolve() if name else self.path
            if not target.exists() or (
                anchor and target.suffix == ".md" and anchor not in Page(target).anchors
            ):
                found.append(f"{self.path.relative_to(ROOT)}: {address}")
        return found


def slug(heading: str) -> str:
    """Return a heading's anchor: lower case, words with hyphens between them."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def numbers(line: str) -> list[str]:
    """Return the numbers of a line of Markdown outside of code, comments, links and its number in a
    list.
    """
    plain = re.sub(r"<!--.*?-->|<[^>]+>|^\s*\d+\. ", "", line)
    plain = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`\n]*`", "", plain))
    return [number.rstrip(",") for number in NUMBER.findall(plain)]


def words(page: Page) -> float:
    """Return the mean number of words in a sentence."""
    return statistics.fmean(len(sentence.split()) for sentence in page.sentences)


def site() -> list[Page]:
    """Return the pages of the documentation."""
    return [Page(path) for path in sorted((ROOT / "docs").rglob("*.md"))]


# The day of a row of the ledger, and its mark.
DATED = re.compile(r"\| (\d{4}-\d\d-\d\d) ?(\u2020?) *\|")
PROGRAM = re.compile(r"(?:benchmarks|examples)/(\w+)\.py")
# What CI runs: a figure that such a file says is not typed.
TESTED = re.compile(r"tests/[\w/]+\.py|benchmarks/parts/\w+/settings\.toml")


def measured(line: str) -> list[str]:
    """Return the figures that a row of the ledger says were measured here, without those that are
    in the tests and settings that its command names; none of rows that say that they are of an
    earlier version of the code.
    """
    day = DATED.search(line)
    if not day or day[2]:
        return []
    *_, here, command = line[: day.start()].split("|")
    said = " ".join((ROOT / name).read_text() for name in TESTED.findall(command))
    tested = re.findall(r"\d+(?:\.\d+)?", re.sub(r"(?<=\d)_(?=\d)", "", said))
    return [one for one in numbers(here) if one.replace(",", "") not in tested]


def dated(page: Page) -> list[tuple[str, str, str, bool]]:
    """Return the rows of the ledger that a program measured: the row, the program, the day, and
    whether the row says that it is of an earlier version of the code. "the same" is the program of
    the row above.
    """
    found, program = [], ""
    for line in page.text.splitlines():
        if not (day := DATED.search(line)):
            continue
        command = line[: day.start()].rpartition("|")[2].strip()
        if not command.startswith("the same"):
            program = named[1] if (named := PROGRAM.search(command)) else ""
        if program:
            found.append((line, program, day[1], bool(day[2])))
    return found
