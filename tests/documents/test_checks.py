"""The checks that run benchmarks: which are run, what is red, the table of targets."""

import importlib
import os
import re
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import bayesfed as bf

ROOT = Path(__file__).parents[2]
PRINTED = """\
some words
target seconds of a step: measured 0.500, wanted <= 1, met
target best, times ours: measured 1.160, wanted >= 1.3, missed
"""


@pytest.fixture
def checks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("checks")
    sys.modules.pop("checks", None)


def test_every_program_is_checked_and_each_long_one_comes_round(checks):
    listed = [one for kind in ("quick", "long", "waiting") for one in checks.SETTINGS[kind]]
    programs = {
        path.name for path in (ROOT / "benchmarks").glob("*.py") if "--check" in path.read_text()
    } - {"checks.py"}
    assert {command.split()[0] for command in listed} == programs
    assert len(set(listed)) == len(listed)
    assert set(checks.SETTINGS["missed"]) <= programs
    long = checks.SETTINGS["long"]
    assert {checks.in_turn(long, count) for count in range(7, 7 + len(long))} == set(long)
    assert ".ci/checks" in (ROOT / ".ci" / "run").read_text()


def test_readmes_commands_are_run_where_there_is_nothing_else():
    assert "\n.ci/fresh\n" in (ROOT / ".ci" / "run").read_text()
    readme, program = (ROOT / name for name in ("README.md", ".ci/fresh"))
    assert os.access(program, os.X_OK)
    for name in re.search(r"for name in (.+); do", program.read_text())[1].split():
        assert f"<!-- {name} command -->\n```bash\n" in readme.read_text()


def test_a_miss_that_is_known_is_told_and_a_new_one_is_red(checks, capsys):
    targets = checks.printed("a.py", PRINTED, "abc", "2026-11-25")
    assert targets[1] == (
        "a.py",
        "best, times ours",
        "1.160",
        ">= 1.3",
        "missed",
        "abc",
        "2026-11-25",
    )
    red = ["a.py: missed: best, times ours"]
    assert list(checks.judged("a.py", 1, targets, {})) == red
    known = {"a.py": {"best": "issue 45", "seconds": "issue 1"}}
    assert list(checks.judged("a.py --fast", 1, targets, known)) == []
    said = capsys.readouterr().out
    assert "known to be missed: best, times ours (issue 45)" in said
    assert "no longer missed: seconds" in said
    # A program that is killed, fails on its way, or prints nothing, is no miss.
    assert list(checks.judged("a.py", -9, targets, known)) == ["a.py: exit status -9, 2 targets"]
    assert list(checks.judged("a.py", 1, targets[:1], known)) == ["a.py: exit status 1, 1 targets"]
    assert list(checks.judged("a.py", 0, [], known)) == ["a.py: exit status 0, 0 targets"]


def test_the_table_keeps_what_was_not_run(checks, tmp_path):
    table, file = importlib.import_module("parts.checks.table"), tmp_path / "targets.tsv"
    old, other = (table.printed(name, PRINTED, "one") for name in ("a.py", "b.py"))
    table.write([*other, *old], ["a.py", "b.py"], file)
    assert table.kept(file) == [*old, *other]
    new = table.printed("b.py", PRINTED.replace("1.160", "1.400"), "two")
    table.write(new, ["a.py", "b.py"], file)
    assert table.kept(file) == [*old, *new]


def test_the_page_of_benchmarks_has_the_tables(checks, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    shown = importlib.import_module("tables").recorded(page)
    rows = importlib.import_module("parts.checks.table").kept()
    assert rows
    for one in rows:
        assert f"| {one.program} | {one.target} | {one.measured} |" in shown
    assert {one.program for one in rows} <= {
        *checks.SETTINGS["quick"],
        *checks.SETTINGS["long"],
    }
    # Every recipe of README's table that trains at its defaults has its costs.
    made = importlib.import_module("parts.defaults.recipes")
    clients = {name: bf.Dataset(torch.rand(4, 5), torch.arange(4) % 2) for name in "ab"}
    given = made.Problem(clients, clients, 1, 0)
    costs = shown.partition("| recipe |")[2].partition("##")[0]
    listed = re.findall(r"^\| (\w+) \|", costs, re.MULTILINE)
    assert listed == sorted(made.recipes(given, given.net()))


def test_misses_in_the_table_are_those_that_are_known(checks):
    known = tomllib.loads((ROOT / "benchmarks" / "parts" / "checks" / "settings.toml").read_text())[
        "missed"
    ]
    for one in importlib.import_module("parts.checks.table").kept():
        reasons = known.get(one.program.split()[0], {})
        assert one.verdict == "met" or any(part in one.target for part in reasons), one
