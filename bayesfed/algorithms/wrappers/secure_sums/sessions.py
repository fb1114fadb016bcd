"""What a client knows in one round of secure sums, and the three things that it does with it:
share, mask, open.

A session is named by its public keys, which the server sends back with every question. Whatever the
server asks and how often, a session masks one vector, and answers one question for its neighbours'
shares: the same question has the same answer, another one is refused.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

import numpy as np

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

# Lengths in bytes: both public keys of a client; a sealed pair of shares; the digests of such a
# pair.
KEYS, BOX, PAIR = 2 * PUBLIC, 2 * SECRET + TAG, 2 * DIGEST
BOXES, MASKS = "shares", "masks"


class Shared(NamedTuple):
    """What a client sends to be passed on: for each neighbour a sealed pair of shares and their
    digests; and the digest of its seed.
    """

    boxes: bytes
    digests: bytes
    seed: bytes


@dataclass
class Session:
    """One client's part in one round.

    Parameters
    ----------
    public
        The client's public keys: the one for boxes, then the one for masks.
    boxing, masking, seed
        The secrets of the two keys and of the client's own mask; empty once the session has
        answered for its neighbours.
    neighbours
        Public keys of all neighbours, one after another.
    threshold
        Number of shares that open a secret.
    shared
        What was sent to be passed on.
    partners
        For each neighbour 1 if its mask was added, else 0.
    vector
        Digest of what was masked.
    question, answer
        Digest of the question for neighbours' shares, and the answer.
    """

    public: bytes
    boxing: bytes
    masking: bytes
    seed: bytes
    neighbours: bytes = b""
    threshold: int = 0
    shared: bytes = b""
    partners: bytes = b""
    vector: bytes = b""
    question: bytes = b""
    answer: bytes = b""

    @classmethod
    def fresh(cls) -> Self:
        """Return a session with new secrets from the operating system."""
        boxing, masking = primitives.fresh(), primitives.fresh()
        return cls(
            primitives.public_key(boxing, BOXES) + primitives.public_key(masking, MASKS),
            boxing,
            masking,
            primitives.fresh(),
        )

    @property
    def name(self) -> str:
        """The name of the session."""
        return session_name(self.public)

    def share(self, neighbours: Sequence[bytes], threshold: int) -> Shared:
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
        joined = b"".join(neighbours)
        if self.neighbours:
            if (joined, threshold) != (self.neighbours, self.threshold):
                raise refusal("the neighbours of this session", "others", "duplicate")
            return self._shared()
        keys = [key for one in (self.public, *neighbours) for key in (one[:PUBLIC], one[PUBLIC:])]
        if any(len(one) != KEYS for one in neighbours) or len(set(keys)) != len(keys):
            raise refusal(
                "public keys that differ, 64 bytes of each neighbour",
                "the same key twice, or another length",
            )
        if not LEAST <= threshold <= len(neighbours):
            raise refusal(
                f"a threshold of {LEAST} to {len(neighbours)}, the number of neighbours", threshold
            )
        boxing, count = Agreement(self.boxing, BOXES), len(neighbours)
        pairs = [
            *zip(
                *(
                    primitives.split(secret, count, threshold)
                    for secret in (self.masking, self.seed)
                ),
                strict=True,
            )
        ]
        boxes = [
            primitives.sealed(
                boxing.key(other[:PUBLIC], self.public, other), b"".join(pair), self.public + other
            )
            for other, pair in zip(neighbours, pairs, strict=True)
        ]
        digests = [digest(share) for pair in pairs for share in pair]
        self.neighbours, self.threshold, self.shared = (
            joined,
            threshold,
            b"".join([*boxes, *digests, digest(self.seed)]),
        )
        return self._shared()

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
        flags, content = (
            bytes(map(bool, partners)),
            digest(bytes(map(bool, partners)) + vector.tobytes()),
        )
        if self.vector and content != self.vector:
            raise refusal(
                "one vector and one set of partners a session",
                "another one, which would reveal their difference",
                "duplicate",
            )
        if (
            not self.neighbours
            or not self.masking
            or len(flags) != self._count
            or sum(flags) < self.threshold
        ):
            expected = (
                f"{self.threshold} or more partners among {self._count} neighbours, before any "
                "share is given"
            )
            raise refusal(expected, f"{sum(flags)} among {len(flags)}")
        self.vector, self.partners = content, flags
        total: np.ndarray = vector + primitives.seed_stream(self.seed, vector.size, bits)
        masking, own = Agreement(self.masking, MASKS), self.public[PUBLIC:]
        for place, partner in enumerate(flags):
            if partner:
                other = self._neighbour(place)[PUBLIC:]
                drawn = primitives.stream(
                    masking.key(other, *primitives.pairwise(own, other)), vector.size, bits
                )
                (np.add if own < other else np.subtract)(total, drawn, out=total)
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
            A share of 16 bytes for each neighbour; empty for one in neither set, or whose box
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
            return self._answer()
        self._check_sets(active, dropped)
        boxing, shares = Agreement(self.boxing, BOXES), [b""] * self._count
        for place in (*active, *dropped):
            other = self._neighbour(place)
            pair = primitives.opened(
                boxing.key(other[:PUBLIC], other, self.public), boxes[place], other + self.public
            )
            if pair is not None:
                shares[place] = pair[SECRET:] if place in active else pair[:SECRET]
        self.question, self.answer = asked, json.dumps([share.hex() for share in shares]).encode()
        self.boxing = self.masking = self.seed = self.shared = b""
        return self._answer()

    def write(self) -> bytes:
        """Return the session as JSON."""
        return json.dumps(
            {
                name: value.hex() if isinstance(value, bytes) else value
                for name, value in asdict(self).items()
            }
        ).encode()

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Return the session that `write` wrote. Raises ValueError, TypeError or AttributeError for
        anything else.
        """
        fields: dict[str, Any] = {
            name: bytes.fromhex(value) if isinstance(value, str) else int(value)
            for name, value in json.loads(content).items()
        }
        return cls(**fields)

    @property
    def _count(self) -> int:
        return len(self.neighbours) // KEYS

    def _neighbour(self, place: int) -> bytes:
        return self.neighbours[place * KEYS : (place + 1) * KEYS]

    def _shared(self) -> Shared:
        boxes, digests = self._count * BOX, self._count * PAIR
        return Shared(
            self.shared[:boxes],
            self.shared[boxes : boxes + digests],
            self.shared[boxes + digests :],
        )

    def _answer(self) -> tuple[bytes, ...]:
        return tuple(map(bytes.fromhex, json.loads(self.answer)))

    def _check_sets(self, active: Collection[int], dropped: Collection[int]) -> None:
        partners = [place for place, partner in enumerate(self.partners) if partner]
        if not self.vector or sorted([*active, *dropped]) != partners:
            expected = (
                "disjoint sets of active and dropped clients, together the partners of the mask"
            )
            raise refusal(
                expected, f"active {sorted(active)}, dropped {sorted(dropped)}, partners {partners}"
            )
        if len(active) < self.threshold:
            raise refusal(f"{self.threshold} or more active neighbours", len(active))


def session_name(public: bytes) -> str:
    """Return the name of the session with these public keys."""
    return digest(public).hex()


def refusal(expected: object, actual: object, field: str = "values") -> UpdateError:
    """Return the error of a client that does not answer a question."""
    return UpdateError(
        "secure sums",
        expected,
        actual,
        "the server of this run, of the same version",
        field=field,
    )
