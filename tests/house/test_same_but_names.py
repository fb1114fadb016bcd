"""`tests.support.same_but_names` finds what a rename changed beside names."""

import pytest

from tests.support.same_but_names import Table, compare, main

OLD = {
    "pack/__init__.py": "",
    "pack/steps.py": '''
"""Steps."""
LIMIT, NAME = 3, "fit"


def told(state, rate=0.1):
    """Return the next state."""
    one, two = state, rate
    return one - two * LIMIT


def other(state, rate=0.2):
    return state + rate
''',
    "pack/run.py": """
from pack.steps import told, other
from pack import steps


class Loop:
    size: int = 1

    def first(self, made):
        found = told(made, rate=self.size)
        return [found for one in found if one]

    def second(self, made):
        found = other(made)
        return found + steps.told(found)
""",
}
RENAMES = ["name|pack.steps|told|advance", "attribute||size|count", "module|pack|steps|updates"]
NEW = {
    "pack/__init__.py": "",
    "pack/updates.py": '''
"""Updates of a state."""
LIMIT = 3
NAME = "fit"


def advance(state: float, speed: float = 0.1) -> float:
    start = state
    step = speed
    return start - step * LIMIT


def other(state, rate=0.2):
    return state + rate
''',
    "pack/run.py": """
from pack import updates
from pack.updates import advance, other


class Loop:
    count: int = 1

    def first(self, message):
        result = advance(message, speed=self.count)
        return [result for part in result if part]

    def second(self, update):
        answer = other(update)
        return answer + updates.advance(answer)
""",
}


def written(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def compared(tmp_path, file="pack/run.py", before="", after="", renames=RENAMES):
    changed = dict(NEW)
    if before:
        assert before in changed[file]
        changed[file] = changed[file].replace(before, after, 1)
    old, new = written(tmp_path / "old", OLD), written(tmp_path / "new", changed)
    return compare(old, new, Table.read(renames))


def test_names_places_and_packed_assignments_do_not_count(tmp_path):
    """Locals are numbered by function: two methods rename the same local differently."""
    assert compared(tmp_path) == []


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        pytest.param("pack/updates.py", "start - step", "start + step", id="a flipped sign"),
        pytest.param("pack/run.py", "other(update)", "advance(update)", id="a swapped call"),
        pytest.param("pack/updates.py", '"fit"', '"fits"', id="a string"),
        pytest.param("pack/updates.py", "speed = 0.1", "speed = 0.2", id="a default"),
        pytest.param(
            "pack/updates.py", "start - step", "start - start", id="another local of the function"
        ),
        pytest.param(
            "pack/run.py",
            "from pack.updates import advance, other",
            "from pack.updates import other\nfrom pack.updates import other as advance",
            id="an import of another thing by the same name",
        ),
        pytest.param(
            "pack/run.py", "speed=self", "rate=self", id="a keyword renamed in the definition alone"
        ),
    ],
)
def test_what_else_changed_is_found(tmp_path, file, before, after):
    if file == "pack/updates.py" and before == "speed = 0.1":
        before, after = "speed: float = 0.1", "speed: float = 0.2"
    lines = compared(tmp_path, file, before, after)
    assert {line[0] for line in lines} == {"-", "+"}


def test_a_rename_holds_for_the_name_of_one_module_alone(tmp_path):
    two = {
        "a.py": "def told():\n    return 1\n",
        "b.py": "def told():\n    return 2\n",
    }
    right = {
        "a.py": "def advance():\n    return 1\n",
        "b.py": "def collect():\n    return 2\n",
    }
    swapped = {
        "a.py": "def collect():\n    return 1\n",
        "b.py": "def advance():\n    return 2\n",
    }
    table = ["name|a|told|advance", "name|b|told|collect"]
    old = written(tmp_path / "old", two)
    assert compare(old, written(tmp_path / "new", right), Table.read(table)) == []
    assert len(compare(old, written(tmp_path / "swapped", swapped), Table.read(table))) == 4
    with pytest.raises(ValueError, match="two new words"):
        Table.read(["attribute||told|a", "attribute||told|b"])


def test_the_program_says_what_has_no_partner(tmp_path, capsys):
    old, new = written(tmp_path / "old", OLD), written(tmp_path / "new", NEW)
    (tmp_path / "renames.tsv").write_text("\n".join(RENAMES[:2]))
    assert main([str(old), str(new), str(tmp_path / "renames.tsv")]) == 1
    assert "- pack.run:6 Loop" in capsys.readouterr().out
    (tmp_path / "renames.tsv").write_text("\n".join(RENAMES))
    assert main([str(old), str(new), str(tmp_path / "renames.tsv")]) == 0
