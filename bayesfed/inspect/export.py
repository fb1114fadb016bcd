"""Export of a federated run to ArviZ: posterior, predictions, data, and the figures of the federation.

Draws of a variational posterior are independent. However wrong it is, r-hat is 1 and the effective sample size is S, so these figures have no meaning
here. Judge convergence by the ELBO in the group `federation`, and closeness to the exact posterior by k-hat.
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
    """Return a run in ArviZ's container.

    Groups: ``posterior`` (every latent site; for declared models ``SITE.w``, ``SITE.rho``, ``SITE.s`` with dimensions ``SITE.unit`` and
    ``SITE.input``), ``prior`` (for Pyro models), ``constant_data`` (``SITE.inclusion``, or ``SITE.mean`` and ``SITE.sd``),
    ``posterior_predictive``, ``log_likelihood`` and ``observed_data`` (``y``, if data are given), and ``federation`` (by round and client: bits_up,
    bits_down, nll, accepted; by round: elbo, density and every metric). ``az.summary``, ``az.plot_forest`` and ``az.loo`` accept it. Their r-hat
    and effective sample sizes have no meaning for these draws; judge convergence by the ELBO and by k-hat (`Result.k_hat`).

    Parameters
    ----------
    algorithm
        The algorithm of the run.
    state
        Its final state.
    history
        Its history.
    data
        Rows to predict and score.
    draws
        Number of draws from the posterior.
    thin
        Keep every `thin`-th row and column of a matrix; the coordinates say which ones.
    seed
        Seed of the draws.
    backend
        The module to build with. Default: `arviz`; `arviz_base` is ArviZ 1.x without plots.

    Raises
    ------
    ArgumentError
        If `draws` or `thin` is below 1, or the draws would not fit in memory.
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
    """Return the stride of each axis: matrices are thinned, vectors are not."""
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
            response = posterior.observe(draw, data.inputs, key.child("observe", number))
            with forked(key.child("respond", number)):
                groups["posterior_predictive"].setdefault("y", []).append(response.sample())
            groups["log_likelihood"].setdefault("y", []).append(response.log_prob(data.targets))
    return {
        group: {name: torch.stack(values)[None].numpy() for name, values in variables.items()} for group, variables in groups.items() if variables
    }


def federation(history: Sequence[Record]) -> xarray.Dataset:
    """Return the figures of a run by round and client as an xarray data set, with NaN if a client took no part."""
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
        # In netCDF a slash separates groups.
        alone[name.replace("/", ".")] = [figure.get(name, math.nan) for figure in figures]
    variables = {name: (("round", "client"), np.array(values)) for name, values in both.items()}
    variables |= {name: (("round",), np.array(values)) for name, values in alone.items()}  # type: ignore[misc]
    return xarray.Dataset(variables, coords={"round": [record.round for record in history], "client": clients})
