"""What `fidelity.py` knows in closed form: linear regression, conjugate families and quadratics,
float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from parts.fidelity.problems import (
    CONJUGATE,
    FEATURES,
    LINEAR_SPLITS,
    NOISE_SD,
    Conjugate,
    Gaussian,
    kl,
    linear,
    linear_exact,
    odd,
    pooled,
)
from parts.shared.targets import at_least, target, tiny

import bayesfed as bf
from bayesfed.inference.variational.families import MultivariateNormalFamily
from bayesfed.trees import Tree

Clients = Mapping[str, bf.Dataset]
COUNTS = (1, 2, 5, 10, 50)
SAME_ROWS = ("iid", "sorted", "sizes")
"""Partitions of the same rows."""
FULL = MultivariateNormalFamily()


def statistics(rows: bf.Dataset) -> Tree:
    """Return what rows of the linear problem add to h = precision * mean and the precision."""
    x = rows.inputs / NOISE_SD
    return {"h": x.T @ rows.targets / NOISE_SD, "precision": x.T @ x}


PRIOR: Tree = {
    "h": torch.zeros(FEATURES, dtype=torch.float64),
    "precision": torch.eye(FEATURES, dtype=torch.float64),
}


def from_natural(natural: Tree) -> Gaussian:
    """Return the Gaussian of full natural parameters."""
    usual = FULL.parameters(natural, "the linear problem")
    return Gaussian(usual["loc"], usual["scale_tril"] @ usual["scale_tril"].T)


def closed_form(clients: Clients) -> Gaussian:
    """Return the linear problem's posterior by `bf.conjugate`."""
    return from_natural(
        bf.run(bf.conjugate(PRIOR, statistics), clients, rounds=1, progress=False).model.parameters
    )


def experts(clients: Clients) -> Gaussian:
    """Multiply every client's exact posterior under its share of the prior: full-covariance
    products of experts without their noise.
    """
    rows, total = (
        sum(map(len, clients.values())),
        {name: torch.zeros_like(leaf) for name, leaf in PRIOR.items()},
    )
    for data in clients.values():
        found = statistics(data)
        own = FULL.parameters(
            {name: len(data) / rows * leaf + found[name] for name, leaf in PRIOR.items()},
            "a client",
        )
        total = {name: total[name] + leaf for name, leaf in FULL.natural(own).items()}
    return from_natural(total)


def linear_in_one_round(counts: Sequence[int] = COUNTS) -> bool:
    """F1: the full posterior in one round, for any number of clients."""
    off = {}
    for count in counts:
        found = (
            (closed_form(clients), linear_exact(pooled(clients)))
            for clients in (linear(0, count, split) for split in LINEAR_SPLITS)
        )
        off[count] = max(abs(kl(q, p)) for q, p in found)
    return min(
        [tiny(f"F1 conjugate, {count} clients, KL", worst, 1e-8) for count, worst in off.items()]
    )


def partitioned(clients: Clients, rounds: int = 300) -> Gaussian:
    """Run PVI with a diagonal guide and exact client steps, one client after the other, until
    nothing moves.

    A client's tilted posterior is Gaussian; its best diagonal approximation has the same mean and
    the diagonal of the precision.
    """
    owned = [statistics(data) for data in clients.values()]
    share = {name: leaf / len(owned) for name, leaf in PRIOR.items()}
    sites = [
        {
            "h": torch.zeros(FEATURES, dtype=torch.float64),
            "precision": torch.zeros(FEATURES, dtype=torch.float64),
        }
        for _ in owned
    ]
    for _ in range(rounds):
        for k, own in enumerate(owned):
            cavity = {
                name: torch.stack(
                    [site[name] for j, site in enumerate(sites) if j != k]
                    or [torch.zeros_like(leaf)]
                ).sum(0)
                for name, leaf in sites[k].items()
            }
            precision = share["precision"] + own["precision"] + cavity["precision"].diag()
            mean = torch.linalg.solve(precision, share["h"] + own["h"] + cavity["h"])
            best = {"h": precision.diagonal() * mean, "precision": precision.diagonal()}
            sites[k] = {name: leaf - cavity[name] for name, leaf in best.items()}
    natural = {
        name: torch.stack([site[name] for site in sites]).sum(0) for name in ("h", "precision")
    }
    return Gaussian(natural["h"] / natural["precision"], natural["precision"].reciprocal().diag())


def moved(found: Gaussian, reference: Gaussian) -> tuple[float, float]:
    """Return the largest move of a mean in sds, and of a sd as a share."""
    return float(((found.mean - reference.mean) / reference.sd).abs().max()), float(
        (found.sd / reference.sd - 1).abs().max()
    )


def invariance(
    name: str,
    found: Sequence[Gaussian],
    form: Callable[[str, float, float], bool] = target,
    *,
    means: float = 0.02,
    sds: float = 0.02,
) -> bool:
    """F3: how far answers move from the first, that of one client."""
    of_means, of_sds = zip(*(moved(other, found[0]) for other in found[1:]), strict=True)
    return min(
        [
            form(f"F3 {name}, mean over partitions, sds", max(of_means), means),
            form(f"F3 {name}, sd over partitions", max(of_sds), sds),
        ]
    )


def edges() -> bool:
    """F4, closed form: a client with one row, and one with none, which changes nothing to
    the bit.
    """
    with_none, without = closed_form(odd("empty")), closed_form(odd("one row"))
    exact = linear_exact(pooled(odd("one row")))
    apart = float(
        (with_none.mean - without.mean).abs().max()
        + (with_none.covariance - without.covariance).abs().max()
    )
    return min(
        [
            tiny("F4 conjugate, a client without rows, change", apart, 0),
            tiny("F4 conjugate, one row, KL", abs(kl(without, exact)), 1e-8),
        ]
    )


def of_family(family: Conjugate, rows: bf.Dataset) -> Tree:
    """Return what rows add to a family's natural parameters."""
    return {"eta": family.statistics(rows.targets)}


def families(counts: Sequence[int] = (1, 2, 5, 10, 50)) -> bool:
    """F6: four conjugate families, natural parameters."""
    met = []
    for family in CONJUGATE:
        worst = 0.0
        for split in ("iid", "sorted", "sizes"):
            for count in counts:
                clients = family.clients(0, count, split)
                algorithm = bf.conjugate({"eta": family.prior}, partial(of_family, family))
                found = bf.run(algorithm, clients, rounds=2, progress=False).model.parameters["eta"]
                worst = max(
                    worst, float((found - family.exact(pooled(clients).targets)).abs().max())
                )
        met.append(tiny(f"F6 {family.name}, natural parameters", worst, 1e-10))
    return all(met)


def quadratics(clients: int = 10) -> bool:
    """F14: clients with badly conditioned quadratics ``w^T A_k w / 2 - b_k^T w`` of their own: one
    round finds the minimiser of the sum.

    Averaging the clients' own minimisers, as FedAvg with many local steps does, does not.
    """
    generator = bf.Key(0, "quadratics").generator()
    normal = partial(torch.randn, generator=generator, dtype=torch.float64)
    owned: list[Tree] = []
    for _ in range(clients):
        basis, scales = (
            torch.linalg.qr(normal(FEATURES, FEATURES))[0],
            torch.logspace(-3, 3, FEATURES, dtype=torch.float64),
        )
        owned.append({"h": normal(FEATURES), "precision": basis @ scales.diag() @ basis.T})
    rows = {
        f"client-{k}": bf.Dataset(torch.tensor([[float(k)]]), torch.zeros(1))
        for k in range(clients)
    }
    nothing = {name: torch.zeros_like(leaf) for name, leaf in owned[0].items()}
    found = bf.run(
        bf.conjugate(nothing, lambda own: owned[int(own.inputs[0, 0])]),
        rows,
        rounds=1,
        progress=False,
    ).model.parameters
    minimiser = torch.linalg.solve(
        sum(own["precision"] for own in owned), sum(own["h"] for own in owned)
    )
    averaged = torch.stack([torch.linalg.solve(own["precision"], own["h"]) for own in owned]).mean(
        0
    )
    size = float(minimiser.norm())
    return min(
        [
            tiny(
                "F14 quadratics, one round, relative distance to the minimiser",
                float((from_natural(found).mean - minimiser).norm()) / size,
                1e-8,
            ),
            at_least(
                "F14 quadratics, averaged minimisers, relative distance",
                float((averaged - minimiser).norm()) / size,
                1,
            ),
        ]
    )
