"""What declaring costs: a step on the declared model against the same step written by hand, and
Pyro's AutoNormal.

    python benchmarks/speed.py --only svi_step [--check]

MLP 784-256-256-10, batch 64, one thread, Adam, one shared posterior sd, 15 % of the weights active:
the mean-field Gaussian ELBO with local reparameterisation. "deterministic" is plain cross-entropy;
"AutoNormal" is Pyro's own SVI step on the same network with unit Gaussian priors and `Trace_ELBO`.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from parts.shared.targets import interleaved, ratio, target
from pyro import optim
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule, PyroSample
from torch import Tensor, nn
from torch.nn import functional

import bayesfed as bf
from bayesfed.inference import MeanFieldElbo
from bayesfed.inference.turbo.elbo import encode_inclusion

STEPS, SD = 50, 0.02
Step = Callable[[], object]


def targets(options: argparse.Namespace) -> Iterator[bool]:
    """Measure and print; yield whether each target is met."""
    check = options.check
    torch.set_num_threads(1)
    generator = bf.Key(0, "data").generator()
    batch = bf.Dataset(
        torch.rand(64, 784, generator=generator), torch.randint(0, 10, (64,), generator=generator)
    )
    net = bf.mlp([784, 256, 256, 10], bf.Key(0, "net"))
    masks = [
        torch.rand(shape, generator=generator) < 0.15
        for shape in ((256, 784), (256, 256), (10, 256))
    ]
    work = {
        "deterministic": deterministic(net, batch),
        "hand": hand(net, batch, masks),
        "declared": declared(net, batch, masks),
        "AutoNormal": auto_normal(batch),
    }
    seconds = interleaved(
        {name: partial(repeat, step) for name, step in work.items()}, 7 if check else 25
    )
    for name, values in seconds.items():
        print(
            f"{name:<14} median {1e3 * statistics.median(values) / STEPS:6.2f} ms a step, "
            f"{ratio(values, seconds['hand']):.2f} x by hand"
        )
    yield target(
        "declared step / hand-written step", ratio(seconds["declared"], seconds["hand"]), 1.1
    )


def repeat(step: Step) -> None:
    """Take the steps of one measurement."""
    for _ in range(STEPS):
        step()


def deterministic(net: nn.Module, batch: bf.Dataset) -> Step:
    """Return a plain training step."""
    optimiser = torch.optim.Adam(net.parameters(), 1e-4, fused=True)

    def step() -> None:
        optimiser.zero_grad()
        functional.cross_entropy(net(batch.inputs), batch.targets).backward()
        optimiser.step()

    return step


def hand(net: nn.Module, batch: bf.Dataset, masks: list[Tensor]) -> Step:
    """Return the same ELBO step with every line written out."""
    values = [value.detach().clone() for value in net.parameters()]
    means = [
        (value * mask).requires_grad_() for value, mask in zip(values[0::2], masks, strict=True)
    ]
    biases = [value.requires_grad_() for value in values[1::2]]
    log_sd = torch.tensor(math.log(SD), requires_grad=True)
    floats, counts = [mask.float() for mask in masks], [int(mask.sum()) for mask in masks]
    precisions = [30.0 * mask for mask in floats]
    optimiser = torch.optim.Adam([*means, *biases, log_sd], 1e-4, fused=True)

    def step() -> None:
        optimiser.zero_grad()
        hidden, variance = batch.inputs, (2 * log_sd).exp()
        divergence: Tensor | float = 0.0
        for layer, (mean, bias, mask, precision, count) in enumerate(
            zip(means, biases, floats, precisions, counts, strict=True)
        ):
            spread = (variance * functional.linear(hidden.square(), mask)).clamp_min(1e-12).sqrt()
            hidden = functional.linear(hidden, mean * mask, bias) + spread * torch.randn(
                spread.shape
            )
            hidden = hidden if layer == 2 else hidden.relu()
            divergence = (
                divergence
                + ((precision * mean.square()).sum() + precision.sum() * variance) / 2
                - count * log_sd
            )
        (functional.cross_entropy(hidden, batch.targets) + 0.05 / 60_000 * divergence).backward()
        optimiser.step()

    return step


def declared(net: nn.Module, batch: bf.Dataset, masks: list[Tensor]) -> Step:
    """Return the step that a D-Turbo-VBI client takes."""
    model = bf.declare(net, likelihood=bf.Categorical(temperature=0.05))
    objective = MeanFieldElbo(model)
    message = {
        f"point/{name}": leaf for name, leaf in model.initial.items() if name not in model.sites
    } | {"shared/sd": torch.tensor(SD)}
    for name, mask in zip(model.sites, masks, strict=True):
        inclusion = torch.full((int(mask.sum()),), 0.9)
        message |= {
            f"mean/{name}": model.initial[name][mask],
            f"inclusion/{name}": encode_inclusion(inclusion),
            f"support/{name}": mask,
        }
    trained, fixed = objective.start(message)
    optimiser = torch.optim.Adam(
        [leaf.requires_grad_() for leaf in trained.values()], 1e-4, fused=True
    )
    noise = bf.Key(0, "noise").generator()

    def step() -> None:
        optimiser.zero_grad()
        objective.loss(trained, fixed, batch, 60_000.0, noise).loss.backward()
        optimiser.step()

    return step


def auto_normal(batch: bf.Dataset) -> Step:
    """Return Pyro's own step."""
    pyro.clear_param_store()
    # Pyro's own types do not follow the indexing that makes a module of each layer.
    module: Any = PyroModule
    net = module[nn.Sequential](
        module[nn.Linear](784, 256),
        nn.ReLU(),
        module[nn.Linear](256, 256),
        nn.ReLU(),
        module[nn.Linear](256, 10),
    )
    for layer in (net[0], net[2], net[4]):
        layer.weight = PyroSample(dist.Normal(0.0, 1.0).expand(layer.weight.shape).to_event(2))

    def model(inputs: Tensor, targets: Tensor) -> None:
        logits = net(inputs)
        with pyro.plate("data", 60_000, subsample_size=len(inputs)):
            pyro.sample("y", dist.Categorical(logits=logits), obs=targets)

    svi = SVI(
        model, AutoNormal(model), optim.PyroOptim(torch.optim.Adam, {"lr": 1e-4}), Trace_ELBO()
    )
    return lambda: svi.step(batch.inputs, batch.targets)
