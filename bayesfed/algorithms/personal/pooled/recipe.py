"""Partial pooling of clients' own parameters: a hierarchical model, fitted by empirical Bayes from
sums.

===========================================  =======================================================
notation                                     here
===========================================  =======================================================
phi, shared parameters                       the server's state, ``model/NAME``
theta_k, parameters of client k              a client's memory, ``own/NAME``
N(mu, diag s^2), the population of theta_k   the server's state, ``mean/NAME`` and ``rho/NAME`` with
                                             s = log(1 + exp(rho))
N(m_k, (H_k + diag 1 / s^2)^-1)              the client's posterior: its maximum, and the GGN of its
                                             rows there (Laplace)
===========================================  =======================================================

A round is a step of empirical Bayes (Laird and Ware, 1982; MacKay, 1992): clients fit their
posteriors under the population, and the server learns its mean and widths from sums over them
(`Population`). Posteriors are exact for linear models with normal targets. Shares of classes have a
conjugate population instead (`shares.py`).
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import nn

from bayesfed.algorithms.baselines.drift.plain_sgd import no_prior, sgd_of
from bayesfed.algorithms.composing import alike, compose
from bayesfed.algorithms.personal.bayes.objective import MEAN, OWN, RHO, sds
from bayesfed.algorithms.personal.parts import head_of, last_layer
from bayesfed.algorithms.personal.pooled.covariates import (
    CENTRE,
    DIRECTIONS,
    SKETCH,
    GivenInputs,
    GivenInputsModel,
    PopulationGivenInputs,
    unknown,
)
from bayesfed.algorithms.personal.pooled.factors import is_factor, with_factors
from bayesfed.algorithms.personal.pooled.local import ROOT, Covariance, PooledParts, diagonal_of
from bayesfed.algorithms.personal.pooled.posterior import PartPosterior
from bayesfed.algorithms.personal.pooled.server import SQUARE, VARIANCE, Population, rho_of
from bayesfed.algorithms.personal.pooled.shares import by_classes
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Codec
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import Role, number, whole
from bayesfed.federated import Algorithm, Link, Model, Personal, Training, Whole
from bayesfed.federated.core import MODEL, of, owned
from bayesfed.federated.training.batch_norm import travelling
from bayesfed.inference.laplace.roots import roots
from bayesfed.inference.laplace.structures import Flat
from bayesfed.keys import Key
from bayesfed.models import Categorical, Likelihood
from bayesfed.models.modules import Predicate, selected
from bayesfed.models.nets.norms import check_tracked
from bayesfed.trees import Tree, besides, flat, only, shapes, size

Part = Literal["head", "offsets", "factors", "classes"]
Prior = Literal["layer", "entry", "fixed"]
Shared = Literal["trained", "fixed"]
Approximation = Literal["laplace", "variational"]
Covariates = Literal["inputs"]


@recipe(
    cites=(
        "laird1982random",
        "mackay1992practical",
        "saerens2002adjusting",
        "asuncion2009smoothing",
        "opper2009variational",
        "meyer2009factor",
        "kumar2012learning",
        "hastie1993varying",
        "blanchard2011generalizing",
        "tropp2017fixed",
    ),
    local=Role(
        lambda local: callable(local) or local in get_args(Part),
        "'head', 'offsets', 'factors', 'classes' or a predicate",
        "'head', lambda name, module: ...",
    ),
    factors=whole(1, "2"),
    initial_sd=number("[0, inf)", "0.3"),
)
def pooled(
    net: nn.Module,
    *,
    local: Part | Predicate = "head",
    factors: int = 2,
    covariates: Covariates | None = None,
    key: Key | None = None,
    prior: Prior = "layer",
    initial_sd: float | None = None,
    covariance: Covariance | None = None,
    approximation: Approximation = "laplace",
    shared: Shared = "trained",
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Fit a hierarchical model: each client has parameters of its own, drawn from a normal
    population whose mean and widths are learned from all clients.

    A client with few rows stays near the population. A client that never took part has the
    population itself: its predictions are averaged over how clients differ. The population begins
    at the network's own parameters, so pooling may follow any other training. Clients with rows
    count alike in the sums; with ``local="classes"`` they count by their rows.

    Posteriors are Gaussian, by default Laplace approximations: exact for linear models with normal
    targets, too narrow for classes with few rows a client. Where clients differ in which classes
    they have, try ``local="classes"`` first: it costs nothing, and each client's posterior is
    exact. Where the same inputs look different at different clients, as turned images do, try
    ``local="factors"``: a few numbers for each client, along directions learned from all. It needs
    the rounds of a training from the beginning, and helps clients that were never seen only with
    ``covariates="inputs"``, once they show inputs. Compare with `personalised` on held-out rows.

    Parameters
    ----------
    local
        Which parameters are a client's own. "head": those of the last layer; "offsets": all biases;
        or ``(parameter name, owning module) -> bool``. If that chooses none, the method is
        `fed_avg` with equal weights, bit for bit. "factors": factors ``z`` of the first linear or
        convolution layer, whose weight and bias are ``W + sum_j z_j U_j`` with loadings ``U_j``
        that are trained with the shared parameters. "classes": the shares of classes, which come
        from a Dirichlet population and shift the network's logits; the network is that of
        `fed_avg`, bit for bit, and what unseen clients have until they show inputs:
        ``result.model.adapted(inputs)`` takes shares from inputs without labels.
    factors
        Number of factors of a client with ``local="factors"``.
    covariates
        What a client's factors are expected to be, for ``local="factors"``. None: 0. "inputs": the
        first principal components, among clients, of the mean of a client's inputs, with a variance
        of 1 each. The factors are then these and a deviation of width `initial_sd`. Clients send 64
        numbers of the mean, in the clear without secure sums, and ``64 (factors + 8)`` of its
        products. Inputs are floats of which a mean says something, as images and measurements are.
    key
        Source of the first loadings, for ``local="factors"``. Runs differ much by them: try several
        and compare on held-out rows. Default: always the same.
    prior
        How the widths of the population are learned. "layer": one for each parameter tensor;
        "entry": one for each entry, for many clients; "fixed": not at all, only the means are.
        Factors always have a population of width `initial_sd`, and of mean 0 or their covariates,
        since mean and scale are in the weights and the loadings. For "classes": whether the
        pseudo-counts of the population are learned; if not, they are 1 in all.
    initial_sd
        Standard deviation of the population before the first round. With 0 own parameters never
        leave their beginning. Not used for "classes". Default: 0.3; 1 for factors, and 0.1 for
        factors with covariates.
    covariance
        "full": the posterior of a client has all covariances of its own parameters, at most 2,000;
        "diagonal": its entries are independent. Default: "full" up to 700 parameters.
    approximation
        The Gaussian of a client's posterior. "laplace": about its maximum; "variational": the
        nearest one in Kullback-Leibler divergence, for classes, with all covariances. It is much
        less narrow with few rows a client, and it holds a Jacobian of all rows of the client in
        memory. The widths of the population are then those of restricted maximum likelihood. For
        normal targets the posteriors are the same.
    shared
        "trained": after its own parameters a client trains the shared ones, and the server averages
        them; "fixed": they stay as in `net`, which suits a network that is trained already.
    likelihood
        `Categorical` (default) or `Normal`.
    training
        Local work of a round, as much on the own parameters as on the shared ones, by `Sgd` without
        momentum. Default: 50 steps of 64 rows with ``Sgd(0.05)``. Its `prior_precision` is for
        "classes" only.
    net, codec, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If an argument is outside its domain, the optimiser is not `Sgd` without momentum, the
        training has a prior besides that of the population, the head or all biases are frozen,
        there are too many own parameters for their covariances, or the network has batch norm
        without running statistics; with ``local="classes"`` it may.
    DataError
        In a round, if the layer that the network registers last is not the last that is used
        ("head"), or has another number of outputs ("classes").

    References
    ----------
    Laird and Ware, "Random-Effects Models for Longitudinal Data" (1982).

    Examples
    --------
    >>> result = bf.run(bf.pooled(net), clients, rounds=40)
    >>> result.personal_scores(held_out).mean("nll")
    >>> result.posterior  # the population, for clients that were never seen
    """
    by_factors, variational = local == "factors", approximation == "variational"
    if covariates and not by_factors:
        hint = "local='factors', covariates='inputs'"
        raise ArgumentError(
            "pooled, covariates", "None, or 'inputs' with local='factors'", repr(covariates), hint
        )
    if by_factors:
        net = with_factors(net, factors, key or Key(0, "factors"))
    begun = travelling(net, "static", where="pooled")
    scored, work = likelihood or Categorical(), training or Training()
    if local == "classes":
        if covariance is not None or variational or not isinstance(scored, Categorical):
            expected = "no covariance, no approximation and a likelihood of classes"
            actual = f"{covariance!r}, {approximation!r}, {type(likelihood).__name__}"
            raise ArgumentError("pooled, local='classes'", expected, actual, "local='head'")
        learned, trained = prior != "fixed", shared == "trained"
        return by_classes(net, begun, learned, trained, scored, work, codec, link)
    if initial_sd is None:
        initial_sd = 0.1 if covariates else 1.0 if by_factors else 0.3
    own = _own(net, begun, local)
    diagonal = diagonal_of(size(own), covariance, variational)
    sgd_of(work, "pooled")
    if own:
        no_prior(work, "pooled", "prior='layer', initial_sd=0.3, Training without one")
    roots(scored)
    part = PooledParts(
        work.likelihood_descent(net, scored, "moments"),
        net,
        scored,
        Flat(tuple(own), size(own), diagonal),
        shared == "trained",
        variational,
        by_factors,
        head_of(net) if local == "head" else None,
    )
    # The mean and the widths of factors are in the weights and the loadings: learned twice, they
    # drift.
    server = Population(
        prior == "layer", prior != "fixed" and not by_factors, variational, not by_factors
    )
    rhos = {name: rho_of(torch.full_like(leaf, initial_sd)) for name, leaf in own.items()}
    rest = besides(begun, own)
    initial = of(MODEL, rest) | of(MEAN, own)
    sent = initial | of(SQUARE, own) | of(VARIANCE, own)
    initial |= of(RHO, rhos)
    of_factors = next(iter(own), "")
    if covariates:
        initial |= (given := unknown(factors, own[of_factors]))
        sent |= only(given, (CENTRE, SKETCH))

    def predictor(state: Tree) -> Model:
        parameters = owned(state, MODEL) | owned(state, MEAN)
        if not covariates:
            return Model(net, parameters)
        known = only(state, (CENTRE, DIRECTIONS))
        return GivenInputsModel(net, parameters, of_factors, known)

    def population(state: Tree) -> PartPosterior:
        widths = flat(sds(state)).double()
        # Covariates have a variance of 1 among clients.
        root = (1 + widths.square()).sqrt() if covariates else widths
        return PartPosterior(net, scored, owned(state, MODEL), owned(state, MEAN), root)

    def personal(state: Tree, memory: Tree) -> Personal:
        if ROOT not in memory:
            return Personal(predictor(state), population(state) if own else None)
        common, kept = owned(state, MODEL), owned(memory, OWN)
        mean = only(kept, own)
        posterior = PartPosterior(net, scored, common, mean, memory[ROOT])
        return Personal(Model(net, common | mean), posterior)

    return compose(
        "pooled",
        net,
        GivenInputs(part, of_factors) if covariates else part,
        PopulationGivenInputs(server) if covariates else server,
        training=work,
        initial=initial,
        predictor=predictor,
        posterior=population if own else None,
        view=Whole(shapes(sent)),
        weight=alike,
        codec=codec,
        link=link,
        personal=personal,
        owner="",
    )


def _own(net: nn.Module, begun: Tree, local: Part | Predicate) -> Tree:
    """Return the own parameters of a client among those that are trained."""
    check_tracked(net, "pooled", 'norm="group"')
    known = {"head": last_layer(net), "offsets": _is_bias, "factors": is_factor}
    chosen = local if callable(local) else known[local]
    own = only(begun, selected(net, begun, chosen))
    if not own and not callable(local):
        actual = f"none that is trained, of {list(begun)}"
        raise ArgumentError(
            f"pooled, local={local!r}", "own parameters", actual, "requires_grad_(), another local="
        )
    return own


def _is_bias(name: str, module: nn.Module) -> bool:
    return name.rpartition(".")[2] == "bias"
