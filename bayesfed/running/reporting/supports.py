"""Supports of a finished run as small PNG pictures inside of a page."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np

from bayesfed.errors import ArgumentError, needs
from bayesfed.federated import Record
from bayesfed.running.folders import Folder

# Largest number of layers, and of pixels along a side.
LAYERS, SIDE = 12, 256


@dataclass(frozen=True)
class Map:
    """A layer's support: probabilities that weights are active, or the mask of the transmitted
    model.
    """

    layer: str
    units: int
    inputs: int
    density: float
    picture: str


def support_maps(
    folder: Folder, seed: int, history: Sequence[Record]
) -> tuple[str, list[Map], int]:
    """Return what the maps of a seed show, the maps of the first layers, and the number of layers
    that are left out; none without a support.
    """
    what, layers = (
        "inclusion probabilities of the posterior",
        dict(_inclusions(folder.seed(seed) / "posterior.nc")),
    )
    if not layers and any("density" in record.server for record in history):
        what, layers = (
            "weights that the transmitted model has",
            dict(_masks(folder.seed(seed) / "model.safetensors")),
        )
    shown = list(layers.items())[:LAYERS]
    return what, [_map(name, shares) for name, shares in shown], len(layers) - len(shown)


def _map(layer: str, shares: np.ndarray) -> Map:
    units, inputs = shares.shape
    return Map(layer, units, inputs, float(shares.mean()), picture(shares))


def picture(shares: np.ndarray) -> str:
    """Return a matrix of numbers in [0, 1] as the data URI of a PNG, averaged over blocks where it
    is too large.
    """
    for axis in (0, 1):
        starts = np.unique(
            np.linspace(
                0, shares.shape[axis], min(shares.shape[axis], SIDE), endpoint=False
            ).astype(int)
        )
        lengths = np.diff([*starts, shares.shape[axis]])
        shares = np.add.reduceat(shares, starts, axis=axis) / (
            lengths[:, None] if axis == 0 else lengths
        )
    drawn, images = BytesIO(), needs("matplotlib.image", "examples", "matplotlib")
    # Viridis is readable on a dark page and on a light one.
    images.imsave(drawn, shares, vmin=0, vmax=1, cmap="viridis", format="png")
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
