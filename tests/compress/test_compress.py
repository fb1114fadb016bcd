"""Wire format, codecs and packed supports."""

import hashlib
import json
import struct

import pytest
import torch

from bayesfed.compress import Cast, Coded, gather_active, pack, scatter_active, unpack
from bayesfed.compress.headers import deflated
from bayesfed.compress.wire import unseal
from bayesfed.errors import ArgumentError, WireError
from bayesfed.keys import Key
from bayesfed.testing import LawError, check_codec


@pytest.mark.parametrize(("codec", "tolerance"), [(Cast(32), 0.0), (Cast(16), 2**-10)])
def test_codecs_obey_the_laws(codec, tolerance):
    check_codec(codec, tolerance=tolerance)


def test_the_codec_law_can_fail():
    with pytest.raises(LawError, match="differs by up to"):
        check_codec(Cast(16))


def test_a_message_weighs_its_values_and_a_header():
    tree = {"a": torch.randn(100, 10), "n": torch.arange(5)}
    small, large = (Cast(bits).encode(tree, {}, Key(0)) for bits in (16, 32))
    assert len(large) - len(small) == 2 * 1000
    assert len(large) < 4 * 1000 + 8 * 5 + 150


def test_golden_message():
    """The bytes of version 1: a change here is a change of format."""
    message = pack({"w": torch.tensor([1.0, -2.0])}, {"round": 3})
    body = b'BFD1\x35\x00\x00\x00{"meta":{"round":3},"leaves":[["w","f4",[2],8]]}'
    assert message[8 : 8 + struct.unpack("<I", message[4:8])[0]] == body[8:]
    assert message[-24:-16] == struct.pack("<2f", 1.0, -2.0)
    assert message[-16:] == hashlib.sha256(message[:-16]).digest()[:16]


def forged(header: bytes, payload: bytes = b"", length: int | None = None) -> bytes:
    body = b"BFD1" + struct.pack("<I", len(header) if length is None else length) + header + payload
    return body + hashlib.sha256(body).digest()[:16]


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"not a message of ours at all",
        forged(b"{}"),
        forged(b"[" * 5000),
        forged(b"{}", length=2**31),
        forged(json.dumps({"meta": {}, "leaves": [["a", "f4", [2**40, 2**20], 0]]}).encode()),
        forged(json.dumps({"meta": {}, "leaves": [["a", "f4", [-1, -1], 4]]}).encode(), b"abcd"),
        forged(json.dumps({"meta": {}, "leaves": [["a", "O", [1], 4]]}).encode(), b"abcd"),
        forged(
            json.dumps({"meta": {}, "leaves": [["a", "f4", [1], 4], ["a", "f4", [1], 4]]}).encode(),
            b"abcdefgh",
        ),
        forged(b'{"meta":{"x":NaN},"leaves":[]}'),
        forged(b'{"meta":{"x":1e999},"leaves":[]}'),
        forged(json.dumps({"meta": {"x": [1]}, "leaves": []}).encode()),
        forged(json.dumps({"meta": {}, "leaves": [["a", "f4", [True], 4]]}).encode(), b"abcd"),
    ],
)
def test_forged_messages_are_refused_even_with_a_good_digest(message):
    with pytest.raises(WireError):
        unpack(message)


def test_limits_and_dtypes():
    message = pack({"a": torch.zeros(100)}, {})
    with pytest.raises(WireError, match="at most 50 bytes"):
        unpack(message, limit=50)
    with pytest.raises(WireError, match="a cast first"):
        pack({"a": torch.zeros(2, dtype=torch.complex64)}, {})
    with pytest.raises(WireError, match="values that fit 16 bits"):
        Cast(16).encode({"a": torch.tensor([1e6])}, {}, Key(0))
    with pytest.raises(ArgumentError, match="bits: expected one of 16, 32, 64"):
        Cast(8)


def brief(header: bytes) -> bytes:
    body = b"BFD2" + struct.pack("<I", len(header)) + header
    return body + hashlib.sha256(body).digest()[:16]


def test_a_brief_message_is_the_same_one_in_fewer_bytes_and_as_well_guarded():
    tree = {"mean/1.weight": torch.randn(30), "shared/sd": torch.tensor(0.1)}
    meta = {"client": "client-000", "round": 3, "phase": "train"}
    whole = Coded().encode(tree, meta, Key(0))
    short = Coded(brief=True).encode(tree, meta, Key(0))
    assert len(short) < len(whole) - 80
    assert short[:4] == b"BFD2"
    assert short[-78:-16] == whole[-78:-16]
    (read, said), (same, too) = (Coded().decode(one, Key(0)) for one in (whole, short))
    assert said == too == meta
    assert all(torch.equal(read[name], same[name]) for name in tree)
    for header in (b"", b"nonsense", deflated(b"["), deflated(b"{}")[:-1], deflated(b"{}") + b"x"):
        with pytest.raises(WireError, match="meta and leaves as JSON"):
            unseal(brief(header))
    with pytest.raises(WireError, match="a higher limit"):
        unseal(brief(deflated(b"[" * 10**7)), limit=1 << 20)


@pytest.mark.parametrize("shape", [(), (1,), (7, 9), (16, 8), (0, 3)])
def test_booleans_travel_eight_to_a_byte(shape):
    mask = torch.rand(shape) < 0.3
    message = pack({"m": mask}, {})
    (leaf,), _ = unseal(message)
    assert len(leaf.section) == -(-mask.numel() // 8)
    back, _ = unpack(message)
    assert torch.equal(back["m"], mask)


def test_active_entries_come_back_in_place():
    mask = torch.rand(6, 7) < 0.4
    tree = {"mean/layer": torch.randn(6, 7), "sd/layer": torch.tensor(0.1), "bias": torch.randn(6)}
    sparse = gather_active(tree, {"layer": mask})
    assert sparse["mean/layer"].shape == (int(mask.sum()),)
    assert sparse["sd/layer"].shape == ()
    assert torch.equal(scatter_active(sparse["mean/layer"], mask), tree["mean/layer"] * mask)
    with pytest.raises(WireError, match="active values"):
        scatter_active(torch.ones(50), mask)
