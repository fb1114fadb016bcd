"""Learning curves as the geometry of an SVG: paths, bands, ticks, and what the pointer shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bayesfed.inspect.learning_curves import (
    AGAINST,
    LABELS,
    LOGARITHMIC,
    Curve,
    Runs,
    columns,
    curves,
)

WIDTH, HEIGHT = 380, 240
LEFT, RIGHT, TOP, BOTTOM = 48, 10, 10, 36
# A longer line is thinned.
POINTS = 400
# Largest over smallest NLL from which the axis is logarithmic: one diverged run would hide the
# others.
SPREAD = 30

Tick = tuple[float, str]
Axis = tuple[Callable[[float], float], list[Tick]]
Hovered = tuple[float, float, str, str]
"""Place across and down, and the texts of x and y."""


@dataclass(frozen=True)
class Line:
    """One experiment's curve."""

    name: str
    number: int
    path: str
    band: str
    points: Sequence[Hovered]


@dataclass(frozen=True)
class Chart:
    """One metric against one cost."""

    metric: str
    against: str
    lines: Sequence[Line]
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]

    @property
    def pointed(self) -> dict[str, Any]:
        """What the script needs to show the values under the pointer."""
        lines = [
            {"name": line.name, "hue": line.number % 8, "points": line.points}
            for line in self.lines
        ]
        return {
            "width": WIDTH,
            "top": TOP,
            "bottom": HEIGHT - BOTTOM,
            "against": self.against,
            "lines": lines,
        }


def charts(runs: Runs) -> list[list[Chart]]:
    """Return a row of charts for every metric that was measured: against rounds, megabytes, joules
    and seconds, as far as there are any.

    Seconds are the devices' where all experiments have devices.
    """
    panels = curves(runs)
    across = columns(panels, runs)
    numbers = {name: number for number, name in enumerate(runs)}
    rows = []
    for metric in LABELS:
        if whole := panels[metric]["round"]:
            down = _values_axis(metric, list(whole.values()))
            rows.append(
                [
                    _chart(metric, against, panels[metric][against], down, numbers)
                    for against in across
                    if panels[metric][against]
                ]
            )
    return rows


def _chart(
    metric: str, against: str, curves: dict[str, Curve], down: Axis, numbers: dict[str, int]
) -> Chart:
    across, x_ticks = _axis(
        [one.x for one in curves.values()], against in LOGARITHMIC, LEFT, WIDTH - RIGHT
    )
    if against == "round":
        x_ticks = [tick for tick in x_ticks if tick[1].isdecimal()]
    lines = [_line(name, numbers[name], one, across, down[0]) for name, one in curves.items()]
    return Chart(LABELS[metric], AGAINST[against], lines, x_ticks, down[1])


def _values_axis(metric: str, curves: Sequence[Curve]) -> Axis:
    """Return the axis of a metric's values, which all its charts share."""
    means = _finite([one.mean for one in curves])
    spread = (
        metric == "nll"
        and bool(len(means))
        and means.min() > 0
        and means.max() / means.min() > SPREAD
    )
    edges = [edge for one in curves for edge in (one.mean - one.sd, one.mean + one.sd)]
    return _axis([one.mean for one in curves] if spread else edges, spread, HEIGHT - BOTTOM, TOP)


def _line(
    name: str,
    number: int,
    one: Curve,
    across: Callable[[float], float],
    down: Callable[[float], float],
) -> Line:
    kept = np.unique(np.linspace(0, len(one.x) - 1, min(len(one.x), POINTS)).round().astype(int))
    points = [(float(one.x[i]), float(one.mean[i]), float(one.sd[i])) for i in kept]
    path, above, below, hovered = "", [], [], []
    joined = False
    for x, mean, sd in points:
        if not math.isfinite(mean):
            joined = False
            continue
        path += f"{'L' if joined else 'M'}{across(x):.1f} {down(mean):.1f}"
        joined = True
        if one.seeds > 1 and math.isfinite(sd):
            above.append(f"{across(x):.1f} {down(mean + sd):.1f}")
            below.append(f"{across(x):.1f} {down(mean - sd):.1f}")
        text = f"{mean:.4g} ± {sd:.2g}" if one.seeds > 1 else f"{mean:.4g}"
        hovered.append((round(across(x), 1), round(down(mean), 1), f"{x:.4g}", text))
    band = f"M{'L'.join([*above, *reversed(below)])}Z" if len(above) > 1 else ""
    return Line(name, number, path, band, hovered)


def _axis(
    values: Iterable[Sequence[float] | np.ndarray], logarithmic: bool, start: float, end: float
) -> Axis:
    """Return the function from a value to its place between `start` and `end`, and the ticks."""
    known = _finite(values)
    if logarithmic:
        known = known[known > 0]
    low, high = (float(known.min()), float(known.max())) if len(known) else (1.0, 1.0)
    if logarithmic:
        low, high = (low / 1.1, high * 1.1)
    else:
        margin = 0.04 * (high - low) or 0.5 * abs(high) or 0.5
        low, high = low - margin, high + margin
    scaled: Callable[[float], float] = math.log if logarithmic else float

    def place(value: float) -> float:
        # What is outside of a logarithmic axis, such as the lower edge of a wide band, is drawn at
        # its end.
        share = (scaled(max(value, low) if logarithmic else value) - scaled(low)) / (
            scaled(high) - scaled(low)
        )
        return start + share * (end - start)

    return place, [
        (round(place(tick), 1), f"{tick:g}")
        for tick in (_log_ticks if logarithmic else _ticks)(low, high)
    ]


def _finite(values: Iterable[Sequence[float] | np.ndarray]) -> np.ndarray:
    joined = np.concatenate([np.asarray(part, dtype=float) for part in values])
    finite: np.ndarray = joined[np.isfinite(joined)]
    return finite


def _ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers of a range."""
    rough = (high - low) / 6
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
    return [
        float(f"{number * step:.12g}")
        for number in range(math.ceil(low / step), math.floor(high / step) + 1)
    ]


def _log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten of a range, with their doubles and fives if there is room."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1,)):
        ticks = [float(f"{factor * 10.0**power:.12g}") for power in powers for factor in factors]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= 7:
            break
    return ticks if len(ticks) > 1 else _ticks(low, high)
