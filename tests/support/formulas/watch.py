"""Refuse hostile formulas, and record what Python does meanwhile.

    python -m tests.support.formulas.watch [--seed 0] [--count 2000] [--soup 1000]

Runs in a folder of its own with a secret file. An audit hook records files opened, code compiled or
run, imports, sockets and processes. In the end the same hook watches a formula that writes a file,
as formulae evaluates it, so that a hook that sees nothing is noticed. Prints a record as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

import formulae
import numpy as np
import pandas as pd

import bayesfed as bf
from bayesfed.errors import ArgumentError, DataError
from bayesfed.models.regression.formulas import FUNCTIONS, build_design, parse_formula
from bayesfed.models.regression.tables import evaluated, parsed
from bayesfed.running.formulas.prepared import prepared
from tests.support.formulas.hostile import CANARY, SECRET, hostile_formulas, token_soup

MARKER = "7a6c1f-what-nobody-may-read"
# Events of `sys.audit` by which code reaches out of its process or makes new code.
WATCHED = (
    *("open", "import", "exec", "compile", "os.", "subprocess.", "socket.", "shutil.", "ctypes."),
    *("pickle.", "marshal.", "mmap.", "tempfile.", "urllib.", "http.", "builtins.input", "glob."),
    *("builtins.breakpoint", "cpython.run", "function.__new__", "code.__new__", "syslog."),
)
LIMIT = 2.0

FRAME = pd.DataFrame(
    {
        "y": np.arange(1.0, 13),
        "x": np.linspace(-1, 2, 12),
        "z": np.linspace(1, 3, 12) ** 2,
        "won": np.resize([0.0, 1.0], 12),
        "my x": np.arange(12.0) % 5,
        "g": np.resize(["a", "b", "c"], 12),
    }
)
SITES = {"here": FRAME, "there": FRAME.iloc[::-1]}


class Watch:
    """The audit hook: `events` are those while it is `on`."""

    def __init__(self) -> None:
        self.on = False
        self.events = list[str]()
        sys.addaudithook(self.hear)

    def hear(self, event: str, arguments: tuple[object, ...]) -> None:
        """Keep an event."""
        if self.on and event.startswith(WATCHED):
            self.events.append(f"{event}{arguments!r}"[:200])


class TooSlow(BaseException):
    """A formula that takes longer than `LIMIT` seconds."""


def _ring(number: int, frame: FrameType | None) -> None:
    raise TooSlow


ROADS: dict[str, Callable[[str], object]] = {
    "parse_formula": parse_formula,
    "build_design": lambda formula: build_design(formula, FRAME),
    "parsed": parsed,
    "evaluated": lambda formula: evaluated(formula, FRAME),
    "prepared": lambda formula: prepared(formula, SITES),
    "regression": lambda formula: bf.regression(formula, SITES, progress=False),
}


def problem_of(formula: str, watch: Watch, roads: dict[str, Callable[[str], object]]) -> str:
    """Return what is wrong with how a hostile formula is refused; nothing if nothing is."""
    for name, road in roads.items():
        watch.events.clear()
        signal.setitimer(signal.ITIMER_REAL, LIMIT)
        watch.on = True
        end = "accepted"
        try:
            road(formula)
        except ArgumentError as problem:
            end = "its text has the secret" if MARKER in str(problem) else ""
        except TooSlow:
            end = f"more than {LIMIT} s"
        except BaseException as problem:
            end = f"{type(problem).__name__}: {str(problem)[:100]}"
        watch.on = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        if watch.events:
            end = f"events {watch.events[:3]}"
        if end:
            return f"{name}: {end}"
    return ""


def soup_problem(formula: str, watch: Watch) -> str:
    """Return what is wrong with how tokens in random order are read: they may be legal, of listed
    functions, or refused.
    """
    try:
        if {*parse_formula(formula).functions} - {*FUNCTIONS}:
            return "functions that are not listed"
    except ArgumentError:
        return problem_of(formula, watch, {"build_design": ROADS["build_design"]})
    watch.events.clear()
    watch.on = True
    end = ""
    try:
        with np.errstate(all="ignore"):
            evaluated(formula, FRAME)
    except (ArgumentError, DataError):
        pass
    except Exception as problem:
        end = f"{type(problem).__name__}: {str(problem)[:100]}"
    watch.on = False
    return f"events {watch.events[:3]}" if watch.events else end


def main() -> None:
    """Watch, and print the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--soup", type=int, default=1000)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _ring)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path(SECRET).write_text(MARKER)
        # What is imported or compiled at first use is so before the watch begins.
        for road in ROADS.values():
            with suppress(ArgumentError):
                road("y ~ exec(x)")
        for road in (*ROADS.values(),)[:-1]:
            road("y ~ log(z) + C(g, Treatment('b')) + (1 | g)")
        watch = Watch()
        formulas = [*hostile_formulas(options.seed, options.count)]
        begin = time.perf_counter()
        through = {
            formula[:120]: problem
            for formula in formulas
            if (problem := problem_of(formula, watch, ROADS))
        }
        raw = {
            formula: problem
            for formula in token_soup(options.seed, options.soup)
            if (problem := soup_problem(formula, watch))
        }
        seconds = time.perf_counter() - begin
        left = sorted(path.name for path in Path().iterdir())
        # The watch sees what formulae itself would do.
        unchecked = formulae.environment.Environment([{"np": np}])
        write = f"y ~ np.savetxt('{CANARY}', x)"
        seen = problem_of(
            write,
            watch,
            {"formulae": lambda formula: formulae.design_matrices(formula, FRAME, env=unchecked)},
        )
        record = {
            "seed": options.seed,
            "formulas": len(formulas),
            "through": through,
            "soup": options.soup,
            "raw": raw,
            "files": [name for name in left if name != SECRET],
            "seen": seen if Path(CANARY).exists() else "",
            "seconds": round(seconds, 1),
        }
        os.chdir("/")
    sys.stdout.write(json.dumps(record))


if __name__ == "__main__":
    main()
