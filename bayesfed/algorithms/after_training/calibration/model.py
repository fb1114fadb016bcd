"""`CalibratedModel`: a network with a temperature, and the prediction sets of held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import shown
from bayesfed.federated import Model
from bayesfed.inference.evaluation import conformal
from bayesfed.trees import Tree


@dataclass(frozen=True)
class CalibratedModel:
    """A network whose logits are divided by a temperature.

    Parameters
    ----------
    net, parameters
        Network and its parameters.
    temperature
        T.
    histograms
        ``(C, bins)``: histograms of ``1 - p_y`` of held-out rows by class, at this temperature.
    clients
        Number of clients whose rows these are.
    """

    net: nn.Module
    parameters: Tree
    temperature: float
    histograms: Tensor
    clients: int

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the logits at the temperature, ``(B, C)``."""
        return Model(self.net, self.parameters)(inputs) / self.temperature

    def probabilities(self, inputs: Tensor) -> Tensor:
        """Return the probabilities of the classes, ``(B, C)``."""
        return self(inputs).softmax(1)

    def threshold(self, level: float = 0.9, *, cautious: bool = False) -> float:
        """Return the largest ``1 - p`` of a class in a set.

        Parameters
        ----------
        level
            Share of the rows whose set shall hold the right class.
        cautious
            Whether every client counts as one more row of an unknown score, ``N + K`` rows for
            ``N + 1``, so that the promise holds for a new row of a client drawn in any shares that
            held-out rows have (Lu et al., 2023). With few rows a client the sets are then much too
            large for the rows of all clients together.

        Raises
        ------
        ArgumentError
            If the level is not in (0, 1), or no row was held out.
        """
        extra = self.clients if cautious else 1
        return conformal.threshold(self.histograms.sum(0), level, clients=extra)

    def thresholds(
        self, level: float = 0.9, *, shares: Tensor | Sequence[float] | None = None
    ) -> Tensor:
        """Return a threshold for every class, ``(C,)``: `conformal.class_thresholds` of the sums,
        or `conformal.shifted_thresholds`.

        Parameters
        ----------
        level
            Share of the rows whose set shall hold the right class: without shares of every single
            class, by its own held-out rows.
        shares
            ``(C,)``: shares of the classes where the sets are used, if they are others than those
            of the held-out rows (label shift). The level is then the share of all rows there. A
            class of a share above 0 without held-out rows is in every set.

        Raises
        ------
        ArgumentError
            As for `threshold`, or if the shares are not C finite numbers from 0 on, of which one is
            above 0.
        """
        if shares is None:
            return conformal.class_thresholds(self.histograms, level)
        return conformal.shifted_thresholds(self.histograms, _tensor(shares), level)

    def sets(
        self,
        inputs: Tensor,
        level: float = 0.9,
        *,
        shares: Tensor | Sequence[float] | None = None,
        by_class: bool = False,
    ) -> Tensor:
        """Return which classes are in the set of each row, ``(B, C)`` booleans.

        Parameters
        ----------
        inputs
            ``(B, ...)``.
        level, shares
            As for `thresholds`. With shares every class has a threshold of its own too, by weights
            (Podkopaev and Ramdas, 2021).
        by_class
            Whether every class has a threshold of its own (`thresholds`). Then the sets cover
            whatever the shares of the classes are, those of each client included, and are larger.

        Raises
        ------
        ArgumentError
            If the level is not in (0, 1), no row was held out, or shares are wrong or given as well
            as `by_class`.
        """
        if by_class and shares is not None:
            raise ArgumentError(
                "sets",
                "either shares or by_class",
                "both",
                "leave out shares=: sets by class cover under any shares",
            )
        limit = (
            self.threshold(level)
            if shares is None and not by_class
            else self.thresholds(level, shares=shares)
        )
        return conformal.prediction_sets(self.probabilities(inputs), limit)


def _tensor(shares: Tensor | Sequence[float]) -> Tensor:
    """Return shares of classes as a tensor; `ArgumentError` if they are no numbers."""
    try:
        return torch.as_tensor(shares, dtype=torch.float64, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(
            "shares of the classes",
            "a number for each class",
            shown(shares),
            "shares=[0.7, 0.2, 0.1]",
        ) from None
