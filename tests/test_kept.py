"""Finished runs of benchmarks: made once, packed into one file and unpacked again."""

import json

import pytest

from benchmarks import kept


def test_a_run_is_made_once_and_an_interrupted_one_leaves_nothing(tmp_path):
    made = []

    def run():
        made.append(1)
        return {"rows": [[1, 0.5]]}

    file = tmp_path / "runs" / "a.json"
    assert kept.kept(file, run) == kept.kept(file, run) == {"rows": [[1, 0.5]]}
    assert made == [1]

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept.kept(tmp_path / "runs" / "b.json", interrupted)
    assert [found.name for found in (tmp_path / "runs").iterdir()] == ["a.json"]


def test_what_is_packed_is_unpacked_and_nothing_is_written_over(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for name, value in (("b", 0.1 + 0.2), ("a", 1 / 3)):
        kept.kept(first / f"{name}.json", lambda value=value: {"value": value})
    assert kept.pack(first, tmp_path / "records" / "all.jsonl") == 2
    kept.kept(second / "a.json", lambda: {"value": "newer"})
    assert kept.unpack(tmp_path / "records" / "all.jsonl", second) == 2
    found = {file.stem: json.loads(file.read_text())["value"] for file in second.glob("*")}
    assert found == {"a": "newer", "b": 0.1 + 0.2}
