"""The Laplace approximation of a trained network, from sums over the clients' rows (MacKay, 1992;
Daxberger et al., 2021).

======================  ===================================================================
notation                here
======================  ===================================================================
theta, MAP              the parameters of the trained network; they are not changed
H, the GGN              `structure`, summed over all clients' rows: equal to the central one
delta                   `prior_precision`, by default that of the largest evidence
======================  ===================================================================

The sums over clients are exact, whatever the partition. What is approximate is the Gaussian, the
Kronecker form, and that theta may not be a maximum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from torch import Tensor, nn

from bayesfed.algorithms.after_training.laplace.sums import (
    CurvatureSums,
    FitGaussian,
    PriorPrecision,
    empty,
    posterior_of,
    sent_shapes,
    sums_limits,
)
from bayesfed.algorithms.after_training.trained import network_and_parameters
from bayesfed.algorithms.baselines.ensembles.models import model_of
from bayesfed.algorithms.registry import recipe
from bayesfed.algorithms.surveys import survey
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import POSITIVE, Role, whole
from bayesfed.federated import Algorithm, Link, Model, Posterior, Predictor
from bayesfed.federated.core import MODEL, of, owned
from bayesfed.inference.laplace.layers import Layer, all_layers, last_layer
from bayesfed.inference.laplace.roots import roots
from bayesfed.inference.laplace.structures import DiagonalLayers, Flat, Kronecker, Structure
from bayesfed.models import Categorical, Likelihood
from bayesfed.models.modules import tied
from bayesfed.models.nets.norms import check_tracked
from bayesfed.trees import Tree

Subset = Literal["last", "all"]
Form = Literal["kronecker", "diagonal", "full"]
Biases = Literal["joint", "apart"]
# Most parameters of a full GGN, whose triangle each client sends.
LARGEST = 20_000


@recipe(
    cites=("daxberger2021laplace", "mackay1992practical"),
    prior_precision=Role(
        lambda value: value == "evidence" or POSITIVE.fits(value),
        "a number above 0, or 'evidence'",
        "'evidence'",
    ),
    batch_size=whole(1, "250"),
)
def laplace(
    model: nn.Module | Predictor | Algorithm,
    parameters: Mapping[str, Tensor] | None = None,
    *,
    subset: Subset = "last",
    structure: Form = "kronecker",
    prior_precision: PriorPrecision = "evidence",
    likelihood: Likelihood | None = None,
    biases: Biases = "joint",
    batch_size: int = 250,
    link: Link | None = None,
) -> Algorithm:
    """Put a Gaussian around a trained network in one round of sums,
    ``bf.run(bf.laplace(result.model), clients, rounds=1)``.

    Each client runs its rows through the network once and sends what they add to the generalised
    Gauss-Newton matrix: with the defaults the triangles of two small matrices, 133 kB for a last
    layer of 256 inputs and 10 classes. No rows are held out: the prior's precision maximises the
    evidence. The result has a posterior, for `Result.predictive`, `scores` and `to_arviz`; its
    `probit` predicts without draws.

    Parameters
    ----------
    model
        The trained network; a `Model`, such as ``result.model``; or an algorithm, whose rounds then
        end with the phase of sums, for posteriors during training at the price of that phase in
        every round.
    parameters
        Parameters of the network. Default: its own, or those of the `Model`.
    subset
        "last": the last linear layer, in which the network is linear, also where it is frozen;
        "all": all trained parameters, by linearising the network.
    structure
        "kronecker": two factors for each linear or convolution layer (KFAC); "diagonal"; "full",
        for at most 20,000 parameters.
    prior_precision
        delta of the prior N(0, 1 / delta) on each parameter of the subset, or "evidence".
    likelihood
        `Categorical` (default) or `Normal`, at its temperature.
    biases
        Kronecker form only. "joint": a bias is a column of its layer's matrix; "apart": a block of
        its own, as in laplace-torch.
    batch_size
        Number of rows of a pass; it affects memory only.
    link
        How sums reach the server. Default: `Digital()` without a bound on norms. Clients send 32
        bits a number, 64 if the parameters have 64.

    Raises
    ------
    ArgumentError
        If an argument is outside its domain, the parameters are not the network's, the network does
        not have the layers that are asked for, its parameters are tied in a form of layers, it has
        batch norm without running statistics, or the algorithm has no single model or a posterior
        of its own.
    DataError
        In a round, if the last linear layer that the network registers is not the last that is
        used.

    Warns
    -----
    UndeterminedWarning
        In a round, of classes: if the precision is by the evidence and the network's NLL on its
        own rows is below 0.005 nats, since such rows hardly bound the weights; and if draws are
        expected to raise that NLL, gamma / 2N, by more than 0.03 nats and twice itself: such draws
        predict worse than the network.

    References
    ----------
    Daxberger et al., "Laplace Redux: Effortless Bayesian Deep Learning" (2021); MacKay, "A
    Practical Bayesian Framework for Backpropagation Networks" (1992).
    """
    scored = likelihood or Categorical()
    roots(scored)
    network, begun = _model(model, parameters)
    check_tracked(network, "laplace")
    form = structure_of(network, subset, structure, biases)
    last = last_layer(network).name if subset == "last" else None
    phase = survey(
        "curvature",
        CurvatureSums(network, scored, form, batch_size, last),
        FitGaussian(network, scored, form, prior_precision),
        sent_shapes(form),
        sums_limits(form, scored),
        begun,
        link,
        by_rows=True,
    )

    def posterior(state: Tree) -> Posterior:
        return posterior_of(state, network, scored, form)

    gaussian = empty(form, prior_precision)
    if isinstance(model, Algorithm):
        # Rounds end with a phase of sums; the Gaussian of the last round stays until it is made
        # anew.
        initial, phases = model.initial | gaussian, (*model.phases, phase)
        return replace(model, initial=initial, phases=phases, posterior=posterior)
    initial = of(MODEL, begun) | gaussian
    predictor = lambda state: Model(network, owned(state, MODEL))  # noqa: E731
    return Algorithm("laplace", initial, (phase,), predictor, posterior)


def _model(
    given: nn.Module | Predictor | Algorithm, parameters: Mapping[str, Tensor] | None
) -> tuple[nn.Module, Tree]:
    """Return the network and the parameters that clients get."""
    if isinstance(given, Algorithm):
        hint = "laplace(result.model) after the run"
        if parameters is not None:
            raise ArgumentError("laplace", "an algorithm alone", "parameters besides", hint)
        model = model_of(given, "laplace", hint)
        return model.net, model.parameters
    return network_and_parameters("laplace", given, parameters)


def structure_of(
    net: nn.Module,
    subset: Subset,
    structure: Form,
    biases: Biases = "joint",
    *,
    where: str = "laplace",
    instead: str = "",
) -> Structure:
    """Return a form of the GGN of a network; parameters as for `laplace`, and the name of the
    method with what to try in place of this form, for errors.

    Raises
    ------
    ArgumentError
        If the network does not have the layers, no trained parameters, or too many for all entries.
    """
    own = dict(net.named_parameters())
    layers: list[Layer] | None
    if subset == "last":
        layers = [last_layer(net, where, instead or "subset='all'")]
        names = layers[0].parameters
        if both := tied(net) & set(names):
            raise ArgumentError(
                where,
                "parameters of the last layer alone",
                f"tied {sorted(both)}",
                instead or "subset='all', structure='full'",
            )
    else:
        layers = all_layers(net)
        names = tuple(name for name, value in own.items() if value.requires_grad)
        if not names:
            raise ArgumentError(
                where, "a trained parameter", f"all frozen of {list(own)}", "subset='last'"
            )
    if structure == "kronecker":
        if layers is None:
            raise ArgumentError(
                where,
                "linear and convolution layers",
                "trained parameters elsewhere, tied or in a layer of groups",
                "structure='full' or 'diagonal', subset='last'",
            )
        return Kronecker(tuple(layers), biases == "joint")
    if structure == "diagonal" and layers:
        return DiagonalLayers(tuple(layers))
    size = sum(own[name].numel() for name in names)
    if structure == "full" and size > LARGEST:
        raise ArgumentError(
            where,
            f"at most {LARGEST:,} parameters for structure='full'",
            f"{size:,}",
            instead or "structure='kronecker' or 'diagonal'",
        )
    return Flat(names, size, structure == "diagonal")
