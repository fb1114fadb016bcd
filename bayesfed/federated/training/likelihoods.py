"""The likelihoods that a method trains with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from bayesfed.federated.core import Algorithm
from bayesfed.models import Categorical, Likelihood, Normal


def likelihoods_of(algorithms: Sequence[Algorithm]) -> list[Likelihood]:
    """Return the likelihoods that the local steps of some methods name, each once."""
    found: list[Likelihood] = []
    for algorithm in algorithms:
        for phase in algorithm.phases:
            for one in _likelihoods(phase.local):
                found += [one] if one not in found else []
    return found


def scored_by(found: Sequence[Likelihood], targets: Tensor) -> Likelihood:
    """Return the one likelihood that a method trains with; where it names none or several,
    `Categorical` for targets that are classes and `Normal` for numbers.
    """
    if len(found) == 1:
        return found[0]
    return Normal() if targets.is_floating_point() else Categorical()


def trained_with(algorithm: Algorithm, targets: Tensor) -> Likelihood:
    """Return the likelihood that scores a method's model on such targets, by `scored_by`."""
    return scored_by(likelihoods_of([algorithm]), targets)


def _likelihoods(part: Any) -> Iterator[Likelihood]:
    """Yield the likelihoods among the fields of a local step, of its objective and of the steps
    that it wraps.
    """
    if isinstance(part, Likelihood):
        yield part
    elif is_dataclass(part) and not isinstance(part, type):
        for field in fields(part):
            yield from _likelihoods(getattr(part, field.name))
