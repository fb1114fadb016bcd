"""A federated run for ArviZ: posterior, predictions, data, and the federation's own figures.

Draws of a variational posterior are independent: r-hat is 1 and the effective sample size is S however wrong it is, so they
mean nothing here. Read convergence from the ELBO in the `federation` group, and nearness to the exact posterior from k-hat.
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
from bayesfed.federated.core.algorithm import Algorithm, Posterior
from bayesfed.federated.engine.ledger import bits
from bayesfed.federated.engine.reports import Record
from bayesfed.inspect.compat import build
from bayesfed.keys import Key, forked
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

    Groups: ``posterior`` (every latent site; of declared models ``SITE.w``, ``SITE.rho``, ``SITE.s`` with dimensions ``SITE.unit`` and
    ``SITE.input``), ``prior`` (of Pyro models), ``constant_data`` (``SITE.inclusion``, or ``SITE.mean`` and ``SITE.sd``),
    ``posterior_predictive``, ``log_likelihood`` and ``observed_data`` (``y``, if data are given), and ``federation`` (round, client: bits_up,
    bits_down, nll, accepted; round: elbo, density and every metric). ``az.summary``, ``az.plot_forest`` and ``az.loo`` take it; of their
    figures r-hat and effective sample sizes mean nothing for these draws, convergence is read from the ELBO and k-hat (`Result.k_hat`).

    Parameters
    ----------
    data
        Rows to predict and score.
    thin
        Keep every `thin`-th row and column of a matrix; the coordinates say which.
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
        posterior, key = algorithm.posterior(state), Key(seed, "arviz")
        first = posterior.draw(key.child("draw", 0))
        _check_size(first, draws, thin)
        for name, value in {**posterior.constants, **first}.items():
            axes = posterior.axes.get(name, tuple(f"{name}_{axis}" for axis in range(value.ndim)))
            dims[name] = list(axes)
            kept = [range(0, length, step) for length, step in zip(value.shape, _steps(value, thin), strict=True)]
            coords |= {axis: np.array(places) for axis, places in zip(axes, kept, strict=True)}
        groups["constant_data"] = {name: _thinned(value, thin).numpy() for name, value in posterior.constants.items()}
        groups |= _drawn(posterior, data, draws, thin, key)
    if data is not None:
        groups["observed_data"] = {"y": data.targets.numpy()}
        coords["row"] = np.arange(len(data))
        dims["y"] = ["row"] + [f"y_{axis}" for axis in range(1, data.targets.ndim)]
    return build(groups, coords, dims, {"federation": federation(history)}, backend)


def _steps(value: Tensor, thin: int) -> list[int]:
    """Return the stride of every axis: matrices are thinned, vectors are not."""
    return [thin if value.ndim > 1 and axis >= value.ndim - 2 else 1 for axis in range(value.ndim)]


def _thinned(value: Tensor, thin: int) -> Tensor:
    return value[tuple(slice(None, None, step) for step in _steps(value, thin))]


def _check_size(first: Tree, draws: int, thin: int) -> None:
    entries = sum(draws * math.prod(-(-n // step) for n, step in zip(value.shape, _steps(value, thin), strict=True)) for value in first.values())
    if entries > MAX_ENTRIES:
        need = math.ceil(thin * math.sqrt(entries / MAX_ENTRIES))
        raise ArgumentError(
            complain("to_arviz", expected=f"at most {MAX_ENTRIES:,} drawn values", actual=f"{entries:,}", hint=f"thin={need} or fewer draws")
        )


def _drawn(posterior: Posterior, data: Dataset | None, draws: int, thin: int, key: Key) -> dict[str, dict[str, np.ndarray]]:
    groups: dict[str, dict[str, list[Tensor]]] = {"posterior": {}, "prior": {}, "posterior_predictive": {}, "log_likelihood": {}}
    for number in range(draws):
        draw = posterior.draw(key.child("draw", number))
        for group, values in (("posterior", draw), ("prior", posterior.draw_prior(key.child("prior", number)))):
            for name, value in values.items():
                thinned = _thinned(value, thin)
                groups[group].setdefault(name, []).append(thinned.to(torch.int8) if name.endswith(".s") else thinned)
        if data is not None:
            found = posterior.observe(draw, data.inputs, key.child("observe", number))
            with forked(key.child("respond", number)):
                groups["posterior_predictive"].setdefault("y", []).append(found.sample())
            groups["log_likelihood"].setdefault("y", []).append(found.log_prob(data.targets))
    return {group: {name: torch.stack(values)[None].numpy() for name, values in found.items()} for group, found in groups.items() if found}


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
