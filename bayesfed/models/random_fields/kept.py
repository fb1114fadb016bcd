"""Results that are worked out once for each model."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary

M = TypeVar("M")
R = TypeVar("R")
Options = TypeVarTuple("Options")


def kept(function: Callable[[M, *Options], R]) -> Callable[[M, *Options], R]:
    """Keep what a function of a model returns, for every choice of its options, as long as the
    model exists. The result must not hold the model.
    """
    known: WeakKeyDictionary[M, dict[tuple[*Options], R]] = WeakKeyDictionary()

    @wraps(function)
    def once(model: M, *options: *Options) -> R:
        results = known.setdefault(model, {})
        if options not in results:
            results[options] = function(model, *options)
        return results[options]

    return once
