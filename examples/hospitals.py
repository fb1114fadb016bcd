"""Eight schools as eight wards of four hospitals: what is local stays with its hospital, what is
shared is learned together.

python examples/hospitals.py [--rounds 25] [--seed 0] [--out results/hospitals]

Rubin's (1981) effects and their standard errors. Each ward's own effect is ``mu + tau * eta``; eta
is drawn under the plate "client", which is all it takes: its posterior is fitted at the hospital
and kept there. mu and tau are shared. Their exact posterior is known by quadrature.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyro
import pyro.distributions as dist
import torch
from matplotlib.figure import Figure
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

import bayesfed as bf
from bayesfed.compress.wire import Meta
from bayesfed.inference.variational.posterior import FittedGuide
from bayesfed.inspect import save, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EFFECTS = (28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0)
ERRORS = (15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0)
# Means and sds: of the wards by NUTS on all rows.
NUTS = (
    (6.22, 5.65),
    (4.96, 4.74),
    (3.92, 5.25),
    (4.74, 4.72),
    (3.60, 4.65),
    (4.01, 4.76),
    (6.26, 5.09),
    (4.85, 5.24),
)
# The nearest product of Gaussians over (mu, log tau, eta), which is the best this guide can do; the
# posterior by quadrature.
BEST = {"mu": (4.5, 3.2), "log tau": (0.79, 0.73)}
EXACT = {"mu": (4.397, 3.318), "log tau": (0.802, 1.171)}


def model(errors: Tensor, effects: Tensor | None = None) -> Tensor:
    """Draw mu ~ N(0, 5), tau ~ HalfCauchy(5), an effect ``mu + tau * eta`` a ward, eta ~ N(0, 1),
    observed with its standard error.
    """
    mu = pyro.sample("mu", dist.Normal(errors.new_zeros(()), 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(errors.new_tensor(5.0)))
    with pyro.plate("client", len(errors)):
        eta = pyro.sample("eta", dist.Normal(errors.new_zeros(()), 1.0))
        found: Tensor = pyro.sample("y", dist.Normal(mu + tau * eta, errors[:, 0]), obs=effects)
    return found


@dataclass(frozen=True)
class Overheard:
    """A codec that notes the name and shape of every leaf it sends."""

    inner: bf.Cast
    shapes: dict[str, torch.Size] = field(default_factory=dict)

    def encode(self, tree: dict[str, Tensor], meta: Meta, key: bf.Key) -> bytes:
        """Note, then send."""
        self.shapes.update({name: leaf.shape for name, leaf in tree.items()})
        return self.inner.encode(tree, meta, key)

    def decode(self, message: bytes, key: bf.Key) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Read."""
        return self.inner.decode(message, key)


def main() -> None:
    """Fit over four hospitals, print mu, tau, each hospital's own and what was sent, draw the
    wards.
    """
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=25)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--out", type=Path, default=Path("results/hospitals"))
    chosen = arguments.parse_args()

    effects, errors = (
        torch.tensor(EFFECTS, dtype=torch.float64),
        torch.tensor(ERRORS, dtype=torch.float64),
    )
    wards = bf.Dataset(errors[:, None], effects)
    clients = bf.federate(
        wards,
        {
            f"hospital-{name}": rows
            for name, rows in zip("ABCD", torch.arange(8).split(2), strict=True)
        },
    )
    sent = Overheard(bf.Cast(64))
    algorithm = bf.federated_svi(
        model,
        partial(AutoNormal, init_scale=0.5),
        fusion=bf.PVI(damping=0.3),
        scale="local",
        observations=len(wards),
        example=wards[:2],
        training=bf.Training(
            steps=40,
            batch_size=None,
            optimiser=bf.federated.NaturalGradient(0.15),
            schedule=bf.federated.cosine(0.1, chosen.rounds),
        ),
        codec=sent,
    )
    result = bf.run(algorithm, clients, rounds=chosen.rounds, seed=chosen.seed)

    figures = result.posterior.constants
    shared = {"mu": "mu", "log tau": "tau"}
    rows: list[list[str | float]] = [
        [
            name,
            *(f"{float(figures[f'{site}.{what}']):.2f}" for what in ("mean", "sd")),
            *(f"{value:.2f}" for value in (*BEST[name], *EXACT[name])),
        ]
        for name, site in shared.items()
    ]
    print(
        table(["shared", "mean", "sd", "best mean", "best sd", "exact mean", "exact sd"], rows),
        end="\n\n",
    )

    local = {
        name: {leaf: value for leaf, value in memory.items() if "eta" in leaf}
        for name, memory in result.snapshot.memories.items()
    }
    sizes = [(name, shape.numel()) for name, shape in sorted(sent.shapes.items())]
    print(table(["leaf that travels", "numbers"], sizes), end="\n\n")
    stays: list[list[str | float]] = [
        [f"{name}: {leaf}", value.numel()]
        for name, tree in local.items()
        for leaf, value in tree.items()
    ]
    print(table(["leaf that stays", "numbers"], stays), end="\n\n")
    print(
        f"local leaves in {len(result.ledger)} messages: "
        f"{sum('eta' in name for name in sent.shapes)}"
    )

    own = torch.cat(
        [ward_effects(result, tree, bf.Key(chosen.seed, "draws")) for tree in local.values()], 1
    )
    save(plot_wards(own), chosen.out / "wards.png")
    print(f"wards.png in {chosen.out}/")


def ward_effects(
    result: bf.Result, local: dict[str, Tensor], key: bf.Key, draws: int = 1000
) -> Tensor:
    """Draw a hospital's ward effects ``(S, wards)`` at the hospital: shared sites from what
    travels, eta from what it keeps.
    """
    posterior = result.posterior
    assert isinstance(posterior, FittedGuide)
    mean, sd = (
        posterior.pair.constrained(name.removeprefix("local/"), local[name])
        for name in sorted(local)
    )  # guide.locs, guide.scales
    shared = [posterior.draw(key.child(number)) for number in range(draws)]
    eta = mean + sd * torch.randn(
        draws, len(mean), generator=key.child("eta").generator(), dtype=mean.dtype
    )
    return (
        torch.stack([draw["mu"] for draw in shared])[:, None]
        + torch.stack([draw["tau"] for draw in shared])[:, None] * eta
    )


def plot_wards(own: Tensor) -> Axes:
    """Draw each ward's effect as measured, as found here and by NUTS: means and one sd."""
    axes = Figure(figsize=(7, 3.8), layout="constrained").subplots()
    place = torch.arange(len(EFFECTS)).double()
    measured, reference = torch.tensor([EFFECTS, ERRORS]), torch.tensor(NUTS).T
    figures = {
        "measured alone": measured,
        "federated": torch.stack([own.mean(0), own.std(0)]),
        "NUTS on all": reference,
    }
    for number, (label, (mean, sd)) in enumerate(figures.items()):
        axes.errorbar(
            (place + 0.2 * (number - 1)).tolist(),
            mean.tolist(),
            sd.tolist(),
            fmt="o",
            markersize=4,
            capsize=2,
            label=label,
        )
    axes.set_xticks(
        place.tolist(),
        [f"ward {1 + ward % 2}\nhospital {'ABCD'[ward // 2]}" for ward in range(len(EFFECTS))],
        fontsize=8,
    )
    axes.set(ylabel="effect, mean and sd")
    axes.grid(alpha=0.3, axis="y")
    axes.legend(fontsize="small")
    return axes


if __name__ == "__main__":
    main()
