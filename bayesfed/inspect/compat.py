"""The only import of ArviZ: the functions that the package needs, for either of its major versions.

ArviZ 0.x stores groups in `InferenceData`, ArviZ 1.x in xarray's `DataTree` (from arviz-base). Both
are saved with ``to_netcdf``. ArviZ 1.x computes with arviz-stats, through xarray's accessor
``azstats``.
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
        # ArviZ 0.23 announces 1.0 on every import; both versions are supported here.
        warnings.simplefilter("ignore", FutureWarning)
        import arviz
    return arviz


def build(
    groups: Groups,
    coords: Mapping[str, Any],
    dims: Mapping[str, list[str]],
    extra: Mapping[str, xarray.Dataset],
    backend: ModuleType | None = None,
) -> Any:
    """Return the groups in ArviZ's own container.

    Parameters
    ----------
    groups
        Variables by group of ArviZ and by name. Sampled variables start with the axes (chain,
        draw).
    coords
        Coordinates by dimension.
    dims
        Dimensions by variable.
    extra
        Groups that ArviZ does not define, as xarray data sets.
    backend
        The module to build with. Default: `arviz`; `arviz_base` is ArviZ 1.x without plots.
    """
    module = _module(backend)
    known = {name: dict(variables) for name, variables in groups.items() if variables}
    # ArviZ 1.3 also has the old name, with a warning, so only the module's own names are looked at.
    if "InferenceData" in vars(module):
        data = (
            module.from_dict(**known, coords=dict(coords), dims=dict(dims))
            if known
            else module.InferenceData()
        )
        data.add_groups(dict(extra), warn_on_custom_groups=False)
        return data
    import xarray

    tree = (
        module.from_dict(known, coords=dict(coords), dims=dict(dims))
        if known
        else xarray.DataTree()
    )
    for name, dataset in extra.items():
        tree[name] = xarray.DataTree(dataset)
    return tree


def pareto_shape(log_weights: np.ndarray, backend: ModuleType | None = None) -> float:
    """Return the shape of the generalised Pareto distribution fitted to the largest weights.

    Parameters
    ----------
    log_weights
        ``(S,)``, with largest weight 0, of independent draws, so that the relative efficiency is 1.
        `k_hat` checks that there is a tail to fit.
    backend
        The module to compute with. Default: `arviz`; `arviz_stats` is ArviZ 1.x without plots.
    """
    module = _module(backend)
    if "psislw" in vars(module):
        return float(module.psislw(log_weights)[1])
    import xarray

    # psislw of arviz-stats takes log likelihoods, which are negative log weights; pareto_khat takes
    # the weights themselves.
    weights = xarray.DataArray(np.exp(log_weights), dims=["draw"])
    return float(weights.azstats.pareto_khat(sample_dims="draw", r_eff=1, tail="right"))
