"""Whether the package is in order: circles of imports, long lines, guesses, names, and what the
first name costs.

    python benchmarks/house.py [--check] [--full]

- Files are those that git tracks.
- Imports are read from the source (`parts/house/imports.py`), those inside of functions included.
  Nothing of `federated` imports `algorithms`, not even for its types. No files import each other in
  a circle; imports under ``TYPE_CHECKING`` make none, and a name that a lazy ``__init__`` passes on
  leads to the file that defines it.
- The source (`parts/house/guards.py`): lines over 100 columns, and guesses about the parts of a
  method.
- The surface (`parts/house/surface.py`): no name on `bayesfed` is another library's.
- The first name: processor seconds of ``import bayesfed as bf; bf.mlp`` or ``bf.run``, whichever is
  slower, after torch and pyro, as a share of those of ``import torch, pyro`` in the same process;
  median of five fresh interpreters.

Each target that is missed is followed by what misses it. Without --check the dearest imports are
printed as well; with --full the tests are run and timed.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from parts.house.guards import guesses, long_lines
from parts.house.imports import Imports, circles
from parts.house.surface import names, strangers
from parts.shared.targets import target

from bayesfed.inspect import table

ROOT = Path(__file__).parents[1]
MAX_FIRST_NAME_SHARE = 0.6
MAX_TEST_SECONDS = 240
MAX_COLUMNS = 100
# Prints processor seconds, since others may run beside the check: torch and pyro, the first name.
FIRST = (
    "import time; start = time.process_time(); import torch, pyro; middle = time.process_time(); "
    "import bayesfed as bf; bf.{name}; print(middle - start, time.process_time() - middle)"
)
IMPORTED = re.compile(r"^import time:\s*(\d+) \|\s*\d+ \|\s*(\w+)", re.MULTILINE)


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="print the targets alone; exit 1 if one is missed"
    )
    parser.add_argument("--full", action="store_true", help="run and time the tests as well")
    options = parser.parse_args()
    files = tracked("bayesfed", "tests")
    source = [file for file in files if file.suffix in (".py", ".pyi")]
    package = [file for file in source if file.parts[0] == "bayesfed"]
    met = [*imports(package), *check_source(package, source), check_surface()]
    met.append(first_name(show=not options.check))
    if options.full:
        met.append(tests())
    return 0 if all(met) else 1


def tracked(*folders: str) -> list[Path]:
    """Return the files that git tracks and that are there, by their paths from the root of the
    repository.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", *folders], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    return [Path(name) for name in listed.split("\0") if name and (ROOT / name).exists()]


def judged(name: str, measured: float, at_most: float, offenders: Iterable[str]) -> bool:
    """Print a target's line and, if it is missed, what misses it."""
    met = target(name, measured, at_most)
    if not met:
        print("".join(f"  {offender}\n" for offender in offenders), end="")
    return met


def imports(package: Sequence[Path]) -> list[bool]:
    """Print the targets on imports."""
    read = Imports.of(ROOT, package)
    upward = {
        f"{file}:{line}: {module}"
        for file in package
        if file.parts[:2] == ("bayesfed", "federated")
        for line, module in read.names(file)
        if module.split(".")[:2] == ["bayesfed", "algorithms"]
    }
    found = circles(read.graph())
    return [
        judged(
            "modules of federated that import algorithms",
            len({one.split(":")[0] for one in upward}),
            0,
            sorted(upward),
        ),
        judged("circles of imports", len(found), 0, (" <-> ".join(circle) for circle in found)),
    ]


def check_source(package: Sequence[Path], every: Sequence[Path]) -> list[bool]:
    """Print the targets on columns and guesses."""
    long = long_lines(ROOT, every, MAX_COLUMNS)
    guessed = guesses(ROOT, package)
    return [
        judged(f"lines over {MAX_COLUMNS} columns", len(long), 0, long),
        judged("guesses about parts outside one file", len(guessed), 0, guessed),
    ]


def check_surface() -> bool:
    """Print the target on the names of `bayesfed`."""
    odd = strangers(names())
    return judged("names on bayesfed that are others'", len(odd), 0, odd)


def first_name(*, show: bool) -> bool:
    """Print the target on the first name that is used."""
    shares = {
        name: statistics.median(first_name_share(name) for _ in range(5)) for name in ("mlp", "run")
    }
    slowest = max(shares, key=lambda name: shares[name])
    costs = beyond(slowest) if show or shares[slowest] > MAX_FIRST_NAME_SHARE else []
    if show:
        print(
            f"\nbf.{slowest}, seconds in files of\n\n" + table(["package", "s"], costs[:8]) + "\n"
        )
    dear = (f"{name}: {seconds:.3f} s" for name, seconds in costs[:8])
    return judged(
        f"time of the first name (bf.{slowest}) / time of importing torch and pyro",
        shares[slowest],
        MAX_FIRST_NAME_SHARE,
        dear,
    )


def first_name_share(name: str) -> float:
    """Return how long a name takes in a fresh interpreter, over the time of torch and pyro."""
    libraries, first = map(float, python("-c", FIRST.format(name=name)).stdout.split())
    return first / libraries


def beyond(name: str) -> list[tuple[str, float]]:
    """Return seconds by top-level package of what a name imports after torch and pyro, most
    first.
    """
    lines = python("-X", "importtime", "-c", FIRST.format(name=name)).stderr
    _, _, after = lines.partition("| pyro\n")
    spent = Counter[str]()
    for micros, module in IMPORTED.findall(after):
        spent[module] += int(micros)
    return [(module, micros / 1e6) for module, micros in spent.most_common()]


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python on this package."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    )


def tests() -> bool:
    """Print the target on the tests."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pytest"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    seconds = time.perf_counter() - start
    passed = target("tests that fail, as pytest's exit status", done.returncode, 0)
    if not passed:
        print(done.stdout[-3000:] + done.stderr[-1000:])
    return judged("seconds of the tests", seconds, MAX_TEST_SECONDS, []) and passed


if __name__ == "__main__":
    sys.exit(main())
