"""Which weights of the first layer README's quickstart leaves."""

from __future__ import annotations

import json

import numpy as np
import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from parts.front.record import RECORDS, runs
from parts.pictures.style import BLUE, figure, save

import bayesfed as bf
from bayesfed.federated import keep


def measure_quickstart() -> None:
    """Run README's quickstart and write its table and the masks of its first layer."""
    train, test = bf.digits()
    clients = bf.federate(train, bf.dirichlet(train.targets, 10, 0.5, bf.Key(0, "partition")))
    net = bf.mlp([64, 128, 64, 10], bf.Key(0, "net"))
    prior = bf.Prior(
        support=bf.models.MarkovGrid(row=0.6, column=0.6), precision=bf.BernoulliGamma()
    )
    work = bf.Training(steps=25, optimiser=bf.Adam(5e-3))
    ours = bf.d_turbo_vbi(
        bf.declare(net, prior), observations=len(train), density=0.2, training=work
    )
    frames: dict[int, torch.Tensor] = {}
    result = bf.run(
        ours,
        clients,
        rounds=30,
        test=test,
        callbacks=[keep("log_odds/1.weight", frames, every=10)],
        progress=False,
    )
    masks = {
        str(number + 1): np.packbits((leaf > 0).numpy()).tobytes().hex()
        for number, leaf in frames.items()
    }
    run = {"shape": [128, 64], "masks": masks, "table": result.table(every=10)}
    (RECORDS / "quickstart.jsonl").write_text(json.dumps({"name": "quickstart", "run": run}) + "\n")


def supports() -> None:
    """Draw the active weights of the first layer over the rounds."""
    for path in save(_supports, "support_maps"):
        print(path.name)


def _supports() -> Figure:
    run = dict(runs("quickstart"))["quickstart"]
    height, width = run["shape"]
    whole = figure(8.4, 4.2)
    panels = whole.subplots(1, len(run["masks"]), sharey=True)
    for axes, (number, packed) in zip(panels, run["masks"].items(), strict=True):
        mask = np.unpackbits(np.frombuffer(bytes.fromhex(packed), dtype=np.uint8))[
            : height * width
        ].reshape(height, width)
        axes.imshow(
            mask,
            cmap=ListedColormap(["none", BLUE]),
            vmin=0,
            vmax=1,
            aspect="auto",
            interpolation="nearest",
        )
        axes.set(
            title=f"round {number}: {100 * mask.mean():.0f} %", xlabel="input", xticks=[0, 31, 63]
        )
    panels[0].set(ylabel="hidden unit", yticks=[0, 63, 127])
    return whole
