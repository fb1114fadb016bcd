"""Several folders of results in one table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from bayesfed.inspect import table
from bayesfed.running.folders import Folder

# Uncertainties that tell rows of no class.
KINDS = ("max_logit", "entropy", "max_probability", "mutual_information")
# Heading, key of metrics.json, factor, digits after the point.
Column = tuple[str, str, float, int]
COLUMNS: tuple[Column, ...] = (
    ("accuracy %", "accuracy", 100.0, 2),
    ("RMSE", "rmse", 1.0, 4),
    ("NLL", "nll", 1.0, 3),
    ("ECE", "ece", 1.0, 3),
    ("adaptive ECE", "adaptive_ece", 1.0, 3),
    ("Brier", "brier", 1.0, 3),
    ("AURC e-3", "aurc", 1e3, 0),
    ("answered at 5 %", "coverage_at_risk", 1.0, 2),
    *(
        (f"{score.upper()} {kind.replace('_', ' ')}", f"{score}_{kind}", 1.0, 2)
        for kind in KINDS
        for score in ("auroc", "fpr95")
    ),
    ("90 % sets cover %", "conformal_coverage", 100.0, 1),
    ("classes a set", "conformal_size", 1.0, 2),
    ("own %", "own_accuracy", 100.0, 2),
    ("worst own %", "worst_accuracy", 100.0, 2),
    ("own NLL", "own_nll", 1.0, 3),
    ("settled", "settled", 1.0, 1),
    ("never heard %", "unheard", 100.0, 1),
    ("density", "density", 1.0, 3),
    ("density asked", "density_asked", 1.0, 3),
    ("k-hat", "k_hat", 1.0, 2),
    ("log evidence", "log_evidence", 1.0, 2),
    ("epsilon", "epsilon", 1.0, 2),
    ("MB down", "bits_down", 1 / 8e6, 3),
    ("MB up", "bits_up", 1 / 8e6, 3),
    ("channel uses", "channel_uses", 1.0, 0),
    ("joules", "energy_j", 1.0, 1),
    ("device s", "latency_s", 1.0, 1),
    ("clock s", "seconds", 1.0, 1),
)
LEGEND = (
    "accuracy: of the transmitted model; NLL (nats a row), ECE: of the posterior "
    "predictive where there is a posterior; "
    "own: of each client's model on its held-out rows, mean and worst tenth; all at the last round"
)


def comparison(named: Mapping[str, Folder]) -> str:
    """Return the aligned table: a line for each experiment, mean and standard deviation over its
    seeds.
    """
    return table(*cells(named)) + f"\n{LEGEND}"


def cells(named: Mapping[str, Folder]) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of the table of `comparison`."""
    figures = {
        name: [folder.metrics(seed) for seed in folder.finished] for name, folder in named.items()
    }
    headings, rows = filled(COLUMNS, figures, _cell)
    return ["experiment", "seeds", "rounds", *headings], [
        [name, str(len(several)), str(int(several[0]["rounds"])), *row]
        for (name, several), row in zip(figures.items(), rows, strict=True)
    ]


def filled(
    columns: Sequence[Column],
    figures: Mapping[str, Sequence[Mapping[str, float]]],
    cell: Callable[[Sequence[float], int], str],
    always: Sequence[str] = (),
) -> tuple[list[str], list[list[str]]]:
    """Return headings and cells of a table of figures by name and seed, without the columns in
    which there is nothing, but for those that are always there.
    """
    shown = [
        column
        for column in columns
        if column[1] in always
        or any(one.get(column[1]) for several in figures.values() for one in several)
    ]
    rows = [
        [
            cell(known, digits)
            if (known := [one[key] * by for one in several if key in one])
            else "-"
            for _, key, by, digits in shown
        ]
        for several in figures.values()
    ]
    return [heading for heading, *_ in shown], rows


def _cell(values: Sequence[float], digits: int) -> str:
    mean = f"{statistics.fmean(values):,.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):,.{digits}f}" if len(values) > 1 else mean
