"""The front door: figures of README against records, its length, the long description of a
package.
"""

import functools
import importlib
import json
import re
import shutil
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture
def front(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("front")
    sys.modules.pop("front", None)


# Of a commit that is not in the history, which may be of any code, and of this one.
COMMITS = {"old": ("0" * 40,), "new": ("HEAD",)}


def page(front, tmp_path, text):
    (tmp_path / "page.md").write_text(text)
    return front.Page(tmp_path / "page.md")


def test_every_figure_of_readme_is_in_the_records_and_has_its_setting_in_the_line(front):
    readme = front.Page(ROOT / "README.md")
    assert front.unfounded(readme, front.figures()) == []
    assert sum(len(front.numbers(line)) for line, _ in readme.lines) <= 60
    assert len(readme.text.splitlines()) <= 200
    assert front.words(readme) <= 18


def test_the_quickstart_prints_what_is_kept(front):
    ((_, run),) = importlib.import_module("parts.front.figures").runs("quickstart")
    assert f"```text\n{run['table'].rstrip()}\n```" in (ROOT / "README.md").read_text()


def test_a_figure_that_differs_is_told(front, tmp_path):
    known = {"a": front.Figure(("85.1",), "three seeds, 20 clients", "")}
    right = page(front, tmp_path, "ends at 85.1 % (three seeds, 20 clients) <!-- figures: a -->\n")
    assert front.unfounded(right, known) == []
    wrong = page(front, tmp_path, "ends at 85.2 % (three seeds) <!-- figures: a b -->\nand 7\n")
    told = front.unfounded(wrong, known)
    assert [line.split(":")[0] for line in told] == ["b", "85.2", "a", "a", "7"]


def test_a_record_older_than_its_code_is_marked(front, tmp_path):
    ages = importlib.import_module("parts.front.ages")
    if not ages.told():
        pytest.skip("the history is not there")
    first, last = (
        ages._git("log", *which, "--format=%H", "--", "bayesfed/federated").split()[0]
        for which in (["--reverse"], ["-1"])
    )
    assert ages.older("recovery.py", (first[:9],))
    assert not ages.older("recovery.py", (f"{last}+",))
    assert ages.older("recovery.py", ("0" * 40,))
    assert not ages.older("a program that CI runs", (first,))
    known = {
        name: front.Figure((value,), "", "recovery.py", (commit,))
        for name, value, commit in (("old", "1", first), ("new", "2", last))
    }
    right = "one 1 † <!-- figures: old -->\ntwo 2 <!-- figures: new -->\n† is a mark\n"
    assert front.unmarked(page(front, tmp_path, right), known) == ([], 1)
    wrong = "one 1 <!-- figures: old -->\ntwo 2 † <!-- figures: new -->\n"
    told, _ = front.unmarked(page(front, tmp_path, wrong), known)
    assert [line.partition(" older")[0] for line in told] == ["old", "no figure"]


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_change_of_a_docstring_or_a_comment_makes_no_record_older(front, tmp_path, monkeypatch):
    ages = importlib.import_module("parts.front.ages")
    monkeypatch.setattr(ages, "ROOT", tmp_path)
    git = functools.partial(subprocess.run, cwd=tmp_path, check=True, capture_output=True)
    git(["git", "init", "-q"])
    for number, text in enumerate(['"""One."""\na = 1  # one\n', '"""Two."""\na = 1\n', "a = 2\n"]):
        (tmp_path / "code.py").write_text(text)
        git(["git", "add", "code.py"])
        git(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-q", "-m", "a"])
        ages._code.cache_clear()
        ages._git.cache_clear()
        assert ages._differs.__wrapped__(f"HEAD~{number}", ("code.py",)) == (number == 2)


def test_the_marks_of_pages_are_right(front):
    known = front.figures()
    for one in [front.Page(ROOT / "README.md"), *front.site()]:
        assert front.unmarked(one, known)[0] == [], one.path


def test_a_run_is_of_the_commit_that_it_names_or_that_wrote_its_line(front, monkeypatch):
    record = importlib.import_module("parts.front.record")
    monkeypatch.setattr(record, "written", lambda name: ["first", "second", "third"])
    lines = [{"name": str(n), "run": {"a": n} | own} for n, own in enumerate([{}, {"commit": "x"}])]
    monkeypatch.setattr(record.Path, "read_text", lambda path: "\n".join(map(json.dumps, lines)))
    with pytest.raises(ValueError, match="longer"):
        record.runs("a")
    monkeypatch.setattr(record, "written", lambda name: ["first", "second"])
    assert record.commits_of(run for _, run in record.runs("a")) == ("first", "x")


def test_pages_have_no_figure_that_is_typed_and_not_marked(front, tmp_path):
    known = front.figures()
    for path in front.PAGES:
        assert front.unfounded(front.Page(path), known, marked=False) == []
    assert [one for page in front.site() for one in front.misquoted(page, known)] == []
    typed = page(front, tmp_path, "one 7.5 \u2020\ntwo 8.5\n")
    assert [line[:3] for line in front.unfounded(typed, {}, marked=False)] == ["8.5"]


def test_rows_of_the_ledger_have_no_figure_that_is_typed_and_not_marked(
    front, tmp_path, monkeypatch
):
    known = front.figures()
    assert front.unfounded_rows(known) == []
    residual = "`tests/models/test_residual.py`"
    (tmp_path / "ledger.md").write_text(
        f"| a | 7 | 1,663,370 weights, 53.2 Mb | {residual} | 2026-11-26 | |\n"
        f"| b | 7 | 1,663,371 weights | {residual} | 2026-11-26 | |\n"
        "| c | 7 | 8.5 | the same | 2026-11-26 \u2020 | |\n"
        "| d | 7 | 8.5 and 9 <!-- figures: x --> | the same | 2026-11-26 | |\n"
    )
    monkeypatch.setattr(front, "LEDGER", tmp_path / "ledger.md")
    made = {"x": front.Figure(("8.5",), "one seed", "")}
    assert [line.split(": ")[0] for line in front.unfounded_rows(made)] == ["1,663,371", "9", "x"]


def test_rows_of_the_ledger_are_marked_where_the_code_has_changed_since(
    front, tmp_path, monkeypatch
):
    pages = importlib.import_module("parts.front.pages")
    ages = importlib.import_module("parts.front.ages")
    if not ages.told():
        pytest.skip("the history is not there")
    rows = front.dated(front.Page(front.LEDGER))
    assert len(rows) > 80
    assert {program for _, program, _, _ in rows} <= {*ages.MEASURES, "house", "privacy"}
    assert front.outdated() == []
    text = (
        "| a | 1 | 2 | `python benchmarks/fedrlr.py` | 2020-01-01 | differs |\n"
        "| b | 1 | 2 | the same | 2099-01-01 | differs |\n"
        "| c | 1 | 2 | `tests/x.py` | 2020-01-01 | |\n"
    )
    (tmp_path / "ledger.md").write_text(text)
    monkeypatch.setattr(front, "LEDGER", tmp_path / "ledger.md")
    monkeypatch.setattr(front, "README", tmp_path / "page.md")
    monkeypatch.setattr(front, "site", lambda: [front.Page(front.LEDGER)])
    keyed = "old 1 <!-- figures: old -->\nnew 2 \u2020 <!-- figures: new -->\n"
    (tmp_path / "page.md").write_text(keyed)
    front.mark({name: front.Figure((name,), "", "fedrlr", made) for name, made in COMMITS.items()})
    assert (tmp_path / "page.md").read_text() == (
        "old 1 \u2020 <!-- figures: old -->\nnew 2 <!-- figures: new -->\n"
    )
    assert (tmp_path / "ledger.md").read_text() == text.replace(
        "2020-01-01", "2020-01-01 \u2020", 1
    )
    assert [row[1:] for row in pages.dated(page(front, tmp_path, text))] == [
        ("fedrlr", "2020-01-01", False),
        ("fedrlr", "2099-01-01", False),
    ]


def test_the_map_of_contributing_has_every_room():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    told = set(re.findall(r"\b(\w+)/", re.search(r"```text\n(.*?)```", text, re.DOTALL)[1]))
    rooms = {path.parent.name for path in (ROOT / "bayesfed").glob("*/*/__init__.py")}
    rooms |= {path.parent.name for path in (ROOT / "bayesfed").glob("*/__init__.py")}
    assert rooms - told - {"errors"} == set()


def test_numbers_are_those_a_reader_sees(front):
    line = "from 1.00 to 1,030 (`Sgd(0.1)`, [784-256](a-2.md), 26 %) <!-- figures: x1 2 -->"
    assert front.numbers(line) == ["1.00", "1,030", "26"]
    assert front.numbers("2. Five of 10 clients") == ["10"]


def test_broken_links_and_headings_are_found(front, tmp_path, monkeypatch):
    monkeypatch.setattr("parts.front.pages.ROOT", tmp_path)
    text = (
        "# One `two`: three\n\n[a](#one-two-three) [b](#no) [c](no.md) "
        "[d](https://e.org/no)\n```py\n[f](no.md)\n```\n"
    )
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
    lines = dict(
        line.split(": ", 1)
        for line in (ROOT / "CITATION.cff").read_text().splitlines()
        if re.match(r"[\w-]+: ", line)
    )
    assert (lines["version"], lines["license"], lines["repository-code"]) == (
        PROJECT["version"],
        PROJECT["license"],
        PROJECT["urls"]["Repository"],
    )


@pytest.mark.slow
def test_every_picture_is_drawn_from_the_records_and_is_the_one_that_is_shown(
    monkeypatch, tmp_path
):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    program, style = (
        importlib.import_module("pictures"),
        importlib.import_module("parts.pictures.style"),
    )
    monkeypatch.setattr(style, "PICTURES", tmp_path)
    for draw in program.DRAWN.values():
        draw()
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert {*program.DRAWN, "front-dark"} == {Path(name).stem for name in made}
    shown = ROOT / "docs" / "pictures"
    words = re.compile(r"<text[^>]*>([^<]*)")
    assert {name: words.findall(text) for name, text in made.items()} == {
        name: words.findall((shown / name).read_text()) for name in made
    }


def rows_of(page, head):
    """Return the cells of the table of a page that begins with these columns."""
    text = (ROOT / "docs" / page).read_text()
    lines = text[text.index(head) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip(" *") for cell in line.strip().strip("|").split("|")] for line in lines]


def test_the_tables_of_sparsity_are_those_of_the_kept_figures():
    kept = json.loads((ROOT / "examples" / "figures" / "fashion_mnist.json").read_text())
    plain = {row["seed"]: row for row in kept if row["method"] == "FedAvg"}
    made = {}
    for row in kept:
        share = [row[f"share {layer}"] / row[f"density {layer}"] for layer in (1, 2)]
        accuracies = [
            f"{100 * value / 100:.2f} %"
            for value in (plain[row["seed"]]["accuracy %"], row["accuracy %"])
        ]
        rest = [
            f"{row['non-zero %']:.1f} %",
            f"{share[0]:.2f}, {share[1]:.2f}",
            f"{row['pixel share'] / row['density 1']:.2f}",
        ]
        made[row["method"], str(row["seed"])] = [
            *accuracies,
            *rest,
            f"{row['MB down'] + row['MB up']:.0f}",
        ]
    shown = {
        (row[0], row[1]): row[2:] for row in rows_of("benchmarks.md", "| method | seed | FedAvg |")
    }
    assert len(shown) == 12
    assert shown == {key: made[key] for key in shown}
    sweep = [
        row
        for row in json.loads(
            (ROOT / "examples" / "figures" / "fashion_mnist_sweep.json").read_text()
        )
        if row["method"] != "FedAvg"
    ]
    head, *table = (
        (ROOT / "docs" / "benchmarks.md")
        .read_text()
        .split("| weights left | 4.71 %")[1]
        .splitlines()[:3]
    )
    assert ["4.71 %", *re.findall(r"[\d.]+ %", head)] == [
        f"{row['non-zero %']:.2f} %" for row in sweep
    ]
    assert re.findall(r"[\d.]+ %", table[-1]) == [f"{row['accuracy %']:.2f} %" for row in sweep]


NAMES = {
    "FedAvg": "fed_avg",
    "prior, precision 1": "prior",
    "prior, precision .3": "prior",
    "prior, precision .1": "prior",
    "prior .1": "prior",
    "prior 1": "prior",
    "prior .3": "prior",
    "MC-dropout .2": "dropout",
    "SWAG": "swag",
    "FedBE": "fed_be",
    "FedPA": "fed_pa",
    "beta-PredBayes, one round": "beta_pred_bayes",
    "D-Turbo-VBI": "d_turbo_vbi",
    "ensemble of 5": "ensemble",
    "central": "central",
}
AREAS = ("mutual_information", "max_logit", "feature_density")


@pytest.mark.parametrize(
    ("head", "trained", "concentration", "lines"),
    [
        ("method", 2000, 0.5, 16),
        ("method, 600 rows", 600, 0.5, 11),
        ("method, 54,000 rows", 54000, 0.5, 11),
        ("method, Dirichlet 0.1", 2000, 0.1, 9),
        ("method, 54,000 rows, Dirichlet 0.1", 54000, 0.1, 9),
        ("method, 600 rows, Dirichlet 0.1", 600, 0.1, 9),
    ],
)
def test_the_tables_of_how_sure_it_is_are_those_of_the_records(
    front, head, trained, concentration, lines
):
    records = importlib.import_module("parts.front.figures")
    known = records.readings(trained, concentration=concentration)
    rows = rows_of("how-to/how-sure-is-it.md", f"| {head} | accuracy | NLL |")
    assert len(rows) == lines
    for name, accuracy, nll, ece, corrupted, *areas, size in rows:
        method, _, extra = name.partition(" + ")
        found = known[".".join(part for part in (NAMES[method], extra.lower()) if part)]
        assert len(found) == 5, name
        mean = {
            score: statistics.fmean(one[score] for one in found)
            for score in ("accuracy", "nll", "ece", "megabytes")
        }
        assert accuracy == f"{100 * mean['accuracy']:.1f} %", name
        assert [nll, ece] == [f"{mean[score]:.3f}".removeprefix("0") for score in ("nll", "ece")], (
            name
        )
        assert corrupted == f"{statistics.fmean(records.corrupted(one) for one in found):.2f}", name
        for kind, area in zip(AREAS, areas, strict=True):
            if area != "-":
                average = statistics.fmean(
                    one[kind] for each in found for one in each["auroc"].values()
                )
                assert area == f"{average:.2f}"[1:], (name, kind)
        # A central network sends nothing.
        assert method == "central" or float(size) == pytest.approx(
            mean["megabytes"] / known["fed_avg"][0]["megabytes"], abs=0.005
        ), name


def test_the_probabilities_of_choose_a_method_are_those_of_the_records(front):
    records = importlib.import_module("parts.front.figures")
    known = records.readings(2000)
    rows = rows_of("how-to/choose-a-method.md", "| you want | take | NLL |")
    assert "prior_precision=1.0" in rows[3][1]
    for (_, _, *given), name in zip(
        rows, ("fed_avg", "fed_avg.temperature", "fed_avg.laplace", "prior.laplace"), strict=True
    ):
        mean = [
            f"{statistics.fmean(one[score] for one in known[name]):.3f}".removeprefix("0")
            for score in ("nll", "ece")
        ]
        assert given == [
            *mean,
            f"{statistics.fmean(records.corrupted(one) for one in known[name]):.2f} \u2020",
        ], name


def test_the_table_of_sparse_supports_is_that_of_its_records(front):
    weights = importlib.import_module("parts.sparse.weights")
    rows = rows_of("benchmarks.md", "| task and density | seeds |")
    assert rows == [weights.cells(name) for name in weights.cases()]


def test_the_tables_of_cifar10_are_those_of_its_records(front):
    records = importlib.import_module("parts.cifar10.records")
    runs = records.recorded()
    assert rows_of("benchmarks.md", "| method | rounds | parameters |") == records.rows(runs)
    head = f"| {' | '.join(records.ON_DEVICES)} | J to {100 * records.goal(runs):.1f} % |"
    assert rows_of("benchmarks.md", head) == records.costs(runs)
    assert len(runs) > 15


def test_the_tables_of_the_exact_posterior_are_those_of_its_records(front):
    page, told = "explanation/exact-posterior.md", importlib.import_module("parts.exact.told")
    assert rows_of(page, "| hierarchy | shared values |") == told.hierarchies()
    assert rows_of(page, "| rows | worst mean |") == told.beside()
    made = told.calibrations()
    shares = [f"{one.coverage(0.9):.3f}" for one, _ in made.values()]
    text = " ".join((ROOT / "docs" / page).read_text().split())
    assert f"contain {shares[0]}, {shares[1]} and {shares[2]} of the truths" in text
    assert [*made] == ["logistic", "poisson", "linear"]
    assert all(one.uniform for one, _ in made.values())
    counts = {f"{sum(sum(one['statuses'].values()) for one in of):,}" for _, of in made.values()}
    assert [*counts] == re.findall(r"Each model has ([\d,]+) data sets", text)


def test_the_table_of_compare_is_that_of_its_record(front):
    kept = dict(importlib.import_module("parts.front.figures").runs("compare"))
    text = (ROOT / "docs" / "how-to" / "compare-from-the-command-line.md").read_text()
    for name, run in kept.items():
        accuracy, _, _, down, up, _ = re.findall(
            r"([\d.]+) ±", re.findall(rf"^{name} .*", text, re.MULTILINE)[0]
        )
        assert accuracy == f"{100 * statistics.fmean(seed[-1][1] for seed in run['seeds']):.2f}", (
            name
        )
        spent = statistics.fmean(sum(megabytes for megabytes, _ in seed) for seed in run["seeds"])
        assert float(down) + float(up) == pytest.approx(spent, abs=0.002), name
