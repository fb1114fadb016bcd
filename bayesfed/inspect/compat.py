"""The only import of ArviZ: what the package asks of it, in the words of the installed version.

ArviZ 0.x holds groups in `InferenceData`, ArviZ 1.x in xarray's `DataTree` (from arviz-base). Both save with
``to_netcdf``. ArviZ 1.x computes with arviz-stats, reached through xarray's accessor ``azstats``.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import xarray

Groups = Mapping[str, Mapping[str, np.ndarray]]


def _module(backend: ModuleType | None) -> Any:
    if backend is not None:
        return backend
    with warnings.catch_warnings():
        # ArviZ 0.23 announces 1.0 whenever it is imported; both are served here.
        warnings.simplefilter("ignore", FutureWarning)
        import arviz
    return arviz


def build(
    groups: Groups, coords: Mapping[str, Any], dims: Mapping[str, list[str]], extra: Mapping[str, xarray.Dataset], backend: ModuleType | None = None
) -> Any:
    """Return the groups as ArviZ's own container.

    Parameters
    ----------
    groups
        ArviZ's groups: name to variables; sampled ones start with (chain, draw).
    extra
        Groups of our own, as xarray data sets.
    backend
        The module to build with; default `arviz`. `arviz_base` is ArviZ 1.x without plots.
    """
    module = _module(backend)
    known = {name: dict(variables) for name, variables in groups.items() if variables}
    # ArviZ 1.3 answers to the old name too, with a warning.
    if "InferenceData" in vars(module):
        data = module.from_dict(**known, coords=dict(coords), dims=dict(dims)) if known else module.InferenceData()
        data.add_groups(dict(extra), warn_on_custom_groups=False)
        return data
    import xarray

    tree = module.from_dict(known, coords=dict(coords), dims=dict(dims)) if known else xarray.DataTree()
    for name, dataset in extra.items():
        tree[name] = xarray.DataTree(dataset)
    return tree


def pareto_shape(log_weights: np.ndarray, backend: ModuleType | None = None) -> float:
    """Return the shape of the generalised Pareto distribution fitted to the largest weights.

    Parameters
    ----------
    log_weights
        ``(S,)``, the largest 0; of independent draws, so the relative efficiency is 1. `k_hat` sees that there is a tail to fit.
    backend
        The module to compute with; default `arviz`. `arviz_stats` is ArviZ 1.x without plots.
    """
    module = _module(backend)
    if "psislw" in vars(module):
        return float(module.psislw(log_weights)[1])
    import xarray

    # Its psislw takes log likelihoods, log weights with the sign turned; its pareto_khat takes the weights themselves.
    weights = xarray.DataArray(np.exp(log_weights), dims=["draw"])
    return float(weights.azstats.pareto_khat(sample_dims="draw", r_eff=1, tail="right"))
