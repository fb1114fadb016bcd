"""Past one machine: exact sums, ranks, faults, populations, secure sums, and asynchronous rounds.

    python benchmarks/scale_out.py [--check] [--only PART ...]

Parts are the modules of `benchmarks/scale`. Times of several processes are by the clock: nothing else should run beside them.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

PARTS = ("sums", "ranks", "faults", "population", "secure", "buffered")


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fewer repeats; exit 1 if a target is missed")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    options, met = parser.parse_args(), True
    for name in options.only:
        if not (Path(__file__).parent / "scale" / f"{name}.py").is_file():
            print(f"{name}: not there")
            met = False
            continue
        print(f"{name}:", flush=True)
        for one in importlib.import_module(f"scale.{name}").targets(options.check):
            met = one and met
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
