"""Several folders of results in one table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from scipy.stats import t

from bayesfed.inspect import table
from bayesfed.inspect.tables import csv_of, latex, markdown
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


PAIRS = "difference from the first, over the same seeds: mean, 95 % interval (Student's t)"
# Columns of which experiments with the same seeds are compared seed by seed.
PAIRED = (
    *("accuracy", "rmse", "nll", "ece", "brier", "own_accuracy"),
    *("bits_down", "bits_up", "energy_j"),
)


@dataclass(frozen=True)
class Comparison:
    """Folders of results by name: a line for each, mean and standard deviation over its seeds;
    and how each differs from the first, over the seeds that both have.
    """

    named: Mapping[str, Folder]

    def __str__(self) -> str:
        pairs = [f"\n{PAIRS}", table(*self.differences)] if self.differences[1] else []
        return "\n".join([table(*self.cells), LEGEND, *pairs])

    def written(self) -> dict[str, str]:
        """Return the tables by the ending of their file: text, CSV, Markdown and LaTeX."""
        tables = [self.cells, *([self.differences] if self.differences[1] else [])]
        return {
            "txt": f"{self}\n",
            "csv": csv_of(*self._numbers),
            "md": "\n".join(markdown(*one) for one in tables),
            "tex": "\n".join(latex(*one) for one in tables),
        }

    @cached_property
    def figures(self) -> dict[str, dict[int, dict[str, float]]]:
        """The last figures of each folder by seed."""
        return {
            name: {seed: folder.metrics(seed) for seed in folder.finished}
            for name, folder in self.named.items()
        }

    @cached_property
    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Headings and rows of the table."""
        lists = {name: list(by.values()) for name, by in self.figures.items()}
        headings, rows = filled(COLUMNS, lists, _cell)
        return ["experiment", "seeds", "rounds", *headings], [
            [name, str(len(several)), str(int(several[0]["rounds"])), *row]
            for (name, several), row in zip(lists.items(), rows, strict=True)
        ]

    @cached_property
    def differences(self) -> tuple[list[str], list[list[str]]]:
        """Headings and rows of the differences from the first experiment; no rows if no other has
        two seeds in common with it.
        """
        first, *others = self.figures
        base, lists, shared = self.figures[first], {}, {}
        for name in others:
            seeds = [seed for seed in base if seed in self.figures[name]]
            if len(seeds) > 1:
                lists[name] = [_less(self.figures[name][seed], base[seed]) for seed in seeds]
                shared[name] = str(len(seeds))
        columns = [column for column in COLUMNS if column[1] in PAIRED]
        headings, rows = filled(columns, lists, _interval)
        lines = zip(shared.items(), rows, strict=True)
        return [f"less {first}", "seeds", *headings], [[*pair, *row] for pair, row in lines]

    @property
    def _numbers(self) -> tuple[list[str], list[list[object]]]:
        """Every figure of every seed, in its own unit."""
        names = [key for _, key, _, _ in COLUMNS]
        lines = [(n, seed, one) for n, by in self.figures.items() for seed, one in by.items()]
        known = [key for key in names if any(key in one for *_, one in lines)]
        rows: list[list[object]] = [
            [name, seed, one["rounds"], *map(one.get, known)] for name, seed, one in lines
        ]
        return ["experiment", "seed", "rounds", *known], rows


def comparison(named: Mapping[str, Folder]) -> str:
    """Return the aligned table of `Comparison`."""
    return str(Comparison(named))


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


def _less(one: Mapping[str, float], base: Mapping[str, float]) -> dict[str, float]:
    return {key: one[key] - base[key] for key in PAIRED if key in one and key in base}


def _interval(values: Sequence[float], digits: int) -> str:
    mean, count = statistics.fmean(values), len(values)
    if count < 2:
        return "-"
    half = t.ppf(0.975, count - 1) * statistics.stdev(values) / count**0.5
    return f"{mean:+,.{digits}f} ({mean - half:+,.{digits}f} to {mean + half:+,.{digits}f})"
