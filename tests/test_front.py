"""The front door: figures of README against records, its length, the long description of a package."""

import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture
def front(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("front")
    for name in ("front", "front_door", "front_door.figures", "front_door.pages", "targets"):
        sys.modules.pop(name, None)


def page(front, tmp_path, text):
    (tmp_path / "page.md").write_text(text)
    return front.Page(tmp_path / "page.md")


def test_every_figure_of_readme_is_in_the_records_and_has_its_setting_in_the_line(front):
    readme = front.Page(ROOT / "README.md")
    assert front.unfounded(readme, front.figures()) == []
    assert sum(len(front.numbers(line)) for line, _ in readme.lines) <= 60
    assert len(readme.text.splitlines()) <= 200
    assert front.words(readme) <= 20


def test_a_figure_that_differs_is_told(front, tmp_path):
    known = {"a": front.Figure(("85.1",), "three seeds, 20 clients", "")}
    right = page(front, tmp_path, "ends at 85.1 % (three seeds, 20 clients) <!-- figures: a -->\n")
    assert front.unfounded(right, known) == []
    wrong = page(front, tmp_path, "ends at 85.2 % (three seeds) <!-- figures: a b -->\nand 7\n")
    told = front.unfounded(wrong, known)
    assert [line.split(":")[0] for line in told] == ["b", "85.2", "a", "a", "7"]


def test_numbers_are_those_a_reader_sees(front):
    line = "from 1.00 to 1,030 (`Sgd(0.1)`, [784-256](a-2.md), 26 %) <!-- figures: x1 2 -->"
    assert front.numbers(line) == ["1.00", "1,030", "26"]


def test_broken_links_and_headings_are_found(front, tmp_path, monkeypatch):
    monkeypatch.setattr("front_door.pages.ROOT", tmp_path)
    text = "# One `two`: three\n\n[a](#one-two-three) [b](#no) [c](no.md) [d](https://e.org/no)\n```py\n[f](no.md)\n```\n"
    assert page(front, tmp_path, text).broken == ["page.md: #no", "page.md: no.md"]


def test_the_long_description_leads_to_the_tag_and_nowhere_relative():
    sys.path.insert(0, str(ROOT))
    try:
        make = importlib.import_module("setup").long_description
    finally:
        sys.path.remove(str(ROOT))
    made = make((ROOT / "README.md").read_text(), PROJECT["urls"]["Repository"], "9.9")
    addresses = [a or b for a, b in re.findall(r"\]\(([^)]*)\)|(?:src|srcset)=\"([^\"]*)\"", made)]
    assert all(address.startswith(("https://", "#")) for address in addresses)
    assert sum("/v9.9/docs/pictures/" in address for address in addresses) == 2
    assert any(address.endswith("/blob/v9.9/LICENSE") for address in addresses)
    assert "<!-- figures" not in made


def test_the_citation_names_this_version_and_repository():
    lines = dict(line.split(": ", 1) for line in (ROOT / "CITATION.cff").read_text().splitlines() if re.match(r"[\w-]+: ", line))
    assert (lines["version"], lines["license"], lines["repository-code"]) == (PROJECT["version"], PROJECT["license"], PROJECT["urls"]["Repository"])


@pytest.mark.slow
def test_every_picture_is_drawn_from_the_records_and_is_the_one_that_is_shown(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    program, style = importlib.import_module("pictures"), importlib.import_module("drawn.style")
    monkeypatch.setattr(style, "PICTURES", tmp_path)
    for draw in program.DRAWN.values():
        draw()
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert {*program.DRAWN, "front-dark"} == {Path(name).stem for name in made}
    shown = ROOT / "docs" / "pictures"
    words = re.compile(r"<text[^>]*>([^<]*)")
    assert {name: words.findall(text) for name, text in made.items()} == {name: words.findall((shown / name).read_text()) for name in made}
