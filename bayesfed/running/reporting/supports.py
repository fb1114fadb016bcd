"""Supports of a finished run as small PNG pictures inside of a page."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import adaptive_avg_pool2d

from bayesfed.errors import ArgumentError, needs
from bayesfed.federated import Record
from bayesfed.running.folders import Folder

# Largest number of layers, and of pixels along a side.
LAYERS, SIDE = 12, 256


def support_maps(
    folder: Folder, seed: int, history: Sequence[Record]
) -> tuple[str, list[dict[str, Any]], int]:
    """Return what the maps of a seed show, the maps of the first layers, and the number of layers
    that are left out; none without a support.
    """
    what = "inclusion probabilities of the posterior"
    layers = dict(_inclusions(folder.seed(seed) / "posterior.nc"))
    if not layers and any("density" in record.server for record in history):
        what = "weights that the transmitted model has"
        layers = dict(_masks(folder.seed(seed) / "model.safetensors"))
    shown = [
        {
            "layer": name,
            "units": shares.shape[0],
            "inputs": shares.shape[1],
            "density": shares.mean(),
            "picture": picture(shares),
        }
        for name, shares in islice(layers.items(), LAYERS)
    ]
    return what, shown, len(layers) - len(shown)


def picture(shares: np.ndarray) -> str:
    """Return a matrix of numbers in [0, 1] as the data URI of a PNG, averaged over blocks where it
    is too large.
    """
    height, width = (min(length, SIDE) for length in shares.shape)
    means = adaptive_avg_pool2d(torch.from_numpy(shares)[None], (height, width))[0].numpy()
    drawn, images = BytesIO(), needs("matplotlib.image", "examples", "matplotlib")
    # Viridis is readable on a dark page and on a light one.
    images.imsave(drawn, means, vmin=0, vmax=1, cmap="viridis", format="png")
    return address(drawn)


def address(png: BytesIO) -> str:
    """Return a picture as a data URI."""
    return "data:image/png;base64," + base64.b64encode(png.getvalue()).decode()


def _inclusions(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the inclusion probabilities of every layer of an exported posterior, if it has any."""
    if not path.is_file():
        return
    import xarray

    try:
        with xarray.open_dataset(path, group="constant_data") as constants:
            for name, values in constants.items():
                if str(name).endswith(".inclusion") and values.ndim > 1:
                    yield str(name).removesuffix(".inclusion"), _matrix(values.to_numpy())
    except KeyError:
        # A posterior without constants.
        return
    except (OSError, ValueError) as problem:
        raise ArgumentError(
            str(path), "an exported posterior", problem, "a copy, or leaving it out"
        ) from problem


def _masks(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    from safetensors.numpy import load_file

    for name, leaf in load_file(path).items():
        if leaf.ndim > 1:
            yield name, _matrix(leaf != 0)


def _matrix(values: np.ndarray) -> np.ndarray:
    return values.reshape(len(values), -1).astype(float)
