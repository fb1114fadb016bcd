"""`benchmarks/house.py`: what counts as an import, and which file a name leads to."""

import subprocess
import sys
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parents[2]
LAZY = (
    "import lazy_loader\n\n__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, "
    "__file__)\n"
)
FILES = {
    "pack/__init__.py": LAZY,
    "pack/__init__.pyi": "from .low import *\nfrom .high.top import top as top\n",
    "pack/low/__init__.py": LAZY,
    "pack/low/__init__.pyi": "from .base import base as base\nfrom .named import named as named\n",
    "pack/low/base.py": "import os\n\nbase = 1\n",
    "pack/low/named.py": "from .base import base\n\ndef named():\n    return base\n",
    "pack/plain/__init__.py": "from pack.plain.one import one\n",
    "pack/plain/one.py": "one = 1\n",
    "pack/high/__init__.py": "",
    "pack/high/top.py": (
        "from pack.low import named as other\nfrom pack import low\n\ndef top():\n    return "
        "low.base, other\n"
    ),
    "pack/high/typed.py": (
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from pack.high.late "
        "import late\nelse:\n    from pack.plain import one\n"
    ),
    "pack/high/late.py": (
        "import pack as p\n\ndef late():\n    from pack.high import typed\n    return typed, "
        "p.top, p.base\n"
    ),
}


@pytest.fixture
def house(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import house
    from parts.house import imports

    yield house, imports
    sys.modules.pop("house", None)


def read(house, tmp_path, **more):
    for name, text in {**FILES, **more}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return house[1].Imports.of(
        tmp_path, [path.relative_to(tmp_path) for path in sorted(tmp_path.rglob("*.py*"))]
    )


def test_names_lead_to_the_file_that_defines_them(house, tmp_path):
    assert set(read(house, tmp_path).graph().edges) == {
        ("pack.low.named", "pack.low.base"),
        ("pack.plain", "pack.plain.one"),
        ("pack.high.top", "pack.low.named"),
        ("pack.high.top", "pack.low.base"),
        ("pack.high.typed", "pack.plain.one"),
        ("pack.high.late", "pack.high.typed"),
        ("pack.high.late", "pack.high.top"),
        ("pack.high.late", "pack.low.base"),
    }


def test_circles_are_found_through_functions_and_stubs_but_not_through_types(house, tmp_path):
    _, imports = house
    assert imports.circles(read(house, tmp_path).graph()) == []
    back = {"pack/low/base.py": "def base():\n    from pack import top\n    return top\n"}
    assert imports.circles(read(house, tmp_path, **back).graph()) == [
        ["pack.high.top", "pack.low.base", "pack.low.named"]
    ]
    assert imports.circles(nx.DiGraph([("self", "self"), ("self", "other")])) == [["self"]]


def test_types_count_where_floors_are_asked_for(house, tmp_path):
    names = read(house, tmp_path).names(Path("pack/high/typed.py"))
    assert {name for _, name in names} == {
        "typing.TYPE_CHECKING",
        "pack.high.late.late",
        "pack.plain.one",
    }


def test_what_misses_a_target_is_listed_below_it(house, capsys):
    program, _ = house
    assert not program.judged("lines over 100 columns", 1, 0, ["bayesfed/a.py:3: 101"])
    assert program.judged("circles of imports", 0, 0, ["not shown"])
    assert capsys.readouterr().out.splitlines() == [
        "target lines over 100 columns: measured 1.000, wanted <= 0, missed",
        "  bayesfed/a.py:3: 101",
        "target circles of imports: measured 0.000, wanted <= 0, met",
    ]


@pytest.mark.slow
def test_it_reads_this_package_as_python_does(house):
    program, imports = house
    package = [file for file in program.tracked("bayesfed") if file.suffix in (".py", ".pyi")]
    graph = imports.Imports.of(ROOT, package).graph()
    code = (
        "import sys, bayesfed.federated.engine.round_loop; print(*[name for name in "
        "sys.modules if name.startswith('bayesfed.')])"
    )
    loaded = set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )
    folders = {imports.module_of(file) for file in package if file.stem == "__init__"}
    assert "bayesfed.federated.core.update" in loaded
    # Packages load their lists of names.
    assert loaded - folders - nx.descendants(graph, "bayesfed.federated.engine.round_loop") == {
        "bayesfed.errors.names",
        "bayesfed.federated.engine.round_loop",
    }
