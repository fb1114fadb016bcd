"""Whether the package is in order: entries of folders, lines of files, circles of imports, and what
the first name costs.

    python benchmarks/house.py [--check] [--full]

- Folders and files are those that git tracks. A folder of the package has at most 16 entries, the
  package itself 20.
- Imports are read from the source (`parts/house/imports.py`), those inside of functions included.
  Nothing of `federated` imports `algorithms`, not even for its types. No files import each other in
  a circle; imports under ``TYPE_CHECKING`` make none, and a name that a lazy ``__init__`` passes on
  leads to the file that defines it.
- The source (`parts/house/guards.py`): tokens of code, which leave out layout, comments and
  docstrings; lines over 100 columns; and guesses about the parts of a method.
- The surface (`parts/house/surface.py`): the names on `bayesfed`, and the calls between a round and
  the loss of a client.
- The first name: seconds of ``import bayesfed as bf; bf.mlp`` or ``bf.run``, whichever is slower,
  after torch and pyro; median of five fresh interpreters.

Each target that is missed is followed by what misses it. Without --check the largest folders and
files and the dearest imports are printed as well; with --full the tests are run and timed.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from parts.house.guards import guesses, long_lines, tokens_of
from parts.house.imports import Imports, circles
from parts.house.surface import frames, names, strangers
from parts.shared.targets import target

from bayesfed.inspect import table

ROOT = Path(__file__).parents[1]
ENTRIES, TOP_ENTRIES, LINES, TEST_LINES, CLI_LINES, FIRST_S, TESTS_S = (
    16,
    20,
    300,
    500,
    1300,
    1.0,
    240,
)
COLUMNS, NAMES, FRAMES = 100, 120, 10
# Tokens of what was there, and what was bought since.
BOUGHT = {
    "contracts where people enter": 14_300,
    "the exact posterior": 12_600,
    "its own latents, outputs, checks of fits, secure sums, calibration": 12_000,
    "regressions by formula": 9_800,
    "inputs as clusters, weights that return, exact densities": 5_700,
    "a faster lattice codec": 50,
    "sweeps, results that open again, exact epsilons": 3_400,
    "the papers' systems at their defaults, under one budget; no rank below 8": 2_050,
    "rows that are trees, adapters of other layers, optimisers": 1_800,
    "one set of likelihoods for networks and regressions, with their scores": 6_300,
    "labels by token and pixel, networks' other outputs, scores at clients": 2_200,
    "graphs of compact networks, model cards, LaTeX of regressions, estimates": 1_250,
    "batches in parts, bfloat16, augmentation, scores under secure sums, several outcomes": 2_150,
    "a network's own generators, causes of refusals, a value for each missing argument": 1_700,
    "densities with a domain, formulas over Flower, pairs of sentences, strangers' mistakes": 1_800,
    "names asked of a posterior, private posteriors, large cliques, slices not held": 1_150,
    "rows that look at each other, guides that rows enter, names and order of columns": 2_000,
}
TOKENS = 345_000 + sum(BOUGHT.values())
# Processor time: others may run beside the check.
FIRST = (
    "import time, torch, pyro; start = time.process_time(); import bayesfed as bf; bf.{name}; "
    "print(time.process_time() - start)"
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
    folders, lines = (
        entries(files),
        {file: len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in source},
    )
    if not options.check:
        print(
            table(
                ["folder", "entries"],
                [[str(folder), count] for folder, count in folders.most_common(8)],
            )
            + "\n"
        )
        print(
            table(
                ["file", "lines"],
                [[str(file), count] for file, count in Counter(lines).most_common(12)],
            )
            + "\n"
        )
    met = [*rooms(folders), *imports(package), *lengths(lines), *code(package, source), *surface()]
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


def entries(files: Iterable[Path]) -> Counter[Path]:
    """Return the number of files and folders in each folder of the package."""
    inside = defaultdict[Path, set[Path]](set)
    for file in files:
        for path in (file, *file.parents):
            if path.parent.parts[:1] == ("bayesfed",):
                inside[path.parent].add(path)
    return Counter({folder: len(paths) for folder, paths in inside.items()})


def judged(name: str, measured: float, at_most: float, offenders: Iterable[str]) -> bool:
    """Print a target's line and, if it is missed, what misses it."""
    met = target(name, measured, at_most)
    if not met:
        print("".join(f"  {offender}\n" for offender in offenders), end="")
    return met


def rooms(folders: Counter[Path]) -> list[bool]:
    """Print the targets on folders."""
    top = Path("bayesfed")
    inner = Counter({folder: count for folder, count in folders.items() if folder != top})
    crowded = [f"{folder}: {count}" for folder, count in inner.most_common() if count > ENTRIES]
    return [
        judged(
            "entries of the fullest folder below the package", max(inner.values()), ENTRIES, crowded
        ),
        judged(
            "entries of the package itself", folders[top], TOP_ENTRIES, [f"{top}: {folders[top]}"]
        ),
    ]


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


def lengths(lines: dict[Path, int]) -> list[bool]:
    """Print the targets on lines."""
    own = {
        room: {file: count for file, count in lines.items() if file.parts[0] == room}
        for room in ("bayesfed", "tests")
    }
    cli = {file: count for file, count in lines.items() if file.parts[:2] == ("bayesfed", "cli")}
    met = []
    for room, most in (("bayesfed", LINES), ("tests", TEST_LINES)):
        long = [
            f"{file}: {count}" for file, count in Counter(own[room]).most_common() if count > most
        ]
        met.append(judged(f"files of {room} over {most} lines", len(long), 0, long))
    files = sum(
        count for file, count in lines.items() if file.parts[1:3] == ("running", "experiments")
    )
    print(f"reader of experiment files (running/experiments), which is not in cli: {files} lines")
    met.append(
        judged(
            "lines of cli",
            sum(cli.values()),
            CLI_LINES,
            (f"{file}: {count}" for file, count in Counter(cli).most_common()),
        )
    )
    return met


def code(package: Sequence[Path], every: Sequence[Path]) -> list[bool]:
    """Print the targets on tokens, columns and guesses."""
    counts = Counter({file: tokens_of(ROOT / file) for file in package if file.suffix == ".py"})
    rooms = Counter[str]()
    for file, count in counts.items():
        rooms[file.parts[1]] += count
    dear = [f"{room}: {count}" for room, count in rooms.most_common(8)]
    long, guessed = long_lines(ROOT, every, COLUMNS), guesses(ROOT, package)
    return [
        judged("tokens of code", sum(counts.values()), TOKENS, dear),
        judged(f"lines over {COLUMNS} columns", len(long), 0, long),
        judged("guesses about parts outside one file", len(guessed), 0, guessed),
    ]


def surface() -> list[bool]:
    """Print the targets on names and calls."""
    found, calls = names(), frames()
    odd = strangers(found)
    return [
        judged("names on bayesfed", len(found), NAMES, []),
        judged("names on bayesfed that are others'", len(odd), 0, odd),
        judged("calls between the round and a client's loss", len(calls), FRAMES, calls),
    ]


def first_name(*, show: bool) -> bool:
    """Print the target on the first name that is used."""
    found = {
        name: statistics.median(
            float(python("-c", FIRST.format(name=name)).stdout) for _ in range(5)
        )
        for name in ("mlp", "run")
    }
    slowest = max(found, key=lambda name: found[name])
    costs = beyond(slowest) if show or found[slowest] > FIRST_S else []
    if show:
        print(
            f"\nbf.{slowest}, seconds in files of\n\n" + table(["package", "s"], costs[:8]) + "\n"
        )
    dear = (f"{name}: {seconds:.3f} s" for name, seconds in costs[:8])
    return judged(
        f"seconds of the first name beyond torch and pyro (bf.{slowest})",
        found[slowest],
        FIRST_S,
        dear,
    )


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
    return judged("seconds of the tests", seconds, TESTS_S, []) and passed


if __name__ == "__main__":
    sys.exit(main())
