"""One round: clients train alone, and what they learned is fused once.

==============  ====================================================================================
fusion          what is maximised
==============  ====================================================================================
``"laplace"``   the product of the clients' Laplace approximations of the last layer's likelihood,
                times one prior
``"fisher"``    the product of normals around the clients' networks, whose precisions are the
                diagonals of their GGNs
``"average"``   that of normals of equal precision: the mean of the networks, one round of `fed_avg`
==============  ====================================================================================

References: Matena and Raffel, "Merging models with Fisher-weighted averaging" (2022), (4); Liu et
al., "FedLPA: one-shot federated learning with layer-wise posterior aggregation" (2024), for
products of Laplace approximations.
"""

from __future__ import annotations

import math
from typing import Literal

from torch import nn

from bayesfed.algorithms.after_training.laplace.recipe import structure_of
from bayesfed.algorithms.after_training.laplace.sums import empty, posterior_of, sent_shapes
from bayesfed.algorithms.after_training.one_round.sums import (
    LINEAR,
    Expansion,
    Maximum,
    expansion_limits,
)
from bayesfed.algorithms.baselines.drift.plain_sgd import no_prior, sgd_of
from bayesfed.algorithms.composing import compose, within
from bayesfed.algorithms.registry import recipe
from bayesfed.compress.codecs import exact
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import number
from bayesfed.federated import Algorithm, Digital, Link, Posterior, Training
from bayesfed.federated.core import MODEL, of
from bayesfed.federated.engine.gate import LEAST, TIMES
from bayesfed.federated.training.batch_norm import travelling
from bayesfed.inference.laplace.layers import last_layer
from bayesfed.models import Categorical, Likelihood
from bayesfed.models.calling import check_resolved
from bayesfed.models.nets.norms import check_tracked
from bayesfed.trees import Tree, shapes, size, wide

Fusion = Literal["laplace", "fisher", "average"]


@recipe(
    cites=("matena2022merging", "liu2024fedlpa"),
    prior_precision=number("(0, inf)", "1.0"),
    floor=number("(0, inf)", "1e-3"),
)
def one_round(
    net: nn.Module,
    *,
    fusion: Fusion = "laplace",
    prior_precision: float = 1.0,
    floor: float = 1e-3,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Fuse networks that clients train alone, ``bf.run(bf.one_round(net), clients, rounds=1)``; all
    begin with the parameters of `net`.

    Parameters
    ----------
    net
        The network from whose parameters all clients begin; it is not changed.
    fusion
        "laplace": clients train the last layer on the features of `net`, which stay, and send all
        second derivatives of their log likelihood where training ended. The server's maximum is
        that of all rows together if the model is linear with normal targets; more rounds repeat the
        expansion around it. The result has a posterior. "fisher": clients train the whole network
        and send the diagonal of its GGN; every weight is averaged by it. "average": the weighted
        mean of the networks.
    prior_precision
        Laplace only: delta of the prior N(0, 1 / delta) on each parameter of the last layer, once
        for all clients together and once in the training of each.
    floor
        Fisher only: what is added to every client's Fisher information, so that weights that no row
        informs are averaged.
    likelihood
        `Categorical` (default) or `Normal`; for averages, any.
    training
        Local work. Default: 50 steps of 64 rows with ``Sgd(0.05)``; one round deserves more. For
        "laplace" and "fisher", `Sgd` without momentum. Its `prior_precision` is for the others:
        "laplace" has its own.
    link
        How sums reach the server. Default: `Digital()`, for "laplace" and "fisher" without a bound
        on norms.

    Raises
    ------
    ArgumentError
        If an argument is outside its domain, the network has batch norm without running statistics,
        or, for "laplace", its last layer is frozen or the server would refuse its second
        derivatives: more than 1 MiB and 16 times the network.

    References
    ----------
    Matena and Raffel, "Merging Models with Fisher-Weighted Averaging" (2022); Liu et al., "FedLPA:
    One-shot Federated Learning with Layer-Wise Posterior Aggregation" (2024).
    """
    work, scored = training or Training(), likelihood or Categorical()
    if fusion == "average":
        return compose("one_round", net, work.fitting(net, scored), training=work, link=link)
    sgd_of(work, "one_round")
    check_tracked(net, "one_round", 'norm="group"')
    bayes = fusion == "laplace"
    if bayes:
        hint = "one_round(net, prior_precision=1.0), Training without one"
        no_prior(work, "one_round, fusion='laplace'", hint)
        check_resolved("one_round", net)
    begun = travelling(net, "static", where="one_round")
    form = (
        structure_of(net, "last", "full", where="one_round", instead="fusion='fisher'")
        if bayes
        else structure_of(net, "all", "diagonal")
    )
    if frozen := [name for name in form.names if name not in begun]:
        raise ArgumentError(
            "one_round", "a last layer that is trained", f"frozen {frozen}", "requires_grad_()"
        )
    last = last_layer(net).name if bayes else None
    local = Expansion(
        work.likelihood_descent(net, scored, "moments"),
        net,
        scored,
        form,
        prior_precision * bayes,
        0.0 if bayes else floor,
        gradient=bayes,
        last=last,
    )
    linear = of(LINEAR, form.matrices(begun))
    width = 8 if wide(begun) else 4
    answer = width * (sum(math.prod(shape) for shape in form.shapes.values()) + size(linear))
    if answer > (most := LEAST + TIMES * width * size(begun)):
        raise ArgumentError(
            "one_round",
            f"answers of at most {most:,} bytes",
            f"{answer:,}",
            "a narrower last layer, fusion='fisher'",
        )

    sent, limits = sent_shapes(form) | shapes(linear), expansion_limits(form, scored, local.floor)

    def posterior(state: Tree) -> Posterior:
        return posterior_of(state, net, scored, form)

    return compose(
        "one_round",
        net,
        local,
        Maximum(form, prior_precision * bayes, bayes),
        training=work,
        initial=of(MODEL, begun) | (empty(form, prior_precision) if bayes else {}),
        posterior=posterior if bayes else None,
        view=within(sent, limits),
        codec=exact(begun),
        # Sums of second derivatives are larger than the parameters of a model.
        link=link or Digital(max_norm=1e20),
        owner="",
    )
