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
from bayesfed.federated import Posterior
from bayesfed.federated.core.posteriors import Dense
from bayesfed.inspect.at_clients import Part
from bayesfed.keys import Key, forked
from bayesfed.trees import Tree

Values = dict[str, dict[str, list[Tensor]]]


def drawn_groups(
    posterior: Posterior,
    parts: Sequence[Part],
    draws: int,
    thin: int,
    key: Key,
    dims: dict[str, list[str]],
    coords: dict[str, Any],
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
        Dimensions and coordinates of local latents are entered here.
    """
    values: Values = defaultdict(lambda: defaultdict(list))
    local: Values = defaultdict(lambda: defaultdict(list))
    for number in range(draws):
        _add(posterior, parts, thin, key, number, values, local)
    for name, by_client in local.items():
        values["posterior"] |= _local(name, by_client, parts, dims, coords)
    return {
        group: {name: torch.stack(one)[None].numpy() for name, one in variables.items()}
        for group, variables in values.items()
    }


def _add(
    posterior: Posterior,
    parts: Sequence[Part],
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
        for name, value in tree.items():
            kept = thinned(value, thin)
            values[group][name].append(kept.to(torch.int8) if name.endswith(".s") else kept)
    pieces: dict[str, list[Tensor]] = defaultdict(list)
    for part in parts:
        own = draw
        if part.posterior is not posterior:
            own, more = _dense(part.posterior, key.child("draw", number))
            densities = {
                name: density + more[name] for name, density in densities.items() if name in more
            }
        for name in own.keys() - draw.keys():
            local[name][part.client].append(own[name])
        if not len(part.rows):
            continue
        # Rows that are not given by client have the streams that they had before there were
        # clients.
        of_part = key.child(part.client) if part.client else key
        response, sample = _observed(part.posterior, own, part.rows, of_part, number)
        pieces["posterior_predictive"].append(sample)
        pieces["log_likelihood"].append(response.log_prob(part.rows.targets))
        if prior:
            before = of_part.child("prior_predictive")
            _, sample = _observed(posterior, prior, part.rows, before, number)
            pieces["prior_predictive"].append(sample)
    for group, several in pieces.items():
        values[group]["y"].append(torch.cat(several))
    if densities:
        if "log_prior" in densities and pieces:
            likely = torch.cat(pieces["log_likelihood"]).sum()
            densities = {**densities, "lp": densities["log_prior"] + likely}
        # ArviZ asks for divergences in some plots; independent draws have none.
        for name, value in {**densities, "diverging": torch.tensor(False)}.items():
            values["sample_stats"][name].append(value)


def _observed(
    posterior: Posterior, draw: Tree, rows: Dataset, key: Key, number: int
) -> tuple[TorchDistribution, Tensor]:
    """Return what a draw predicts for rows, and a draw of their targets."""
    response = posterior.observe(draw, rows.inputs, key.child("observe", number))
    with forked(key.child("respond", number)):
        return response, response.sample()


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
