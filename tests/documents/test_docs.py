"""The code of README and of every page of the documentation runs and prints what is shown;
commands, files and experiments in them are real.
"""

import argparse
import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import bayesfed as bf
from bayesfed.cli.main import main
from bayesfed.running.experiments import experiment
from bayesfed.running.experiments.build import build, seeds

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
FOLDERS = ("examples/", "benchmarks/", "docs/", "tests/", "bayesfed/")
SEPARATOR = "<end of block>"


def blocks(page, language):
    return re.findall(rf"^```{language}[^\n]*\n(.*?)^```$", PAGES[page], re.DOTALL | re.MULTILINE)


def pages_with(language):
    return [page for page in PAGES if blocks(page, language)]


def code_and_output(page):
    """Every python block with the text block that comes right after it, empty where there
    is none.
    """
    return re.findall(
        r"^```python\n(.*?)^```$(?:\n+```text\n(.*?)^```$)?", PAGES[page], re.DOTALL | re.MULTILINE
    )


def numbers_aside(text):
    """Words and layout must agree; numbers may differ in their digits between machines, seconds
    most of all, and so may the word at which a long line is wrapped.
    """
    unwrapped = re.sub(r"(?<=.{80})\n", " ", text)
    return re.sub(r"[-+]?[\d.,]+(e[-+]?\d+)?", "#", re.sub(r"[ -]+", " ", unwrapped)).strip()


def commands(page):
    """Every line of a bash block that begins a `bayesfed` command, as words, with braces expanded
    as bash does.
    """
    for block in blocks(page, "bash"):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            expanded = re.sub(
                r"(\S*)\{([^{}\s]+)\}(\S*)",
                lambda b: " ".join(f"{b[1]}{word}{b[3]}" for word in b[2].split(",")),
                line,
            )
            words = shlex.split(expanded, comments=True)
            if words and Path(words[0]).name == "bayesfed":
                yield words[1:]


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_with("python"))
def test_every_block_runs_and_prints_what_is_shown(page, tmp_path):
    found = code_and_output(page)
    code = "\n".join(f"{source}\nprint({SEPARATOR!r})" for source, _ in found)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split(SEPARATOR + "\n")[:-1]
    assert [numbers_aside(text) for text in printed] == [numbers_aside(text) for _, text in found]


def test_readme_and_every_tutorial_have_code_that_runs():
    tutorials = [
        page
        for page in PAGES
        if page.startswith("docs/tutorials/") and not page.endswith("index.md")
    ]
    assert len(tutorials) >= 7
    assert {"README.md", "docs/index.md", *tutorials} <= {
        page for page in pages_with("python") if len(code_and_output(page)) > 0
    }


@pytest.mark.parametrize("page", [page for page in PAGES if list(commands(page))])
def test_every_command_is_one(page, monkeypatch):
    class Parsed(Exception):
        """The command line was read, and nothing was done."""

    def parse(self, given=None, namespace=None, read=argparse.ArgumentParser.parse_args):
        read(self, given, namespace)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    for given in commands(page):
        with pytest.raises(Parsed):
            main(given)


@pytest.mark.parametrize("page", pages_with("bash"))
def test_every_file_in_a_command_exists(page):
    for path in re.findall(
        rf"(?<![\w/.])(?:{'|'.join(FOLDERS)})[\w./-]+", "\n".join(blocks(page, "bash"))
    ):
        assert (ROOT / path).exists(), path


def test_every_benchmark_that_is_named_is_there():
    """Paths, and the modules that `--only` of a program names; the changelog is left out, since it
    names what there was.
    """
    folders = [ROOT / name for name in ("docs", "bayesfed", "benchmarks", "examples", "tests")]
    files = {
        path
        for folder in folders
        for path in folder.rglob("*")
        if path.suffix in (".md", ".py", ".toml", ".txt")
    }
    texts = [
        path.read_text()
        for path in {*files, *ROOT.glob("*.md"), ROOT / "pyproject.toml"} - {ROOT / "CHANGELOG.md"}
    ]
    paths = {
        path for text in texts for path in re.findall(r"(?<![\w/.-])benchmarks/[\w./-]*\w", text)
    }
    parts = {
        pair
        for text in texts
        for pair in re.findall(r"benchmarks/(\w+)\.py[^`\n]*? --only ([a-z_ ]+)", text)
    }
    with_modules = {
        program
        for program, _ in parts
        if "add_only" in (ROOT / "benchmarks" / f"{program}.py").read_text()
    }
    named = {
        f"benchmarks/parts/{program}/{name}.py"
        for program, names in parts
        if program in with_modules
        for name in names.split()
    }
    assert len(paths) > 30
    assert len(named) > 15
    assert [path for path in sorted(paths | named) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", pages_with("toml"))
def test_every_experiment_is_read_and_built(page, tmp_path):
    for number, text in enumerate(blocks(page, "toml")):
        path = tmp_path / f"experiment_{number}.toml"
        path.write_text(text)
        file = experiment.read(path)
        assert build(file, seeds(file)[0]).algorithm.name


def test_every_public_name_is_on_its_page_of_the_reference():
    for folder in sorted(
        path.name for path in (ROOT / "bayesfed").iterdir() if (path / "__init__.py").exists()
    ):
        exported = getattr(importlib.import_module(f"bayesfed.{folder}"), "__all__", ())
        page = PAGES.get(f"docs/reference/{folder}.md", "")
        shown = re.findall(rf"^::: bayesfed\.{folder}\.(\w+)$", page, re.MULTILINE)
        assert sorted(shown) == sorted(exported), folder


def test_every_registered_method_is_on_the_page_of_algorithms_and_in_the_index():
    registered = {
        name
        for name, method in bf.methods().items()
        if method.make.__module__.startswith("bayesfed.algorithms.")
    }
    assert len(registered) > 20
    assert registered <= set(
        re.findall(
            r"^::: bayesfed\.algorithms\.(\w+)$",
            PAGES["docs/reference/algorithms.md"],
            re.MULTILINE,
        )
    )
    assert registered <= set(
        re.findall(r"^\| `bf\.(\w+)`", PAGES["docs/reference/index.md"], re.MULTILINE)
    )


def test_what_the_reference_shows_is_there():
    for page, text in PAGES.items():
        for path in re.findall(r"^::: (\S+)$", text, re.MULTILINE):
            home, name = path.rsplit(".", 1)
            assert hasattr(importlib.import_module(home), name), f"{page}: {path}"


def test_the_index_of_the_reference_has_all_names_of_bayesfed():
    assert sorted(
        re.findall(r"^\| `bf\.(\w+)`", PAGES["docs/reference/index.md"], re.MULTILINE)
    ) == sorted(bf.__all__)


def test_every_public_name_has_an_example_that_is_run(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    examples = importlib.import_module("every_name")
    found = examples.paths(
        "from bayesfed import data as d\nimport bayesfed\nd.iid, bayesfed.Key(0)"
    )
    assert [*found] == ["data", "data.iid", "Key"]
    assert [name for name in examples.names() if not examples.shown(name)] == []
    assert not examples.shown("errors.WireError")
