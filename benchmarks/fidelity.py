"""How near federated posteriors come to an answer that is known: exact, by quadrature or sampled;
every rule, every partition.

    python benchmarks/fidelity.py [--check] [--out FOLDER]
    # posteriors by NUTS: `parts/fidelity/reference.py`
    python benchmarks/fidelity.py --reference [FILE] [--draws 5500]

Problems are those of `parts/fidelity/problems.py`. The columns of the first table: `kl` is KL(q ||
exact) in nats, `kl mf` is KL(q || mean-field optimum), `w2` the squared 2-Wasserstein distance to
the exact posterior, `sd` the mean ratio of q's sds to the exact ones. Mean-field rules are held to
the mean-field optimum, which is itself 1.6 nats away and a third too narrow. Rules that are known
to be off are kept, and labelled. Every fit goes through the engine; fits run side by side in two
processes. `--check` has fewer of them and fewer steps. Targets:

F1 linear regression in one round; F2 PVI and summed gradients at the optimum of a diagonal guide;
F3 any number of clients; F4 clients with one row and with none; F5 the table; F6 conjugate
families; F7 logistic regression and F8 eight schools beside NUTS; F9 simulation-based calibration;
F10 calibration on digits; F11 KL against bits; F12 planted supports beside enumeration; F14
quadratics in one round.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from parts.fidelity import reference
from parts.fidelity.closed import (
    COUNTS,
    SAME_ROWS,
    closed_form,
    edges,
    experts,
    families,
    invariance,
    linear_in_one_round,
    moved,
    partitioned,
    quadratics,
)
from parts.fidelity.codecs import codecs
from parts.fidelity.digits import ALPHAS, CENTRAL, digits, fitted
from parts.fidelity.fits import ACCURATE, RULES, Job, side_by_side, solve
from parts.fidelity.problems import (
    FEATURES,
    LINEAR_SPLITS,
    LOGISTIC_SPLITS,
    Gaussian,
    kl,
    linear,
    linear_exact,
    mean_field,
    odd,
    pooled,
    sd_ratio,
    wasserstein,
)
from parts.fidelity.sbc import calibration
from parts.fidelity.supports import supports
from parts.shared.targets import between, target, tiny

from bayesfed.inspect.pictures import save
from bayesfed.inspect.tables import table

REFERENCE = Path(reference.__file__).with_suffix(".json")
Answers = Mapping[str, tuple[Gaussian, dict[str, tuple[Gaussian, str]]]]


def references() -> dict[str, Any]:
    """Return the sampled answers."""
    found: dict[str, Any] = json.loads(REFERENCE.read_text())
    return found


def sampled(
    name: str, found: Gaussian, mean: Sequence[float], sd: Sequence[float], at_most: float
) -> bool:
    """F7 and F8: the largest distance of a mean, in the reference's sds."""
    return target(
        name,
        float(((found.mean - torch.tensor(mean).double()) / torch.tensor(sd).double()).abs().max()),
        at_most,
    )


def by_split(
    split: str, found: Mapping[str, Gaussian]
) -> tuple[Gaussian, dict[str, tuple[Gaussian, str]]]:
    """Return a partition's exact posterior, and every rule's with its label."""
    clients = linear(0, 5, split)
    exact = linear_exact(pooled(clients))
    closed = {
        "conjugate": (closed_form(clients), ACCURATE),
        "experts, full covariance": (experts(clients), ACCURATE),
        "mean field, centralised": (mean_field(exact), "the optimum of the family"),
    }
    return exact, closed | {rule: (q, RULES[rule]) for rule, q in found.items()}


def draw(answers: Answers, path: Path) -> None:
    """Draw mean and 95 % interval of every coordinate by every rule, in sds of the exact
    posterior.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure, colours = (
        Figure(figsize=(4.2 * len(answers), 13), layout="constrained"),
        colormaps["tab20"],
    )
    panels = figure.subplots(1, len(answers), sharey=True, squeeze=False)[0]
    for axes, (split, (exact, rules)) in zip(panels, answers.items(), strict=True):
        shown = {"exact": (exact, "")} | rules
        for number, (rule, (q, label)) in enumerate(shown.items()):
            heights = np.arange(FEATURES) + 0.8 * number / len(shown)
            centre, half = (
                ((q.mean - exact.mean) / exact.sd).numpy(),
                1.96 * (q.sd / exact.sd).numpy(),
            )
            colour = "black" if rule == "exact" else colours(2 * (number - 1) % 20 + (number > 10))
            axes.hlines(
                heights,
                centre - half,
                centre + half,
                color=colour,
                linewidth=1.6,
                linestyle=":" if label.startswith("bad") else "-",
            )
            axes.plot(
                centre,
                heights,
                ".",
                color=colour,
                markersize=6,
                label=f"{rule} ({label})" if label.startswith("bad") else rule,
            )
        axes.axvspan(-1.96, 1.96, color="0.93", zorder=0)
        axes.axvline(0, color="0.5", linewidth=0.7)
        axes.set(title=split, xlabel="distance to the exact mean, in exact sds", xlim=(-9, 9))
    panels[0].set_yticks(np.arange(FEATURES) + 0.36, [f"w[{i}]" for i in range(FEATURES)])
    panels[0].invert_yaxis()
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9
    )
    save(panels[0], path)


def show(answers: Answers, folder: Path) -> None:
    """F5: print the table of all rules and draw the forest."""
    rows: list[list[str | float | int]] = [
        [
            split,
            rule,
            kl(q, exact),
            kl(q, mean_field(exact)),
            wasserstein(q, exact),
            sd_ratio(q, exact),
            label,
        ]
        for split, (exact, rules) in answers.items()
        for rule, (q, label) in rules.items()
    ]
    print(table(["partition", "rule", "kl", "kl mf", "w2", "sd", "what it is"], rows))
    draw(answers, folder / "fidelity_forest.png")


def at_the_optimum(answers: Answers) -> bool:
    """F2: rules that should find the mean-field optimum."""
    met = []
    for split, (exact, rules) in answers.items():
        for rule in ("PVI", "summed gradients"):
            q, best = rules[rule][0], mean_field(exact)
            met.append(
                target(
                    f"F2 {rule}, {split}, KL to the optimum a dimension",
                    kl(q, best) / FEATURES,
                    0.02,
                )
            )
            met.append(
                between(
                    f"F2 {rule}, {split}, sd ratio to the optimum", sd_ratio(q, best), 0.97, 1.03
                )
            )
    return all(met)


def odd_clients(one: Gaussian, none: Gaussian) -> bool:
    """F4 through SVI."""
    best = mean_field(linear_exact(pooled(odd("one row"))))
    return min(
        [
            target(
                "F4 PVI, one row, KL to the optimum a dimension", kl(one, best) / FEATURES, 0.02
            ),
            tiny("F4 PVI, a client without rows, change in sds", max(moved(none, one)), 1e-6),
        ]
    )


def beside_nuts(logistic: Mapping[str, Gaussian], schools: Gaussian) -> bool:
    """F7 and F8."""
    sampler = references()
    w, sites = sampler["logistic"]["w"], [sampler["schools"][site] for site in ("mu", "log_tau")]
    met = [
        sampled(
            f"F7 logistic, {split}, PVI with full covariance, mean in sds",
            q,
            w["mean"],
            w["sd"],
            0.1 if split == "iid" else 0.2,
        )
        for split, q in logistic.items()
    ]
    return min(
        [
            *met,
            sampled(
                "F8 eight schools, mean in sds",
                schools,
                [s["mean"] for s in sites],
                [s["sd"] for s in sites],
                0.1,
            ),
        ]
    )


def main() -> int:
    """Fit everything, print tables and targets, draw; return the exit status."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument(
        "--check", action="store_true", help="fewer fits; exit 1 if a target is missed"
    )
    arguments.add_argument(
        "--out", type=Path, default=Path("results/fidelity"), help="folder of the picture"
    )
    arguments.add_argument(
        "--reference",
        nargs="?",
        type=Path,
        const=REFERENCE,
        metavar="FILE",
        help="in place of all: sample the references anew",
    )
    arguments.add_argument(
        "--draws", type=int, default=5500, help="references: of each chain, after 500 to warm up"
    )
    options = arguments.parse_args()
    if options.reference:
        return reference.written(options.reference, options.draws)
    start = time.perf_counter()
    counts = (1, 5) if options.check else (1, 2, 5, 10)
    logistic_splits = ("iid", "sorted") if options.check else LOGISTIC_SPLITS
    rules = {
        (split, rule): Job("linear", split, 5, rule) for split in LINEAR_SPLITS for rule in RULES
    }
    by_count = [Job("linear", "iid", count, "PVI", 1 if options.check else 4) for count in counts]
    by_oddity = [Job("odd", split, 0, "PVI") for split in ("one row", "empty")]
    by_labels = {
        split: Job("logistic", split, 10, "PVI, full covariance") for split in logistic_splits
    }
    school = Job("schools", "", 4, "PVI")
    found = side_by_side(
        solve,
        list(dict.fromkeys([*by_count, *by_labels.values(), *rules.values(), *by_oddity, school])),
        "posteriors",
    )
    alphas = ALPHAS[-1:] if options.check else ALPHAS
    scores = side_by_side(fitted, [*alphas, CENTRAL], "digits")
    answers = {
        split: by_split(split, {rule: found[rules[split, rule]] for rule in RULES})
        for split in LINEAR_SPLITS
    }
    show(answers, options.out)
    met = [
        linear_in_one_round(),
        at_the_optimum(answers),
        invariance(
            "PVI, exact client steps",
            [partitioned(linear(0, n, split)) for split in SAME_ROWS for n in COUNTS[:4]],
            tiny,
        ),
        invariance("PVI, sampled gradients", [found[job] for job in by_count], means=0.2, sds=0.1),
        invariance(
            "product of experts, full covariance",
            [experts(linear(0, n, split)) for split in SAME_ROWS for n in COUNTS[:4]],
            tiny,
        ),
        edges(),
        odd_clients(*(found[job] for job in by_oddity)),
        families(),
        beside_nuts({split: found[job] for split, job in by_labels.items()}, found[school]),
        calibration(),
        digits(scores, alphas),
        codecs(),
        supports(),
        quadratics(),
    ]
    print(f"{time.perf_counter() - start:.0f} s; fidelity_forest.png in {options.out}/")
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
