"""Every recipe that is shipped, on a few drawn rows and networks of a hundred weights: what tests
of all of them run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from torch import Tensor, nn

from bayesfed import algorithms as shipped
from bayesfed.algorithms.d_turbo_vbi.changes import Changes
from bayesfed.algorithms.d_turbo_vbi.density import ToDensity
from bayesfed.algorithms.fed_rlr.encodings import Factors, Points
from bayesfed.algorithms.wrappers.on_devices import Planner, on_devices
from bayesfed.compress.budgets import fit_flexible
from bayesfed.compress.codecs import Cast
from bayesfed.compress.coded import Coded
from bayesfed.compress.posterior import PosteriorGrid
from bayesfed.data.dataset import Dataset
from bayesfed.federated.aggregation.server_optimisers import FedAdam, FedAvgM
from bayesfed.federated.clients.pools import InProcess
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.federated.links.over_the_air import OverTheAir
from bayesfed.federated.training.local_work import Training
from bayesfed.federated.training.model_sizes import fixed
from bayesfed.federated.training.optimisers import Sgd
from bayesfed.inference.variational.fusion import (
    PVI,
    Fusion,
    ProductOfExperts,
    SummedGradients,
    Wasserstein,
)
from bayesfed.keys import Key, forked
from bayesfed.models import (
    adapter_prior,
    bayesian,
    channel_graph,
    declare,
    lora,
    mlp,
    shrunk,
    shrunk_shares,
)
from bayesfed.models.likelihoods.classes import Categorical
from bayesfed.models.nets import norms
from bayesfed.trees import parameters
from bayesfed.wireless.devices import Device

KEY = Key(0, "tiny recipes")
FEATURES, CLASSES, CLIENTS = 6, 3, 4
# A density that is aimed at from the first round on, so that two rounds show it.
SOON = ToDensity(0.3, keep=0.5, patience=0)
PLENTY = Device(energy_j=1e6, bandwidth_hz=1e9)


@dataclass(frozen=True)
class Tiny:
    """An algorithm, and the clients that can run it."""

    algorithm: Algorithm
    data: Mapping[str, Dataset]
    devices: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def pool(self, **options: Any) -> InProcess:
        """Return a fresh pool."""
        return InProcess(self.data, devices=self.devices, **options)


def tiny_recipes() -> dict[str, Callable[[], Tiny]]:
    """Return what makes each recipe, by name; some are there twice, with another link, codec or
    fusion.
    """
    work: dict[str, Any] = {"training": Training(steps=2, batch_size=8)}
    rlr: dict[str, Any] = {"training": Training(steps=2, batch_size=8, optimiser=Sgd(0.05))}
    ranks: dict[str, Any] = {"ranks": [2, 1], "capacity": fixed(sorted(rows()), 2)}
    return {
        "fed_avg": lambda: Tiny(shipped.fed_avg(net(), **work), rows()),
        "fed_avg 16 bits": lambda: Tiny(shipped.fed_avg(net(), codec=Coded(), **work), rows()),
        "fed_avg on air": lambda: Tiny(
            shipped.fed_avg(net(), link=OverTheAir(snr_db=20.0), **work), rows()
        ),
        "fed_prox": lambda: Tiny(shipped.fed_prox(net(), strength=0.1, **work), rows()),
        "scaffold": lambda: Tiny(shipped.scaffold(net(), **work), rows()),
        "fed_dyn": lambda: Tiny(shipped.fed_dyn(net(), strength=0.1, **work), rows()),
        "fed_nova": lambda: Tiny(
            shipped.fed_nova(net(), training=Training(batch_size=8, epochs=1.5)), unequal()
        ),
        "fed_avg with fed_adam": lambda: Tiny(
            shipped.server_optimised(shipped.fed_avg(net(), **work), FedAdam()), rows()
        ),
        "fed_avg with fed_avg_m": lambda: Tiny(
            shipped.server_optimised(shipped.fed_avg(net(), **work), FedAvgM()), rows()
        ),
        "fed_avg averaged": lambda: Tiny(
            shipped.averaged(
                shipped.server_optimised(shipped.fed_avg(net(), **work), FedAvgM()), begin=1
            ),
            rows(),
        ),
        "fed_avg locally private": lambda: Tiny(
            shipped.local_privacy(shipped.fed_avg(net(), **work), clip=1.0, noise=0.1, key=KEY),
            rows(),
        ),
        "fed_avg personalised": lambda: Tiny(
            shipped.personalised(shipped.fed_avg(net(), **work), steps=2), rows()
        ),
        "fed_per": lambda: Tiny(shipped.fed_per(net(), **work), rows()),
        "fed_babu": lambda: Tiny(shipped.fed_babu(net(), steps=2, **work), rows()),
        "ditto": lambda: Tiny(shipped.ditto(net(), strength=0.1, **work), rows()),
        "p_fed_bayes": lambda: Tiny(shipped.p_fed_bayes(net(), **work), rows()),
        "pooled": lambda: Tiny(shipped.pooled(net(), **work), rows()),
        "pooled classes": lambda: Tiny(shipped.pooled(net(), local="classes", **work), rows()),
        "pooled factors": lambda: Tiny(shipped.pooled(net(), local="factors", **work), rows()),
        "pooled given inputs": lambda: Tiny(
            shipped.pooled(net(), local="factors", covariates="inputs", **work), rows()
        ),
        "fed_paq": lambda: Tiny(shipped.fed_paq(net(), **work), rows()),
        "qsgd": lambda: Tiny(shipped.qsgd(net(), **work), rows()),
        "uveqfed": lambda: Tiny(shipped.uveqfed(net(), **work), rows()),
        "stc": lambda: Tiny(shipped.stc(net(), share=0.2, **work), rows()),
        "dssm": lambda: Tiny(shipped.dssm(net(), **work), rows()),
        "fed_l1": lambda: Tiny(shipped.fed_l1(net(), strength=0.02, **work), rows()),
        "fed_mid": lambda: Tiny(shipped.fed_mid(net(), **work), rows()),
        "fed_prune": lambda: Tiny(shipped.fed_prune(net(), share=1 / 32, **work), rows()),
        "d_turbo_vbi": lambda: Tiny(turbo(density=SOON, **work), rows()),
        "d_turbo_vbi 16 bits": lambda: Tiny(turbo(codec=Cast(16), density=SOON, **work), rows()),
        "d_turbo_vbi ternary": lambda: Tiny(
            turbo(changes=Changes.ternary(0.5), density=SOON, **work), rows()
        ),
        "d_turbo_vbi grid": lambda: Tiny(
            turbo(codec=PosteriorGrid(), density=SOON, **work), rows()
        ),
        "fed_rlr": lambda: Tiny(shipped.fed_rlr(net(), 2, **rlr), rows()),
        "fed_rlr factors": lambda: Tiny(
            shipped.fed_rlr(net(), 2, transmission=Factors("none"), **rlr), rows()
        ),
        "fed_rlr points": lambda: Tiny(
            shipped.fed_rlr(net(), 2, transmission=Points(), **rlr), rows()
        ),
        "fed_rlr on air": lambda: Tiny(
            shipped.fed_rlr(net(), 2, link=OverTheAir(snr_db=20.0), **rlr), rows()
        ),
        "fed_hm": lambda: Tiny(
            shipped.fed_hm(net(), [1.0, 0.5], fixed(sorted(rows()), 2), **work), rows()
        ),
        "split_mix": lambda: Tiny(
            shipped.split_mix(
                lambda key: mlp([FEATURES, 4, CLASSES], key),
                [3, 2],
                fixed(sorted(rows()), 2),
                key=KEY,
                **work,
            ),
            rows(),
        ),
        "hetero_fl": lambda: Tiny(
            shipped.hetero_fl(widths(), fixed(sorted(rows()), 2), **work), rows()
        ),
        "anycost_fl": lambda: on_fleet(
            shipped.anycost_fl(
                net(),
                torch.zeros(1, FEATURES),
                deadline_s=1e6,
                settings=shipped.public_settings(net(), rows()["client-0"], KEY),
                beta=(0.9, 0.9),
                training=Training(epochs=1.0, batch_size=32),
            )
        ),
        "fed_hq": fed_hq,
        "stc on devices": lambda: on_fleet(on_devices(shipped.stc(net(), share=0.2), planner())),
        "fed_lora": lambda: Tiny(shipped.fed_lora(adapted(), **work), rows()),
        "ffa_lora": lambda: Tiny(shipped.ffa_lora(adapted(), **work), rows()),
        "fs_lora": lambda: Tiny(shipped.fs_lora(adapted(), **ranks, **work), rows()),
        "hetero_lora": lambda: Tiny(shipped.hetero_lora(adapted(), **ranks, **work), rows()),
        "flex_lora": lambda: Tiny(shipped.flex_lora(adapted(), **ranks, **work), rows()),
        "fed_stack_lora": lambda: Tiny(shipped.fed_stack_lora(adapted(), **ranks, **work), rows()),
        "federated_svi pvi": lambda: Tiny(svi(PVI(damping=0.5), "local"), lines()),
        "federated_svi experts": lambda: Tiny(
            svi(ProductOfExperts(), "local", AutoMultivariateNormal), lines()
        ),
        "federated_svi wasserstein": lambda: Tiny(svi(Wasserstein(), "local"), lines()),
        "federated_svi gradients": lambda: Tiny(svi(SummedGradients(0.05), "local"), lines()),
        "bayesian_lora": lambda: Tiny(sliced_posterior(ranks), rows()),
        "conjugate": lambda: Tiny(
            shipped.conjugate({"precision": torch.eye(2), "linear": torch.zeros(2)}, regression),
            lines(),
        ),
        "fed_pa": lambda: Tiny(
            shipped.fed_pa(net(), samples=2, training=Training(steps=4, batch_size=8)), rows()
        ),
        "fed_be": lambda: Tiny(shipped.fed_be(net(), draws=2, **work), rows()),
        "beta_pred_bayes": lambda: Tiny(
            shipped.beta_pred_bayes(
                net(), samples=2, temperature=1.0, training=Training(steps=4, batch_size=8)
            ),
            rows(),
        ),
        "swag": lambda: Tiny(shipped.swag(shipped.fed_avg(net(), **work), begin=0, rank=2), rows()),
        "ensemble": lambda: Tiny(
            shipped.ensemble(
                [shipped.fed_avg(net(), **work), shipped.fed_prox(net(), strength=0.1, **work)]
            ),
            rows(),
        ),
        "mc_dropout": lambda: Tiny(shipped.mc_dropout(shipped.fed_avg(dropping(), **work)), rows()),
        "batch_statistics": batch_statistics,
        "calibrated": lambda: Tiny(shipped.calibrated(net(), classes=CLASSES, bins=20), rows()),
        "feature_density": lambda: Tiny(shipped.feature_density(net()), rows()),
        "laplace": lambda: Tiny(shipped.laplace(net()), rows()),
        "laplace full": lambda: Tiny(
            shipped.laplace(shipped.fed_avg(net(), **work), subset="all", structure="full"), rows()
        ),
        "one_round": lambda: Tiny(shipped.one_round(net(), **work), rows()),
        "one_round fisher": lambda: Tiny(shipped.one_round(net(), fusion="fisher", **work), rows()),
    }


def rows(count: int = 12) -> dict[str, Dataset]:
    """Return clients with so many rows of drawn features and classes each."""
    generator = KEY.child("rows").generator()
    inputs = torch.randn(CLIENTS * count, FEATURES, generator=generator)
    return _split(Dataset(inputs, inputs[:, :CLASSES].argmax(1)), count)


def unequal() -> dict[str, Dataset]:
    """Return the clients of `rows`, the second one with half of its rows."""
    return {
        name: part[slice(0, 6)] if name == "client-1" else part for name, part in rows().items()
    }


def lines(count: int = 12) -> dict[str, Dataset]:
    """Return clients with so many rows of a line in two features each."""
    generator = KEY.child("lines").generator()
    inputs = torch.randn(CLIENTS * count, 2, generator=generator)
    return _split(
        Dataset(
            inputs,
            inputs @ torch.tensor([0.5, -1.0])
            + 0.4 * torch.randn(CLIENTS * count, generator=generator),
        ),
        count,
    )


def net() -> nn.Module:
    """Return a network of two hidden layers."""
    return mlp([FEATURES, 8, 5, CLASSES], KEY.child("net"))


def dropping() -> nn.Module:
    """Return a network with dropout."""
    return mlp([FEATURES, 8, CLASSES], KEY.child("net"), dropout=0.2)


def widths() -> list[nn.Module]:
    """Return the network and a narrower one."""
    graph = channel_graph(net(), torch.zeros(1, FEATURES))
    return [shrunk(net(), graph, alpha) for alpha in (1.0, 0.25)]


def adapted() -> nn.Module:
    """Return the network under adapters of rank 2."""
    return lora(net(), 2, KEY.child("lora"))


def turbo(**options: Any) -> Algorithm:
    """Return D-Turbo-VBI."""
    observations = sum(map(len, rows().values()))
    declared = declare(net(), likelihood=Categorical(temperature=0.2))
    return shipped.d_turbo_vbi(declared, observations=observations, **options)


def svi(fusion: Fusion, scale: Literal["local", "global"], guide: Any = AutoNormal) -> Algorithm:
    """Return federated SVI of a line."""
    data = lines()
    example, observations = data["client-0"][:3], sum(map(len, data.values()))
    return shipped.federated_svi(
        line,
        guide,
        fusion=fusion,
        scale=scale,
        observations=observations,
        example=example,
        training=Training(steps=3, batch_size=None),
    )


def sliced_posterior(ranks: Mapping[str, Any]) -> Algorithm:
    """Return a posterior of adapters, by slices."""
    data, frozen = rows(), adapted()
    example, observations = data["client-0"][:3], sum(map(len, data.values()))
    model = bayesian(frozen, adapter_prior(frozen))
    return shipped.bayesian_lora(
        model,
        **ranks,
        fusion=SummedGradients(0.05),
        scale="local",
        observations=observations,
        example=example,
        training=Training(steps=3, batch_size=16),
    )


def line(inputs: Tensor, targets: Tensor | None = None) -> Tensor:
    """Model targets by a line with a drawn slope."""
    slope = pyro.sample("slope", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(inputs)):
        found: Tensor = pyro.sample("y", dist.Normal(inputs @ slope, 0.4), obs=targets)
    return found


def regression(data: Dataset) -> dict[str, Tensor]:
    """Return what rows add to a line's natural parameters."""
    return {
        "precision": data.inputs.mT @ data.inputs / 0.16,
        "linear": data.inputs.mT @ data.targets / 0.16,
    }


def planner() -> Planner:
    """Return one that never shrinks."""
    sample = torch.zeros(1, FEATURES)
    return Planner(
        tuple(shrunk_shares(net(), channel_graph(net(), sample), sample, [1.0])),
        1e6,
        (0.5, 0.5),
        epochs=1.0,
    )


def on_fleet(algorithm: Algorithm) -> Tiny:
    """Return the algorithm with devices that can do anything."""
    return Tiny(algorithm, rows(), {name: PLENTY.figures() for name in rows()})


def fed_hq() -> Tiny:
    """Return FedHQ."""
    levels = fit_flexible([parameters(net())], KEY, shares=(1.0,))
    return on_fleet(shipped.fed_hq(net(), replace(planner(), beta=(levels.least, 1.0)), levels))


def batch_statistics() -> Tiny:
    """Return the query of a small network's static norms, over images."""
    with forked(KEY.child("convolutions")):
        return _batch_statistics()


def _batch_statistics() -> Tiny:
    stem = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        norms.norm_layer(4, "static", where="tiny"),
        nn.ReLU(),
        nn.Conv2d(4, 3, 3),
    )
    last = nn.Sequential(
        norms.norm_layer(3, "static", where="tiny"), nn.Flatten(), nn.Linear(48, CLASSES)
    )
    data = Dataset(
        torch.randn(24, 1, 8, 8, generator=KEY.child("images").generator()),
        torch.arange(24) % CLASSES,
    )
    whole = nn.Sequential(stem, last)
    return Tiny(
        shipped.batch_statistics(whole, parameters(whole), data.inputs[:1]), _split(data, 6)
    )


def _split(data: Dataset, count: int) -> dict[str, Dataset]:
    return {
        f"client-{number}": data[slice(number * count, (number + 1) * count)]
        for number in range(CLIENTS)
    }
