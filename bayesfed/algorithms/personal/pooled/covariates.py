"""What a client's inputs say of its factors: principal components, among clients, of the mean of a
client's inputs.

===========================================  =======================================================
notation                                     here
===========================================  =======================================================
c_k, mean of the inputs of client k          `summary`: at most 64 numbers
m; S, covariance of the c_k over clients     the server's, from sums of c_k and of c_k c_k' R
R, random matrix of few columns              `random`, the same for all; S R is enough to know the
                                             leading eigenvectors of S (Nystroem)
x_k = D' (c_k - m), covariates               `expected`; D are those eigenvectors over the roots of
                                             their eigenvalues
z_k ~ N(x_k, s^2), factors of client k       the population where clients show inputs, instead of
                                             N(0, s^2)
===========================================  =======================================================

The first layer is W + sum_j x_kj U_j, a varying-coefficient model (Hastie and Tibshirani, 1993), up
to a client's own deviation. That inputs without labels tell clients apart, and so help one that was
never seen, is after Blanchard et al. (2011); eigenvectors are taken from a sketch as by Tropp et
al. (2017).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.algorithms.personal.bayes.objective import MEAN
from bayesfed.algorithms.personal.pooled.local import PooledParts
from bayesfed.algorithms.personal.pooled.server import Population
from bayesfed.data import Dataset
from bayesfed.errors import DataError
from bayesfed.errors.checks import shown
from bayesfed.federated import Fit, LocalOptions, Model, Reducer
from bayesfed.federated.aggregation.servers import summed
from bayesfed.federated.core import Around, Info
from bayesfed.keys import Key
from bayesfed.trees import Shapes, Tree, without

# Prefix of the leaves in the state and in what is sent, and their names. The sketch is sent, the
# state has all.
COVARIATES = "covariates/"
CENTRE, SKETCH, HEARD, DIRECTIONS = (
    COVARIATES + name for name in ("mean", "sketch", "heard", "directions")
)
# Numbers of a summary; columns of a sketch beyond the directions wanted. What is a smaller share of
# all is rounding.
LENGTH, MORE, LEAST = 64, 8, 1e-6


def summary(inputs: Tensor) -> Tensor:
    """Return the mean of a client's inputs as ``(64,)``, in double precision; zeros if it has none.

    Inputs of more than 64 entries are projected on 64 random directions, the same at all clients;
    others are followed by zeros.

    Parameters
    ----------
    inputs
        ``(N, ...)``, numbers with a fraction.

    Raises
    ------
    DataError
        If they are whole numbers, as those of words are, whose mean says nothing.
    """
    if not inputs.is_floating_point():
        raise DataError(
            "pooled, covariates='inputs'",
            "inputs of floats",
            shown(inputs),
            "images and measurements as floats; for others covariates=None",
        )
    result = torch.zeros(LENGTH, dtype=torch.float64, device=inputs.device)
    if not len(inputs):
        return result
    mean = inputs.detach().reshape(len(inputs), -1).double().mean(0)
    if len(mean) > LENGTH:
        return mean @ random("summary", len(mean), LENGTH).to(mean.device) / math.sqrt(LENGTH)
    result[: len(mean)] = mean
    return result


def random(name: str, rows: int, columns: int) -> Tensor:
    """Return a matrix of normal draws in double precision, the same in every process."""
    return torch.randn(
        rows, columns, generator=Key(0, "covariates").child(name).generator(), dtype=torch.float64
    )


def sketched(seen: Tensor, columns: int) -> Tensor:
    """Return ``c c' R``, ``(64, columns)``, of a summary c."""
    return torch.outer(seen, seen @ random("sketch", LENGTH, columns).to(seen.device))


def principal(mean: Tensor, sketch: Tensor, before: Tensor) -> Tensor:
    """Return D, ``(64, d)``: directions along which the deviations of summaries from their mean are
    uncorrelated and have a variance of 1.

    Parameters
    ----------
    mean, sketch
        ``(64,)`` and ``(64, columns)``: means over clients of c and of ``c c' R``.
    before
        ``(64, d)``: directions of the round before. D is turned to be as near to them as it can be:
        covariates that are turned together say the same. If they are zeros, D is in the order of
        the variances of the summaries along it. Directions that the clients do not determine are 0.
    """
    centre, moments = mean.double().cpu(), sketch.double().cpu()
    test, count = random("sketch", *moments.shape), before.shape[1]
    product = moments - torch.outer(centre, centre @ test)
    inner = test.mT @ product
    values, vectors = torch.linalg.eigh((inner + inner.mT) / 2)
    told = values > LEAST * float((test.mT @ moments).diagonal().sum())
    result = torch.zeros_like(before, dtype=torch.float64, device="cpu")
    if not told.any():
        return result.to(before)
    # S is nearly E E' with E = S R (R' S R)^(-1/2).
    axes, roots, _ = torch.linalg.svd(
        product @ vectors[:, told] / values[told].sqrt(), full_matrices=False
    )
    axes, roots = axes[:, :count], roots[:count]
    # An axis is known up to its sign, which libraries choose differently.
    result[:, : len(roots)] = (
        axes * axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign() / roots
    )
    if before.any():
        left, _, right = torch.linalg.svd(result.mT @ before.double().cpu())
        result = result @ left @ right
    return result.to(before)


def expected(state: Tree, inputs: Tensor) -> Tensor:
    """Return the covariates ``(d,)`` of a client with these inputs ``(N, ...)``; zeros, the mean of
    all clients, if it has none.
    """
    centre, directions = state[CENTRE], state[DIRECTIONS]
    if not len(inputs):
        return directions.new_zeros(directions.shape[1])
    seen = summary(inputs).to(directions.device)
    return ((seen - centre.double()) @ directions.double()).to(directions)


def unknown(count: int, like: Tensor) -> Tree:
    """Return the server's leaves before any client was heard, for a number of factors."""
    shapes: Shapes = {
        CENTRE: (LENGTH,),
        SKETCH: (LENGTH, count + MORE),
        HEARD: (1,),
        DIRECTIONS: (LENGTH, count),
    }
    return {name: like.new_zeros(shape) for name, shape in shapes.items()}


@dataclass(frozen=True)
class GivenInputs(Around):
    """Steps of `PooledParts` about the factors that a client's inputs make expect, and moments of
    these inputs.

    Parameters
    ----------
    local
        Steps under a population of which the client knows the mean.
    leaf
        Name of the factors.
    """

    local: PooledParts
    leaf: str

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Send what `PooledParts` does, and the moments of the summary. Before the server has
        directions, factors are expected to be 0.

        Raises
        ------
        DataError
            If inputs are whole numbers.
        """
        centre, seen = expected(message, data.inputs), summary(data.inputs)
        told = without(message, COVARIATES) | {f"{MEAN}/{self.leaf}": centre}
        fit = self.local.fit(told, memory, data, key, options)
        sketch = sketched(seen, message[SKETCH].shape[1])
        moments = {CENTRE: seen.to(centre), SKETCH: sketch.to(centre)}
        return fit._replace(payload=fit.payload | moments)


@dataclass(frozen=True)
class PopulationGivenInputs:
    """The step of `Population`; the directions are those of all clients that were heard so far,
    each as often as it was.

    Parameters
    ----------
    population
        Step of the other leaves.
    """

    population: Population

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the next state. A round in which no client has data changes nothing."""
        stepped, info = self.population.step(without(state, COVARIATES), reducer, round)
        total = summed(reducer, "moments")
        if not total.weighs:
            return state, info
        heard, mean = state[HEARD] + total.number(), total.mean()
        given = {
            name: torch.lerp(state[name], mean[name], total.number() / float(heard))
            for name in (CENTRE, SKETCH)
        }
        directions = principal(given[CENTRE], given[SKETCH], state[DIRECTIONS])
        return dict(state) | stepped | given | {HEARD: heard, DIRECTIONS: directions}, info


@dataclass(frozen=True)
class GivenInputsModel(Model):
    """The network at the mean of all clients' factors, until a client that was never seen shows
    some inputs: a `Predictor`.

    Parameters
    ----------
    leaf
        Name of the factors in the network.
    covariates
        The server's leaves that make covariates of inputs.
    """

    leaf: str
    covariates: Tree

    def expected(self, inputs: Tensor) -> Tensor:
        """Return the factors ``(d,)`` that a client with these inputs ``(N, ...)`` is expected to
        have.
        """
        return expected(self.covariates, inputs)

    def adapted(self, inputs: Tensor) -> Model:
        """Return a model for further rows of the client whose inputs these are.

        Parameters
        ----------
        inputs
            Inputs of one client without labels, ``(N, ...)``. With none of them the factors are 0.

        Raises
        ------
        DataError
            If the inputs are whole numbers.
        """
        return Model(
            self.net,
            {**self.parameters, self.leaf: self.expected(inputs).to(self.parameters[self.leaf])},
        )
