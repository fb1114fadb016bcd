"""Calibration on held-out rows after training: a temperature (Guo et al., 2017) and conformal
prediction sets (Lu et al., 2023).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from bayesfed.algorithms.after_training.calibration.model import CalibratedModel
from bayesfed.algorithms.after_training.calibration.sums import (
    CLIENTS,
    SCORES,
    TEMPERATURE,
    BestTemperature,
    GridOfTemperatures,
    ScoreHistograms,
    SumOfHistograms,
    counts_limits,
)
from bayesfed.algorithms.after_training.trained import network_and_parameters
from bayesfed.algorithms.registry import recipe
from bayesfed.algorithms.surveys import sums_limits, survey
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import shown, whole
from bayesfed.federated import Algorithm, Link, Personal, Predictor
from bayesfed.federated.core import MODEL, of, owned
from bayesfed.federated.core.layering import of_core
from bayesfed.inference.evaluation.conformal import BINS
from bayesfed.models.nets.norms import check_tracked
from bayesfed.trees import Tree

# 50 temperatures from 0.25 to 4.
GRID = tuple(float(one) for one in torch.logspace(-2, 2, 50, base=2, dtype=torch.float64))


@recipe(
    cites=("guo2017calibration", "lu2023federated"), classes=whole(1, "10"), bins=whole(1, "1000")
)
def calibrated(
    model: nn.Module | Predictor,
    parameters: Mapping[str, Tensor] | None = None,
    *,
    classes: int | None = None,
    temperatures: Sequence[float] | None = None,
    bins: int = BINS,
    link: Link | None = None,
) -> Algorithm:
    """Calibrate a trained classifier on rows that clients held out, in one round:
    ``bf.run(bf.calibrated(result.model), held_out, rounds=1).model``.

    The rows must not have been trained on (`split_rows`). In a first phase clients send the summed
    NLL of their rows at each temperature; in a second, histograms of ``1 - p_y`` by class, of which
    the quantiles for prediction sets are read: marginal ones, and under a shift of labels. The
    model of ``result.clients[name]`` has a client's own histogram, for sets that cover the rows of
    this client. A temperature changes no prediction, and the price is a message of the network down
    and ``50 + 1000 C`` numbers up.

    Parameters
    ----------
    model
        The trained network, or a `Model` such as ``result.model``.
    parameters
        Parameters of the network. Default: its own, or those of the `Model`.
    classes
        C, the number of outputs. Default: that of the network's last linear layer.
    temperatures
        The grid. Default: 50 values from 1/4 to 4, equally spaced by their logarithm.
    bins
        Number of bins of a histogram; thresholds are rounded up to one of them.
    link
        How sums reach the server. Default: `Digital()` without a bound on norms.

    Raises
    ------
    ArgumentError
        If the model is none or has batch norm without running statistics, the parameters are not
        the network's, a temperature is no positive number, `classes` or `bins` is no whole number
        from 1 on, or no `classes` are given and the network has no linear layer.
    DataError
        In the round, if the network has another number of outputs than `classes`, or a label lies
        outside.

    Warns
    -----
    UndeterminedWarning
        In the round, if the best temperature is at an end of the grid.

    References
    ----------
    Guo et al., "On Calibration of Modern Neural Networks" (2017); Lu et al., "Federated Conformal
    Predictors for Distributed Uncertainty Quantification" (2023).

    Examples
    --------
    >>> train, held = bf.data.split_rows(clients, 0.1)
    >>> trained = bf.run(bf.fed_avg(net), train, rounds=30).model
    >>> model = bf.run(bf.calibrated(trained), held, rounds=1).model
    >>> model.probabilities(inputs), model.sets(inputs, level=0.9)
    """
    net, begun = network_and_parameters("calibrated", model, parameters)
    check_tracked(net, "calibrated")
    grid = GRID if temperatures is None else tuple(map(float, temperatures))
    if not grid or not all(0 < one < math.inf for one in grid):
        raise ArgumentError(
            "calibrated, temperatures", "positive numbers", shown(temperatures), "[0.5, 1.0, 2.0]"
        )
    classes = _outputs(net) if classes is None else classes
    zeros = {
        TEMPERATURE: torch.ones(1, dtype=torch.float64),
        SCORES: torch.zeros(classes, bins, dtype=torch.float64),
        CLIENTS: torch.zeros(1),
    }

    first = survey(
        "temperature",
        GridOfTemperatures(net, grid),
        BestTemperature(grid),
        {"nll": (len(grid),)},
        sums_limits,
        begun,
        link,
    )
    second = survey(
        "scores",
        ScoreHistograms(net, classes, bins),
        SumOfHistograms(),
        {"scores": (classes, bins), "clients": (1,)},
        counts_limits,
        begun,
        link,
    )

    def predictor(state: Tree) -> CalibratedModel:
        temperature, clients = float(state[TEMPERATURE]), int(state[CLIENTS])
        return CalibratedModel(net, owned(state, MODEL), temperature, state[SCORES], clients)

    def personal(state: Tree, memory: Tree) -> Personal:
        model = predictor(state)
        if SCORES in memory:
            model = replace(model, histograms=memory[SCORES], clients=1)
        return Personal(model)

    initial = of(MODEL, begun) | zeros
    return of_core("calibrated", initial, (first, second), predictor, personal=personal)


def _outputs(net: nn.Module) -> int:
    """Return the number of outputs of a network's last linear layer, low-rank ones and those with
    adapters included; `ArgumentError` without any.
    """
    found = [
        outputs
        for module in net.modules()
        if isinstance(outputs := getattr(module, "out_features", None), int)
    ]
    if not found:
        raise ArgumentError(
            "calibrated",
            "a network that tells its number of classes",
            f"{type(net).__name__}, without a linear layer",
            "classes=10",
        )
    return found[-1]
