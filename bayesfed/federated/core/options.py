"""`LocalOptions`: settings that the server sends to a client's local step in the header of the
message.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from bayesfed.compress.wire import Meta
from bayesfed.errors import UpdateError
from bayesfed.errors.nearness import nearest


@dataclass(frozen=True)
class LocalOptions:
    """Options of one client's turn.

    A method that needs more options extends this record with fields that have defaults; its local
    step names the record in the attribute ``options``.

    Parameters
    ----------
    rate_factor
        Factor on the local optimiser's learning rate.
    steps
        Number of local steps. 0 leaves the number to the local step.
    scale
        Likelihood scale: the number of rows that each of the client's rows stands for, 1 or N /
        N_t.
    share
        The client's share N_t / N of all rows, which is also its share of the prior.
    size
        Index of the model size that the client trains, for methods with several sizes. 0 is the
        largest.
    prior
        Precision of the prior, for local steps that leave it open
        (``Training(prior_precision="auto")``); below 0: none is told.
    held_out
        Whether to leave every tenth row out of the training.
    afresh
        Whether to begin without a memory.

    Examples
    --------
    >>> @dataclass(frozen=True)
    ... class Pulled(LocalOptions):
    ...     pull: float = 0.0
    """

    rate_factor: float = 1.0
    steps: int = 0
    scale: float = 1.0
    share: float = 1.0
    size: int = 0
    prior: float = -1.0
    held_out: bool = False
    afresh: bool = False

    def header(self) -> Meta:
        """Return the fields that differ from their defaults, which are all that is sent."""
        default = type(self)()
        return {
            item.name: value
            for item in fields(self)
            if (value := getattr(self, item.name)) != getattr(default, item.name)
        }


def read_options(record: type[LocalOptions], header: Meta) -> LocalOptions:
    """Return a record built from the fields of a message's header.

    Parameters
    ----------
    record
        Class of the record, as `options_of` returns it.
    header
        Fields by name; fields that are missing have their defaults.

    Raises
    ------
    UpdateError
        If the header has a field that the record lacks, or a value of another type or not finite.
    """
    default = record()
    known: dict[str, object] = {item.name: getattr(default, item.name) for item in fields(record)}
    for name, value in header.items():
        where = f"options of the message, field {name!r}"
        if name not in known:
            close = nearest(name, known)
            raise UpdateError(
                where,
                f"a field of {record.__name__}: {', '.join(known)}",
                repr(name),
                (
                    repr(close)
                    if close
                    else "a record that extends LocalOptions, in the local's attribute `options`"
                ),
            )
        wanted = type(known[name])
        fits = type(value) is wanted or (wanted is float and type(value) is int)
        if not fits or (isinstance(value, float) and not math.isfinite(value)):
            raise UpdateError(where, f"a finite {wanted.__name__}", repr(value), repr(known[name]))
    values: dict[str, Any] = {
        name: float(value) if isinstance(known[name], float) else value
        for name, value in header.items()
    }
    return record(**values)
