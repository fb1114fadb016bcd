"""The only import of ArviZ, for either of its major versions; and k-hat of Pareto-smoothed
importance sampling: how close a variational posterior is to the exact one.

ArviZ 0.x stores groups in `InferenceData`, ArviZ 1.x in xarray's `DataTree` (from arviz-base). Both
are saved with ``to_netcdf``. ArviZ 1.x computes with arviz-stats, through xarray's accessor
``azstats``.

Yao, Vehtari, Simpson and Gelman (2018), "Yes, but did it work? Evaluating variational inference":
draw theta_s from q, weight them by ``r_s = p(D, theta_s) / q(theta_s)``, and fit a generalised
Pareto distribution to the largest weights. Its shape k determines which moments of the weights
exist (those below 1 / k); k-hat is the estimate of k.
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Collection, Iterable, Mapping
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked, shown
from bayesfed.federated import Posterior
from bayesfed.federated.core import Weighing
from bayesfed.inference.variational.posterior import FittedGuide
from bayesfed.inspect.at_clients import Rows, pooled
from bayesfed.keys import Key
from bayesfed.trees import Tree

if TYPE_CHECKING:
    import xarray


Groups = Mapping[str, Mapping[str, np.ndarray]]
# Axes that ArviZ gives to what is sampled.
SAMPLED = ("chain", "draw")


def installed() -> Any:
    """Return ArviZ, whichever version is installed."""
    with warnings.catch_warnings():
        # ArviZ 0.23 announces 1.0 on every import; both versions are supported here.
        warnings.simplefilter("ignore", FutureWarning)
        try:
            import arviz
        except OSError:
            return _import_with_other_cache()
    return arviz


def _import_with_other_cache() -> Any:
    """Import ArviZ with a temporary folder in place of the user's cache folder.

    ArviZ 0.23 writes there on which day it last announced 1.0, and its import fails where it
    cannot, such as in a container whose home folder is read-only.
    """
    import platformdirs

    user_cache_dir = platformdirs.user_cache_dir
    with TemporaryDirectory() as folder:
        try:
            platformdirs.user_cache_dir = lambda *_, **__: folder
            return importlib.import_module("arviz")
        finally:
            platformdirs.user_cache_dir = user_cache_dir


def build(
    groups: Groups,
    coords: Mapping[str, Any],
    dims: Mapping[str, list[str]],
    extra: Mapping[str, xarray.Dataset],
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
    """
    module = installed()
    axes = _safe([*coords, *(axis for several in dims.values() for axis in several)], ())
    names = _safe([name for one in groups.values() for name in one], {*axes.values(), *SAMPLED})
    known = {
        group: {names[name]: values for name, values in variables.items()}
        for group, variables in groups.items()
        if variables
    }
    described = {
        "coords": {axes[axis]: values for axis, values in coords.items()},
        "dims": {
            names[name]: [axes[axis] for axis in several]
            for name, several in dims.items()
            if name in names
        },
    }
    # ArviZ 1.3 also has the old name, with a warning, so only the module's own names are looked at.
    if "InferenceData" in vars(module):
        data = module.from_dict(**known, **described) if known else module.InferenceData()
        data.add_groups(dict(extra), warn_on_custom_groups=False)
        return data
    import xarray

    tree = module.from_dict(known, **described) if known else xarray.DataTree()
    for name, dataset in extra.items():
        tree[name] = xarray.DataTree(dataset)
    return tree


def sampled(group: Mapping[str, np.ndarray]) -> xarray.Dataset:
    """Return numbers by draw, ``(chain, draw)``, as a group that ArviZ 0.x makes none of."""
    import xarray

    places = zip(SAMPLED, next(iter(group.values())).shape, strict=True)
    coords = {axis: np.arange(length) for axis, length in places}
    return xarray.Dataset(
        {name.replace("/", "."): (SAMPLED, values) for name, values in group.items()}, coords
    )


def _safe(names: Iterable[str], taken: Collection[str]) -> dict[str, str]:
    """Return a name for each that netCDF and xarray take: a slash separates groups there, and a
    variable must not be called as an axis.
    """
    found: dict[str, str] = {}
    for name in names:
        safe = name.replace("/", ".")
        while name not in found and (safe in taken or safe in found.values()):
            safe += "_"
        found.setdefault(name, safe)
    return found


def pareto_shape(log_weights: np.ndarray) -> float:
    """Return the shape of the generalised Pareto distribution fitted to the largest weights.

    Parameters
    ----------
    log_weights
        ``(S,)``, with largest weight 0, of independent draws, so that the relative efficiency is 1.
        `k_hat` checks that there is a tail to fit.
    """
    module = installed()
    if "psislw" in vars(module):
        return float(module.psislw(log_weights)[1])
    import xarray

    # psislw of arviz-stats takes log likelihoods, which are negative log weights; pareto_khat takes
    # the weights themselves.
    weights = xarray.DataArray(np.exp(log_weights), dims=["draw"])
    return float(weights.azstats.pareto_khat(sample_dims="draw", r_eff=1, tail="right"))


# Number of draws needed for importance weights with k = 0.5: 10 ** (1 / (1 - k)) (Vehtari et al.
# 2024, section 3.2.3).
FEWEST = 100
# Log weights that differ by less count as equal: a tail of such weights would consist of rounding
# errors.
EQUAL = 1e-3


@checked()
def k_hat(log_weights: Tensor) -> float:
    """Return the Pareto shape k-hat of importance weights: the smaller it is, the closer the
    posterior.

    Below 0.5 the approximation is good; up to 0.7 it is usable, preferably with importance weights;
    above, q should not be trusted. r-hat and effective sample size say nothing here: draws of a
    variational posterior are independent, so they are 1 and S however wrong q is. k-hat concerns
    all parameters jointly and grows with their number: the mean-field posterior of a network is
    usually far above 0.7 and may still predict well.

    Parameters
    ----------
    log_weights
        ``(S,)``: log p(D, theta_s) - log q(theta_s) of independent draws theta_s from q, up to a
        constant, in nats. At least 100, better 1,000 or more. Compute them in 64 bits, since both
        terms are large. ArviZ 0.x and 1.x differ by about 0.01, since one rounds the length of the
        tail, ``min(S / 5, 3 sqrt(S))``, up and the other down.

    Returns
    -------
    float
        0 if all weights of the tail are equal within 0.1 %, so that there is no tail. Infinity if,
        in 64 bits, a quarter of the tail is 0 relative to the largest weight or equal to the weight
        below the tail, so that there is nothing to fit.

    Raises
    ------
    ArgumentError
        If there are fewer than 100 weights, or one is not finite.
    """
    if log_weights.ndim != 1 or len(log_weights) < FEWEST or not log_weights.is_floating_point():
        raise ArgumentError(
            "k_hat",
            f"log weights (S,), at least {FEWEST}",
            f"{tuple(log_weights.shape)} of {log_weights.dtype}",
            "1,000 draws",
        )
    if not log_weights.isfinite().all():
        raise ArgumentError(
            "k_hat",
            "finite log weights",
            f"{int((~log_weights.isfinite()).sum())} that are not",
            "log p and log q of each draw in 64 bits",
        )
    values = log_weights.detach().cpu().double().sort().values
    values = values - values[-1]
    length = min(len(values) // 5, math.isqrt(9 * len(values)))
    below, tail = values[-length - 1].exp(), values[-length:].exp()
    if float(tail[0]) > 1 - EQUAL:
        return 0.0
    if float(tail[length // 4]) <= float(below):
        return math.inf
    return pareto_shape(values.numpy())


def k_hat_of(
    posterior: Posterior, memories: Mapping[str, Tree], data: Rows, draws: int, key: Key
) -> float:
    """Return k-hat of a posterior for the rows that were fitted, as `Result.k_hat` does."""
    where = "Result.k_hat"
    if isinstance(posterior, FittedGuide) and posterior.stays:
        if not isinstance(data, Mapping):
            raise ArgumentError(
                where,
                f"rows by client, since {posterior.stays[0]} stays with clients",
                shown(data),
                "the clients that were fitted, {name: rows}",
            )
        return k_hat(posterior.log_weights_with_clients(memories, data, key, draws=draws))
    if not isinstance(posterior, Weighing):
        raise ArgumentError(
            where, "a posterior with log_weights", type(posterior).__name__, "federated_svi"
        )
    return k_hat(posterior.log_weights(pooled(where, data), key, draws=draws))
