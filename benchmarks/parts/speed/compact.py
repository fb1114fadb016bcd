"""What sparsity buys at inference: 3,000 samples through a dense and a compact network, side by
side.

    python benchmarks/speed.py --only compact [--check] [--model FILE.safetensors]

MLP 784-256-256-10, every layer at one density, on one thread and on two. "dense" is the network
itself with zeros in its weights; "rule" is `compact` by its cost rule, "timed" with 1,000 samples
to time the forms on; the ratio is dense / rule. Masks:

clustered            draws of MarkovGrid(0.6, 0.6, field); the field makes the density
unclustered          independent weights of the same density
dead border          clustered, with dead pixels around the middle 20 x 20 and every second
                     unit of the first layer dead
full output          clustered, with a dense last layer

What to read out of it, and what not. Draws this sparse are hardly clustered: at 5 % a neighbour of
an active weight is active in one case of ten. So there are no blocks to gather, clustered and
unclustered masks take the same time, and the gain is that of a sparse product and of dropped units.
Of the latter a last layer of 10 x 256 at a few per cent makes many, for it reads few of its inputs;
"full output" is the case without them, and the more cautious figure for a trained network. A sparse
multiply-add costs four to six dense ones, more where other work fills the memory, so the break-even
is between 15 and 25 %; the rule stops at 18 %, from where on compact is the dense network and the
ratio 1. The inputs of a sparse product are transposed first, which at 1 % takes longer than all
products. Convolutions only lose dead channels: a CNN gains little (`--model` shows it). Two threads
need two idle cores to mean anything: beside other work their times are those of the scheduler, and
no target reads them.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import warnings
from collections.abc import Iterator, Mapping
from functools import cache

import torch
from parts.shared.targets import at_least, interleaved, ratio
from safetensors.torch import load_file
from torch import Tensor, nn

import bayesfed as bf
from bayesfed.errors import ArgumentError
from bayesfed.inspect import table
from bayesfed.keys import forked
from bayesfed.models import ClusteredSupport
from bayesfed.models.compaction.compact import compact
from bayesfed.trees import parameters

ROWS, WIDTHS = 3000, (784, 256, 256, 10)
# Found by bisection on draws of 256 x 784.
FIELDS = {
    0.01: -3.03,
    0.025: -2.18,
    0.05: -1.578,
    0.1: -1.02,
    0.15: -0.735,
    0.2: -0.547,
    0.25: -0.42,
    0.3: -0.31,
}
MASKS = ("clustered", "unclustered", "dead border", "full output")


def targets(options: argparse.Namespace) -> Iterator[bool]:
    """Measure and print; yield whether each target is met."""
    # `interleaved` collects garbage before each run: what was imported is none of it.
    gc.freeze()
    inputs = torch.rand(ROWS, WIDTHS[0], generator=bf.Key(0, "inputs").generator())
    net = bf.mlp(WIDTHS, bf.Key(0, "net"))
    tree, rows, worst = parameters(net), [], math.inf
    for threads in (1,) if options.check else (1, 2):
        torch.set_num_threads(threads)
        for kind in MASKS[:1] if options.check else MASKS[: 4 // threads]:
            for density in (0.01, 0.025, 0.05) if options.check else FIELDS:
                row, gain = measured(net, masked(tree, kind, density), inputs, 9)
                rows.append([kind, threads, *row])
                worst = (
                    min(worst, gain)
                    if kind == "clustered" and threads == 1 and density <= 0.05
                    else worst
                )
        if options.model:
            given = load_file(options.model)
            own, images = network(given)
            rows.append([options.model.stem, threads, *measured(own, given, images, 9)[0]])
    print(
        table(
            [
                "masks",
                "threads",
                "density",
                "ms dense",
                "ms rule",
                "ms timed",
                "ratio",
                "form of each layer by the rule",
            ],
            rows,
        )
    )
    yield at_least("dense / compact, clustered, density <= 5 %, one thread", worst, 1.6)


def measured(
    net: nn.Module, tree: Mapping[str, Tensor], inputs: Tensor, repeats: int
) -> tuple[list[str | float], float]:
    """Return the rest of a row, and the ratio."""
    net.load_state_dict(dict(tree))
    rule, timed = compact(net, tree), compact(net, tree, inputs[:1000])
    with torch.no_grad():
        seconds = interleaved(
            {
                "dense": lambda: net(inputs),
                "rule": lambda: rule(inputs),
                "timed": lambda: timed(inputs),
            },
            repeats,
        )
    gain = ratio(seconds["dense"], seconds["rule"])
    forms = "; ".join(
        text.split(",")[0].split(" of ")[0].replace(" x ", "x") for text in rule.forms.values()
    )
    weights = [leaf for leaf in tree.values() if leaf.ndim > 1]
    density = sum(int(leaf.count_nonzero()) for leaf in weights) / sum(
        leaf.numel() for leaf in weights
    )
    return [
        f"{density:.1%}",
        *(1e3 * statistics.median(seconds[name]) for name in ("dense", "rule", "timed")),
        f"{gain:.2f}",
        forms,
    ], gain


def masked(tree: Mapping[str, Tensor], kind: str, density: float) -> dict[str, Tensor]:
    """Return parameters with masks of one kind, and with biases that are not zero."""
    made, last = (
        {name: value.clone() for name, value in tree.items()},
        f"{2 * len(WIDTHS) - 3}.weight",
    )
    with forked(bf.Key(0, "masks", str(density))), warnings.catch_warnings():
        # That the grid's density is not its chains' is known.
        warnings.simplefilter("ignore")
        for name, value in made.items():
            if value.ndim < 2:
                value.normal_(std=0.1)
            elif not (kind == "full output" and name == last):
                value.mul_(
                    torch.rand_like(value) < density
                    if kind == "unclustered"
                    else drawn(tuple(value.shape), density)
                )
    if kind == "dead border":
        middle = torch.zeros(28, 28)
        middle[4:24, 4:24] = 1
        made["1.weight"] *= middle.flatten()
        made["1.weight"][::2] = 0.0
    return made


@cache
def drawn(shape: tuple[int, int], density: float) -> Tensor:
    """Return one draw of the grid of a density: its sampling takes longer than everything that is
    timed.
    """
    return ClusteredSupport(bf.models.MarkovGrid(0.6, 0.6, FIELDS[density]).lower(shape)).sample()


def network(tree: Mapping[str, Tensor]) -> tuple[nn.Module, Tensor]:
    """Rebuild the network of `mlp` or `cnn` that has parameters of these shapes, and draw inputs
    for it.
    """
    weights = [
        tree[name]
        for name in sorted(tree, key=lambda name: int(name.partition(".")[0]))
        if tree[name].ndim > 1
    ]
    kernels, matrices = (
        [leaf for leaf in weights if leaf.ndim == 4],
        [leaf for leaf in weights if leaf.ndim == 2],
    )
    key, generator = bf.Key(0, "net"), bf.Key(0, "inputs").generator()
    if not kernels:
        return bf.mlp([matrices[0].shape[1], *map(len, matrices)], key), torch.rand(
            ROWS, matrices[0].shape[1], generator=generator
        )
    if len(matrices) != 2 or any(leaf.shape[2:] != (3, 3) for leaf in kernels):
        shapes = [tuple(leaf.shape) for leaf in weights]
        raise ArgumentError("--model", "an mlp or a cnn", f"weights of shapes {shapes}", "bf.cnn")
    # Every convolution's pooling halves the side.
    side = 2 ** len(kernels) * math.isqrt(matrices[0].shape[1] // len(kernels[-1]))
    image = (kernels[0].shape[1], side, side)
    images = torch.rand(ROWS, *image[image[0] == 1 :], generator=generator)
    return bf.cnn(
        image,
        len(matrices[1]),
        key,
        channels=[len(leaf) for leaf in kernels],
        hidden=len(matrices[0]),
    ), images
