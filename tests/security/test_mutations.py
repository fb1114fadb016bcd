"""Changed messages and bombs, the fast part; `benchmarks/hostile.py` runs a hundred thousand."""

import json
import struct
import tracemalloc
from dataclasses import dataclass
from functools import partial

import pytest
import torch

from bayesfed.compress import Cast, Coded, PosteriorGrid
from bayesfed.compress.wire import DIGEST, unseal
from bayesfed.errors import WireError
from bayesfed.keys import Key
from bayesfed.testing import LawError
from bayesfed.testing.law import refuses
from tests.support.codecs.shipped import message_codecs, small_trees
from tests.support.hostile.bombs import bombs
from tests.support.hostile.mutations import KINDS, check_mutants, mutants, reseal
from tests.support.hostile.sections import section_bombs

LIMIT = 1 << 20
KEY = Key(0)
CODECS = message_codecs(LIMIT)


def messages(codec):
    return [codec.encode(tree, {"client": "k", "round": 3}, KEY) for tree in small_trees()]


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_changed_messages_are_refused_or_read_as_promised(codec):
    tally = check_mutants(codec, messages(codec), KEY, count=160)
    assert sum(tally.values()) == 160
    assert tally["section", "read"] + tally["promise", "read"] > 0
    assert tally["promise", "refused"] > 0


@pytest.mark.parametrize(
    "codec",
    [Cast(limit=LIMIT), Coded(limit=LIMIT), PosteriorGrid(inner=Coded(limit=LIMIT))],
    ids=["cast", "coded", "grid"],
)
def test_headers_that_promise_much_are_refused(codec):
    for what, message in bombs(LIMIT).items():
        refused(what, codec, message)


def test_sections_that_promise_much_are_refused():
    assert len(bombs(LIMIT)) + len(section_bombs(LIMIT)) > 100
    for what, (codec, message) in section_bombs(LIMIT).items():
        refused(what, codec, message)


def refused(what, codec, message):
    # How fast is for `benchmarks/hostile.py` to say.
    tracemalloc.start()
    refuses(partial(codec.decode, message, KEY), WireError, what)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 16 * LIMIT, what


def test_mutants_are_what_they_say():
    originals = messages(Coded())
    found = list(mutants(originals, KEY, 400))
    assert {mutant.kind for mutant in found} == set(KINDS)
    assert [mutant.message for mutant in found] == [
        mutant.message for mutant in mutants(originals, KEY, 400)
    ]
    for mutant in found:
        assert mutant.message not in originals
        assert (reseal(mutant.message[:-DIGEST]) == mutant.message) == mutant.resealed
        if mutant.kind in {"section", "promise"}:
            assert mutant.resealed
    sections = [mutant.message for mutant in found if mutant.kind == "section"]
    assert all(unseal(message) for message in sections)


@dataclass(frozen=True)
class Wrong:
    """Cast with one thing wrong."""

    what: str

    def encode(self, tree, meta, key):
        return Cast().encode(tree, meta, key)

    def decode(self, message, key):
        if self.what == "trusts":
            message = reseal(message[:-DIGEST])
        if self.what == "crashes":
            (length,) = struct.unpack("<I", message[4:8])
            json.loads(message[8 : 8 + length])
        tree, meta = Cast().decode(message, key)
        if self.what == "flattens":
            tree = {name: leaf.reshape(-1) for name, leaf in tree.items()}
        if self.what == "renames":
            tree = {name.upper(): leaf for name, leaf in tree.items()}
        if self.what == "divides":
            tree = {
                name: leaf / 0 if leaf.is_floating_point() else leaf for name, leaf in tree.items()
            }
        return tree, meta


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("trusts", "was accepted"),
        ("crashes", "raised .* in place of WireError"),
        ("flattens", "something other than was promised"),
        ("renames", "came of a header"),
        ("divides", "something other than was promised"),
    ],
)
def test_the_law_of_mutants_can_fail(what, words):
    codec = Wrong(what)
    with pytest.raises(LawError, match=words):
        check_mutants(codec, messages(codec), KEY, count=300)


def test_what_is_not_finite_is_refused_on_the_way_in_too():
    message = Cast().encode({"a": torch.ones(3)}, {}, KEY)
    for bad in (float("nan"), float("inf")):
        body = message[: -DIGEST - 4] + struct.pack("<f", bad)
        with pytest.raises(WireError, match="finite values"):
            Cast().decode(reseal(body), KEY)


def test_headers_and_leaves_count_against_the_limit():
    many = Cast().encode({str(number): torch.zeros(0) for number in range(2000)}, {}, KEY)
    assert len(Cast().decode(many, KEY)[0]) == 2000
    with pytest.raises(WireError, match="leaves of at most 1048576 bytes"):
        Cast(limit=LIMIT).decode(many, KEY)
    long = Cast().encode({}, {"note": "x" * (1 << 17)}, KEY)
    with pytest.raises(WireError, match="message header: expected a 32nd of 1048576 bytes"):
        Cast(limit=LIMIT).decode(long, KEY)
    mask = Coded().encode({"m": torch.zeros(LIMIT // 4, dtype=torch.bool)}, {}, KEY)
    with pytest.raises(WireError, match="at most 131072 entries"):
        Coded(limit=LIMIT).decode(mask, KEY)
    for value in (1 << 63, 10**400, float("inf"), None, [1]):
        with pytest.raises(WireError, match="a string, a boolean or a finite number"):
            Cast().encode({}, {"round": value}, KEY)
