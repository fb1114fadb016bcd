"""Codecs as bytes: what was described is what comes back, and nothing else can be made."""

import importlib
import inspect
import json
import pkgutil
from dataclasses import dataclass, is_dataclass

import numpy as np
import pytest

import bayesfed as bf
import bayesfed.compress
from bayesfed.compress.budgets import Setting
from bayesfed.compress.described import SHIPPED, describe, described
from bayesfed.compress.quantisers.floats import Float
from bayesfed.compress.quantisers.sparsify import Ternary
from bayesfed.compress.wire import pack
from bayesfed.errors import ArgumentError, WireError
from bayesfed.keys import Key
from tests.conftest import tree_equal
from tests.support.codecs.shipped import message_codecs, small_trees

MAP = bf.compress.FlexibleMap((Setting(0.1, 0.1, 4, 0.5), Setting(0.5, 0.5, 16, 0.1)))
CODECS = {
    **message_codecs(),
    "exceptions": bf.compress.Coded(exceptions={"*.bias": Float(32), "*": Ternary(0.2)}),
    "budgeted": bf.compress.Budgeted(MAP, 0.3),
}


@pytest.mark.parametrize("name", CODECS)
def test_what_is_described_comes_back_and_codes_alike(name):
    codec = CODECS[name]
    again = described(describe(codec))
    assert again == codec
    assert describe(again) == describe(codec)
    for tree in small_trees():
        if name == "posterior grid" and not any(leaf.startswith("mean/") for leaf in tree):
            continue
        message = codec.encode(tree, {}, Key(3))
        assert again.encode(tree, {}, Key(3)) == message
        assert tree_equal(again.decode(message, Key(3))[0], codec.decode(message, Key(3))[0])


def test_every_codec_of_the_package_is_on_the_list():
    modules = [
        importlib.import_module(info.name)
        for info in pkgutil.walk_packages(bayesfed.compress.__path__, "bayesfed.compress.")
    ]
    classes = {
        kind
        for module in modules
        for kind in vars(module).values()
        if inspect.isclass(kind) and is_dataclass(kind)
    }
    codecs = {
        kind
        for kind in classes
        if all(hasattr(kind, verb) for verb in ("encode", "decode"))
        or all(hasattr(kind, verb) for verb in ("write", "read"))
    }
    assert len(codecs) > 20
    # A split is part of a code, and never a field.
    assert {kind.__name__ for kind in codecs - set(SHIPPED)} <= {"Split"}
    assert len({kind.__name__ for kind in SHIPPED}) == len(SHIPPED)


@dataclass(frozen=True)
class Own:
    """A user's codec."""

    inner: bf.Cast

    def encode(self, tree, meta, key):
        return self.inner.encode(tree, meta, key)

    def decode(self, message, key):
        return self.inner.decode(message, key)


def test_a_users_own_class_is_named_on_both_sides():
    assert described(describe(Own(bf.Cast(16)), [Own]), [Own]) == Own(bf.Cast(16))
    with pytest.raises(ArgumentError, match="Own: expected what can be described"):
        describe(Own(bf.Cast(16)))
    with pytest.raises(WireError, match="class 'Own' is not on the list"):
        described(describe(Own(bf.Cast(16)), [Own]))


@pytest.mark.parametrize(
    "value",
    [len, float("nan"), np.ones(3), [1], {1, 2}, b"x"],
    ids=["function", "nan", "floats", "list", "set", "bytes"],
)
def test_what_cannot_be_described_is_refused_by_its_place(value):
    codec = bf.Cast(32)
    vars(codec).update(limit=value)
    with pytest.raises(ArgumentError, match=r"Cast\.limit: expected what can be described"):
        describe(codec)


def cast(**fields):
    return {"is": "Cast", "with": {"bits": 32, "limit": 100, **fields}}


@pytest.mark.parametrize(
    ("codec", "words"),
    [
        (cast(bits=7), "Cast, bits: expected one of 16, 32, 64"),
        (cast(more=1), "Cast has fields"),
        ({"is": "Cast", "with": {"bits": 32}}, "Cast has fields"),
        ({**cast(), "more": 1}, "is not a value"),
        ({"is": "eval", "with": {}}, "class 'eval' is not on the list"),
        ({"is": "os.system", "with": {"command": "true"}}, "is not on the list"),
        ({"is": "Fixed", "with": {}}, "Fixed is not a codec of messages"),
        (cast(limit={"leaf": "7"}), "is not a value"),
        (cast(bits={"pairs": [[[], 1]]}), "unhashable"),
        (cast(bits={"pairs": [1]}), "unpack"),
        (32, "int is not a codec of messages"),
        ({}, "is not a value"),
        ({"is": "ErrorFeedback", "with": {"codec": cast()}}, None),
    ],
)
def test_a_hostile_description_makes_nothing(codec, words):
    message = pack({}, {"codec": json.dumps(codec)})
    if words is None:
        assert described(message).codec == bf.Cast(32, 100)
    else:
        with pytest.raises(WireError, match=words):
            described(message)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[" * 100_000,
        '{"is": "Cast", "with": {"bits": Infinity, "limit": 1}}',
        "[" * 40 + "]" * 40,
    ],
)
def test_text_that_is_no_description_is_refused(text):
    with pytest.raises(WireError, match="description"):
        described(pack({}, {"codec": text}))
    with pytest.raises(WireError, match="description"):
        described(pack({}, {}))
