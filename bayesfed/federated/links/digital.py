"""`Digital`: a link that sends every payload as a message of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from bayesfed.compress import Codec
from bayesfed.compress.codecs import in_types
from bayesfed.errors import UpdateError
from bayesfed.errors.checks import checked_class, number
from bayesfed.federated.core import Arrival, Cost, Kind, Reducer, Scalar, Update
from bayesfed.keys import Key
from bayesfed.trees import Tree

# Largest norm of a leaf, and largest natural parameter: of a bias, rows over the temperature times
# its curvature.
USUAL_NORM, USUAL_NATURAL = 1e6, 1e9


@checked_class({}, max_norm=number("(0, inf]", "1e6"))
@dataclass(frozen=True)
class Digital:
    """A link that sends payloads as bytes. The server decodes, checks, lifts and adds them one
    client at a time.

    Parameters
    ----------
    max_norm
        Largest Euclidean norm of a leaf. A client with a larger one is refused. Default: a million;
        for natural parameters 1e9 times the root of the leaf's length, since precisions grow with
        rows over the temperature.

    Raises
    ------
    ArgumentError
        If `max_norm` is not above 0.
    """

    max_norm: float | None = None
    # Payloads are received one by one, so that several processes can each receive some of them.
    one_by_one: ClassVar[bool] = True

    def pack(self, payload: Tree, codec: Codec, meta: Mapping[str, Scalar], key: Key) -> bytes:
        """Return the payload as the codec encodes it."""
        return codec.encode(payload, meta, key)

    def collect(self, arrivals: Iterable[Arrival], reducer: Reducer, key: Key) -> Iterator[Arrival]:
        """Add every arrival that is sound. Refuse the others, each with a reason."""
        for arrival in arrivals:
            arrival.cost = Cost(8 * len(arrival.packed))
            try:
                reducer.add(arrival.client, opened(arrival, self.max_norm))
            except Exception as problem:
                # A hostile payload may make a view or a codec raise anything. Only its own client
                # is refused.
                arrival.refuse(problem)
            yield arrival


def usual_norm(kind: Kind, entries: int) -> float:
    """Return the largest norm of a leaf of a kind that a sound client sends."""
    return USUAL_NATURAL * math.sqrt(max(1, entries)) if kind == "natural" else USUAL_NORM


def opened(arrival: Arrival, max_norm: float | None) -> Update:
    """Decode a payload, check it, and lift it to full shape.

    Integers and booleans are refused, since every method adds real numbers.

    Parameters
    ----------
    arrival
        Packed payload and what is known about it.
    max_norm
        Largest Euclidean norm of a leaf; None for what its kind and length allow (`Digital`).

    Raises
    ------
    UpdateError, WireError
        If the weight, or the payload's header, names, shapes, dtypes, values or norms are not as
        expected.
    """
    weight = arrival.assignment.weight
    if not (math.isfinite(weight) and weight >= 0):
        raise UpdateError(
            "weight", "a finite number >= 0", weight, "the number of rows", field="weight"
        )
    payload = decoded(arrival)
    for name, leaf in payload.items():
        if not (leaf.is_floating_point() or leaf.is_complex()):
            raise UpdateError(
                f"leaf {name!r}",
                "floating-point numbers",
                leaf.dtype,
                "a cast first",
                field="dtype",
            )
    update = arrival.assignment.view.lift(payload, weight, arrival.kind)
    for name, leaf in payload.items():
        most = usual_norm(arrival.kind, leaf.numel()) if max_norm is None else max_norm
        if not (norm := float(leaf.norm())) <= most:
            raise UpdateError(
                f"leaf {name!r}", f"norm <= {most:g}", f"{norm:g}", "a smaller step", field="norm"
            )
    return update


def decoded(arrival: Arrival) -> Tree:
    """Decode a payload, and check that its header is that of its exchange and has nothing else.

    Raises
    ------
    UpdateError, WireError
        If it is not.
    """
    payload, meta = arrival.assignment.up.decode(arrival.packed, arrival.key)
    expected = {"client": arrival.client, "round": arrival.round, "phase": arrival.phase}
    for field, value in expected.items():
        if (claimed := meta.get(field)) != value:
            raise UpdateError(
                "message",
                f"one of {field} {value!r}",
                f"one of {field} {claimed!r}",
                "this exchange's own message",
                field=field,
            )
    if more := {name: value for name, value in meta.items() if name not in expected}:
        # For example a weight, which only the server assigns.
        raise UpdateError(
            "message meta", sorted(expected), f"also {more}", "what a link packs", field="meta"
        )
    if arrival.dtypes is None:
        return payload
    return in_types(payload, arrival.dtypes, arrival.assignment.up)
