"""Accuracy against bits: D-Turbo-VBI's Fig. 3 and Table I, with every bit counted as bytes that
were sent.

    python benchmarks/accuracy_vs_bits.py [--check]
    python benchmarks/accuracy_vs_bits.py --task alexnet
    # other clients, work and widths, on which nothing was chosen
    python benchmarks/accuracy_vs_bits.py --task elsewhere
    # AlexNet; cifar100: MobileNetV1; from your own files
    python benchmarks/accuracy_vs_bits.py --task cifar10 --data FOLDER

Settings of every task and method are in `parts/accuracy_vs_bits/settings.toml`. Messages of both
directions are counted, headers included. 16-bit values for all, as in the paper: models go down and
changes come up as 16-bit numbers (FedPAQ: 16-bit stochastic levels), D-Turbo-VBI's active means
both ways, all of them with the same lossless code behind. "D-Turbo-VBI" without the note sends its
means on a grid set by their posterior sd, which the paper does not do. QSGD, STC and UVeQFed have
their own few bits. "independent supports" is D-Turbo-VBI with a prior without neighbours at about
equal density; "sparse" has a prior that leaves 3 % of the weights. "changes" sends ternary changes
of the active means both ways, from a sparse start that clients draw from a key; "random support" is
the control: the same messages, with the first support kept, at the share of weights that the
learned one ends with.

Accuracy is that of the transmitted model on the test set, and "accuracy within a budget" the best
that was reached with so many bits. Each finished run is kept under --out and not made again; delete
its file to repeat it. --check: the MLP on Fashion-MNIST, one seed, changes with learned and with
random supports, beside what STC and FedPAQ needed when they were last run. --held-out scores on
6,000 rows of the training set, which are then not trained on: settings of the changes were chosen
with it, never on the test rows.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from parts.shared.curves import Curve, above, reached, within
from parts.shared.settings import settings_of
from parts.shared.targets import at_least, interleaved, ratio, target
from safetensors.torch import load_file

import bayesfed as bf
from bayesfed.algorithms.d_turbo_vbi import Changes, ToDensity, ramp
from bayesfed.compress.lossless.ranges import Range
from bayesfed.compress.quantisers.floats import Float
from bayesfed.federated import Algorithm, Model, Sampler, cosine, everyone
from bayesfed.inspect import plot_against_bits, save, table
from bayesfed.models import Support, compact

# Half-precision floats; their exponents are entropy-coded, for every method alike.
SIXTEEN = bf.compress.Coded(Float(16, entropy=Range()))
PEERS, OURS = ("FedPAQ", "DSSM"), ("D-Turbo-VBI", "D-Turbo-VBI, 16 bits")
CHANGES, CONTROL = "D-Turbo-VBI, changes", "random support"
CHANNELS = "D-Turbo-VBI, channels"
# Accuracies, and the share of STC's bytes with which changes are to reach them.
SHARES = {0.84: 0.15, 0.86: 0.20, 0.87: 0.40}
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Finished:
    """One run: (megabytes up, megabytes down, accuracy, density) after each round, its model, and
    scores of its posterior if it has one.
    """

    method: str
    seed: int
    rounds: list[list[float]]
    model: Path
    nll: dict[str, float]
    curve: Curve = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "curve", [(up + down, accuracy) for up, down, accuracy, _ in self.rounds]
        )


def main() -> int:
    """Run, print, draw; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="the smallest honest setting; exit 1 if a target is missed",
    )
    parser.add_argument(
        "--task", choices=("mlp", "elsewhere", "alexnet", "cifar10", "cifar100"), default="mlp"
    )
    parser.add_argument(
        "--data", default="/usr/share/datasets/fashion-mnist", help="folder of the data set's files"
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", help="default: 0 1 2, or as in the settings"
    )
    parser.add_argument(
        "--held-out",
        action="store_true",
        help="score on rows of the training set, which are not trained on",
    )
    parser.add_argument("--rounds", type=int, help="default: as in the settings")
    parser.add_argument("--methods", nargs="+", help="default: all of the settings")
    parser.add_argument(
        "--workers",
        type=int,
        default=2,
        help="worker processes; 0 runs serially, with the same bits",
    )
    parser.add_argument("--out", type=Path, default=Path("results/accuracy_vs_bits"))
    options = parser.parse_args()
    task: Settings = settings_of("accuracy_vs_bits")[options.task]
    rounds, seeds = options.rounds or task["rounds"], options.seeds or task.get("seeds", [0, 1, 2])
    methods = options.methods or ([CHANGES, CONTROL] if options.check else list(task["methods"]))
    out, seeds = (
        options.out / f"{options.task}_{rounds}{'_held_out' * options.held_out}",
        seeds[:1] if options.check else seeds,
    )
    torch.set_num_threads(1)
    train, test = {"cifar10": bf.data.cifar10, "cifar100": bf.data.cifar100}.get(
        options.task, bf.fashion_mnist
    )(options.data)
    if options.held_out:
        order = torch.randperm(len(train), generator=bf.Key(0, "held out").generator())
        train, test = train[order[6000:]], train[order[:6000]]
    print(
        f"{task['title']}: {rounds} rounds of {task['steps']} steps of "
        f"{task['batch_size']}, {task['clients']} clients, Dirichlet {task['dirichlet']}"
    )
    runs = [
        finished(task, method, seed, options.rounds, train, test, options.workers, out)
        for seed in seeds
        for method in methods
    ]
    gains = report(task, runs, methods, test)
    met = [
        met
        for seed in seeds
        for met in (*targets(runs, seed), *faster(runs, gains, seed), *smaller(runs, gains, seed))
    ]
    met += fewer(task, runs, gains, seeds)
    for seed in seeds:
        axes = plot_against_bits(
            {run.method: run.curve for run in runs if run.seed == seed},
            label="accuracy on the test set",
        )
        save(axes, out / f"accuracy_against_bits_{seed}.png")
    print(f"\ncurves, models and pictures in {out}/")
    return 0 if all(met) else 1


def finished(
    task: Settings,
    method: str,
    seed: int,
    rounds: int | None,
    train: bf.Dataset,
    test: bf.Dataset,
    workers: int,
    out: Path,
) -> Finished:
    """Return a run, from its file if it was made before with the same settings."""
    settings = {
        **{name: value for name, value in task.items() if name != "methods"},
        **task["methods"][method],
    }
    settings |= {"rounds": rounds} if rounds else {}
    stem = out / f"{method.replace(', ', '_').replace(' ', '_')}_{seed}"
    file, model = stem.with_suffix(".json"), stem.with_suffix(".safetensors")
    if (
        file.exists()
        and model.exists()
        and (found := json.loads(file.read_text()))["settings"] == settings
    ):
        return Finished(method, seed, found["rounds"], model, found.get("nll", {}))
    print(f"seed {seed}, {method}", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    clients = bf.federate(
        train,
        bf.dirichlet(train.targets, task["clients"], task["dirichlet"], bf.Key(seed, "partition")),
    )
    algorithm, sampler = recipe(network(task, bf.Key(seed, "net")), settings, len(train))
    start = time.perf_counter()
    with bf.InProcess(clients, workers=workers) as pool:
        result = bf.run(
            algorithm, pool, rounds=settings["rounds"], test=test, seed=seed, sampler=sampler
        )
    lines, up, down = [], 0.0, 0.0
    for record in result.history:
        up += sum(row.bits for row in record.rows if row.direction == "up") / 8e6
        down += sum(row.bits for row in record.rows if row.direction == "down") / 8e6
        lines.append([up, down, record.metrics["accuracy"], record.server.get("density", 1.0)])
    result.save_model(model)
    nll = {}
    if algorithm.posterior:
        mean = float(torch.nn.functional.cross_entropy(result.model(test.inputs), test.targets))
        nll = {"posterior": result.scores(test, draws=100)["all"]["nll"], "mean": mean}
    file.write_text(
        json.dumps(
            {
                "settings": settings,
                "seconds": time.perf_counter() - start,
                "rounds": lines,
                "nll": nll,
            }
        )
        + "\n"
    )
    return Finished(method, seed, lines, model, nll)


def network(task: Settings, key: bf.Key) -> torch.nn.Module:
    """Return the task's network."""
    if "widths" in task:
        return bf.mlp(task["widths"], key)
    image = tuple(task["image"])
    build = bf.models.mobilenet if task["network"] == "mobilenet" else bf.models.alexnet
    return build(image, task["classes"], key, width=task["width"])


def support_of(setting: Any) -> Support:
    """Return the prior of supports: a probability, "channels", or how often neighbours agree along
    rows and columns.
    """
    if isinstance(setting, float):
        return bf.Independent(setting)
    return bf.models.Channels() if isinstance(setting, str) else bf.models.MarkovGrid(*setting)


def recipe(
    net: torch.nn.Module, settings: Settings, observations: int
) -> tuple[Algorithm, Sampler]:
    """Return a method's algorithm and sampler."""
    training = bf.Training(
        settings["steps"],
        settings["batch_size"],
        bf.Adam(settings["learning_rate"]),
        cosine(0.1, settings["rounds"]),
    )
    if settings["recipe"] == "d_turbo_vbi":
        prior = bf.Prior(
            support_of(settings["support"]),
            bf.BernoulliGamma(settings["slab_sd"], settings["spike_sd"]),
        )
        declared = bf.declare(
            net, prior, likelihood=bf.Categorical(temperature=settings["temperature"])
        )
        if "start" in settings:
            start, learn = settings["start"], settings["learn"]
            ternary = "up" in settings
            changes = (
                Changes.ternary(start, up=settings["up"], down=settings["down"], learn=learn)
                if ternary
                else Changes(start=start, learn=learn)
            )
            density = ToDensity(settings["density"], keep=settings["keep"])
            return bf.d_turbo_vbi(
                declared,
                observations=observations,
                training=training,
                changes=changes,
                density=density,
            ), everyone
        codec = (
            bf.compress.PosteriorGrid(settings["nats"])
            if settings["nats"]
            else replace(SIXTEEN, exceptions={"sd": Float(32)})
        )
        own = {
            "field": ramp(settings["field"], settings["ramp"]),
            "warm_up": settings["warm_up"],
            "inclusion_levels": settings["inclusion_levels"],
        }
        return bf.d_turbo_vbi(
            declared, observations=observations, training=training, codec=codec, **own
        ), everyone
    own = {
        name: settings[name]
        for name in ("bits", "share", "levels", "bucket", "dimension")
        if name in settings
    }
    sampler = bf.federated.decaying(*settings["sampling"]) if "sampling" in settings else everyone
    if settings["recipe"] != "stc":
        # STC's server sends ternary changes, which have a code of their own.
        own["codec"] = SIXTEEN
    return getattr(bf, settings["recipe"])(net, training=training, **own), sampler


def report(
    task: Settings, runs: Sequence[Finished], methods: Sequence[str], test: bf.Dataset
) -> list[tuple[float, float]]:
    """Print the paper's Table I, and megabytes to fixed accuracies; return each run's share of
    non-zero weights and dense / compact time.
    """
    print(
        "\nfinal models; inference: 3,000 samples on one thread, dense and compact, side by side\n"
    )
    rows, gains = list[list[str | float | int]](), list[tuple[float, float]]()
    for run in runs:
        parameters, net = load_file(run.model), network(task, bf.Key(run.seed, "net"))
        samples, dense = test.inputs[:3000], Model(net, parameters)
        small = compact(net, parameters, sample=samples)
        with torch.no_grad():
            seconds = interleaved(
                {"dense": partial(dense, samples), "compact": partial(small, samples)}, 7
            )
        weights = [leaf for leaf in parameters.values() if leaf.ndim > 1]
        left = (
            100
            * sum(int((leaf != 0).sum()) for leaf in weights)
            / sum(leaf.numel() for leaf in weights)
        )
        gains.append((left, ratio(seconds["dense"], seconds["compact"])))
        times = [1e3 * statistics.median(values) for values in seconds.values()]
        up, down, accuracy, _ = run.rounds[-1]
        rows.append([run.method, run.seed, 100 * accuracy, left, *times, up, down, up + down])
    print(
        table(
            [
                "method",
                "seed",
                "accuracy %",
                "non-zero %",
                "ms dense",
                "ms compact",
                "MB up",
                "MB down",
                "MB in all",
            ],
            rows,
        )
    )
    goals = task.get("goals", [0.80, 0.84, 0.86, 0.87])
    print(
        "\nmegabytes up + down = in all until the accuracy is first reached, median of the "
        "seeds that reach it\n"
    )
    rows = []
    for method in methods:
        row: list[str | float | int] = [method]
        for goal in goals:
            found = [spent for run in runs if run.method == method and (spent := first(run, goal))]
            row.append(
                " + ".join(f"{statistics.median(part):.1f}" for part in zip(*found, strict=True))
                if found
                else "-"
            )
            row.append(f"{statistics.median(sum(spent) for spent in found):.1f}" if found else "-")
        rows.append(row)
    print(
        table(
            ["method", *(text for goal in goals for text in (f"to {100 * goal:g} %", "in all"))],
            rows,
        )
    )
    print()
    return gains


def faster(runs: Sequence[Finished], gains: Sequence[tuple[float, float]], seed: int) -> list[bool]:
    """Print how much faster the sparsest model within three points of FedPAQ's is when only active
    weights are multiplied.
    """
    best = next(
        (
            within(run.curve, float("inf"))
            for run in runs
            if (run.method, run.seed) == ("FedPAQ", seed)
        ),
        None,
    )
    if best is None:
        return []
    good = [
        gain
        for run, gain in zip(runs, gains, strict=True)
        if run.seed == seed and run.curve[-1][1] >= best - 0.03
    ]
    left, gain = min(good)
    return [
        at_least(
            (
                "dense / compact time at the sparsest model within 3 points of FedPAQ's "
                f"({left:.1f} % of the weights), seed {seed}"
            ),
            gain,
            1.6,
        )
    ]


def smaller(
    runs: Sequence[Finished], gains: Sequence[tuple[float, float]], seed: int
) -> list[bool]:
    """Print what whole channels cost and gain beside FedPAQ's model, for one seed."""
    of = {
        run.method: (run, *gained)
        for run, gained in zip(runs, gains, strict=True)
        if run.seed == seed
    }
    if not {CHANNELS, "FedPAQ"} <= of.keys():
        return []
    (ours, left, gain), plain = of[CHANNELS], of["FedPAQ"][0]
    return [
        target(f"{CHANNELS}: weights that are not zero, in percent, seed {seed}", left, 28.0),
        target(
            f"{CHANNELS}: share of FedPAQ's bytes, seed {seed}",
            ours.curve[-1][0] / plain.curve[-1][0],
            0.25,
        ),
        target(
            f"{CHANNELS}: points below FedPAQ's last accuracy, seed {seed}",
            100 * (plain.curve[-1][1] - ours.curve[-1][1]),
            3.0,
        ),
        at_least(f"{CHANNELS}: dense / compact time, seed {seed}", gain, 2.0),
    ]


def first(run: Finished, goal: float) -> tuple[float, float] | None:
    """Return megabytes up and down when an accuracy was first reached."""
    return next(((up, down) for up, down, accuracy, _ in run.rounds if accuracy >= goal), None)


@dataclass
class Figures:
    """Figures of several seeds, each with what is wanted of their mean."""

    values: dict[str, list[float]] = field(default_factory=dict)
    judges: dict[str, Callable[[str, float], bool]] = field(default_factory=dict)

    def note(self, name: str, seed: int, value: float, judge: Callable[[str, float], bool]) -> None:
        """Keep and print a figure of one seed."""
        self.values.setdefault(name, []).append(value)
        self.judges[name] = judge
        print(f"  seed {seed}, {name}: {value:.4g}")

    def met(self) -> list[bool]:
        """Print each target for the mean of the seeds; return which are met."""
        return [
            self.judges[name](f"{name}, mean of seeds: {len(values)}", statistics.fmean(values))
            for name, values in self.values.items()
        ]


def most(wanted: float) -> Callable[[str, float], bool]:
    """Return the judge of a figure that may be at most so large."""
    return lambda name, value: target(name, value, wanted)


def least(wanted: float) -> Callable[[str, float], bool]:
    """Return the judge of a figure that is to be at least so large."""
    return lambda name, value: at_least(name, value, wanted)


def fewer(
    task: Settings,
    runs: Sequence[Finished],
    gains: Sequence[tuple[float, float]],
    seeds: Sequence[int],
) -> list[bool]:
    """Print what changes of active means cost beside STC, FedPAQ and QSGD, seed by seed, and the
    targets for the mean of the seeds.
    """
    figures = Figures()
    for seed in seeds:
        _fewer(
            task,
            {
                run.method: (run, left)
                for run, (left, _) in zip(runs, gains, strict=True)
                if run.seed == seed
            },
            seed,
            figures,
        )
    return figures.met()


def _fewer(
    task: Settings, by_name: Mapping[str, tuple[Finished, float]], seed: int, figures: Figures
) -> None:
    """Note the figures of one seed, beside recorded ones of methods that did not run."""
    recorded: Settings = task.get("recorded", {})
    if CHANGES not in by_name:
        return
    ours, left = by_name[CHANGES]
    last = 100 * ours.curve[-1][1]
    figures.note(
        f"{CHANGES}: weights that are not zero at the end, in percent", seed, left, most(8.0)
    )
    for goal, share in SHARES.items():
        mine = reached(ours.curve, goal) or math.inf
        stc = (
            reached(by_name["STC"][0].curve, goal)
            if "STC" in by_name
            else recorded.get("STC", {"to": {}})["to"].get(str(goal))
        )
        if stc:
            # STC as the paper has it sends its first model to every client; it could be drawn from
            # a key as well.
            first = by_name["STC"][0].rounds[0][1] if "STC" in by_name else recorded["STC"]["first"]
            figures.note(
                f"share of STC's megabytes to {100 * goal:g} %", seed, mine / stc, most(share)
            )
            print(
                f"  without the first model that STC sends, {first:.2f} MB: "
                f"{mine / (stc - first):.3f}"
            )
    for peer, below in (("STC", 0.0), ("FedPAQ", -1.0)):
        theirs = (
            by_name[peer][0].curve[-1][1] if peer in by_name else recorded.get(peer, {}).get("last")
        )
        if theirs:
            figures.note(
                f"last accuracy above {peer}'s, in points", seed, last - 100 * theirs, least(below)
            )
    if "QSGD" in by_name and not recorded:
        spent, whole = ours.curve[-1][0], by_name["QSGD"][0].curve[-1][0]
        figures.note("last accuracy, in percent", seed, last, least(82.0))
        figures.note("share of QSGD's megabytes, all rounds", seed, spent / whole, most(0.1))
    if ours.nll:
        figures.note(
            "nats a row of the posterior above those of its mean",
            seed,
            ours.nll["posterior"] - ours.nll["mean"],
            most(0.0),
        )
    if CONTROL in by_name:
        control = by_name[CONTROL][0]
        for goal in SHARES:
            learned, random = reached(ours.curve, goal), reached(control.curve, goal)
            if learned and random:
                print(
                    f"  megabytes to {100 * goal:g} %: learned support {learned:.2f}, "
                    f"random support {random:.2f}"
                )
        print(
            f"  last accuracy: learned support {last:.2f} %, random support "
            f"{100 * control.curve[-1][1]:.2f} %"
        )


def targets(runs: Sequence[Finished], seed: int) -> list[bool]:
    """Print how far each of ours stays ahead of FedPAQ and DSSM at equal bytes, for one seed;
    return which targets are met.
    """
    found = {run.method: run for run in runs if run.seed == seed}
    met = []
    for ours in OURS:
        if ours not in found:
            continue
        run = found[ours]
        # The round whose messages are sparse is the one after that which switched the weights off.
        start = next(
            (up + down for (*_, density), (up, down, *_) in pairwise(run.rounds) if density < 0.5),
            None,
        )
        if start is None:
            continue
        for peer in PEERS:
            if peer in found:
                gap = 100 * above(run.curve, found[peer].curve, start)
                end = run.curve[-1][0]
                text = (
                    f"{ours} above {peer}, smallest gap in points from {start:.0f} to "
                    f"{end:.0f} MB, seed {seed}"
                )
                met.append(at_least(text, gap, 0.0))
                best = within(run.curve, float("inf"))
                beyond = reached(found[peer].curve, best + 1e-9)
                final = within(found[peer].curve, float("inf"))
                later = (
                    f"passes it at {beyond:.0f} MB and ends at {100 * final:.2f} %"
                    if beyond
                    else f"ends at {100 * final:.2f} %"
                )
                print(f"  it has {100 * best:.2f} % then; {peer}, with more than that, {later}")
        if "FedPAQ" in found:
            goal = within(found["FedPAQ"].curve, float("inf")) - 0.01
            theirs, mine = reached(found["FedPAQ"].curve, goal), reached(run.curve, goal)
            text = f"megabytes FedPAQ / {ours} to {100 * goal:.2f} %, seed {seed} (aim 5)"
            met.append(at_least(text, theirs / mine if theirs and mine else 0.0, 3.0))
    return met


if __name__ == "__main__":
    sys.exit(main())
