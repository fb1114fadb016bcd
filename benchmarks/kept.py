"""Finished runs of benchmarks, which are made once: packed into one file and unpacked; `records/`
has those behind the published tables.

    python benchmarks/kept.py pack results/fedhm/runs benchmarks/records/fedhm.jsonl
    python benchmarks/kept.py unpack benchmarks/records/fedhm.jsonl results/fedhm/runs

Once unpacked, a benchmark prints its tables and draws its pictures from them and makes only what is
missing. A run is found by its settings, not by the code that made it: `docs/ledger.md` says when
that was.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from parts.shared.kept import pack, unpack


def main() -> None:
    """Pack runs into one file, or unpack it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=["pack", "unpack"])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args()
    if not options.source.exists():
        parser.error(f"{options.source}: no such file or folder")
    count = {"pack": pack, "unpack": unpack}[options.verb](options.source, options.target)
    print(f"{count} runs in {options.target}")


if __name__ == "__main__":
    main()
