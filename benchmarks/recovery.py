"""What a run survives: kills, damaged checkpoints, full disks, many rounds, odd clients.

    python benchmarks/recovery.py [--check]

Kills: a run with checkpoints after every round is forked from a warmed process and killed (SIGKILL)
at a seeded instant: before a seeded one of its Python and C calls, half way through a seeded one of
its writes to disk, or by the clock while process workers are at it. It is resumed from its folder;
final parameters, client memories and history (all but seconds) are compared with those of the
uninterrupted run, bit for bit. Damage: bytes of one of the newest checkpoint's three files are cut,
changed, added or replaced, or the file removed; detected means that the typed warning came and the
previous round was loaded, bit for bit. Disk full: from a seeded byte on, writes go to /dev/full,
whose refusal is the kernel's own. Soak: resident memory and file handles of a tiny model's rounds,
after a tenth of them.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from parts.recovery.disk import damages, full_disks
from parts.recovery.kills import kills
from parts.recovery.soak import identity, oddities, soak
from parts.shared.parts import command_line
from parts.shared.targets import at_least, target

from bayesfed.inspect.tables import table


def main() -> int:
    """Measure and print; return the exit status."""
    check = command_line(__doc__).parse_args().check
    torch.set_num_threads(1)
    made, damaged, disks, rounds = (20, 1000, 100, 2000) if check else (200, 1000, 100, 10_000)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        killed = kills(folder / "kills", made)
        rows: list[list[str | float | int]] = [
            [f"kill -9, {kind}", *counts] for kind, counts in killed.items()
        ]
        rows.append(["damaged checkpoints", damaged, found := damages(folder / "damage", damaged)])
        rows.append(["disk full", disks, intact := full_disks(folder / "disk", disks)])
        histories = identity()
        rows.append(["1, 2, 4 workers, shuffled", len(histories), same := sum(histories.values())])
        odd = oddities()
        rows.append(
            [
                "odd federations",
                len(odd),
                fine := sum(outcome != "crash" for outcome in odd.values()),
            ]
        )
        print(table(["", "tried", "as it should be"], rows))
        print()
        cases, methods = (list(dict.fromkeys(pair[i] for pair in odd)) for i in (0, 1))
        print(
            table(
                ["odd federation", *methods],
                [[case, *(odd[case, method] for method in methods)] for case in cases],
            )
        )
        print()
        megabytes, handles = soak(folder / "soak", rounds)
        print(f"soak: {rounds:,} rounds, {megabytes:+.2f} MB resident, {handles:+d} file handles")
    resumed = sum(good for _, good in killed.values())
    met = [
        at_least("kills resumed to the bit", resumed, made),
        at_least("damaged checkpoints detected", found, damaged),
        at_least("full disks that left the previous checkpoint intact", intact, disks),
        at_least("histories identical over workers and orders", same, len(histories)),
        at_least("odd federations without a crash", fine, len(odd)),
        target("megabytes of resident memory gained", megabytes, 5.0),
        target("file handles gained", handles, 0),
    ]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
