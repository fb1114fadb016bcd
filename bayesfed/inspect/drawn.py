"""`Drawn`: draws of a posterior, of local latents at their clients, and of what they predict,
collected for an export.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesfed.federated import Posterior
from bayesfed.federated.core.posteriors import Dense
from bayesfed.inspect.at_clients import Part
from bayesfed.keys import Key, forked
from bayesfed.trees import Tree


class Drawn:
    """Draws, one after another, and the groups of ArviZ that they make.

    Parameters
    ----------
    posterior
        The server's posterior.
    parts
        Rows and the posterior that predicts them.
    thin
        Keep every `thin`-th row and column of a matrix.
    key
        Key of the draws.
    """

    def __init__(self, posterior: Posterior, parts: Sequence[Part], thin: int, key: Key) -> None:
        self._posterior, self._parts, self._thin, self._key = posterior, parts, thin, key
        self._values: dict[str, dict[str, list[Tensor]]] = defaultdict(lambda: defaultdict(list))
        self._own: dict[str, dict[str, list[Tensor]]] = defaultdict(lambda: defaultdict(list))

    def add(self, number: int) -> None:
        """Draw once more."""
        key, posterior = self._key.child("draw", number), self._posterior
        (draw, densities), prior = (
            _dense(posterior, key),
            posterior.draw_prior(self._key.child("prior", number)),
        )
        self._enter("posterior", draw)
        self._enter("prior", prior)
        likely = list[Tensor]()
        for part in self._parts:
            own = draw
            if part.posterior is not posterior:
                own, more = _dense(part.posterior, key)
                densities = {
                    name: density + more[name]
                    for name, density in densities.items()
                    if name in more
                }
            for name in own.keys() - draw.keys():
                self._own[name][part.client].append(own[name])
            if part.data is not None:
                likely.append(
                    self._observe(
                        "posterior_predictive", part, part.posterior, own, number, part.rows.targets
                    )
                )
                if prior:
                    self._observe("prior_predictive", part, posterior, prior, number, None)
        for group in ("posterior_predictive", "prior_predictive"):
            if pieces := self._values[group].pop("pieces", []):
                self._values[group]["y"].append(torch.cat(pieces))
        if likely:
            self._values["log_likelihood"]["y"].append(torch.cat(likely))
        self._state(densities, likely)

    def groups(
        self, dims: dict[str, list[str]], coords: dict[str, Any]
    ) -> dict[str, dict[str, np.ndarray]]:
        """Return the groups, and enter dimensions and coordinates of local latents."""
        for name, by_client in self._own.items():
            self._local(name, by_client, dims, coords)
        return {
            group: {
                name: torch.stack(values)[None].numpy()
                for name, values in variables.items()
                if values
            }
            for group, variables in self._values.items()
            if variables
        }

    def _enter(self, group: str, values: Tree) -> None:
        for name, value in values.items():
            kept = thinned(value, self._thin)
            self._values[group][name].append(kept.to(torch.int8) if name.endswith(".s") else kept)

    def _observe(
        self,
        group: str,
        part: Part,
        posterior: Posterior,
        draw: Tree,
        number: int,
        targets: Tensor | None,
    ) -> Tensor:
        """Enter predictions of one part, and return their log likelihood."""
        # Rows that are not given by client have the streams that they had before there were
        # clients.
        key = self._key if not part.client else self._key.child(part.client)
        key = key if targets is not None else key.child("prior_predictive")
        response = posterior.observe(draw, part.rows.inputs, key.child("observe", number))
        with forked(key.child("respond", number)):
            self._values[group]["pieces"].append(response.sample())
        return torch.zeros(()) if targets is None else response.log_prob(targets)

    def _state(self, densities: Tree, likely: list[Tensor]) -> None:
        if densities:
            if "log_prior" in densities and likely:
                densities = {**densities, "lp": densities["log_prior"] + torch.cat(likely).sum()}
            # ArviZ asks for divergences in some plots; independent draws have none.
            for name, value in {**densities, "diverging": torch.tensor(False)}.items():
                self._values["sample_stats"][name].append(value)

    def _local(
        self,
        name: str,
        by_client: dict[str, list[Tensor]],
        dims: dict[str, list[str]],
        coords: dict[str, Any],
    ) -> None:
        shapes = {values[0].shape for values in by_client.values()}
        ends = [f"{name}_{axis}" for axis in range(max(map(len, shapes)))]
        parts = {part.client: part for part in self._parts}
        by_row = all(
            (part := parts[client]).data is not None and values[0].shape[:1] == (len(part.rows),)
            for client, values in by_client.items()
        )
        if len(shapes) == 1:
            self._values["posterior"][name] = [
                torch.stack(drawn) for drawn in zip(*by_client.values(), strict=True)
            ]
            dims[name], coords["client"] = ["client", *ends], list(by_client)
        elif by_row:
            self._values["posterior"][name] = [
                torch.cat(drawn) for drawn in zip(*by_client.values(), strict=True)
            ]
            dims[name] = ["row", *ends[1:]]
        else:
            for client, values in by_client.items():
                self._values["posterior"][f"{name}.{client}"] = values


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
