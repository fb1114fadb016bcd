"""Whether the programs here meet their targets: the quick ones, and one of the long ones in turn.

    python benchmarks/checks.py [--part quick|long] [--write] [--only PROGRAM ...]

Which are quick, which long, and which wait to be measured on this version, is in
`parts/checks/settings.toml`, beside the targets that are known to be missed and what will meet
them. The long one is chosen by the number of commits, and runs beside the quick ones, or after them
if it is timed. Those of --only run one after another, and so do those of one --part, which leaves a
core to others. Every program runs with ``--check``; what it prints is shown when it is done. Exit
status 1 if a target is missed that is not known to be, or a program fails without a target that is
missed. --write puts the targets of what was run into `records/targets.tsv`, from which the page of
benchmarks and README read them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from itertools import chain
from pathlib import Path

from parts.checks.table import Target, printed, write

HERE = Path(__file__).parent
SETTINGS = tomllib.loads((HERE / "parts" / "checks" / "settings.toml").read_text())
# Seconds after which a program is taken to hang and is ended: three times what the longest may take
# on two idle cores, since a machine may be slower. And those of a quick one, which is only printed.
LONGEST, QUICK = 5400, 180


def main() -> int:
    """Run the checks; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = [*SETTINGS["quick"], *SETTINGS["long"], *SETTINGS["waiting"]]
    parser.add_argument("--part", choices=["quick", "long"], help="the quick ones, or the long one")
    parser.add_argument("--write", action="store_true", help="write records/targets.tsv anew")
    parser.add_argument("--only", nargs="+", metavar="PROGRAM", choices=every, help="run these")
    options = parser.parse_args()
    parts = {"long": [in_turn(SETTINGS["long"], commits())], "quick": SETTINGS["quick"]}
    one_by_one = options.only or (options.part and parts[options.part])
    chosen = one_by_one or [*chain.from_iterable(parts.values())]
    commit, today = (
        git("describe", "--always", "--dirty=+", "--exclude=*"),
        date.today().isoformat(),
    )
    found, problems = list[Target](), list[str]()
    alone = [one for one in chosen if one_by_one or one in SETTINGS["alone"]]
    together = [one for one in chosen if one not in alone]
    for command, (status, text, seconds) in chain(finished(together, 2), finished(alone, 1)):
        print(f"\n== {command}", text, sep="\n", flush=True)
        targets = printed(command, text, commit, today)
        found += targets
        problems += judged(command, status, targets, SETTINGS["missed"])
        slow = ", which is too long for a quick one" if seconds > QUICK else ""
        print(f"{seconds:.0f} s{slow if command in SETTINGS['quick'] else ''}", flush=True)
    if options.write:
        write(found, every)
    met = sum(one.verdict == "met" for one in found)
    print(f"\n{met} of {len(found)} targets of {len(chosen)} programs are met", *problems, sep="\n")
    return 1 if problems else 0


def in_turn(programs: Sequence[str], count: int) -> str:
    """Return the long program whose turn it is."""
    return programs[count % len(programs)]


def judged(
    command: str, status: int, targets: Sequence[Target], known: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    """Yield what is wrong with a program's run, and print what was known to be."""
    expected = known.get(command.split(maxsplit=1)[0], {})
    missed = [one.target for one in targets if one.verdict == "missed"]
    for name in missed:
        why = [reason for part, reason in expected.items() if part in name]
        if why:
            print(f"known to be missed: {name} ({why[0]})")
        else:
            yield f"{command}: missed: {name}"
    for part in expected:
        if any(part in one.target for one in targets) and not any(part in one for one in missed):
            print(f"no longer missed: {part}; take it off `parts/checks/settings.toml`")
    # Below 0: it was killed, for its time or its memory.
    if status < 0 or (status and not missed) or not targets:
        yield f"{command}: exit status {status}, {len(targets)} targets"


def finished(commands: Sequence[str], beside: int) -> Iterator[tuple[str, tuple[int, str, float]]]:
    """Run programs, so many beside each other; yield each with what `run` returns."""
    with ThreadPoolExecutor(beside) as threads:
        running = {command: threads.submit(run, command) for command in commands}
        for command, outcome in running.items():
            yield command, outcome.result()


def run(command: str) -> tuple[int, str, float]:
    """Run a program with ``--check``; return its exit status, what it printed, and its seconds."""
    program, *arguments = command.split()
    words = [sys.executable, "-u", str(HERE / program), *arguments, "--check"]
    begun = time.monotonic()
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as running:
        end = threading.Timer(LONGEST, running.kill)
        end.start()
        text = running.stdout.read() if running.stdout else ""
        end.cancel()
    return running.returncode, text, time.monotonic() - begun


def commits() -> int:
    """Return the number of commits up to this one."""
    return int(git("rev-list", "--count", "HEAD"))


def git(*words: str) -> str:
    """Return what git says of this repository."""
    return subprocess.run(
        ["git", *words], cwd=HERE, check=True, capture_output=True, text=True
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
