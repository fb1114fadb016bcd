"""`Cell`: a link that counts the time and energy that clients spend, and leaves out those that miss
a deadline.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from bayesfed.compress import Codec
from bayesfed.errors import UpdateError
from bayesfed.errors.checks import checked_class, number
from bayesfed.federated.core import Arrival, Link, Reducer, Scalar, one_by_one
from bayesfed.federated.links.digital import Digital
from bayesfed.keys import Key
from bayesfed.trees import Tree


@checked_class({}, deadline_s=number("(0, inf]", "5.0"))
@dataclass(frozen=True)
class Cell:
    """A link that computes every client's seconds and joules from the bytes that it really sends,
    and leaves out clients after the deadline.

    The payload of a late client is not in the sum. Its energy is in the ledger, and the report says
    how late it was. For messages that are longer than planned, the ledger has the overrun.

    Parameters
    ----------
    deadline_s
        Seconds for training and sending together, T_max in AnycostFL (10a).
    link
        Link for the payloads that are in time.

    Raises
    ------
    ArgumentError
        If the deadline is not positive.
    UpdateError
        During a run, if an assignment has no `Load`.
    """

    deadline_s: float
    link: Link = Digital()

    @property
    def one_by_one(self) -> bool:
        """Whether the inner link receives payloads one by one."""
        return one_by_one(self.link)

    def pack(self, payload: Tree, codec: Codec, meta: Mapping[str, Scalar], key: Key) -> bytes:
        """Return what the inner link packs."""
        return self.link.pack(payload, codec, meta, key)

    def collect(self, arrivals: Iterable[Arrival], reducer: Reducer, key: Key) -> Iterator[Arrival]:
        """Pass the arrivals that are in time on to the inner link, and yield all arrivals in their
        order.
        """
        late = list[Arrival]()

        def timely() -> Iterator[Arrival]:
            for arrival in arrivals:
                spent = _spent(arrival)
                if spent.cost.latency_s <= self.deadline_s:
                    yield spent
                else:
                    spent.silence = (
                        f"deadline: {spent.cost.latency_s:.4g} s, had {self.deadline_s:g} s"
                    )
                    late.append(spent)

        for arrival in self.link.collect(timely(), reducer, key):
            yield from late
            late.clear()
            yield _spent(arrival)
        yield from late


def _spent(arrival: Arrival) -> Arrival:
    """Enter the client's seconds and joules in the cost of its arrival. The inner link enters the
    rest.
    """
    load = arrival.assignment.load
    if load is None:
        raise UpdateError(
            f"Cell, client {arrival.client!r}",
            "an assignment with a load",
            None,
            "timed(algorithm, macs)",
        )
    bits = 8 * len(arrival.packed)
    spent, overrun = load.cost(bits), math.ceil(bits - load.bits) if load.bits < bits else 0
    arrival.cost = replace(
        arrival.cost,
        bits=arrival.cost.bits or bits,
        compute_s=spent.compute_s,
        uplink_s=spent.uplink_s,
        compute_j=spent.compute_j,
        uplink_j=spent.uplink_j,
        macs=load.macs,
        alpha=load.alpha,
        beta=load.beta,
        overrun_bits=overrun,
    )
    return arrival
