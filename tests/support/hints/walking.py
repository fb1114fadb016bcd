"""Walk cases: what each call says, where that was made, and whether what it says to try works."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import pkgutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType, ModuleType
from typing import Any
from unittest import mock

from bayesfed.errors import BayesfedError, ConvergenceWarning, UndeterminedWarning
from tests.support.hints import rooms as folder
from tests.support.hints.places import ROOT, Place, at, places
from tests.support.hints.unreachable import UNREACHABLE
from tests.support.hints.world import evaluated

Case = tuple[Any, ...]
OURS = str(ROOT / "bayesfed")
# What no run of a round or two is spared.
SHORT = (ConvergenceWarning, UndeterminedWarning)


@dataclass
class Said:
    """What a call said: the text of its error, its warnings and what it printed; the messages that
    the package made meanwhile, with their places; the warnings; the error.
    """

    text: str = ""
    made: list[tuple[Any, Place | str]] = field(default_factory=list)
    warned: list[warnings.WarningMessage] = field(default_factory=list)
    error: BaseException | None = None

    @property
    def reached(self) -> list[Place | str]:
        """The places whose message is in the text."""
        return [place for message, place in self.made if str(message) in self.text]

    @property
    def hint(self) -> str:
        """What the text says to try."""
        begin = "; try " if "; try " in self.text else "try"
        return self.text.partition(begin)[2].lstrip(": ")


@dataclass
class Walked:
    """What came of the cases of a room."""

    problems: list[str] = field(default_factory=list)
    reached: set[Place] = field(default_factory=set)


def said(call: Callable[[], Any]) -> Said:
    """Make a call, and return what it said."""
    found, printed = Said(), io.StringIO()
    warn = warnings.warn

    def made(kind: type[Any], *args: Any, **kwargs: Any) -> Any:
        error = super(BayesfedError, kind).__new__(kind, *args)
        found.made.append((error, _place(sys._getframe(1))))
        return error

    def warned(message: Any, *args: Any, stacklevel: int = 1, **kwargs: Any) -> None:
        place = _place(sys._getframe(1))
        if not isinstance(place, str) or place.startswith(OURS):
            found.made.append((message, place))
        warn(message, *args, stacklevel=stacklevel + 1, **kwargs)  # type: ignore[call-overload]

    with (
        mock.patch.object(BayesfedError, "__new__", made, create=True),
        mock.patch.object(warnings, "warn", warned),
        warnings.catch_warnings(record=True) as found.warned,
        contextlib.redirect_stderr(printed),
        contextlib.redirect_stdout(printed),
    ):
        warnings.simplefilter("always")
        try:
            call()
        except (Exception, SystemExit) as problem:
            found.error = problem
    texts = [*(str(one.message) for one in found.warned), printed.getvalue()]
    found.text = "\n".join([str(found.error or ""), *texts])
    return found


def walk(cases: Sequence[Case]) -> Walked:
    """Walk the cases of a room."""
    walked = Walked()
    for number, case in enumerate(cases):
        for problem in _walk_one(case, walked.reached):
            walked.problems.append(f"case {number} (line {_line(case)}): {problem}")
    return walked


def missing(covered: Sequence[str], reached: set[Place]) -> list[Place]:
    """Return the places in files and folders that no case reached and that calls can reach."""
    return [
        place
        for place in places()
        if any(place.file == one or place.file.startswith(f"{one}/") for one in covered)
        and place not in reached
        and not any(part in place.text for part in UNREACHABLE.get(place.file, {}))
    ]


def rooms() -> dict[str, ModuleType]:
    """Return the modules with cases, by their names behind `tests.support.hints.rooms`."""
    begin = f"{folder.__name__}."
    names = [one.name for one in pkgutil.walk_packages(folder.__path__, begin) if not one.ispkg]
    return {name.removeprefix(begin): importlib.import_module(name) for name in names}


def _walk_one(case: Case, reached: set[Place]) -> Iterator[str]:
    wrong, part, *rest = case
    found = said((lambda: wrong(part)) if not rest else wrong)
    if not found.reached:
        yield f"no message of the package, but {found.text.strip()[:300]!r}"
        return
    for place in found.reached:
        if isinstance(place, Place):
            reached.add(place)
        else:
            yield f"a message made at {place}, where `places.py` sees no place"
    if not rest:
        yield from _hint_passed(wrong, found)
    elif part not in (found.hint if rest[0] else found.text):
        yield f"{part!r} is not in {(found.hint if rest[0] else found.text)!r}"
    elif rest[0]:
        yield from _works(rest[0], found)


def _hint_passed(call: Callable[[Any], Any], found: Said) -> Iterator[str]:
    values = evaluated(found.hint)
    if not values:
        yield f"no expression in {found.hint!r}: a case with `right`"
    for text, value in values:
        for problem in _works(functools.partial(call, value), found):
            yield f"{text}: {problem}"


def _works(right: Callable[[], Any], before: Said) -> Iterator[str]:
    after = said(right)
    if after.error is not None:
        yield f"what it says to try ends in {type(after.error).__name__}: {after.error}"
    for one in after.warned:
        own = any(str(one.message) == str(message) for message, _ in after.made)
        again = any(place in before.reached for place in after.reached)
        if issubclass(one.category, SHORT) and not again:
            continue
        if own or issubclass(one.category, UserWarning):
            yield f"what it says to try warns: {one.message}"


def _place(frame: FrameType | None) -> Place | str:
    """Return the innermost place on the stack, else where the message was made."""
    first = ""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(OURS):
            first = first or f"{name}:{frame.f_lineno}"
            found = at(name.removeprefix(f"{ROOT}/"), frame.f_lineno)
            if found is not None:
                return found
        frame = frame.f_back
    return first


def _line(case: Case) -> int:
    code = getattr(case[0], "__code__", None)
    return code.co_firstlineno if code else 0


def timed(cases: Sequence[Case]) -> tuple[Walked, float]:
    """Walk the cases of a room, and return the seconds that it took too."""
    begun = time.perf_counter()
    return walk(cases), time.perf_counter() - begun
