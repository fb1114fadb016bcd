"""The only import of ArviZ: one function that builds what the installed version understands.

ArviZ 0.x holds groups in `InferenceData`, ArviZ 1.x in xarray's `DataTree` (from arviz-base). Both save with
``to_netcdf``.
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
    module: Any = backend
    if module is None:
        with warnings.catch_warnings():
            # ArviZ 0.23 announces 1.0 whenever it is imported; both are served here.
            warnings.simplefilter("ignore", FutureWarning)
            import arviz as module
    known = {name: dict(variables) for name, variables in groups.items() if variables}
    if hasattr(module, "InferenceData"):
        data = module.from_dict(**known, coords=dict(coords), dims=dict(dims)) if known else module.InferenceData()
        data.add_groups(dict(extra), warn_on_custom_groups=False)
        return data
    import xarray

    tree = module.from_dict(known, coords=dict(coords), dims=dict(dims)) if known else xarray.DataTree()
    for name, dataset in extra.items():
        tree[name] = xarray.DataTree(dataset)
    return tree
