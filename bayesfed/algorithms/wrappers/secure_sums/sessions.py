"""What a client knows in one round of secure sums, and the three things that it does with it:
share, mask, open.

A session is named by its public keys, which the server sends back with every question. Whatever the
server asks and how often, a session masks one vector, and answers one question for its neighbours'
shares: the same question has the same answer, another one is refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Self

import numpy as np
from pydantic import BaseModel

from bayesfed.algorithms.wrappers.secure_sums import primitives
from bayesfed.algorithms.wrappers.secure_sums.graphs import LEAST
from bayesfed.algorithms.wrappers.secure_sums.primitives import (
    DIGEST,
    PUBLIC,
    SECRET,
    TAG,
    Agreement,
    Bits,
    digest,
)
from bayesfed.errors import UpdateError
from bayesfed.errors.plurals import plural

# Lengths in bytes: both public keys of a client; a sealed pair of shares; the digests of such a
# pair.
KEYS, BOX, PAIR = 2 * PUBLIC, 2 * SECRET + TAG, 2 * DIGEST
BOXES, MASKS = "shares", "masks"


class Session(BaseModel, ser_json_bytes="hex", val_json_bytes="hex"):
    """One client's part in one round.

    Parameters
    ----------
    public
        The client's public keys: the one for boxes, then the one for masks.
    boxing, masking, seed
        The secrets of the two keys and of the client's own mask; empty once the session has
        answered for its neighbours.
    neighbours
        Public keys of each neighbour, 64 bytes.
    threshold
        Number of shares that open a secret.
    boxes, digests
        What is sent to be passed on: a sealed pair of shares for each neighbour, and the digests of
        all pairs.
    partners
        For each neighbour whether its mask was added.
    vector
        Digest of what was masked.
    question, answer
        Digest of the question for neighbours' shares, and the answer.
    """

    public: bytes
    boxing: bytes
    masking: bytes
    seed: bytes
    neighbours: tuple[bytes, ...] = ()
    threshold: int = 0
    boxes: tuple[bytes, ...] = ()
    digests: bytes = b""
    partners: tuple[bool, ...] = ()
    vector: bytes = b""
    question: bytes = b""
    answer: tuple[bytes, ...] = ()

    @classmethod
    def fresh(cls) -> Self:
        """Return a session with new secrets from the operating system."""
        boxing, masking, seed = (primitives.fresh() for _ in range(3))
        public = Agreement(boxing, BOXES).public + Agreement(masking, MASKS).public
        return cls(public=public, boxing=boxing, masking=masking, seed=seed)

    @property
    def name(self) -> str:
        """The name of the session."""
        return session_name(self.public)

    def share(self, neighbours: Sequence[bytes], threshold: int) -> None:
        """Split the secret of the masks and the seed into shares, and seal a pair for each
        neighbour.

        Parameters
        ----------
        neighbours
            Public keys of each neighbour, 64 bytes.
        threshold
            Number of shares that are to open a secret.

        Raises
        ------
        UpdateError
            If the session has shared with others before, a key occurs twice or is unsound, or the
            threshold is not 2 to the number of neighbours.
        """
        others, count = tuple(neighbours), len(neighbours)
        if self.neighbours:
            if (others, threshold) != (self.neighbours, self.threshold):
                raise refusal("the neighbours of this session", "others", "duplicate")
            return
        keys = [key for one in (self.public, *others) for key in (one[:PUBLIC], one[PUBLIC:])]
        if any(len(one) != KEYS for one in others) or len(set(keys)) != len(keys):
            raise refusal(
                "public keys that differ, 64 bytes of each neighbour",
                "the same key twice, or another length",
            )
        if not LEAST <= threshold <= count:
            raise refusal(f"a threshold of {LEAST} to {count}, the number of neighbours", threshold)
        boxing = Agreement(self.boxing, BOXES)
        secrets = [
            primitives.split(secret, count, threshold) for secret in (self.masking, self.seed)
        ]
        pairs = [*zip(*secrets, strict=True)]
        self.boxes = tuple(
            primitives.sealed(
                boxing.key(other[:PUBLIC], self.public, other), b"".join(pair), self.public + other
            )
            for other, pair in zip(others, pairs, strict=True)
        )
        self.digests = b"".join(digest(share) for pair in pairs for share in pair)
        self.neighbours, self.threshold = others, threshold

    def mask(self, vector: np.ndarray, partners: Sequence[bool], bits: Bits) -> np.ndarray:
        """Add the client's own mask and one for each partner, which cancel in the sum.

        Parameters
        ----------
        vector
            Integers modulo ``2 ** bits``, unsigned.
        partners
            For each neighbour whether it has sent its shares.
        bits
            Bits of an integer.

        Raises
        ------
        UpdateError
            If the session has masked another vector or for other partners before, has not shared,
            or has fewer partners than the threshold.
        """
        flags, count = tuple(map(bool, partners)), len(self.neighbours)
        content = digest(bytes(flags) + vector.tobytes())
        if self.vector and content != self.vector:
            raise refusal(
                "one vector and one set of partners a session",
                "another one, which would reveal their difference",
                "duplicate",
            )
        ready = self.neighbours and self.masking
        if not ready or len(flags) != count or sum(flags) < self.threshold:
            raise refusal(
                f"{self.threshold} or more partners among {plural(count, 'neighbour')}, "
                "before any share is "
                "given",
                f"{sum(flags)} among {len(flags)}",
            )
        self.vector, self.partners = content, flags
        total: np.ndarray = vector + primitives.seed_stream(self.seed, vector.size, bits)
        masking = Agreement(self.masking, MASKS)
        for other, partner in zip(self.neighbours, flags, strict=True):
            if partner:
                total += masking.mask(other[PUBLIC:], vector.size, bits)
        return total

    def open(
        self, active: Sequence[int], dropped: Sequence[int], boxes: Sequence[bytes]
    ) -> tuple[bytes, ...]:
        """Return a share of each neighbour's secret: of the seed if its vector is in the sum, of
        the key of its masks if it dropped out.

        A session answers one such question. Its own secrets are then forgotten.

        Parameters
        ----------
        active, dropped
            Places of the neighbours in the two sets.
        boxes
            What each neighbour has sealed for this client; anything for neighbours in neither set.

        Returns
        -------
        tuple
            A share of 16 bytes for each neighbour; zeros for one in neither set, or whose box
            cannot be opened.

        Raises
        ------
        UpdateError
            If the sets overlap or are not the partners of the mask together, too few are active, or
            another question was answered.
        """
        asked = digest(json.dumps([list(active), list(dropped)]).encode() + b"".join(boxes))
        if self.question:
            if asked != self.question:
                raise refusal(
                    "one question for shares a session",
                    "another one, which would unmask a single update",
                    "duplicate",
                )
            return self.answer
        self._check_sets(active, dropped)
        boxing, shares = Agreement(self.boxing, BOXES), [bytes(SECRET)] * len(self.neighbours)
        for place in (*active, *dropped):
            other = self.neighbours[place]
            key = boxing.key(other[:PUBLIC], other, self.public)
            pair = primitives.opened(key, boxes[place], other + self.public)
            if pair is not None:
                shares[place] = pair[SECRET:] if place in active else pair[:SECRET]
        self.question, self.answer = asked, tuple(shares)
        self.boxing = self.masking = self.seed = self.digests = b""
        self.boxes = ()
        return self.answer

    def _check_sets(self, active: Sequence[int], dropped: Sequence[int]) -> None:
        partners = [place for place, partner in enumerate(self.partners) if partner]
        if not self.vector or sorted([*active, *dropped]) != partners:
            raise refusal(
                "disjoint sets of active and dropped clients, together the partners of the mask",
                f"active {sorted(active)}, dropped {sorted(dropped)}, partners {partners}",
            )
        if len(active) < self.threshold:
            raise refusal(f"{self.threshold} or more active neighbours", len(active))


def session_name(public: bytes) -> str:
    """Return the name of the session with these public keys."""
    return digest(public).hex()


def refusal(expected: object, actual: object, field: str = "values") -> UpdateError:
    """Return the error of a client that does not answer a question."""
    return UpdateError(
        "secure sums", expected, actual, "the server of this run, of the same version", field=field
    )
