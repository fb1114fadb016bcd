"""Whether a record is older than the code that it measures, by the history of the repository."""

from __future__ import annotations

import ast
import functools
import shutil
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[3]
# Folders of the code that each source of figures measures. What `.ci/checks` runs on every landing
# is of this code, and is not listed.
MEASURES: dict[str, list[str]] = tomllib.loads(
    (Path(__file__).parent / "settings.toml").read_text()
)["measures"]


def older(source: str, commits: Iterable[str] = ()) -> bool:
    """Return whether the code that a source measures has changed since its record was made.

    Parameters
    ----------
    source
        Name of a file of `records` without its ending, or program with its options.
    commits
        Commits that made what is read of the record. Without them: those of all its lines.
    """
    folders = MEASURES.get(source)
    if folders is None:
        return False
    made = [commit.rstrip("+").removesuffix("-dirty") for commit in commits]
    made = made or written(source)
    # A record that was just made is of the code beside it; one of a commit that is not in the
    # history may be of any.
    return any(not _known(one) or _differs(one, tuple(folders)) for one in made if one)


@functools.cache
def written(record: str) -> list[str]:
    """Return the commits that wrote the lines of a record last; none where the history is not
    there.
    """
    file = f"benchmarks/records/{record}.jsonl"
    if not told() or not _git("ls-files", file):
        return []
    lines = _git("blame", "-s", "-l", "--root", "--", file).splitlines()
    # A line that is not committed yet is of the code beside it.
    return [line[:40].replace("0" * 40, "HEAD") for line in lines]


@functools.cache
def changed(source: str, date: str) -> bool:
    """Return whether the code that a source measures has changed since a day, 2026-11-26."""
    folders = MEASURES.get(source)
    last = _git("rev-list", "-1", f"--before={date}T23:59:59", "HEAD")
    return folders is not None and (not last or _differs(last, tuple(folders)))


@functools.cache
def told() -> bool:
    """Return whether git and the whole history are there."""
    if shutil.which("git") is None:
        return False
    asked = ["git", "rev-parse", "--is-shallow-repository"]
    found = subprocess.run(asked, capture_output=True, text=True, cwd=ROOT, check=False)
    return found.stdout.strip() == "false"


@functools.cache
def _differs(commit: str, folders: tuple[str, ...]) -> bool:
    """Return whether the code of folders has changed since a commit: docstrings and comments are
    none.
    """
    names = _git("diff", "--name-only", "--no-renames", commit, "HEAD", "--", *folders)
    return any(_code(commit, name) != _code("HEAD", name) for name in names.splitlines())


@functools.cache
def _code(commit: str, name: str) -> str:
    """Return what a file does at a commit; nothing if it is not there."""
    asked = ["git", "show", f"{commit}:{name}"]
    text = subprocess.run(asked, capture_output=True, text=True, cwd=ROOT, check=False).stdout
    if not name.endswith(".py"):
        return text
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            said = ast.get_docstring(node, clean=False) is not None
            node.body = node.body[said:]
    return ast.dump(tree)


@functools.cache
def _known(commit: str) -> bool:
    asked = ["git", "merge-base", "--is-ancestor", commit, "HEAD"]
    return subprocess.run(asked, capture_output=True, cwd=ROOT, check=False).returncode == 0


@functools.cache
def _git(*words: str) -> str:
    asked = subprocess.run(["git", *words], capture_output=True, text=True, cwd=ROOT, check=True)
    return asked.stdout.strip()
