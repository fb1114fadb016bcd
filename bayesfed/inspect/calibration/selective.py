"""Risk-coverage curves: how many errors are left if only the most certain rows are answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.inference.evaluation.detection import risk_coverage
from bayesfed.inspect.figures import given_or_new

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_risk_coverage(
    methods: Mapping[str, tuple[Tensor, Tensor]],
    *,
    risk: float | None = 0.05,
    axes: Axes | None = None,
) -> Axes:
    """Plot the share of errors among the rows answered against the share of rows answered, one line
    for each method.

    Parameters
    ----------
    methods
        By name: uncertainties ``(B,)``, and whether each row is wrong ``(B,)``.
    risk
        A risk to mark by a line, or None.
    axes
        Axes to draw on. Default: those of a new figure.

    Raises
    ------
    ArgumentError
        If there are no methods.
    DataError
        If uncertainties and errors differ in shape.
    MissingExtraError
        If Matplotlib is not installed.
    """
    if not methods:
        raise ArgumentError(
            "plot_risk_coverage", "at least one method", "none", "{'entropy': (entropy, wrong)}"
        )
    axes = given_or_new(axes, width=5.6, height=4.2)
    for name, (uncertainty, wrong) in methods.items():
        coverage, risks = risk_coverage(uncertainty, wrong)
        axes.plot(
            coverage.cpu().numpy(),
            risks.cpu().numpy(),
            label=f"{name}: area {float(risks.mean()):.3f}",
            linewidth=1.5,
        )
    if risk is not None:
        axes.axhline(risk, color="0.5", linewidth=1, linestyle="--")
    axes.set(
        xlabel="coverage: share of rows answered",
        ylabel="risk: share of errors among them",
        xlim=(0, 1),
        ylim=(0, None),
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return axes
