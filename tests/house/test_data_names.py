"""Names that are data: a rename of one of them changes files, messages or random streams, in
silence. They are listed in ``data_names.json``, so that such a change is seen. To write the list
anew, knowingly::

    python -m tests.house.test_data_names --write

- strings in the paths of keys: they are the random streams;
- phases, owners and leaves of states: they are in snapshots, memories and messages;
- settings: they are in snapshots, which refuse to go on with others;
- codecs and their fields, and options of a local step: they are in letters;
- arguments of recipes: they are the keys of experiment files.
"""

import ast
import dataclasses
import inspect
import json
import re
import sys
from pathlib import Path
from types import FunctionType

import pytest

import bayesfed as bf
from bayesfed.compress.described import SHIPPED
from bayesfed.federated.core import LocalOptions
from bayesfed.federated.core.settings import settings_of_function
from bayesfed.federated.engine import settings
from tests.support import recipes

ROOT = Path(bf.__file__).parent
FILE = Path(__file__).parent / "data_names.json"
KINDS = ("streams", "phases", "layers", "leaves", "settings", "fields", "arguments of recipes")
# Parts of leaves and settings that are the network's or the clients' own.
NUMBER = re.compile(r"^\d+$|^client-\d+$")


def streams():
    """The constant names in the paths of all keys of the package."""
    found = set()
    for file in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if not isinstance(node, ast.Call):
                continue
            called = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if called in ("Key", "child"):
                constants = (one.value for one in node.args if isinstance(one, ast.Constant))
                found.update(value for value in constants if isinstance(value, str))
    return sorted(found)


def parts(names):
    """The words of dotted names, without numbers."""
    words = {word for name in names for word in re.split(r"[./\[\]]", name) if word}
    return sorted(word for word in words if not NUMBER.match(word))


def subclasses(kind):
    for child in kind.__subclasses__():
        yield child
        yield from subclasses(child)


def names():
    algorithms = {name: make().algorithm for name, make in recipes.tiny_recipes().items()}
    kinds = [*SHIPPED, LocalOptions, *subclasses(LocalOptions)]
    kinds = [kind for kind in kinds if kind.__module__.startswith("bayesfed.")]
    described = [
        name
        for algorithm in algorithms.values()
        for name in settings.settings_of_run(algorithm, None, [])
    ]
    return {
        "streams": streams(),
        "phases": {
            name: [f"{phase.name} of {phase.owner!r}" for phase in algorithm.phases]
            for name, algorithm in algorithms.items()
        },
        "layers": sorted(
            {
                layer.owner
                for algorithm in algorithms.values()
                for phase in algorithm.phases
                for layer in phase.layers
            }
        ),
        "leaves": parts(leaf for algorithm in algorithms.values() for leaf in algorithm.initial),
        "settings": parts(described),
        "fields": {
            kind.__name__: [field.name for field in dataclasses.fields(kind)]
            if dataclasses.is_dataclass(kind)
            else []
            for kind in sorted(kinds, key=lambda kind: kind.__name__)
        },
        "arguments of recipes": {
            name: [*inspect.signature(getattr(bf, name)).parameters]
            for name in bf.methods()
            # Other tests register methods of their own.
            if hasattr(bf, name)
        },
    }


@pytest.fixture(scope="module")
def found():
    return names()


@pytest.mark.parametrize("kind", KINDS)
def test_names_that_are_data_are_what_they_were(kind, found):
    assert found[kind] == json.loads(FILE.read_text())[kind]


def test_functions_of_the_package_say_their_settings(monkeypatch):
    """No name of a variable of the package gets into a snapshot."""
    silent = set()
    enter = settings.Described._object

    def noted(self, name, value):
        closes = isinstance(value, FunctionType) and bool(value.__closure__)
        ours = closes and value.__module__.startswith("bayesfed.")
        if ours and settings_of_function(value) is None:
            silent.add(f"{value.__module__}.{value.__qualname__}")
        return enter(self, name, value)

    monkeypatch.setattr(settings.Described, "_object", noted)
    for make in recipes.tiny_recipes().values():
        settings.settings_of_run(make().algorithm, bf.fraction(0.5), [])
    assert not silent


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    FILE.write_text(json.dumps(names(), indent=1) + "\n")
