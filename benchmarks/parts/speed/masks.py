"""What a support costs: bits for each entry that is set, code by code, against the entropy of the
prior it was drawn from.

    python benchmarks/speed.py --only masks [--check] [--masks FILE.npz]

Masks: draws of `MarkovGrid` at several couplings and fields, entries set independently at the same
densities, and the boolean matrices of an ``.npz`` file. `bound` is, for a Markov draw, the surprise
at this very draw, -log2 of its prior probability: log Z is extrapolated from exact sums over strips
of 11 and 12 columns, in which it is linear but for terms that vanish with the distance between the
sides. For independent entries it is the entropy at their density. `kt` is a plain adaptive coder,
the textbook's: ten neighbours, Krichevsky and Trofimov's estimate, row by row, its length as a sum
of logarithms. Times are the processor's, the best of several; their targets are ratios to a plain
loop over the mask's entries (`parts/shared/plain.py`), which hardly depend on the machine.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from parts.shared.plain import loop_seconds
from parts.shared.targets import target
from parts.speed.clusters import ClusterMask

from bayesfed.compress.leaf import Mask, MaskCode, Reader, Writer
from bayesfed.compress.masks.cheapest import CheapestMask
from bayesfed.compress.masks.contexts import ContextMask
from bayesfed.compress.masks.runs import PlainMask, RunMask
from bayesfed.errors import OrderingWarning
from bayesfed.inspect import table
from bayesfed.keys import Key, forked
from bayesfed.models.random_fields.grid import Grid, Link
from bayesfed.models.random_fields.sampling import ClusteredSupport
from bayesfed.models.random_fields.support_priors import MarkovGrid
from bayesfed.models.random_fields.transfer_matrix import Transfer

PRIORS = (
    (0.6, -0.3),
    (0.6, -0.8),
    (0.6, -1.5),
    (0.65, -0.1),
    (0.65, -0.3),
    (0.65, -0.9),
    (0.7, -0.01),
    (0.7, -0.04),
    (0.7, -0.3),
)
CHECKED = ((0.65, -0.3), (0.7, -0.04))
CODES: dict[str, MaskCode] = {
    "plain": PlainMask(),
    "runs": RunMask(),
    "clusters": ClusterMask(),
    "contexts": ContextMask(),
    "cheapest": CheapestMask(),
}
# Passes of the plain loop over the entries of a mask that writing or reading it may take. The code
# by contexts takes 58 to 84.
MOST_LOOPS = 200.0
Named = tuple[str, Mask, float]


def targets(options: argparse.Namespace) -> Iterator[bool]:
    """Measure and print; yield whether each target is met."""
    torch.set_num_threads(1)
    masks = markov(options.check)
    masks += [independent(mask, number) for number, (_, mask, _) in enumerate(masks[:3])]
    masks += stored(options.masks) if options.masks else []
    lengths = [
        {name: 8 * len(encoded(code, mask)) for name, code in CODES.items()} for _, mask, _ in masks
    ]
    reference = [krichevsky_trofimov(mask) for _, mask, _ in masks]
    rows: list[list[str | float | int]] = [
        [
            name,
            float(mask.mean()),
            *(bits / max(int(mask.sum()), 1) for bits in (*length.values(), kt, bound)),
            length["cheapest"] / bound,
        ]
        for (name, mask, bound), length, kt in zip(masks, lengths, reference, strict=True)
    ]
    print(table(["mask", "density", *CODES, "kt", "bound", "cheapest / bound"], rows), "\n")
    below: dict[str, Sequence[float]] = {
        "contexts / adaptive coder of ten neighbours": reference,
        "contexts / clusters": [length["clusters"] for length in lengths],
        "cheapest / runs": [length["runs"] for length in lengths],
    }
    # 64 bytes of head and rounding are free: they are all there is of a mask that says nothing.
    for (name, under), limit in zip(below.items(), (1.1, 1.0, 1.0), strict=True):
        largest = max(
            (length[name.split()[0]] - 512) / max(bits, 1.0)
            for length, bits in zip(lengths, under, strict=True)
        )
        yield target(f"{name}, largest, 64 bytes off", largest, limit)
    yield from times(masks, options.check)


def markov(check: bool) -> list[Named]:
    """Return draws of Markov grids."""
    wanted = [((784, 256), prior) for prior in (CHECKED if check else PRIORS)]
    wanted += [((256, 256), CHECKED[0]), ((1000, 1000), CHECKED[0])]
    found = []
    for shape, (stay, field) in wanted:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OrderingWarning)
            grid = MarkovGrid(stay, stay, field).lower(shape)
        with forked(Key(0, "mask", *shape, str(stay), str(field))):
            draw = ClusteredSupport(grid, sweeps=10 if check else 30).sample()
        name = f"{shape[0]} x {shape[1]}, stay {stay:g}, field {field:g}"
        found.append(
            (
                name,
                draw.bool().numpy(),
                (log_z(grid) - float(grid.energy(draw.double()))) / math.log(2),
            )
        )
    return found


def log_z(grid: Grid) -> float:
    """Return log Z of an even grid, extrapolated from strips."""

    def exact(rows: int, columns: int) -> float:
        strip = Grid((rows, columns), Link(*grid.row), Link(*grid.column), grid.field)
        return float(Transfer.of(strip, torch.zeros(1, rows, columns)).log_z())

    low, high = (np.array([exact(rows, columns) for rows in (40, 41)]) for columns in (11, 12))
    first, second = (
        values[0] + (grid.size[0] - 40) * (values[1] - values[0]) for values in (low, high)
    )
    return float(first + (grid.size[1] - 11) * (second - first))


def independent(mask: Mask, number: int) -> Named:
    """Return independent entries at the density of a mask."""
    density = float(mask.mean())
    drawn = Key(0, "independent", number).numpy().random(mask.shape) < density
    share = float(drawn.mean())
    entropy = -share * math.log2(share) - (1 - share) * math.log2(1 - share)
    return f"{mask.shape[0]} x {mask.shape[1]}, independent", drawn, entropy * mask.size


def stored(path: str) -> list[Named]:
    """Read masks from a file."""
    with np.load(path) as file:
        return [
            (name, np.atleast_2d(file[name]).astype(np.bool_), math.nan)
            for name in file.files
            if file[name].size
        ]


def krichevsky_trofimov(mask: Mask) -> float:
    """Return the length in bits under the plain adaptive coder."""
    padded = np.pad(mask, ((2, 0), (2, 2))).astype(np.int64)
    rows, columns = mask.shape
    cells = ((2, -1), (2, 0), (2, 1), (1, -2), (1, -1), (1, 0), (1, 1), (1, 2), (0, -2), (0, -1))
    pattern = np.zeros(mask.shape, np.int64)
    for number, (up, right) in enumerate(cells):
        pattern |= padded[2 - up : 2 - up + rows, 2 + right : 2 + right + columns] << number
    met, bits = [[0.5, 0.5] for _ in range(1024)], 0.0
    for context, symbol in zip(
        pattern.reshape(-1).tolist(), mask.reshape(-1).tolist(), strict=True
    ):
        counts = met[context]
        bits -= math.log2(counts[symbol] / (counts[0] + counts[1]))
        counts[symbol] += 1
    return bits


def times(masks: list[Named], check: bool) -> list[bool]:
    """Time the codes on one mask of each size; return whether the targets are met."""
    rows, loops = list[list[str | float | int]](), dict[tuple[int, str], tuple[float, float]]()
    for name, mask, _ in {
        mask.shape: (name, mask, bound) for name, mask, bound in reversed(masks) if ", stay" in name
    }.values():
        loop = 1e3 * loop_seconds(mask.size)
        for label, code in CODES.items():
            message = encoded(code, mask)
            write = milliseconds(partial(encoded, code, mask), check)
            read = milliseconds(partial(decoded, code, message, mask), check)
            loops[mask.size, label] = write / loop, read / loop
            rows.append([name, label, write, read, write / loop, read / loop])
    headings = ["mask", "code", "write, ms", "read, ms", "write, loops", "read, loops"]
    print(table(headings, rows), "\n")
    result = []
    for name, size in (("784 x 256", 784 * 256), ("1000 x 1000", 10**6)):
        for way, measured in zip(("write", "read"), loops[size, "contexts"], strict=True):
            said = f"{name}: contexts, {way} / plain loop"
            result.append(target(said, measured, MOST_LOOPS))
    clusters, _ = loops[784 * 256, "clusters"]
    return [*result, target("784 x 256: clusters, write / plain loop", clusters, MOST_LOOPS)]


def milliseconds(work: Callable[[], object], check: bool) -> float:
    """Return the shortest time."""
    seconds = []
    for _ in range(4 if check else 12):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return 1e3 * min(seconds)


def encoded(code: MaskCode, mask: Mask) -> bytes:
    """Return the section."""
    out = Writer()
    code.write(mask, out)
    return out.bytes()


def decoded(code: MaskCode, message: bytes, mask: Mask) -> None:
    """Read it back and compare."""
    if (code.read(Reader(message), (mask.shape[0], mask.shape[1])) != mask).any():
        raise AssertionError(f"{code} came back changed")
