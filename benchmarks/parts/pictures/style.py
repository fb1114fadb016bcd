"""What all pictures share: colours for light and dark pages, lines that are named at their ends,
SVG files that do not change by themselves.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

PICTURES = Path(__file__).parents[3] / "docs" / "pictures"
BLUE, ORANGE, GREEN, RED, GREY = "#3b82c4", "#d97a1f", "#2f9e6e", "#cf5252", "#868e96"
# Text stays text: the site gives black the colour of the page.
FIXED: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "bayesfed",
    "font.family": "sans-serif",
    "font.size": 9.5,
    "legend.frameon": False,
}
LIGHT, DARK = "#000000", "#e6edf3"


def save(draw: Callable[[], Figure], name: str, *, twin: bool = False) -> list[Path]:
    """Write a picture to `docs/pictures`, with a twin in the colours of a dark page where it stands
    outside of the site.
    """
    return [
        _written(draw, PICTURES / f"{name}.svg", LIGHT),
        *([_written(draw, PICTURES / f"{name}-dark.svg", DARK)] if twin else []),
    ]


def _written(draw: Callable[[], Figure], path: Path, ink: str) -> Path:
    inked: dict[Any, Any] = dict.fromkeys(
        (
            "text.color",
            "axes.labelcolor",
            "axes.edgecolor",
            "axes.titlecolor",
            "xtick.color",
            "ytick.color",
        ),
        ink,
    )
    with mpl.rc_context({**FIXED, **inked, "axes.facecolor": "none", "figure.facecolor": "none"}):
        stream = io.StringIO()
        draw().savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(re.sub(r"(?m)[ \t]+$", "", stream.getvalue()))
    return path


def figure(width: float, height: float) -> Figure:
    """Return an empty figure."""
    return Figure(figsize=(width, height), layout="constrained")


def tidy(axes: Axes) -> Axes:
    """Take the upper and the right edge away and draw a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, color=GREY)
    axes.set_axisbelow(True)
    return axes


def line(
    axes: Axes,
    points: Sequence[tuple[float, float]],
    name: str,
    colour: str,
    at: tuple[float, float],
    *,
    bold: bool = False,
    dashed: bool = False,
) -> None:
    """Draw a line in its colour, with its name beside the place `at`."""
    x, y = zip(*points, strict=True)
    axes.plot(x, y, color=colour, linewidth=2.4 if bold else 1.5, linestyle="--" if dashed else "-")
    axes.text(
        *at, name, color=colour, fontweight="bold" if bold else "normal", fontsize=9, va="center"
    )
