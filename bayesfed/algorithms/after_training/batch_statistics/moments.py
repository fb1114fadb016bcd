"""Moments of the inputs of a batch norm: `BatchMoments` computes those of a client,
`PooledStatistics` pools them at the server.

Moments about zero add, so the server needs only a sum: ``mean = sum_k n_k m_k / n`` and
``variance = sum_k n_k s_k / n - mean^2`` are those of all rows together. The subtraction loses
``mean^2 / variance`` times the rounding error, hence double precision. Within a client, batches are
merged about their means (Chan, Golub and LeVeque, 1983, (2.1)).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesfed.algorithms.surveys import LARGEST, Asked, Limit
from bayesfed.data import Dataset
from bayesfed.errors import DataError
from bayesfed.federated import Fit, LocalOptions, Reducer
from bayesfed.federated.aggregation.servers import summed
from bayesfed.federated.core import Info
from bayesfed.keys import Key
from bayesfed.models.calling import functional_call
from bayesfed.trees import Tree, leaf_of


class _Reached(Exception):
    """Ends a forward pass at the norm that is queried."""

    def __init__(self, inputs: Tensor) -> None:
        self.inputs = inputs


@dataclass(frozen=True)
class BatchMoments(Asked):
    """Run all rows up to a batch norm and return the moments about zero of its inputs, for each
    channel: over rows and pixels, in float64.

    Payload: ``mean`` and ``square``, ``(channels,)``; a client without rows has zeros.
    Its weight is its number of rows: every row has as many pixels.

    Parameters
    ----------
    net
        The network in evaluation mode, its norms with running statistics. The message holds its
        parameters and these statistics.
    norm
        Name of the batch norm.
    channels
        Number of channels of the norm.
    batch_size
        Number of rows of a forward pass; it affects memory only.
    """

    net: nn.Module
    norm: str
    channels: int
    batch_size: int

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Return the moments; remember nothing.

        Raises
        ------
        DataError
            If a forward pass never reaches the norm.
        """
        count = 0
        mean = torch.zeros(self.channels, dtype=torch.float64, device=data.inputs.device)
        scatter = torch.zeros_like(mean)
        for start in range(0, len(data), self.batch_size):
            values = (
                self._inputs(message, data.inputs[start : start + self.batch_size])
                .double()
                .transpose(0, 1)
                .flatten(1)
            )
            more, total = values.shape[1], count + values.shape[1]
            variance, centre = torch.var_mean(values, dim=1, correction=0)
            scatter += more * variance + (centre - mean).square() * (count * more / total)
            mean += (centre - mean) * (more / total)
            count = total
        square = scatter / max(count, 1) + mean.square()
        return Fit({"mean": mean, "square": square}, {}, {"samples": float(len(data))})

    def _inputs(self, message: Tree, rows: Tensor) -> Tensor:
        def stop(norm: nn.Module, given: tuple[Tensor, ...]) -> None:
            raise _Reached(given[0])

        norm = self.net.get_submodule(self.norm)
        try:
            with norm.register_forward_pre_hook(stop), torch.no_grad():
                functional_call(self.net, message, (rows,))
        except _Reached as reached:
            return reached.inputs
        raise DataError(
            f"batch norm {self.norm!r}",
            "rows that come to it",
            "a forward pass without it",
            "a forward pass that always uses it",
        )


@dataclass(frozen=True)
class PooledStatistics:
    """Set the running statistics of a norm to the mean and the variance (without Bessel's
    correction) of all clients' rows together.

    With the variance of the rows themselves, evaluation equals training mode on all rows as one
    batch.
    """

    norm: str

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Pool the moments.

        Raises
        ------
        UpdateError
            If no client with rows took part.
        """
        moments = summed(reducer, "moments").mean()
        mean, square = moments["mean"], moments["square"]
        # Rounding may leave a channel that never varies just below 0.
        statistics = {
            leaf_of(self.norm, "running_mean"): mean,
            leaf_of(self.norm, "running_var"): (square - mean.square()).clamp_min(0),
        }
        return state | {name: leaf.to(state[name]) for name, leaf in statistics.items()}, {}


def moments_limits(payload: Tree, rows: float) -> Iterator[Limit]:
    """Yield what moments about zero can be: a variance is not below 0."""
    yield "mean", payload["mean"], -LARGEST, LARGEST
    yield "square", payload["square"], payload["mean"].square(), LARGEST**2
