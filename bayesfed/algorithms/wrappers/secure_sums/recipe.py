"""`secure`: a method whose server sees the sum of a round and no single update (Bonawitz et al.,
2017; Bell et al., 2020).

======================  ==================================================================
paper                   here
======================  ==================================================================
AdvertiseKeys           phase ``NAME-keys``: a client sends two public keys
ShareKeys               phase ``NAME-shares``: Shamir's shares for its neighbours, sealed
MaskedInputCollection   phase ``NAME`` of the wrapped method: the masked integers
Unmasking               phase ``NAME-open``: shares of seeds (of those in the sum) or keys
U1, U2, U3              `Roster.names`, ``sharing``, ``active``
R = 2^b                 ``2 ** bits``
k, t                    `Degree`, from gamma (`colluding`) and delta (`dropouts`)
======================  ==================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from bayesfed.algorithms.wrappers.private import Promise
from bayesfed.algorithms.wrappers.secure_sums.fixed_point import FixedPoint
from bayesfed.algorithms.wrappers.secure_sums.graphs import degree
from bayesfed.algorithms.wrappers.secure_sums.locals import Vault, settled
from bayesfed.algorithms.wrappers.secure_sums.phases import LOST, masked_phases
from bayesfed.algorithms.wrappers.secure_sums.primitives import Bits, check_installed
from bayesfed.algorithms.wrappers.secure_sums.refusals import check_method, check_plan, first_plan
from bayesfed.algorithms.wrappers.secure_sums.sums import (
    PREFIX,
    FixedPointLocal,
    FixedPointPlan,
    Gather,
    ModularSum,
    SummedServer,
)
from bayesfed.compress import Cast
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked
from bayesfed.errors.plurals import plural
from bayesfed.federated import Algorithm, Phase, Profile
from bayesfed.federated.core import Conditions, seams
from bayesfed.federated.engine.assembly import assembled
from bayesfed.trees import Tree, without

Served = TypeVar("Served")


@checked()
def secure(
    algorithm: Algorithm,
    *,
    participants: int,
    largest: float,
    heaviest: float = 1.0,
    bits: Bits = 32,
    dropouts: float = 0.3,
    colluding: float = 0.1,
    masks: bool = True,
    vault: str | Path | None = None,
    profile: Profile | None = None,
) -> Algorithm:
    """Let clients mask their updates so that the masks cancel in the sum, and the server sees the
    sum alone.

    Each phase of the method becomes four: keys, sealed shares of secrets, masked integers, and the
    shares that open the sum if clients have dropped out. Clients weigh and lift their payloads
    themselves, as integers of one limb; the sum of integers is exact. A client whose entries are
    out of range fails with an error, and nothing wraps. Clients return no figures. Clients that
    drop out, in any phase, cost nobody else as long as every remaining one has enough neighbours
    that answer. Otherwise the round is lost: each row of the ledger has the reason, the model stays
    as it was, and under ``on_client_error="drop"`` the run goes on.

    The server is trusted to follow the protocol; `SECURITY.md` has the threat model. Keys come from
    the operating system. They are neither in the server's state nor in the clients' memories, and
    so in no checkpoint.

    Parameters
    ----------
    algorithm
        Method of one phase whose server needs the sum alone, and whose clients send plain floats;
        also with ``evaluate_clients(..., worst=False)`` around it.
    participants
        Largest number of clients in a round. The range of a limb is divided among them.
    largest
        Largest absolute value of an entry of a payload, agreed before the run.
    heaviest
        Largest weight of a client; for methods that weigh by rows, the largest number of rows.
    bits
        Bits of an integer: 32 (24 bits for each of 100 clients) or 64 (twice the up-link).
    dropouts
        Largest share of the clients that sent keys that may drop out later in the round.
    colluding
        Largest share of the clients that may tell the server what they know without opening another
        one's update.
    masks
        Whether to mask. Without masks there is one phase as in the wrapped method, whose sums are
        in the same fixed point: the same bits at less cost, for simulations.
    vault
        Folder on each client's machine for the keys of a round, which only the client may read.
        Needed over Flower, where each question may have a process of its own. Default: a temporary
        folder, for simulations.
    profile
        A client of the run, for methods whose plans depend on the client's name or device. Default:
        one with a single row.

    Raises
    ------
    ArgumentError
        If an argument is outside its domain; or for what needs updates apart: checks of norms,
        robust rules, codecs on the up-link, clipping at the server, views other than `Whole` and
        `Slice`, clients that hold what they are sent changes of, several phases. In a run, for a
        plan that is heavier than `heaviest`.
    MissingExtraError
        If `cryptography` or pycryptodome is not installed (extra ``secure``).

    References
    ----------
    Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning" (2017),
    Figure 4; Bell et al., "Secure single-server aggregation with (poly)logarithmic overhead"
    (2020), for the graph.

    Examples
    --------
    >>> algorithm = secure(equal_weights(fed_avg(net)), participants=100, largest=8.0)
    """
    where = f"secure, {algorithm.name!r}"
    if dropouts < 0 or colluding < 0 or not dropouts + colluding < 1:
        raise ArgumentError(
            where,
            "shares dropouts >= 0 and colluding >= 0, together below 1",
            (dropouts, colluding),
            "dropouts=0.3, colluding=0.1",
        )
    if masks:
        check_installed()
    choose, keys = partial(degree, dropouts=dropouts, colluding=colluding), Vault(vault)
    phases = list[Phase]()
    for phase in check_method(algorithm, where):
        flat = assembled(phase)
        planned = first_plan(flat, profile, where, algorithm.initial)
        leaves, by_entry = check_plan(planned, where)
        dtype = torch.float64 if planned.up == Cast(64) else torch.float32
        ranges = bits, participants, largest, heaviest
        point = FixedPoint(*ranges, leaves, flat.local.kind, by_entry, dtype)
        flat = assembled(_clipped_for(phase, point, where))
        plan = FixedPointPlan(flat, point, where, profile)
        local, server = FixedPointLocal(flat.local, point), SummedServer(flat.server, plan)
        reducer = partial(ModularSum, bits)
        summed = Phase(flat.name, plan, local, server, Gather(), reducer, owner="")
        asks = seams.asks(phase.local)
        phases += masked_phases(summed, plan, keys, choose, asks) if masks else [summed]
    made = replace(algorithm, phases=tuple(phases))
    if masks:
        made = _with_lost_rounds(algorithm, made.phases)
    promises = tuple(
        partial(_kept, check, algorithm, made.phases) if isinstance(check, Promise) else check
        for check in algorithm.checks
    )
    return replace(made, checks=promises)


def _with_lost_rounds(algorithm: Algorithm, phases: tuple[Phase, ...]) -> Algorithm:
    """Return the method with other phases, whose state has the numbers of lost rounds: clients take
    back what they kept in those.
    """
    posterior, personal = algorithm.posterior, algorithm.personal

    def plain(served: Callable[[Tree], Served]) -> Callable[[Tree], Served]:
        return lambda state: served(without(state, PREFIX))

    return replace(
        algorithm,
        phases=phases,
        initial=algorithm.initial | {LOST: torch.zeros(0, dtype=torch.int64)},
        predictor=plain(algorithm.predictor),
        posterior=plain(posterior) if posterior else None,
        sizes={name: plain(size) for name, size in algorithm.sizes.items()},
        personal=(
            lambda state, memory: personal(
                without(state, PREFIX), settled(memory, state[LOST].tolist())
            )
        )
        if personal
        else None,
    )


def _clipped_for(phase: Phase, point: FixedPoint, where: str) -> Phase:
    """Let clients of a private method clip to a little less, so that a change that is rounded to
    integers has the norm that epsilon is for.
    """
    entries = point.length - 1
    slack = entries**0.5 * point.resolution / 2
    bounds = [layer.client_bound for layer in phase.layers if layer.traits.bounds]
    if bounds and slack > (least := min(bounds)) / 100:
        raise ArgumentError(
            where,
            f"rounding of at most a hundredth of the clip, {least:g}",
            f"up to {slack:.2g} over {plural(entries, 'entry')}",
            "bits=64",
        )
    return replace(phase, layers=tuple(layer.tightened(slack) for layer in phase.layers))


def _kept(
    promise: Promise, algorithm: Algorithm, phases: tuple[Phase, ...], run: Conditions
) -> None:
    """Check one round of a private method under secure sums: the promise is for the method, and
    holds for the phases that were made of it. Raises `ArgumentError` if the reported epsilon would
    not hold.
    """
    if [*map(id, run.algorithm.phases)] != [*map(id, phases)]:
        raise ArgumentError(
            f"secure, {run.algorithm.name!r}: epsilon would not hold",
            "the phases that `secure` made",
            "others",
            "`secure` as the last step",
        )
    promise(replace(run, algorithm=algorithm))
