"""The page about networks of transformers runs, on MiniLM."""

import re
from pathlib import Path

import pytest

import bayesfed as bf

PAGE = Path(__file__).parents[2] / "docs/how-to/transformers.md"


@pytest.mark.text
def test_the_page_trains_and_saves(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```py\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert code
    made: dict[str, object] = {}
    exec(code[1], made)
    result = made["result"]
    assert isinstance(result, bf.Result)
    assert result.final("accuracy") > 0.8
    assert (tmp_path / "fitted/model.safetensors").is_file()
