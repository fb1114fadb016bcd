"""What the documentation does to docstrings and formulas before they are shown (extra `docs`)."""

import importlib
import re
import sys
from pathlib import Path

import pytest

from bayesfed import federated

pytestmark = pytest.mark.docs
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(autouse=True)
def _docs_is_importable(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    yield
    for name in ("docstrings", "drawings", "included", "mathml", "pages", "tables"):
        sys.modules.pop(name, None)


@pytest.fixture
def griffe():
    return importlib.import_module("griffe")


@pytest.fixture
def package(griffe):
    return griffe.load(
        "bayesfed",
        search_paths=[str(DOCS.parent)],
        extensions=griffe.load_extensions(str(DOCS / "docstrings.py")),
        docstring_parser="numpy",
    )


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
        *(
            "Before.",
            "",
            "",
            "| name | what |",
            "|---|---|",
            r"| ``a`` | one \| a line more |",
            "| ``b`` | two |",
            "",
            "",
        ),
        *("After:", "", "    code"),
    ]
    assert (
        markdown("  ===  ===\n  a    b\n  ===  ===\n") == "\n  | | |\n  |---|---|\n  | a | b |\n\n"
    )


def test_no_rule_of_a_table_is_left_in_what_is_shown(package):
    public = [package["federated"].members[name] for name in federated.__all__]
    texts = [
        member.docstring.value for member in [package["geometry"], *public] if member.docstring
    ]
    assert sum("|---|" in text for text in texts) >= 2
    assert not [text for text in texts if "=====" in text]


def test_parameters_that_are_described_together_stay_together(griffe, package):
    found = package["algorithms.fed_lora"].docstring.parse("numpy")
    parameters = next(
        section for section in found if section.kind is griffe.DocstringSectionKind.parameters
    )
    names = {entry.name: entry.annotation for entry in parameters.value}
    assert names["codec, up"] is None
    assert str(names["training"]) == "Training | None"


def test_a_function_is_shown_in_the_place_of_its_file(package):
    for path in (
        "algorithms.d_turbo_vbi",
        "models.fixed_rank",
        "federated.checkpoint",
        "inference.infer",
    ):
        assert package[path].is_function, path


def test_parts_of_a_method_are_found_behind_its_function(package):
    assert package["algorithms.fed_rlr.Retract"].path == "bayesfed.algorithms.fed_rlr.Retract"
    assert (
        package["algorithms.fed_rlr.Retract"].final_target.path
        == "bayesfed.algorithms.fed_rlr.server.Retract"
    )
    assert package["algorithms.d_turbo_vbi.ramp"].is_function
    assert package["models.Cost"].is_class


def test_formulas_become_mathml():
    from mathml import on_page_content

    made = on_page_content(
        r'<p><span class="arithmatex">\(a &lt; \frac{1}{2}\)</span></p>'
        r'<div class="arithmatex">\[ x^2 \]</div>'
    )
    assert made.startswith('<p><span class="formula"><math')
    assert made.count("<math") == made.count("</math>") == 2
    assert "<mfrac>" in made
    assert "&lt;" in made or "&#x0003C;" in made
    assert 'display="block"' in made
    assert "arithmatex" not in made


def test_every_docstring_of_the_reference_has_its_sections(griffe, package):
    sections = re.compile(r"^(Parameters|Returns|Raises|References)\n-+$", re.MULTILINE)
    collapsed, text = [], griffe.DocstringSectionKind.text
    for page in (DOCS / "reference").glob("*.md"):
        for path in re.findall(r"^::: bayesfed\.(\S+)$", page.read_text(), re.MULTILINE):
            shown = package[path]
            for member in [shown, *(shown.members.values() if shown.is_class else ())]:
                docstring = None if member.is_alias else member.docstring
                # `parsed` is what a page shows: by the parser that the docstring was read with.
                if (
                    docstring
                    and sections.search(docstring.value)
                    and {one.kind for one in docstring.parsed} == {text}
                ):
                    collapsed.append(member.path)
    assert not collapsed


def test_letters_of_formulas_are_unicode_letters_that_every_browser_shows():
    from mathml import on_page_content

    def shown(latex):
        return on_page_content(rf'<span class="arithmatex">\({latex}\)</span>')

    made = shown(
        r"\mathbf w \boldsymbol\rho \mathcal N \mathcal R \mathbb E \mathrm{KL} "
        r"\arg\min A \setminus B"
    )
    letters = (
        "\N{MATHEMATICAL BOLD SMALL W}\N{MATHEMATICAL BOLD ITALIC SMALL RHO}"
        "\N{MATHEMATICAL SCRIPT CAPITAL N}\N{SCRIPT CAPITAL R}"
    )
    for letter in letters:
        assert letter in made
    assert "\N{MATHEMATICAL DOUBLE-STRUCK CAPITAL E}" in made
    assert not re.search(r'mathvariant="(?!normal)|\\\\[a-z]|&#x029F5;', made)
    with pytest.raises(ValueError, match="not understood"):
        shown(r"\notacommand x")


def test_rows_of_the_ledger_begin_with_their_verdict():
    from tables import verdict_first

    page = (DOCS / "ledger.md").read_text()
    shown = verdict_first(page)
    heads = [line for line in shown.splitlines() if line.startswith("| verdict")]
    assert len(heads) == 1 + len(re.findall(r"verdict\s*\|\n", page)) > 4
    assert sorted(re.findall(r"\w+", re.sub(r"</?div[^>]*>", "", shown))) == sorted(
        re.findall(r"\w+", page)
    )


def test_names_have_the_first_sentence_of_their_docstrings():
    from tables import described

    made = described((DOCS / "reference" / "index.md").read_text())
    assert re.search(
        r"^\| `bf\.run` \| Run an algorithm over clients .* \| "
        r"\[running\]\[bayesfed\.running\.run\], \[example\]\(\.\./tutorials/.*\.md \".*\"\) \|$",
        made,
        re.MULTILINE,
    )
    assert all(
        line.endswith(" |") and len(re.split(r"(?<!\\)\|", line)) == 5
        for line in made.splitlines()
        if line.startswith("| `bf.")
    )


def test_drawings_become_part_of_the_page_in_its_colours():
    from drawings import on_page_content

    made = on_page_content(
        '<p><img alt="One &quot;round&quot;" src="../../pictures/concepts.svg" /></p>',
        config={"docs_dir": str(DOCS)},
    )
    assert made.startswith('<p><svg class="drawing" role="img" aria-label="One &quot;round&quot;"')
    assert "<style" not in made
    assert 'id="concepts-head"' in made
    assert "url(#concepts-head)" in made
    assert on_page_content(
        '<img alt="" src="https://example.org/a.svg" />', config={"docs_dir": str(DOCS)}
    ).startswith("<img")


def test_pages_of_files_have_links_of_the_site():
    from included import on_page_markdown

    def page(name):
        return type("Page", (), {"file": type("File", (), {"src_uri": name})})

    for name in ("security.md", "changelog.md"):
        made = on_page_markdown("", page=page(name), config={"docs_dir": str(DOCS)})
        assert len(made) > 2000
        assert "](docs/" not in made
    assert (
        on_page_markdown("as it is", page=page("index.md"), config={"docs_dir": str(DOCS)})
        == "as it is"
    )
