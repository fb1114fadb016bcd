"""A federated run for ArviZ: posterior, predictions, data, and the federation's own figures.

Draws of a variational posterior are independent: r-hat and effective sample size say nothing about its
convergence. Read that from the ELBO in the `federation` group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bayesfed.data.dataset import Dataset
from bayesfed.errors import ArgumentError, complain
from bayesfed.federated.engine import Record
from bayesfed.federated.ledger import bits
from bayesfed.federated.protocols import Algorithm, Posterior
from bayesfed.inspect.compat import build
from bayesfed.keys import Key
from bayesfed.trees import Tree

if TYPE_CHECKING:
    import xarray

MAX_ENTRIES = 250_000_000


def to_arviz(
    algorithm: Algorithm,
    state: Tree,
    history: Sequence[Record],
    data: Dataset | None = None,
    *,
    draws: int = 100,
    thin: int = 1,
    seed: int = 0,
    backend: ModuleType | None = None,
) -> Any:
    """Export a run.

    Groups: ``posterior`` (``SITE.w``, ``SITE.rho``, ``SITE.s`` with dimensions ``SITE.unit`` and ``SITE.input``), ``constant_data``
    (``SITE.inclusion``), ``posterior_predictive``, ``log_likelihood`` and ``observed_data`` (``y``, if data are given), and
    ``federation`` (round, client: bits_up, bits_down, nll, accepted; round: elbo, density and every metric).

    Parameters
    ----------
    data
        Rows to predict and score.
    thin
        Keep every `thin`-th unit and input of a weight matrix; the coordinates say which.
    seed
        Names the draws: the same seed gives the same draws.

    Raises
    ------
    ArgumentError
        If draws or thin are below 1, or the draws would not fit in memory.
    """
    if draws < 1 or thin < 1:
        raise ArgumentError(complain("to_arviz", expected="draws and thin >= 1", actual=(draws, thin), hint="draws=100"))
    groups: dict[str, dict[str, np.ndarray]] = {}
    coords: dict[str, Any] = {}
    dims: dict[str, list[str]] = {}
    if algorithm.posterior is not None:
        posterior = algorithm.posterior(state)
        inclusion = {name: site.inclusion for name, site in posterior.belief.items()}
        _check_size(inclusion, draws, thin)
        for site, values in inclusion.items():
            axes = [f"{site}.unit", f"{site}.input"]
            coords |= {axis: np.arange(0, length, thin) for axis, length in zip(axes, values.shape, strict=True)}
            dims |= {f"{site}.{leaf}": axes for leaf in ("w", "rho", "s", "inclusion")}
        groups["constant_data"] = {f"{site}.inclusion": values[::thin, ::thin].numpy() for site, values in inclusion.items()}
        groups |= _drawn(posterior, data, draws, thin, Key(seed, "arviz"))
    if data is not None:
        groups["observed_data"] = {"y": data.targets.numpy()}
        coords["row"] = np.arange(len(data))
        dims["y"] = ["row"] + [f"y_{axis}" for axis in range(1, data.targets.ndim)]
    return build(groups, coords, dims, {"federation": federation(history)}, backend)


def _check_size(sites: Tree, draws: int, thin: int) -> None:
    entries = sum(3 * draws * math.prod(-(-n // thin) for n in values.shape) for values in sites.values())
    if entries > MAX_ENTRIES:
        need = math.ceil(thin * math.sqrt(entries / MAX_ENTRIES))
        raise ArgumentError(
            complain("to_arviz", expected=f"at most {MAX_ENTRIES:,} drawn values", actual=f"{entries:,}", hint=f"thin={need} or fewer draws")
        )


def _drawn(posterior: Posterior, data: Dataset | None, draws: int, thin: int, key: Key) -> dict[str, dict[str, np.ndarray]]:
    samples, predicted, scored = dict[str, list[Tensor]](), list[Tensor](), list[Tensor]()
    for number in range(draws):
        draw = posterior.draw(key.child("draw", number))
        for name, value in draw.items():
            thinned = value[::thin, ::thin]
            samples.setdefault(name, []).append(thinned.to(torch.int8) if name.endswith(".s") else thinned)
        if data is not None:
            outputs = posterior.predict(draw, data.inputs)
            predicted.append(posterior.respond(outputs, key.child("respond", number)))
            scored.append(posterior.log_likelihood(outputs, data.targets))
    groups = {"posterior": {name: torch.stack(values)[None].numpy() for name, values in samples.items()}}
    if data is not None:
        groups["posterior_predictive"] = {"y": torch.stack(predicted)[None].numpy()}
        groups["log_likelihood"] = {"y": torch.stack(scored)[None].numpy()}
    return groups


def federation(history: Sequence[Record]) -> xarray.Dataset:
    """Return the run's figures by round and client as an xarray data set; NaN where a client took no part."""
    import xarray

    clients = sorted({row.client for record in history for row in record.rows})
    both, alone = {}, {}
    for way in ("up", "down"):
        counts = [[float(bits((row for row in record.rows if row.client == name), way)) for name in clients] for record in history]
        both[f"bits_{way}"] = counts
    both["nll"] = [[record.clients.get(name, {}).get("nll", math.nan) for name in clients] for record in history]
    both["accepted"] = [[float(name in record.clients) for name in clients] for record in history]
    figures = [{**record.server, **record.metrics, "seconds": record.seconds} for record in history]
    for name in dict.fromkeys(name for figure in figures for name in figure):
        # netCDF reads a slash as a group.
        alone[name.replace("/", ".")] = [figure.get(name, math.nan) for figure in figures]
    variables = {name: (("round", "client"), np.array(values)) for name, values in both.items()}
    variables |= {name: (("round",), np.array(values)) for name, values in alone.items()}  # type: ignore[misc]
    return xarray.Dataset(variables, coords={"round": [record.round for record in history], "client": clients})
