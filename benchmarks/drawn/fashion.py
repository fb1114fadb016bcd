"""Where hidden units look on Fashion-MNIST: the same eight units with neighbours in the weight matrix and in the picture."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from front_door.figures import RECORDS, runs
from matplotlib.figure import Figure

from drawn.style import figure, save

EXAMPLES = Path(__file__).parents[2] / "examples"
WAYS = {"strip": "neighbours in\nthe weight matrix", "pixels": "neighbours in\nthe picture"}
SHOWN, SIDE = 8, 28


def measure() -> None:
    """Train both on seed 0 as `examples/fashion_mnist.py` does, and write the inclusion probabilities of eight units; ten minutes."""
    sys.path.insert(0, str(EXAMPLES))
    import fashion_mnist as example
    import torch

    import bayesfed as bf
    from bayesfed.federated import cosine

    torch.set_num_threads(1)
    train, test = bf.fashion_mnist()
    clients = bf.federate(train, bf.dirichlet(train.targets, 10, 0.5, bf.Key(0, "partition")))
    net, found = bf.mlp([784, 256, 256, 10], bf.Key(0, "net")), {}
    for way in WAYS:
        algorithm = example.d_turbo_vbi(net, example.METHODS[way], 40, len(train), cosine(0.1, 40))
        result = bf.run(algorithm, clients, rounds=40, test=test, progress=False)
        assert result.belief is not None
        found[way] = result.belief["1.weight"].inclusion
    units = sorted(sum(found.values()).sum(1).topk(SHOWN).indices.tolist())
    with (RECORDS / "units.jsonl").open("w") as file:
        for way, inclusion in found.items():
            values = {str(unit): (100 * inclusion[unit]).round().int().tolist() for unit in units}
            file.write(json.dumps({"name": way, "run": values}) + "\n")


def draw() -> None:
    """Draw it."""
    for path in save(_drawn, "units"):
        print(path.name)


def _drawn() -> Figure:
    found = dict(runs("units"))
    whole = figure(9.0, 2.7)
    panels = whole.subplots(len(WAYS), SHOWN)
    for row, (way, name) in zip(panels, WAYS.items(), strict=True):
        for axes, (unit, values) in zip(row, found[way].items(), strict=True):
            image = axes.imshow(np.array(values).reshape(SIDE, SIDE), vmin=0, vmax=100, cmap="viridis", interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            if row is panels[0]:
                axes.set_title(f"unit {unit}", fontsize=8.5)
        row[0].set_ylabel(name, fontsize=8.5)
    whole.colorbar(image, ax=panels, label="active, %", shrink=0.8)
    return whole
