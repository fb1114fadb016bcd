"""Envelopes: every message is bound to its run, direction, client, round and phase, and in keyed
mode to a secret of the client.

The last 16 bytes of a message are the digest of what is before them. An envelope replaces them by
16 others, so that it costs nothing, and only a receiver who expects this very message gets the
digest back.

===========  =======================================================================================
mode         last 16 bytes
===========  =======================================================================================
without key  the digest, masked (exclusive or) with 8 bytes that name the run and 8 that name the
             exchange (its nonce): strays, replays
             and mix-ups are recognised and told apart
with key     a tag, keyed BLAKE2b of envelope and message under the client's secret: without the
             secret nobody can write a message that
             is accepted, or pass an old message for a new one
===========  =======================================================================================

Messages must have the layout of `bayesfed.compress.wire`. The secret is never sent.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from bayesfed.compress.wire import DIGEST, MAX_BYTES, digest_of, is_intact, unseal, with_digest
from bayesfed.errors import ArgumentError, WireError
from bayesfed.errors.plurals import plural
from bayesfed.federated.core import Direction

HALF = DIGEST // 2
# Lengths of a secret in bytes: a shorter one can be guessed, and BLAKE2b takes no longer key.
SHORTEST, LONGEST = 16, 64
# Fields of a message's header that say which exchange it belongs to.
CLAIMS = ("client", "round", "phase")


@dataclass(frozen=True)
class Envelope:
    """What a message is bound to.

    Parameters
    ----------
    run
        Id of the run. If it is empty, messages are masked only if there is a secret.
    seed
        Seed of the run, which names the random streams that both ends share.
    direction
        "down" for a message to the client, "up" for one from it.
    client, round, phase
        The exchange.
    """

    run: str
    seed: int
    direction: Direction
    client: str
    round: int
    phase: str

    def tag(self, body: bytes | memoryview, secret: bytes) -> bytes:
        """Return the 16 bytes that end a message with this body in keyed mode."""
        text = _text(asdict(self))
        keyed = hashlib.blake2b(struct.pack("<I", len(text)) + text, digest_size=DIGEST, key=secret)
        keyed.update(body)
        return keyed.digest()

    @property
    def mask(self) -> bytes:
        """The 16 bytes that mask the digest without a key; zeros without a run."""
        return _name(self.run) + self.nonce if self.run else bytes(DIGEST)

    @property
    def nonce(self) -> bytes:
        """The 8 bytes that name the exchange within its run."""
        return _name([self.seed, self.direction, self.client, self.round, self.phase])


def masked(message: bytes, envelope: Envelope, secret: bytes | None = None) -> bytes:
    """Put a message into its envelope, or take it out: the second call undoes the first.

    In keyed mode digest and tag are exchanged. A message that ends with neither is returned
    unchanged, and is refused for its digest.
    """
    last = _last.masked
    if last and message is last[1] and last[2:] == (envelope, secret):
        # In process, a message is taken out of the envelope that it was just put into.
        _last.masked = None
        return last[0]
    body = memoryview(message)[:-DIGEST]
    if secret is None:
        result = b"".join([body, _xor(message[-DIGEST:], envelope.mask)])
    elif hmac.compare_digest(message[-DIGEST:], tag := envelope.tag(body, secret)):
        result = with_digest(body)
    else:
        result = b"".join([body, tag]) if is_intact(message) else message
    _last.masked = (message, result, envelope, secret) if type(message) is bytes else None
    return result


class _Last(threading.local):
    """The last call of `masked` in this thread: message, result, envelope and secret."""

    masked: tuple[bytes, bytes, Envelope, bytes | None] | None = None


_last = _Last()


def opened(
    message: bytes, envelope: Envelope, secret: bytes | None = None, *, limit: int = MAX_BYTES
) -> bytes:
    """Take a message out of its envelope, and check its size, its digest and its header. The
    sections with the leaves are not read.

    Parameters
    ----------
    message
        Message as received.
    envelope
        The exchange in which a message is expected.
    secret
        The client's secret, in keyed mode.
    limit
        Largest number of bytes, of the message and of its decoded leaves.

    Raises
    ------
    WireError
        If this is not an undamaged message of this exchange within the limit (as `unseal`). The
        field of the error is "client", "round" or "phase" for a genuine message of another
        exchange, "run" for one of another run, "nonce" for another one of this run, and "digest" if
        nothing more is known.
    """
    plain = masked(message, envelope, secret)
    try:
        unseal(plain, limit=limit)
    except WireError as problem:
        if problem.field != "digest":
            raise
        raise _explained(message, envelope, secret, limit) from None
    return plain


def check_secrets(
    where: str, secrets: Mapping[str, bytes], clients: Iterable[str]
) -> dict[str, bytes]:
    """Return the clients' secrets.

    Parameters
    ----------
    where
        Name of the argument, for error messages.
    secrets
        Secrets by client, 16 to 64 bytes each.
    clients
        Names of the clients that must have one.

    Raises
    ------
    ArgumentError
        If a client has no secret, or one is not bytes of such a length. The message states lengths,
        never values.
    """
    if not isinstance(secrets, Mapping):
        raise ArgumentError(
            where,
            "secrets by client",
            f"a {type(secrets).__name__}",
            "{name: secrets.token_bytes(32) for name in clients}",
        )
    checked = dict(secrets)
    if without := sorted(set(clients) - checked.keys()):
        raise ArgumentError(
            where, "a secret for every client", f"none for {without}", "secrets.token_bytes(32)"
        )
    for client, secret in checked.items():
        if not isinstance(secret, bytes) or not SHORTEST <= len(secret) <= LONGEST:
            raise ArgumentError(
                where,
                f"{SHORTEST} to {plural(LONGEST, 'byte')} for client {client!r}",
                f"{len(secret)} bytes" if isinstance(secret, bytes) else type(secret).__name__,
                "secrets.token_bytes(32)",
            )
    return checked


def _explained(message: bytes, envelope: Envelope, secret: bytes | None, limit: int) -> WireError:
    """Return the error of a message that does not come out of this envelope."""
    body = memoryview(message)[:-DIGEST]
    # The sender's tag or, without a key, its mask, if nothing else is wrong.
    theirs = message[-DIGEST:] if secret is not None else _xor(digest_of(body), message[-DIGEST:])
    claims = _claims(body, limit)
    if differing := [
        name for name in CLAIMS if name in claims and claims[name] != getattr(envelope, name)
    ]:
        try:
            claimed = replace(envelope, **claims)
            genuine = hmac.compare_digest(
                claimed.tag(body, secret) if secret is not None else claimed.mask, theirs
            )
        except (TypeError, ValueError):
            genuine = False
        if genuine:
            name = differing[0]
            expected = f"one of {name} {getattr(envelope, name)!r}"
            return _refusal(name, expected, f"one of {name} {claims[name]!r}")
    said = ", ".join(f"{name} {claims[name]!r}" for name in differing)
    if secret is None and envelope.run:
        run, nonce = theirs[:HALF] == _name(envelope.run), theirs[HALF:] == envelope.nonce
        if nonce:
            return _refusal("run", f"one of run {envelope.run!r}", "one of another run")
        if run:
            return _refusal(
                "nonce",
                "the nonce of this exchange",
                f"another one{f', of {said}' if said else ''}",
            )
    kind = "forged, replayed or damaged" if secret is not None else "damaged, or of another run"
    actual = f"another one: {kind}{f'; it says {said}' if said else ''}"
    return _refusal("digest", "a matching digest", actual, ", and one set of secrets at both ends")


def _refusal(field: str, expected: str, actual: str, more: str = "") -> WireError:
    hint = f"this exchange's own message{more}"
    return WireError("message", expected, actual, hint, field=field)


def _claims(body: memoryview, limit: int) -> dict[str, Any]:
    """Return what the body of an unproven message says of client, round and phase."""
    try:
        _, meta = unseal(with_digest(body), limit=limit)
    except WireError:
        return {}
    return {name: meta[name] for name in CLAIMS if name in meta and type(meta[name]) in {str, int}}


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=False))


def _name(what: object) -> bytes:
    return hashlib.blake2b(_text(what), digest_size=HALF).digest()


def _text(what: object) -> bytes:
    return json.dumps(what, separators=(",", ":"), sort_keys=True).encode()
