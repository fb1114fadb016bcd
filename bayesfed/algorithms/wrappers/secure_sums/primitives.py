"""The cryptography of secure sums: X25519, HKDF, AES-CTR and ChaCha20-Poly1305 from `cryptography`,
Shamir's shares from pycryptodome.

All secrets are 16 bytes from the operating system, from which keys are derived by HKDF-SHA256. They
never come from a `Key`: a key of this package can be rebuilt by whoever knows the seed of the run.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, Literal

import numpy as np

from bayesfed.errors import UpdateError, needs

Bits = Literal[32, 64]
# Lengths in bytes: of a secret, of a public key, of what authenticates a sealed text, of a digest.
SECRET, PUBLIC, TAG, DIGEST = 16, 32, 16, 16
LIMBS: dict[Bits, np.dtype[Any]] = {32: np.dtype("<u4"), 64: np.dtype("<u8")}


def check_installed() -> None:
    """Raise `MissingExtraError` unless both libraries are there."""
    needs("cryptography", "secure")
    _shamir()


def fresh() -> bytes:
    """Return a new secret from the operating system."""
    return secrets.token_bytes(SECRET)


def digest(content: bytes) -> bytes:
    """Return a digest of 16 bytes, which hides a secret of full entropy."""
    return sha256(content).digest()[:DIGEST]


class Agreement:
    """The X25519 key pair of a secret for one purpose, which agrees on a key with each of many
    others.

    Parameters
    ----------
    secret
        The secret, 16 bytes.
    purpose
        What the key is for: keys for different purposes are independent.

    Attributes
    ----------
    public
        The public key, 32 bytes.
    """

    def __init__(self, secret: bytes, purpose: str) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        derived = _derived(secret, f"X25519 {purpose}")
        self._private, self._purpose = X25519PrivateKey.from_private_bytes(derived), purpose
        self.public: bytes = self._private.public_key().public_bytes_raw()

    def key(self, other: bytes, *context: bytes) -> bytes:
        """Return the key of 32 bytes that only the two owners of the key pairs can compute, bound
        to a context.

        Raises
        ------
        UpdateError
            If `other` is no public key, or one with which everybody agrees on the same key.
        """
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(other))
        except ValueError as problem:
            raise UpdateError(
                "public key",
                "a point of X25519 of high order",
                problem,
                "a key pair that was drawn at random",
                field="values",
            ) from problem
        return _derived(shared, self._purpose, *context)

    def mask(self, other: bytes, count: int, bits: Bits) -> np.ndarray:
        """Return the mask that this owner adds for the owner of another public key, who adds its
        negative.
        """
        drawn = stream(self.key(other, *sorted([self.public, other])), count, bits)
        return drawn if self.public < other else np.negative(drawn, out=drawn)


def sealed(key: bytes, text: bytes, context: bytes) -> bytes:
    """Return a text encrypted and authenticated by ChaCha20-Poly1305. A key is for one text only,
    so its nonce is zero.
    """
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return bytes(ChaCha20Poly1305(key).encrypt(bytes(12), text, context))


def opened(key: bytes, box: bytes, context: bytes) -> bytes | None:
    """Return the text in a sealed box; None if it was not sealed with this key and context."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return bytes(ChaCha20Poly1305(key).decrypt(bytes(12), box, context))
    except InvalidTag:
        return None


def stream(key: bytes, count: int, bits: Bits) -> np.ndarray:
    """Return the first numbers of the key stream of AES-256-CTR, unsigned, ``(count,)``."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    size = count * LIMBS[bits].itemsize
    # The library wants room for a block more.
    drawn = np.empty(size + 15, np.uint8)
    Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update_into(
        bytes(size), drawn.data
    )
    return drawn[:size].view(LIMBS[bits])


def seed_stream(seed: bytes, count: int, bits: Bits) -> np.ndarray:
    """Return the mask that a client adds for itself."""
    return stream(_derived(seed, "seed"), count, bits)


def split(secret: bytes, shares: int, threshold: int) -> list[bytes]:
    """Return Shamir's shares of a secret, of which `threshold` open it. The place of a share, from
    1, belongs to it.
    """
    return [share for _, share in _shamir().split(threshold, shares, secret, ssss=False)]


def combine(shares: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the secret of as many shares as are needed, each with its place."""
    secret: bytes = _shamir().combine(list(shares), ssss=False)
    return secret


def _shamir() -> Any:
    return needs("Crypto.Protocol.SecretSharing", "secure", "pycryptodome").Shamir


def _derived(secret: bytes, purpose: str, *context: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = b"bayesfed secure sums, " + purpose.encode() + b"".join(context)
    return bytes(HKDF(SHA256(), 32, None, info).derive(secret))
