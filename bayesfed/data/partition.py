"""Partitions: which rows of a data set each client holds.

A partition is a list of K index tensors that together contain each row exactly once. It depends on
nothing but its arguments and its key. Clients without rows are legal unless `minimum` forbids them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NewType

import numpy as np
import torch
from torch import Tensor

from bayesfed.data.dataset import Dataset
from bayesfed.data.population import check_names
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import LABELS, PART, POSITIVE, checked, shown, whole
from bayesfed.errors.plurals import plural
from bayesfed.errors.roles import Role
from bayesfed.keys import Key

Partition = list[Tensor]
# A partition over named clients.
Homes = NewType("Homes", dict[str, Tensor])


@checked(rows=whole(0, "len(train)"), clients=whole(0, "10"))
def iid(rows: int, clients: int, key: Key, *, minimum: int = 0) -> Partition:
    """Shuffle the rows and distribute them evenly: sizes differ by at most one.

    Parameters
    ----------
    rows
        Number of rows.
    clients
        Number of clients.
    key
        Key of the shuffle.
    minimum
        Least number of rows of a client.

    Raises
    ------
    ArgumentError
        If there are no clients, or fewer rows than `minimum` asks for.

    Warns
    -----
    UserWarning
        If there are more clients than rows, as where the two are swapped.
    """
    _check(rows, clients, minimum)
    if clients > rows:
        without = f"of {plural(clients, 'client')} {clients - rows}"
        text = f"iid: {without} get none of {plural(rows, 'row')}"
        hint = f"iid(rows={clients}, clients={rows}, ...) if the two are swapped"
        warnings.warn(f"{text}; try {hint}", stacklevel=3)
    return _tensors(np.array_split(key.numpy().permutation(rows), clients), key, minimum)


@checked(labels=LABELS, clients=whole(0, "10"), alpha=Role(POSITIVE.fits, "alpha > 0", "0.5"))
def dirichlet(
    labels: Tensor, clients: int, alpha: float, key: Key, *, minimum: int = 0
) -> Partition:
    """Split each class over the clients with shares drawn from Dirichlet(alpha, ..., alpha).

    With a small `alpha` each class goes to few clients; a large `alpha` tends to IID (Hsu, Qi and
    Brown, 2019). Shares are normalised in log space from
    ``log Gamma(alpha) = log Gamma(alpha + 1) + log(U)/alpha``, so alpha = 1e-3 with a thousand
    clients neither underflows nor fails.

    Parameters
    ----------
    labels
        Class labels ``(N,)``, integers.
    clients
        Number of clients.
    alpha
        Concentration, above 0.
    key
        Key of the draws.
    minimum
        Least number of rows of a client; missing rows are taken from the largest clients.

    Raises
    ------
    ArgumentError
        If alpha is not a positive finite number, there are no clients, or there are fewer rows than
        `minimum` asks for.
    """
    _check(len(labels), clients, minimum)
    random = key.numpy()
    values = labels.cpu().numpy()
    held: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for label in np.unique(values):
        rows = random.permutation(np.flatnonzero(values == label))
        logs = (
            np.log(random.gamma(alpha + 1, size=clients))
            + np.log1p(-random.random(clients)) / alpha
        )
        shares = np.exp(logs - logs.max())
        cuts = np.round(np.cumsum(shares / shares.sum())[:-1] * len(rows)).astype(np.int64)
        # A new order of clients for each class; otherwise rounding would leave the same clients
        # empty every time.
        for client, part in zip(
            random.permutation(clients), np.split(rows, np.clip(cuts, 0, len(rows))), strict=True
        ):
            held[client].append(part)
    parts = [np.concatenate(chunks) if chunks else np.empty(0, np.int64) for chunks in held]
    return _tensors(parts, key, minimum)


@checked(labels=LABELS, clients=whole(0, "10"), per_client=whole(1, "2"))
def shards(labels: Tensor, clients: int, per_client: int, key: Key) -> Partition:
    """Sort by label, cut into ``clients * per_client`` shards, and give `per_client` random ones to
    each client (McMahan et al., 2017).

    Parameters
    ----------
    labels
        Class labels ``(N,)``, integers.
    clients
        Number of clients.
    per_client
        Number of shards of each client.
    key
        Key of the draw.

    Raises
    ------
    ArgumentError
        If there are no clients, or `per_client` is below 1.
    """
    _check(len(labels), clients, 0)
    pieces = np.array_split(np.argsort(labels.cpu().numpy(), kind="stable"), clients * per_client)
    order = key.numpy().permutation(len(pieces))
    dealt = [np.concatenate([pieces[i] for i in order[c::clients]]) for c in range(clients)]
    return _tensors(dealt, key, 0)


@checked()
def by_domain(domains: Sequence[str | int]) -> Homes:
    """Return one client for each domain, named after it, with its rows in order.

    Parameters
    ----------
    domains
        N names, as in `Dataset.domains` and `Texts.domains`.
    """
    held: dict[str, list[int]] = {}
    for row, domain in enumerate(domains):
        held.setdefault(str(domain), []).append(row)
    return Homes({name: torch.tensor(held[name]) for name in sorted(held)})


@checked()
def within_domains(
    domains: Sequence[str], split: Callable[[Tensor, Key], Partition], key: Key
) -> Homes:
    """Split each domain over its own clients, named ``DOMAIN-000`` and so on, so that no client has
    rows of two domains.

    Parameters
    ----------
    domains
        N names, as in `Dataset.domains` and `Texts.domains`.
    split
        ``(rows of a domain, key) -> positions among them`` for each client, such as
        ``lambda rows, key: iid(len(rows), 5, key)`` or
        ``lambda rows, key: dirichlet(labels[rows], 5, 0.5, key)``.
    key
        Key of the splits.
    """
    homes = by_domain(domains)
    return Homes(
        {
            f"{name}-{i:03d}": rows[_numbers("within_domains", name, part, len(rows))]
            for name, rows in homes.items()
            for i, part in enumerate(split(rows, key.child(name)))
        }
    )


@checked(
    strata=Role(
        lambda strata: not isinstance(strata, Dataset),
        "the stratum of each row",
        "train.targets.tolist(), or split_rows(train, key=key)",
    ),
    share=PART,
)
def held_out(strata: Sequence[str | int], share: float, key: Key) -> tuple[Tensor, Tensor]:
    """Return the rows of (train, test) in ascending order, with `share` of each stratum, rounded to
    the nearest row, in the test set.

    Parameters
    ----------
    strata
        The stratum of each row.
    share
        Share of the test set, between 0 and 1.
    key
        Key of the draw.

    Raises
    ------
    ArgumentError
        If `share` is not between 0 and 1.
    """
    test = torch.zeros(len(strata), dtype=torch.bool)
    for name, rows in by_domain(strata).items():
        shuffled = rows[torch.randperm(len(rows), generator=key.child(name).generator())]
        test[shuffled[len(rows) - round(share * len(rows)) :]] = True
    return (~test).nonzero()[:, 0], test.nonzero()[:, 0]


@checked(
    parts=Role(
        lambda parts: isinstance(parts, list | tuple | Mapping) and len(parts) > 0,
        "a partition: rows of each client",
        "iid(len(train), 4, Key(0))",
    ),
)
def federate(data: Dataset, parts: Sequence[Any] | Mapping[str, Any]) -> dict[str, Dataset]:
    """Return each client's rows. The clients of a list are named ``client-000`` and so on.

    Parameters
    ----------
    data
        The data set to split.
    parts
        Rows of each client, integers ``(N_k,)`` or a mask ``(N,)``, as tensors, arrays or lists;
        such as `iid`, `dirichlet`, `shards`, `by_domain` or `within_domains` return.

    Raises
    ------
    ArgumentError
        If there is no such row; negative numbers do not count from the end.

    Warns
    -----
    UserWarning
        If a client holds a row more than once, or two clients hold the same row.
    """
    if not isinstance(parts, Mapping):
        parts = {f"client-{i:03d}": rows for i, rows in enumerate(parts)}
    check_names("federate, clients", parts)
    known = {name: _numbers("federate", name, rows, len(data)) for name, rows in parts.items()}
    if twice := next((name for name, rows in known.items() if len(rows.unique()) < len(rows)), ""):
        text = f"federate: {twice!r} holds a row more than once; try rows.unique(), unless meant"
        warnings.warn(text, stacklevel=3)
    _warn_of_overlap(known, len(data))
    return {name: data[rows] for name, rows in known.items()}


def _warn_of_overlap(parts: Mapping[str, Tensor], count: int) -> None:
    """Warn if two clients hold the same row, which counts once for each of them."""
    holders = torch.zeros(count, dtype=torch.long)
    for rows in parts.values():
        holders[rows.unique().to(holders.device)] += 1
    shared = holders > 1
    if not shared.any():
        return
    row = int(shared.nonzero()[0])
    first, second, *_ = (name for name, rows in parts.items() if (rows == row).any())
    both = f"row {row} is at {first!r} and at {second!r}"
    number = int(shared.sum())
    more = f", and {number - 1} more are at several clients" if number > 1 else ""
    text = f"federate: {both}{more}; such a row counts once for each of them"
    hint = "parts without common rows, such as iid(len(train), 10, key)"
    warnings.warn(f"{text}; try {hint}, unless meant", stacklevel=4)


def _numbers(where: str, name: str, rows: object, count: int) -> Tensor:
    """Return a client's rows as numbers ``(N_k,)``, given as a tensor, an array or a list, or as a
    mask of all rows.
    """
    try:
        numbers = torch.as_tensor(rows)
    except (TypeError, ValueError, RuntimeError):
        numbers = torch.empty(())
    if numbers.dtype == torch.bool and numbers.shape == (count,):
        numbers = numbers.nonzero()[:, 0]
    mixed = numbers.is_floating_point() or numbers.dtype == torch.bool
    if numbers.ndim != 1 or (mixed and len(numbers)):
        expected, hint = "numbers of rows (N_k,)", "torch.arange(3)"
        raise ArgumentError(f"{where}, rows of {name!r}", expected, shown(rows), hint)
    if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < count:
        actual = f"{int(numbers.min())} to {int(numbers.max())} for {name!r}"
        expected, hint = (
            f"numbers of rows from 0 to {count - 1}",
            f"a partition of {plural(count, 'row')}",
        )
        raise ArgumentError(f"{where}, parts", expected, actual, hint)
    # Torch takes a tensor of bytes for a mask.
    return numbers.long()


def _check(rows: int, clients: int, minimum: int) -> None:
    if clients < 1:
        raise ArgumentError("partition", "at least one client", clients, "clients=10")
    if minimum < 0 or clients * minimum > rows:
        raise ArgumentError(
            "partition",
            f"{clients} clients x minimum {minimum} <= {rows} rows",
            clients * minimum,
            "a smaller minimum",
        )


def _tensors(parts: Sequence[np.ndarray], key: Key, minimum: int) -> Partition:
    """Return the sorted rows of each part, after moving random rows from the largest parts to those
    below the minimum.
    """
    held = [np.array(part, dtype=np.int64) for part in parts]
    random = key.child("minimum").numpy()
    for client in range(len(held)):
        while len(held[client]) < minimum:
            donor = max(range(len(held)), key=lambda c: len(held[c]))
            take = random.integers(len(held[donor]))
            held[client] = np.append(held[client], held[donor][take])
            held[donor] = np.delete(held[donor], take)
    return [torch.from_numpy(np.sort(part)) for part in held]
