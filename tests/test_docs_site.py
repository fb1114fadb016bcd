"""What the documentation does to docstrings and formulas before they are shown (extra `docs`)."""

import importlib
import sys
from pathlib import Path

import pytest

from bayesfed import federated

pytestmark = pytest.mark.docs
DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(autouse=True)
def _docs_is_importable(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    yield
    for name in ("docstrings", "mathml"):
        sys.modules.pop(name, None)


@pytest.fixture
def griffe():
    return importlib.import_module("griffe")


@pytest.fixture
def package(griffe):
    return griffe.load("bayesfed", search_paths=[str(DOCS.parent)], extensions=griffe.load_extensions(str(DOCS / "docstrings.py")))


SIMPLE = """\
Before.

=====  ======
name   what
=====  ======
``a``  one | a
       line more
``b``  two
=====  ======

After::

    code
"""


def test_simple_tables_become_markdown():
    from docstrings import markdown

    assert markdown(SIMPLE).splitlines() == [
        *("Before.", "", "", "| name | what |", "|---|---|", r"| ``a`` | one \| a line more |", "| ``b`` | two |", "", ""),
        *("After:", "", "    code"),
    ]
    assert markdown("  ===  ===\n  a    b\n  ===  ===\n") == "\n  | | |\n  |---|---|\n  | a | b |\n\n"


def test_no_rule_of_a_table_is_left_in_what_is_shown(package):
    public = [package["federated"].members[name] for name in federated.__all__]
    texts = [member.docstring.value for member in [package["geometry"], *public] if member.docstring]
    assert sum("|---|" in text for text in texts) >= 2
    assert not [text for text in texts if "=====" in text]


def test_parameters_that_are_described_together_stay_together(griffe, package):
    found = package["algorithms.fed_lora"].docstring.parse("numpy")
    parameters = next(section for section in found if section.kind is griffe.DocstringSectionKind.parameters)
    names = {entry.name: entry.annotation for entry in parameters.value}
    assert names["codec, up"] is None
    assert str(names["training"]) == "Training | None"


def test_a_function_is_shown_in_the_place_of_its_file(package):
    for path in ("algorithms.d_turbo_vbi", "models.fixed_rank", "federated.checkpoint", "inference.infer"):
        assert package[path].is_function, path


def test_parts_of_a_method_are_found_behind_its_function(package):
    assert package["algorithms.fed_rlr.Retract"].path == "bayesfed.algorithms.fed_rlr.Retract"
    assert package["algorithms.fed_rlr.Retract"].final_target.path == "bayesfed.algorithms.fed_rlr.server.Retract"
    assert package["algorithms.d_turbo_vbi.ramp"].is_function
    assert package["models.Cost"].is_class


def test_formulas_become_mathml():
    from mathml import on_page_content

    made = on_page_content(r'<p><span class="arithmatex">\(a &lt; \frac{1}{2}\)</span></p><div class="arithmatex">\[ x^2 \]</div>')
    assert made.startswith('<p><span class="formula"><math')
    assert made.count("<math") == made.count("</math>") == 2
    assert "<mfrac>" in made
    assert "&lt;" in made or "&#x0003C;" in made
    assert 'display="block"' in made
    assert "arithmatex" not in made
