"""Calibration on held-out rows after training: a temperature (Guo et al., 2017) and conformal prediction sets (Lu et al., 2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from bayesfed.algorithms.after_training.calibration.model import CalibratedModel
from bayesfed.algorithms.after_training.calibration.sums import (
    CLIENTS,
    OWN,
    SCORES,
    TEMPERATURE,
    BestTemperature,
    GridOfTemperatures,
    Only,
    ScoreHistograms,
    SumOfHistograms,
)
from bayesfed.algorithms.registry import recipe
from bayesfed.compress.codecs import Cast
from bayesfed.errors import ArgumentError, complain
from bayesfed.errors.checks import shown
from bayesfed.federated.aggregation.views import Whole
from bayesfed.federated.core.algorithm import Algorithm, Assign, Model, Personal, Phase, Predictor
from bayesfed.federated.core.protocols import Assignment, Link, Profile
from bayesfed.federated.links.digital import Digital
from bayesfed.inference.evaluation.conformal import BINS
from bayesfed.keys import Key
from bayesfed.trees import Tree, trainable, without

# 50 temperatures from 0.25 to 4.
GRID = tuple(float(one) for one in torch.logspace(-2, 2, 50, base=2, dtype=torch.float64))


@recipe(cites=("guo2017calibration", "lu2023federated"))
def calibrated(
    model: nn.Module | Predictor,
    parameters: Mapping[str, Tensor] | None = None,
    *,
    classes: int = 10,
    temperatures: Sequence[float] | None = None,
    bins: int = BINS,
    link: Link | None = None,
) -> Algorithm:
    """Calibrate a trained classifier on rows that clients held out, in one round: ``bf.run(bf.calibrated(result.model), held_out, rounds=1).model``.

    The rows must not have been trained on (`split_rows`). In a first phase clients send the summed NLL of their rows at each temperature; in a
    second, histograms of ``1 - p_y`` by class, of which the quantiles for prediction sets are read: marginal ones, and under a shift of labels.
    The model of ``result.clients[name]`` has a client's own histogram, for sets that cover the rows of this client. A temperature changes no
    prediction, and the price is a message of the network down and ``50 + 1000 C`` numbers up.

    Parameters
    ----------
    model
        The trained network, or a `Model` such as ``result.model``.
    parameters
        Parameters of the network. Default: its own, or those of the `Model`.
    classes
        C, the number of outputs.
    temperatures
        The grid. Default: 50 values from 1/4 to 4, equally spaced by their logarithm.
    bins
        Number of bins of a histogram; thresholds are rounded up to one of them.
    link
        How sums reach the server. Default: `Digital()` without a bound on norms.

    Raises
    ------
    ArgumentError
        If the model is none, a temperature is not positive, or `classes` or `bins` is below 1.

    Warns
    -----
    UndeterminedWarning
        In the round, if the best temperature is at an end of the grid.

    Examples
    --------
    >>> train, held = bf.split_rows(clients, 0.1)
    >>> model = bf.run(bf.calibrated(bf.run(bf.fed_avg(net), train, rounds=30).model), held, rounds=1).model
    >>> model.probabilities(inputs), model.sets(inputs, level=0.9)
    """
    net, own = (model.net, model.parameters) if isinstance(model, Model) else (model, None)
    if not isinstance(net, nn.Module):
        raise ArgumentError(complain("calibrated, model", expected="a network or a Model", actual=shown(model), hint="result.model"))
    grid = GRID if temperatures is None else tuple(map(float, temperatures))
    if not grid or not all(0 < one < float("inf") for one in grid):
        raise ArgumentError(complain("calibrated, temperatures", expected="positive numbers", actual=list(grid), hint="[0.5, 1.0, 2.0]"))
    if min(classes, bins) < 1:
        raise ArgumentError(complain("calibrated", expected="classes and bins >= 1", actual=(classes, bins), hint="10, 1000"))
    given = parameters if parameters is not None else own
    begun: Tree = trainable(net) if given is None else dict(given)
    zeros = {TEMPERATURE: torch.ones(1, dtype=torch.float64), SCORES: torch.zeros(classes, bins, dtype=torch.float64), CLIENTS: torch.zeros(1)}

    def asking(view: Whole, names: Sequence[str]) -> Assign:
        sent = Only(view, frozenset([*begun, *names]))

        def assign(state: Tree, round: int, profile: Profile, key: Key) -> Assignment:
            return Assignment(sent, 1.0, Cast(32), Cast(32))

        return assign

    # Sums over many rows are larger than the parameters of a model.
    over = link or Digital(max_norm=1e20)
    first = Phase("temperature", asking(Whole({"nll": (len(grid),)}), []), GridOfTemperatures(net, grid), BestTemperature(grid), over)
    counts = Whole({"scores": (classes, bins), "clients": (1,)})
    second = Phase("scores", asking(counts, [TEMPERATURE]), ScoreHistograms(net, classes, bins), SumOfHistograms(), over)

    def predictor(state: Tree) -> CalibratedModel:
        return CalibratedModel(net, without(state, OWN), float(state[TEMPERATURE]), state[SCORES], int(state[CLIENTS]))

    def personal(state: Tree, memory: Tree) -> Personal:
        shared = predictor(state)
        return Personal(CalibratedModel(net, shared.parameters, shared.temperature, memory[SCORES], 1) if SCORES in memory else shared)

    return Algorithm("calibrated", begun | zeros, (first, second), predictor, personal=personal)
