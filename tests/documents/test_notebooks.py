"""The tutorials that are notebooks too: they are those of their pages, and every cell runs (extra
`docs`).
"""

import importlib
import os
from pathlib import Path

import pytest

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
NOTEBOOKS = sorted(path.name for path in TUTORIALS.glob("*.ipynb"))


def test_there_are_two():
    assert len(NOTEBOOKS) == 2


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_that_of_its_page(name, monkeypatch):
    monkeypatch.syspath_prepend(str(TUTORIALS.parent))
    page = TUTORIALS / name
    written = importlib.import_module("pages").notebook(page.with_suffix(".md").read_text())
    assert written == page.read_text(), "python docs/pages.py"


@pytest.mark.docs
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_cell_runs(name, tmp_path, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    # The cells draw pictures, which they keep beside them.
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv(
        "PYTHONPATH",
        os.pathsep.join([str(TUTORIALS.parent.parent), os.environ.get("PYTHONPATH", "")]),
    )
    notebook = nbformat.read(TUTORIALS / name, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert list(tmp_path.glob("*.svg"))
