"""Maps of supports: a layer over the rounds, the inputs of hidden units as images, and which inputs
are used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked
from bayesfed.errors.plurals import plural
from bayesfed.federated import Record
from bayesfed.inspect.figures import given_or_new, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# How probabilities are drawn.
LOOK: dict[str, Any] = {"vmin": 0, "vmax": 1, "cmap": "viridis", "interpolation": "nearest"}


@checked()
def plot_support_maps(
    frames: Mapping[int, Tensor], *, title: str = "", history: Sequence[Record] = (), site: str = ""
) -> list[Axes]:
    """Plot the prior inclusion probabilities of a layer over rounds, the message v_{h -> s}, as in
    Fig. 4 of D-Turbo-VBI.

    Parameters
    ----------
    frames
        Log-odds ``(M, N)`` by round, as collected by the callback `keep`.
    title
        Title of the figure.
    history, site
        History of the run and name of the layer. If given, the text below each map says how far
        message passing had converged and what share of the weights depends on its starting point.

    Raises
    ------
    ArgumentError
        If there are no frames.
    MissingExtraError
        If Matplotlib is not installed.
    """
    if not frames:
        raise ArgumentError("plot_support_maps", "at least one frame", "none", "the callback keep")
    figures = {record.round: record.server for record in history}
    shape = next(iter(frames.values())).shape
    aspect = min(2.0, max(0.5, shape[0] / shape[1]))
    figure = new_figure(2.6 * len(frames) + 0.9, 2.6 * aspect + 0.8)
    panels: list[Axes] = list(figure.subplots(1, len(frames), squeeze=False, sharey=True)[0])
    for panel, (number, log_odds) in zip(panels, sorted(frames.items()), strict=True):
        image = panel.imshow(torch.sigmoid(log_odds).numpy(), aspect="auto", **LOOK)
        panel.set(title=f"round {number + 1}", xlabel="input")
        panel.text(
            0.5,
            -0.24,
            _trust(figures.get(number, {}), site),
            transform=panel.transAxes,
            ha="center",
            va="top",
            fontsize=7.5,
        )
    panels[0].set_ylabel("unit")
    figure.colorbar(
        image, ax=panels, label="probability that the weight is active,\nas its neighbours see it"
    )
    if title:
        figure.suptitle(title)
    return panels


def _trust(figures: Mapping[str, float], site: str) -> str:
    """Return the convergence of a site's message passing in words; empty if the round had none."""
    residual, share = figures.get(f"bp_residual/{site}"), figures.get(f"bp_multistable/{site}")
    settled = (
        ""
        if residual is None
        else "messages exact"
        if residual == 0
        else f"messages within {residual:.0e}"
    )
    return settled if share is None else f"{settled}\n{share:.1%} multistable"


@checked()
def plot_unit_maps(
    values: Tensor, size: tuple[int, int], *, count: int = 24, title: str = ""
) -> list[Axes]:
    """Plot the inputs of hidden units as images: the pixels that each unit uses.

    Parameters
    ----------
    values
        Probabilities ``(M, N)``, one row for each unit.
    size
        (height, width) of an image; their product is N.
    count
        Number of units. Those with the largest sums of probabilities are shown, in their original
        order.
    title
        Title of the figure.

    Raises
    ------
    ArgumentError
        If the size does not fit the inputs, or `count` is below 1.
    MissingExtraError
        If Matplotlib is not installed.
    """
    if values.ndim != 2 or size[0] * size[1] != values.shape[1] or count < 1:
        raise ArgumentError(
            "plot_unit_maps",
            f"(M, {size[0] * size[1]}) and count >= 1",
            (tuple(values.shape), count),
            "size=(28, 28)",
        )
    chosen = sorted(values.sum(1).topk(min(count, len(values))).indices.tolist())
    columns = min(8, len(chosen))
    rows = -(-len(chosen) // columns)
    figure = new_figure(1.15 * columns + 1.0, 1.3 * rows + 0.5)
    panels: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel in panels:
        panel.axis("off")
    for panel, unit in zip(panels, chosen, strict=False):
        image = panel.imshow(values[unit].reshape(size).numpy(), **LOOK)
        panel.set_title(f"unit {unit}", fontsize=7)
    figure.colorbar(image, ax=panels, label="probability that the weight is active")
    if title:
        figure.suptitle(title)
    return panels


@checked()
def plot_inputs(
    probabilities: Mapping[str, float],
    size: tuple[int, int] | None = None,
    *,
    count: int = 20,
    axes: Axes | None = None,
) -> Axes:
    """Plot the probability that each input is used: bars of the likeliest ones by name, or a map of
    all where they are the pixels of an image.

    Parameters
    ----------
    probabilities
        Probability by name of the input, as `Result.inputs` returns them.
    size
        (height, width) of an image; their product is the number of inputs. Default: bars.
    count
        Number of bars.
    axes
        Axes to draw on. Default: those of a new figure.

    Raises
    ------
    ArgumentError
        If the size does not fit the inputs, or there are no inputs, or no bars.
    MissingExtraError
        If Matplotlib is not installed.
    """
    inputs = len(probabilities)
    if not inputs or count < 1 or (size is not None and size[0] * size[1] != inputs):
        raise ArgumentError(
            "plot_inputs",
            "inputs, count >= 1, and a size whose product is their number",
            (f"{plural(inputs, 'input')}", count, size),
            "plot_inputs(result.inputs()), which draws bars",
        )
    label = "probability that the input is used"
    if size is None:
        likeliest = sorted(probabilities, key=probabilities.__getitem__, reverse=True)[:count][::-1]
        axes = given_or_new(axes, height=1 + 0.22 * len(likeliest))
        axes.barh(likeliest, [probabilities[name] for name in likeliest])
        axes.set(xlabel=label, xlim=(0, 1))
        return axes
    axes = given_or_new(axes, width=4.6, height=3.6)
    values = torch.tensor(list(probabilities.values())).reshape(size)
    image = axes.imshow(values.numpy(), **LOOK)
    axes.axis("off")
    if (figure := axes.get_figure()) is not None:
        figure.colorbar(image, ax=axes, label=label)
    return axes
