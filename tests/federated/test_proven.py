"""Messages whose digest is known are not hashed again; any other bytes are, also of the same length
and content but for a bit.
"""

import pytest
import torch

from bayesfed.compress import wire
from bayesfed.errors import WireError
from bayesfed.federated.clients.envelopes import Envelope, masked, opened

ENVELOPE = Envelope("run", 0, "up", "a", 0, "train")


@pytest.fixture
def message():
    return wire.pack({"w": torch.arange(4.0)}, {"client": "a", "round": 0, "phase": "train"})


@pytest.fixture
def hashed(monkeypatch):
    """Count the messages that are hashed to be checked."""
    seen, digest_of = [], wire.digest_of
    monkeypatch.setattr(wire, "digest_of", lambda body: seen.append(len(body)) or digest_of(body))
    return seen


def test_the_very_object_is_hashed_once(message, hashed):
    copy = bytes(bytearray(message))
    wire.unpack(message)
    assert not hashed
    wire.unpack(copy)
    wire.unpack(copy)
    assert len(hashed) == 1
    wire.unpack(message)
    assert len(hashed) == 2


def test_other_bytes_are_hashed_and_refused(message, hashed):
    wire.unpack(message)
    for place in range(len(message)):
        damaged = message[:place] + bytes([message[place] ^ 1]) + message[place + 1 :]
        with pytest.raises(WireError):
            wire.unpack(damaged)
        # Nor does a refusal vouch for anything.
        with pytest.raises(WireError):
            wire.unpack(damaged)
    mutable = bytearray(message)
    wire.unpack(mutable)
    mutable[-20] ^= 1
    with pytest.raises(WireError):
        wire.unpack(mutable)


@pytest.mark.parametrize("secret", [None, b"a secret of sixteen"])
def test_a_message_comes_out_of_the_envelope_it_was_put_into_and_of_no_other(message, secret):
    sent = masked(message, ENVELOPE, secret)
    assert sent != message
    assert (
        opened(sent, ENVELOPE, secret)
        == opened(bytes(bytearray(sent)), ENVELOPE, secret)
        == message
    )
    other = Envelope("run", 0, "up", "a", 1, "train")
    for envelope, key in ((other, secret), (ENVELOPE, b"another secret of 16")):
        sent = masked(message, ENVELOPE, secret)
        assert masked(sent, envelope, key) != message
        sent = masked(message, ENVELOPE, secret)
        with pytest.raises(WireError):
            opened(sent, envelope, key)
