"""The reliability diagram shows the bins it is given."""

import numpy as np
import pytest
import torch

from bayesfed.errors import ArgumentError
from bayesfed.inference.evaluation.scoring import calibration_bins
from bayesfed.inspect import plot_outside, plot_reliability, plot_risk_coverage, plot_severity, save
from bayesfed.keys import Key


def some_bins(power=1.0):
    generator = Key(0, "reliability").generator()
    probabilities = torch.softmax(2 * torch.randn(2000, 10, generator=generator), 1)
    targets = torch.multinomial(probabilities, 1, generator=generator)[:, 0]
    return calibration_bins(torch.softmax(power * probabilities.log(), 1), targets)


def drawn_lines(axes):
    return [container.lines[0] for container in axes.containers]


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_it_shows_accuracy_against_confidence_and_the_rows(tmp_path):
    bins = some_bins()
    axes = plot_reliability(bins)
    assert axes.get_xlabel().startswith("confidence")
    assert axes.get_ylabel() == "accuracy"
    assert legend(axes) == ["calibrated", f"ECE {float(bins.error):.3f}"]
    diagonal, (line,) = axes.lines[0], drawn_lines(axes)
    assert list(diagonal.get_xdata()) == list(diagonal.get_ydata()) == [0, 1]
    filled = bins.count > 0
    assert not filled[-1]
    assert np.allclose(line.get_xdata(), bins.confidence[filled])
    assert np.allclose(line.get_ydata(), bins.accuracy[filled])
    (rows,) = axes.child_axes
    assert rows.get_ylabel() == "rows"
    values, edges, _ = rows.patches[0].get_data()
    assert np.array_equal(values, bins.count[:-1])
    assert np.allclose(edges, bins.edges)
    save(axes, tmp_path / "one.png")
    assert (tmp_path / "one.png").stat().st_size > 10_000


def test_bars_are_intervals_of_the_accuracy_inside_0_and_1():
    targets = torch.tensor([0] * 30 + [1] * 10)
    bins = calibration_bins(torch.tensor([[0.7, 0.3]]).repeat(40, 1), targets)
    (segment,) = plot_reliability(bins).containers[0].lines[2][0].get_segments()
    # Agresti and Coull: 32 right of 44.
    assert segment[:, 1].tolist() == pytest.approx(
        [32 / 44 + sign * 2 * (32 * 12 / 44**3) ** 0.5 for sign in (-1, 1)]
    )
    all_right = calibration_bins(
        torch.tensor([[0.7, 0.3]]).repeat(5, 1), torch.zeros(5, dtype=torch.long)
    )
    (segment,) = plot_reliability(all_right).containers[0].lines[2][0].get_segments()
    assert 0 < segment[0, 1] < 1 == segment[1, 1]


def test_several_methods_by_name_on_given_axes(tmp_path):
    from matplotlib.figure import Figure

    bins = {"as drawn": some_bins(), "too sure": some_bins(3.0), "not sure": some_bins(0.5)}
    given = Figure().subplots()
    axes = plot_reliability(bins, axes=given)
    assert axes is given
    assert legend(axes) == ["calibrated"] + [
        f"{name}: ECE {float(found.error):.3f}" for name, found in bins.items()
    ]
    colours = [line.get_color() for line in drawn_lines(axes)]
    assert len(set(colours)) == 3
    assert len(axes.child_axes[0].patches) == 3
    gap = [
        float(np.mean(np.subtract(line.get_ydata(), line.get_xdata())))
        for line in drawn_lines(axes)
    ]
    assert gap[1] < -0.05 < gap[0] < 0.05 < gap[2]
    save(axes, tmp_path / "three.png")


def test_confidences_of_exactly_1_are_drawn_in_the_last_bin():
    probabilities = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.96, 0.04], [0.6, 0.4]])
    bins = calibration_bins(probabilities, torch.tensor([0, 1, 0, 0]), 10)
    axes = plot_reliability(bins)
    (line,) = drawn_lines(axes)
    assert np.allclose(line.get_xdata(), [0.6, 2.96 / 3])
    assert np.allclose(line.get_ydata(), [1, 2 / 3])
    assert axes.child_axes[0].patches[0].get_data().values[-1] == 3


def test_nothing_to_draw_is_refused():
    with pytest.raises(
        ArgumentError, match="plot_reliability: expected at least one method's bins, found none"
    ):
        plot_reliability({})


def test_pictures_of_uncertainty_show_what_they_are_given():
    """Curves end at the error rate, areas are those of `detection`, and severity 0 is that of clean
    rows.
    """

    uncertainty, wrong = torch.linspace(0, 1, 50), torch.arange(50) >= 40
    curve = plot_risk_coverage({"entropy": (uncertainty, wrong)}).lines[0]
    assert curve.get_ydata()[-1] == pytest.approx(0.2)
    axes = plot_outside(uncertainty, {"noise": uncertainty + 2})
    assert "noise: AUROC 1.00" in [text.get_text() for text in axes.get_legend().get_texts()]
    line = plot_severity({"FedAvg": [0.6, 0.9]}, clean={"FedAvg": 0.5}).lines[0]
    assert [list(line.get_xdata()), list(line.get_ydata())] == [[0, 1, 2], [0.5, 0.6, 0.9]]
    for call in (
        lambda: plot_risk_coverage({}),
        lambda: plot_outside(uncertainty, {}),
        lambda: plot_severity({}),
    ):
        with pytest.raises(ArgumentError, match="plot_"):
            call()
