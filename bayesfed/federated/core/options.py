"""`LocalOptions`: what the server tells a client's local step beside the message itself. It travels in the message's header."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from bayesfed.errors import UpdateError, complain

if TYPE_CHECKING:
    from bayesfed.federated.core.protocols import Local, Scalar


@dataclass(frozen=True)
class LocalOptions:
    """Options of one client's turn. A method that needs more extends this record, with defaults, and its local names it in ``options``.

    Parameters
    ----------
    rate_factor
        Factor on the local optimiser's learning rate.
    steps
        Number of steps in place of the local's own; 0 leaves the local's own.
    scale
        Likelihood scale: how many rows each of the client's rows stands for, 1 or N / N_t.
    share
        The client's share N_t / N of all rows, which is also its share of the prior.
    size
        Number of the model size that the client trains, for methods with several.

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

    def header(self) -> dict[str, Scalar]:
        """Return the fields that differ from their defaults, as they travel."""
        usual = type(self)()
        return {item.name: value for item in fields(self) if (value := getattr(self, item.name)) != getattr(usual, item.name)}


def options_of(local: Local) -> type[LocalOptions]:
    """Return the record of options that a local step reads: its attribute ``options``, by default `LocalOptions`."""
    record = getattr(local, "options", LocalOptions)
    return record if isinstance(record, type) and issubclass(record, LocalOptions) else LocalOptions


def read_options(record: type[LocalOptions], header: Mapping[str, Scalar]) -> LocalOptions:
    """Build a record from the fields of a message's header.

    Raises
    ------
    UpdateError
        If the header has a field that the record lacks, or a value of another type or not finite.
    """
    usual = record()
    known: dict[str, Scalar] = {item.name: getattr(usual, item.name) for item in fields(record)}
    for name, value in header.items():
        where = f"options of the message, field {name!r}"
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = repr(close[0]) if close else "a record that extends LocalOptions, named by the local's attribute `options`"
            raise UpdateError(complain(where, expected=f"a field of {record.__name__}: {', '.join(known)}", actual=repr(name), hint=hint))
        wanted = type(known[name])
        fits = type(value) is wanted or (wanted is float and type(value) is int)
        if not fits or (isinstance(value, float) and not math.isfinite(value)):
            raise UpdateError(complain(where, expected=f"a finite {wanted.__name__}", actual=repr(value), hint=repr(known[name])))
    values: dict[str, Any] = {name: float(value) if isinstance(known[name], float) else value for name, value in header.items()}
    return record(**values)
