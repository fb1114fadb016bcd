"""Export of a federated run to ArviZ: posterior, predictions, data, and the figures of the
federation.

Draws of a variational posterior are independent. However wrong it is, r-hat is 1 and the effective
sample size is S, so these figures have no meaning here. Judge convergence by the ELBO in the group
`federation`, and closeness to the exact posterior by k-hat.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked
from bayesfed.federated import Algorithm, Record, bits
from bayesfed.federated.core.posteriors import OfSites
from bayesfed.inspect.at_clients import Part, Rows, all_rows, are_fitted, parts_of
from bayesfed.inspect.compat import build, sampled
from bayesfed.inspect.drawn import drawn_groups, steps, thinned
from bayesfed.inspect.personal import COUNTS
from bayesfed.keys import Key
from bayesfed.trees import Tree

if TYPE_CHECKING:
    import xarray

MAX_ENTRIES = 250_000_000
# Draws of a posterior by default: where one draw has at most SMALL values, and elsewhere.
DRAWS, FEW, SMALL = 1000, 100, 1000
# Axes that are not a plate's.
TAKEN = ("chain", "draw", "row", "client")


@checked()
def to_arviz(
    algorithm: Algorithm,
    state: Tree,
    history: Sequence[Record],
    data: Rows = None,
    *,
    draws: int | None = None,
    thin: int = 1,
    seed: int = 0,
    memories: Mapping[str, Tree] | None = None,
    fitted: Mapping[str, Dataset] | None = None,
    own: Mapping[str, Mapping[str, float]] | None = None,
) -> Any:
    """Return a run in ArviZ's container.

    Groups: ``posterior`` (every latent site, and deterministic ones that no rows enter; for
    declared models ``SITE.w``, ``SITE.rho``, ``SITE.s`` with dimensions ``SITE.unit`` and
    ``SITE.input``; local latents with a dimension ``client``, or ``row`` if each row has one; a
    site called as an axis, such as ``chain``, ends in ``_``, and ``/`` becomes a dot), ``prior``
    and ``prior_predictive`` (for Pyro models), ``sample_stats`` (``log_q``, and where the prior's
    density is known ``log_prior`` and ``lp``, the log joint density with the rows), ``log_prior``
    (by site of the prior),
    ``constant_data`` (``SITE.inclusion``, or ``SITE.mean`` and ``SITE.sd``, and ``row_client``,
    ``row_fitted``), ``posterior_predictive``, ``log_likelihood`` and ``observed_data`` (each
    observed site by its name, ``y`` of a network, if data are given), and ``federation`` (by round
    and client: bits_up, bits_down, nll, accepted; by round: elbo, density and every metric).
    ``az.summary``, ``az.plot_forest``, ``az.plot_parallel`` and ``az.loo`` accept it. Their r-hat
    and effective sample sizes have no meaning for these draws; judge convergence by the ELBO and by
    k-hat (`Result.k_hat`). ``az.loo`` needs rows that were fitted, those with ``row_fitted``.

    Parameters
    ----------
    algorithm
        The algorithm of the run.
    state
        Its final state.
    history
        Its history.
    data
        Rows to predict and score, or those of every client by name. They must be by name if a part
        of the posterior stays with clients.
    draws
        Number of draws from the posterior. Default: 1,000 where a draw has at most 1,000 values,
        100 where it has more.
    thin
        Keep every `thin`-th row and column of a matrix; the coordinates say which ones.
    seed
        Seed of the draws.
    memories
        By client: what it keeps between rounds, for methods whose local latents or parameters stay
        with clients.
    fitted
        By client: the rows that were fitted, for ``row_fitted``; None if they are not known.
    own
        Scores of clients on their own rows, `PersonalScores.clients`: they become ``own_accuracy``
        and so on in ``federation``.

    Raises
    ------
    ArgumentError
        If `draws` or `thin` is below 1, the draws would not fit in memory, or a part of the
        posterior stays with clients and is not known for these rows.
    """
    if thin < 1 or (draws is not None and draws < 1):
        raise ArgumentError("to_arviz", "draws and thin >= 1", (draws, thin), "draws=100")
    groups: dict[str, dict[str, np.ndarray]] = {}
    coords: dict[str, Any] = {}
    dims: dict[str, list[str]] = {}
    rows = all_rows(data)
    if algorithm.posterior is not None:
        posterior, key = algorithm.posterior(state), Key(seed, "arviz")
        first = posterior.draw(key.child("draw", 0))
        if draws is None:
            draws = DRAWS if sum(value.numel() for value in first.values()) <= SMALL else FEW
        _check_size(first, draws, thin)
        more = posterior.derived(first, key) if isinstance(posterior, OfSites) else {}
        for name, value in {**posterior.constants, **first, **more}.items():
            numbered = [f"{name}_{axis}" for axis in range(value.ndim)]
            kept = [
                range(0, length, step)
                for length, step in zip(value.shape, steps(value, thin), strict=True)
            ]
            dims[name] = [
                # A plate whose matrices are thinned, or that is called as an axis of ArviZ.
                plain if axis in TAKEN or len(coords.get(axis, places)) != len(places) else axis
                for axis, plain, places in zip(
                    posterior.axes.get(name, numbered), numbered, kept, strict=True
                )
            ]
            coords |= {
                axis: np.array(places) for axis, places in zip(dims[name], kept, strict=True)
            }
        groups["constant_data"] = {
            name: thinned(value, thin).numpy() for name, value in posterior.constants.items()
        }
        parts = parts_of(posterior, memories or {}, data, "to_arviz", fitted)
        groups |= drawn_groups(posterior, parts, draws, thin, key, dims, coords, memories or {})
        if rows is not None:
            groups["constant_data"] |= _of_rows(rows, parts, fitted)
            dims |= {"row_client": ["row"], "row_fitted": ["row"]}
    if rows is not None:
        coords["row"] = np.arange(len(rows))
        if algorithm.posterior is None:
            groups["observed_data"] = {"y": rows.targets.numpy()}
            dims["y"] = ["row"] + [f"y_{axis}" for axis in range(1, rows.targets.ndim)]
    extra = {"federation": federation(history, own or {})}
    if known := groups.pop("log_prior", {}):
        extra["log_prior"] = sampled(known)
    return build(groups, coords, dims, extra)


def _of_rows(
    rows: Dataset, parts: Sequence[Part], fitted: Mapping[str, Dataset] | None
) -> dict[str, np.ndarray]:
    """Return whose rows they are, and which of them were fitted."""
    found: dict[str, np.ndarray] = {}
    if all(part.client for part in parts):
        found["row_client"] = np.concatenate(
            [np.full(len(part.rows), part.client) for part in parts]
        )
    if fitted is not None:
        found["row_fitted"] = are_fitted(rows, fitted.values()).astype(np.int8)
    return found


def _check_size(first: Tree, draws: int, thin: int) -> None:
    kept = [
        math.prod(-(-n // step) for n, step in zip(value.shape, steps(value, thin), strict=True))
        for value in first.values()
    ]
    if (entries := draws * sum(kept)) > MAX_ENTRIES:
        need = math.ceil(thin * math.sqrt(entries / MAX_ENTRIES))
        raise ArgumentError(
            "to_arviz",
            f"at most {MAX_ENTRIES:,} drawn values",
            f"{entries:,}",
            f"thin={need} or fewer draws",
        )


def federation(history: Sequence[Record], own: Mapping[str, Mapping[str, float]]) -> xarray.Dataset:
    """Return the figures of a run by round and client, and scores of clients, as an xarray data
    set, with NaN where there are none.
    """
    import xarray

    clients = sorted({row.client for record in history for row in record.rows} | own.keys())

    def of_client(record: Record, name: str) -> tuple[float, ...]:
        rows = [row for row in record.rows if row.client == name]
        nll = record.clients.get(name, {}).get("nll", math.nan)
        return bits(rows, "up"), bits(rows, "down"), nll, name in record.clients

    each = np.array([[of_client(record, name) for name in clients] for record in history], float)
    figures = [{**record.server, **record.metrics, "seconds": record.seconds} for record in history]
    variables: dict[str, tuple[tuple[str, ...], np.ndarray]] = {
        name: (("round", "client"), each[..., place])
        for place, name in enumerate(("bits_up", "bits_down", "nll", "accepted"))
    }
    # In netCDF a slash separates groups.
    variables |= {
        name.replace("/", "."): (("round",), values) for name, values in _columns(figures).items()
    }
    scores = _columns([own.get(client, {}) for client in clients])
    variables |= {
        f"own_{name}": (("client",), values)
        for name, values in scores.items()
        if name not in COUNTS
    }
    return xarray.Dataset(
        variables, coords={"round": [record.round for record in history], "client": clients}
    )


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, np.ndarray]:
    """Return the values by name, NaN in rows without them."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: np.array([row.get(name, math.nan) for row in rows]) for name in names}
