"""Draws of a posterior, of local latents at their clients, and of what they predict, collected for
an export.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from bayesfed.data import Dataset
from bayesfed.errors import PosteriorError
from bayesfed.federated import Posterior
from bayesfed.federated.core.posteriors import Dense, OfSites, Scored
from bayesfed.inspect.at_clients import Part
from bayesfed.keys import Key, forked
from bayesfed.trees import Tree

# Name of the log likelihoods that clients keep.
OF_CLIENTS = "rows"
Values = dict[str, dict[str, list[Tensor]]]
Pieces = dict[str, dict[str, list[Tensor]]]


def drawn_groups(
    posterior: Posterior,
    parts: Sequence[Part],
    draws: int,
    thin: int,
    key: Key,
    dims: dict[str, list[str]],
    coords: dict[str, Any],
    memories: Mapping[str, Tree],
) -> dict[str, dict[str, np.ndarray]]:
    """Return the groups of ArviZ that draws of a posterior make.

    Parameters
    ----------
    posterior
        The server's posterior.
    parts
        Rows and the posterior that predicts them.
    draws, thin
        Number of draws; every `thin`-th row and column of a matrix is kept.
    key
        Key of the draws.
    dims, coords
        Dimensions of what was observed, and those and coordinates of local latents, are entered
        here.
    memories
        By client: what it keeps. Without rows, the log likelihoods are those that clients keep.
    """
    values: Values = defaultdict(lambda: defaultdict(list))
    local: Values = defaultdict(lambda: defaultdict(list))
    observed = [_seen(part, key) for part in parts]
    for number in range(draws):
        _add(posterior, parts, observed, thin, key, number, values, local)
        if isinstance(posterior, Scored) and not _names(observed):
            likely = posterior.log_likelihoods(key.child("draw", number), memories)
            if likely:
                dims[OF_CLIENTS], coords["client"] = ["client"], [*likely]
                values["log_likelihood"][OF_CLIENTS].append(torch.stack([*likely.values()]))
    for name, by_client in local.items():
        values["posterior"] |= _local(name, by_client, parts, dims, coords)
    groups = {
        group: {name: torch.stack(one)[None].numpy() for name, one in variables.items()}
        for group, variables in values.items()
    }
    seen = {name: torch.cat([one[name] for one in observed if one]) for name in _names(observed)}
    for name, value in seen.items():
        dims[name] = ["row"] + [f"{name}_{axis}" for axis in range(1, value.ndim)]
    return groups | {"observed_data": {name: value.numpy() for name, value in seen.items()}}


def _names(observed: Sequence[Tree]) -> dict[str, None]:
    return dict.fromkeys(name for one in observed for name in one)


def _add(
    posterior: Posterior,
    parts: Sequence[Part],
    observed: Sequence[Tree],
    thin: int,
    key: Key,
    number: int,
    values: Values,
    local: Values,
) -> None:
    """Draw once more."""
    draw, densities = _dense(posterior, key.child("draw", number))
    prior = posterior.draw_prior(key.child("prior", number))
    for group, tree in (("posterior", draw), ("prior", prior)):
        for name, value in {**tree, **_derived(posterior, tree, key)}.items():
            kept = thinned(value, thin)
            values[group][name].append(kept.to(torch.int8) if name.endswith(".s") else kept)
    pieces: Pieces = defaultdict(lambda: defaultdict(list))
    for part, seen in zip(parts, observed, strict=True):
        own = draw
        if part.posterior is not posterior:
            own, more = _dense(part.posterior, key.child("draw", number))
            densities = {
                name: density + more[name] for name, density in densities.items() if name in more
            }
        for name in own.keys() - draw.keys():
            local[name][part.client].append(own[name])
        # Rows that are not given by client have the streams that they had before there were
        # clients.
        of_part = key.child(part.client) if part.client else key
        before = of_part.child("prior_predictive")
        for group, of, tree, streams in (
            ("posterior_predictive", part.posterior, own, of_part),
            ("prior_predictive", posterior, prior, before),
        ):
            for name, (sample, likely) in _observed(
                of, tree, part.rows, seen, streams, number
            ).items():
                pieces[group][name].append(sample)
                if tree is own:
                    pieces["log_likelihood"][name].append(likely)
    _add_rows(pieces, densities, values)


def _add_rows(pieces: Pieces, densities: Tree, values: Values) -> None:
    """Add what a draw says of rows, and its densities."""
    for group, by_name in pieces.items():
        for name, several in by_name.items():
            values[group][name].append(torch.cat(several))
    if densities:
        if "log_prior" in densities and pieces:
            likely = torch.cat([torch.cat(one) for one in pieces["log_likelihood"].values()]).sum()
            densities = {**densities, "lp": densities["log_prior"] + likely}
        if "log_prior" in densities and not any("/" in name for name in densities):
            densities = {**densities, "log_prior/sites": densities["log_prior"]}
        # ArviZ asks for divergences in some plots; independent draws have none.
        for name, value in {**densities, "diverging": torch.tensor(False)}.items():
            group, _, site = name.partition("/")
            values[group if site else "sample_stats"][site or name].append(value)


def _observed(
    posterior: Posterior, draw: Tree, rows: Dataset, values: Tree, key: Key, number: int
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return a draw of what each observed site has for rows, and the log density of what it
    observed, by rows; nothing without rows, or without a draw.
    """
    if not (len(rows) and draw):
        return {}
    observing, response = key.child("observe", number), key.child("respond", number)
    found: Mapping[str, TorchDistribution]
    if isinstance(posterior, OfSites):
        found = scored = posterior.observe_sites(draw, rows.inputs, observing)
        if len(found) > 1:
            # A site may depend on what another one observed.
            scored = posterior.observe_sites({**draw, **values}, rows.inputs, observing)
    else:
        found = scored = {"y": posterior.observe(draw, rows.inputs, observing)}
    for name, given in scored.items():
        if (batch := tuple(given.batch_shape)) != (len(rows),):
            where, expected = f"to_arviz, site {name!r}", f"one target a row, batch {(len(rows),)}"
            raise PosteriorError(where, expected, f"batch {batch}", "a plate over rows")
    with forked(response):
        return {
            name: (given.sample(), scored[name].log_prob(values[name]))
            for name, given in found.items()
        }


def _seen(part: Part, key: Key) -> Tree:
    """Return what each observed site observes of rows, by its name; "y" where it has none."""
    if isinstance(part.posterior, OfSites) and len(part.rows):
        return part.posterior.observed(part.posterior.draw(key), part.rows)
    return {"y": part.rows.targets} if len(part.rows) else {}


def _derived(posterior: Posterior, draw: Tree, key: Key) -> Tree:
    return posterior.derived(draw, key) if draw and isinstance(posterior, OfSites) else {}


def _local(
    name: str,
    by_client: Mapping[str, list[Tensor]],
    parts: Sequence[Part],
    dims: dict[str, list[str]],
    coords: dict[str, Any],
) -> dict[str, list[Tensor]]:
    """Return a local latent as one variable if clients' have one shape, or a row for each row of
    data; else as one for each client.
    """
    shapes = {client: values[0].shape for client, values in by_client.items()}
    ends = [f"{name}_{axis}" for axis in range(max(map(len, shapes.values())))]
    rows = {part.client: len(part.rows) for part in parts}
    if len({*shapes.values()}) == 1:
        dims[name], coords["client"] = ["client", *ends], list(by_client)
        return {name: [torch.stack(drawn) for drawn in zip(*by_client.values(), strict=True)]}
    if all(rows[client] and shape[:1] == (rows[client],) for client, shape in shapes.items()):
        dims[name] = ["row", *ends[1:]]
        return {name: [torch.cat(drawn) for drawn in zip(*by_client.values(), strict=True)]}
    return {f"{name}.{client}": values for client, values in by_client.items()}


def _dense(posterior: Posterior, key: Key) -> tuple[Tree, Tree]:
    """Return a draw and its densities; none for a posterior that does not know them."""
    return (
        posterior.draw_with_densities(key)
        if isinstance(posterior, Dense)
        else (posterior.draw(key), {})
    )


def steps(value: Tensor, thin: int) -> list[int]:
    """Return the stride of each axis: matrices are thinned, vectors are not."""
    return [thin if value.ndim > 1 and axis >= value.ndim - 2 else 1 for axis in range(value.ndim)]


def thinned(value: Tensor, thin: int) -> Tensor:
    """Return every `thin`-th row and column of a matrix."""
    return value[tuple(slice(None, None, step) for step in steps(value, thin))]
