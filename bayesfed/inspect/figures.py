"""Matplotlib figures and axes, imported only when something is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bayesfed.errors import needs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches.

    Raises
    ------
    MissingExtraError
        If Matplotlib is not installed.
    """
    made: Figure = needs("matplotlib.figure", "examples", "matplotlib").Figure(
        figsize=(width, height), layout="constrained"
    )
    return made


def finished(axes: Axes, **options: Any) -> Axes:
    """Return the axes with labels and limits, a grid and a small legend."""
    axes.set(**options)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return axes


def given_or_new(axes: Axes | None, width: float = 6.0, height: float = 4.0) -> Axes:
    """Return the axes that are given, or else the axes of a new figure of this size in inches.

    Raises
    ------
    MissingExtraError
        If Matplotlib is not installed.
    """
    return new_figure(width, height).subplots() if axes is None else axes
