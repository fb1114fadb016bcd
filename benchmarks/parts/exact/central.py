"""`federated_svi` of a model alone beside what one would run on pooled rows, on hospitals, and on
data sets that models made themselves.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from parts.exact import heart, pooled
from parts.exact.models import Case
from parts.exact.pathfinder import pathfinder
from parts.exact.scores import Moments, apart, exact, fitted
from parts.shared.targets import at_least, target

import bayesfed as bf
from bayesfed.federated.clients.turn import one_thread
from bayesfed.inference.evaluation.simulation import Calibration, simulated_calibration
from bayesfed.inspect import table

RECORDS = Path(__file__).parents[2] / "records" / "exact.jsonl"
DRAWS, WARMUP = 4000, 600
# Errors in sds beside NUTS, and the range of ratios of sds.
ERROR, LOW, HIGH = 0.05, 0.95, 1.05
# Columns above which the reference is `pooled.weighed`: of many means of NUTS the worst is far off.
FEW = 10
COLUMNS = ("error", "low", "high", "seconds", "guide_seconds", "nuts_seconds")
# Sites and rows of each, of simulated data sets; and how many of these are a block of records.
SITES, ROWS, BLOCK = 4, 30, 50


def record(name: str) -> dict[str, Any] | None:
    """Return what was recorded last under a name; None if nothing was."""
    lines = RECORDS.read_text().splitlines() if RECORDS.is_file() else []
    found = [one for one in map(json.loads, lines) if one["name"] == name]
    return found[-1] if found else None


def write(name: str, made: dict[str, Any]) -> dict[str, Any]:
    """Put a record in place of that of its name, with the commit that made it."""
    asked = ["git", "rev-parse", "--short", "HEAD"]
    told = subprocess.run(asked, capture_output=True, text=True, check=True)
    made = {"name": name, "commit": told.stdout.strip(), "torch": torch.__version__} | made
    lines = RECORDS.read_text().splitlines() if RECORDS.is_file() else []
    lines = [line for line in lines if json.loads(line)["name"] != name]
    RECORDS.write_text("\n".join([*lines, json.dumps(made)]) + "\n")
    return made


def reference(name: str, case: Case, measure: bool) -> dict[str, Any]:
    """Return NUTS of pooled rows, as recorded or measured now."""
    known = record(f"nuts, {name}")
    if measure or known is None:
        made, _ = pooled.nuts(case, DRAWS, WARMUP)
        known = write(f"nuts, {name}", rounded(made))
    return known


def rounded(made: Any) -> Any:
    """Return numbers with six digits."""
    if isinstance(made, dict):
        return {name: rounded(one) for name, one in made.items()}
    if isinstance(made, (list, tuple)):
        return [rounded(one) for one in made]
    return float(f"{made:.6g}") if isinstance(made, float) else made


def beside_nuts(options: argparse.Namespace) -> Iterator[bool]:
    """Compare with NUTS, Laplace and a guide of full covariance, all on pooled rows; what is
    recorded is not run again.
    """
    lines = list[list[str | float]]()
    for name, case in pooled.cases().items():
        told = record(f"beside, {name}")
        if options.measure or told is None:
            with one_thread():
                told = write(f"beside, {name}", rounded(_beside(name, case, options.measure)))
        numbers = (told[column] for column in COLUMNS)
        lines.append([name, told["status"], *numbers, *told["laplace"], *told["guide"]])
        print(*lines[-1], flush=True)
        off = max(1 - told["low"], told["high"] - 1)
        yield target(f"{name}: error in sds beside NUTS", told["error"], ERROR)
        yield target(f"{name}: sds off", off, HIGH - 1)
    each = ("error", "sd from", "sd to")
    heads = [f"{part}: {column}" for part in ("Laplace", "guide") for column in each]
    print(table(["posterior", "status", *COLUMNS, *heads], lines))


def by_pathfinder(options: argparse.Namespace) -> Iterator[bool]:
    """Measure Pathfinder of blackjax on the same pooled rows, beside the same references."""
    lines = list[list[str | float]]()
    for name, case in pooled.cases().items():
        if options.measure or record(f"pathfinder, {name}") is None:
            with one_thread():
                nuts = reference(name, case, False)
                found, seconds = pathfinder(name, case)
                error, low, high = apart(found, _known(case, nuts)[0])
            told = {"error": error, "low": low, "high": high, "seconds": seconds}
            write(f"pathfinder, {name}", rounded(told | {"blackjax": version("blackjax")}))
        made = record(f"pathfinder, {name}") or {}
        lines.append([name, *(made[column] for column in COLUMNS[:4])])
    print(table(["posterior", *COLUMNS[:4]], lines))
    yield from ()


def _known(case: Case, nuts: dict[str, Any]) -> tuple[Moments, dict[str, Any]]:
    """Return means and sds to compare with, and what is told of them: those of NUTS; where there
    are many values, of weighted draws.
    """
    drawn = {n: tuple(pair) for n, pair in nuts["moments"].items()}
    if case.rows.inputs.shape[1] <= FEW:
        return drawn, {}
    known, share = pooled.weighed(case)
    return known, {"share": share, "nuts": apart(drawn, known)}


def _beside(name: str, case: Case, measure: bool) -> dict[str, Any]:
    nuts = reference(name, case, measure)
    known, more = _known(case, nuts)
    found, told, seconds = pooled.ours(case)
    error, low, high = apart(found, known)
    guided = record(f"guide, {name}")
    if measure or guided is None:
        made, spent = pooled.guide(case)
        guided = {"apart": apart(made, known), "seconds": spent}
        write(f"guide, {name}", rounded(guided))
    return more | {
        "status": told,
        "error": error,
        "low": low,
        "high": high,
        "seconds": seconds,
        "laplace": apart(pooled.laplace(case), known),
        "guide": guided["apart"],
        "guide_seconds": guided["seconds"],
        "nuts_seconds": nuts["seconds"],
    }


def by_hospital(options: argparse.Namespace) -> Iterator[bool]:
    """Compare on heart disease at four hospitals, whose files are in a folder."""
    made = heart.hospitals(options.heart)
    case, known = heart.pooled(made), record("nuts, heart")
    if options.measure or known is None:
        with one_thread():
            found, draws = pooled.nuts(case, DRAWS, WARMUP)
        even = torch.full((DRAWS,), 1 / DRAWS, dtype=torch.float64)
        accuracy, nll = heart.scores(draws, even, made.test)
        known = write("nuts, heart", rounded(found | {"accuracy": accuracy, "nll": nll}))
    posterior = exact(fitted(case.model, case.clients))
    weights = posterior.verdict.weights
    accuracy, nll = heart.scores(posterior.values, weights, made.test)
    values = torch.func.vmap(case.values)(posterior.values)
    ends = torch.tensor([0.05, 0.95], dtype=torch.float64)
    masses = {}
    for name, drawn in values.items():
        low, high = heart.quantiles(drawn, weights, ends)
        percents = known["percentiles"][name]
        below = np.interp([low, high], percents, np.arange(1, 100) / 100)
        masses[name] = float(below[1] - below[0])
    mean = sum(accuracy.values()) / len(accuracy)
    theirs = sum(known["accuracy"].values()) / len(known["accuracy"])
    print(f"status {posterior.status}, k-hat {posterior.k_hat:.2f}, ESS {posterior.ess:.0f}")
    print(f"accuracy {accuracy}, NUTS {theirs:.3f}; NLL {nll:.4f}, NUTS {known['nll']:.4f}")
    heads = ["parameter", "mass of NUTS in its 90 % interval"]
    print(table(heads, [[*one] for one in masses.items()]))
    print(f"from {min(masses.values()):.3f} to {max(masses.values()):.3f}")
    told = {"accuracy": accuracy, "nll": nll, "masses": masses, "status": posterior.status}
    if options.measure or record("heart") is None:
        write("heart", rounded(told))
    held = all(0.85 <= mass <= 0.95 for mass in masses.values())
    yield at_least("heart: accuracy, mean over hospitals", mean, 0.79)
    yield target("heart: NLL above that of NUTS", nll - known["nll"], 0.01)
    yield target(
        "heart: intervals off, under a status that says they are right",
        float(not held and posterior.status in ("exact", "adapted")),
        0,
    )


def calibrated(options: argparse.Namespace) -> Iterator[bool]:
    """Simulation-based calibration of federated regressions, four sites of thirty rows, in blocks:
    what is recorded is not run again, so that a run that is ended goes on.
    """
    columns = torch.randn(SITES * ROWS, 2, generator=bf.Key(0).generator())
    inputs = torch.cat([torch.ones(len(columns), 1), columns, torch.ones(len(columns), 1)], 1)
    families = {
        "logistic": pooled.generalised(3, pooled.bernoulli, 1.0),
        "poisson": pooled.generalised(3, pooled.counts, 0.5),
        "linear": pooled.straight,
    }
    blocks = range(-(-options.simulations // BLOCK))
    for block, (name, model) in itertools.product(blocks, families.items()):
        if options.measure or record(_block(name, block)) is None:
            used, statuses = inputs if name != "linear" else inputs[:, [0, 1, 3]], Counter[str]()
            fit = partial(_fitted, model, statuses)
            with one_thread():
                made = simulated_calibration(model, fit, used, simulations=BLOCK, seed=block)
            ranks = {site: leaf.tolist() for site, leaf in made.ranks.items()}
            told = {"draws": made.draws, "statuses": statuses, "ranks": ranks}
            print(write(_block(name, block), told)["name"], dict(statuses), flush=True)
    for name in families:
        yield from judged(name, [record(_block(name, block)) or {} for block in blocks])


def _block(name: str, block: int) -> str:
    return f"calibration, {name}, {block}"


def judged(name: str, blocks: Sequence[dict[str, Any]]) -> Iterator[bool]:
    """Print whether ranks of all blocks are uniform and intervals cover."""
    ranks = {
        site: torch.cat([torch.tensor(one["ranks"][site]) for one in blocks])
        for site in blocks[0]["ranks"]
    }
    made = Calibration(ranks, blocks[0]["draws"])
    statuses = sum((Counter(one["statuses"]) for one in blocks), Counter[str]())
    print(f"{name}: {dict(statuses)}; coverage of 90 %: {made.coverage(0.9):.3f}")
    outside = sum(not one.inside for one in made.statistics().values())
    count = statuses.total()
    yield target(f"calibration, {name}, {count} data sets: coordinates outside", outside, 0)
    if name != "linear":
        yield target(f"{name}: coverage of 90 % off", abs(made.coverage(0.9) - 0.9), 0.02)


def _fitted(model: Callable[..., Any], statuses: Counter[str], rows: bf.Dataset) -> Any:
    dealt = {f"site-{k}": rows[torch.arange(k, len(rows), SITES)] for k in range(SITES)}
    posterior = exact(fitted(model, dealt))
    statuses[posterior.status] += 1
    return posterior
