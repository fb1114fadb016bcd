"""Models with a shared body and local parts: FedPer (Arivazhagan et al., 2019) and FedBABU (Oh, Kim
and Yun, 2022).

================================  ==================================================================
papers                            here
================================  ==================================================================
W_B, the base or body             the server's state: parameters that `local` does not choose
W_P_j, the head of client j       a client's memory, under their names
================================  ==================================================================
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from bayesfed.algorithms.composing import compose
from bayesfed.algorithms.personal.fine_tuning import personalised
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Codec
from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.federated import (
    Algorithm,
    Descent,
    Fit,
    Link,
    LocalOptions,
    Model,
    Personal,
    Training,
)
from bayesfed.federated.core import Around
from bayesfed.federated.core.settings import with_settings
from bayesfed.federated.training.batch_norm import travelling
from bayesfed.federated.training.descent import holding
from bayesfed.keys import Key
from bayesfed.models import Likelihood
from bayesfed.models.modules import Predicate, check_last, selected
from bayesfed.trees import Tree, only, to


@dataclass(frozen=True)
class OwnParts(Around):
    """Gradient steps on shared and own parameters together; only shared ones are sent.

    Parameters
    ----------
    local
        Steps on all parameters.
    begun
        Own parameters of a client that has none in its memory.
    trained
        Whether own parameters are trained. If not, they stay as `begun`, the same for all clients.
    last
        The network, and the path of the layer that must be its last; None if none must.
    """

    local: Descent
    begun: Tree
    trained: bool = True
    last: tuple[nn.Module, str] | None = None

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Train, send the shared parameters and keep the own ones.

        Raises
        ------
        DataError
            If the rows do not fit the network, or another layer is the last.
        """
        own = to(self.begun | memory, data.inputs.device)
        if self.last:
            net, name = self.last
            where = "local=None, the last layer"
            check_last(net, message | own, name, data.inputs, where=where)
        held = None if self.trained else holding(own)
        fit = self.local.train(message | own, data, key, options, held)
        kept = only(fit.payload, own) if self.trained else {}
        return fit._replace(payload=only(fit.payload, message), memory=kept)


@recipe(cites=("arivazhagan2019federated",))
def fed_per(
    net: nn.Module,
    *,
    local: Predicate | None = None,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train a body that all clients share and a head that each client keeps to itself.

    The server never has a head: its predictor uses the head that `net` began with. Score clients by
    `Result.personal_scores`.

    Parameters
    ----------
    local
        ``(parameter name, owning module) -> bool``: which parameters stay with clients. Default:
        those of the last layer. If it chooses none, the method is `fed_avg`, bit for bit.
    net, likelihood, training, codec, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If `local` chooses every parameter.

    References
    ----------
    Arivazhagan et al., "Federated Learning with Personalization Layers" (2019).
    """
    return _with_own_parts("fed_per", net, local, True, likelihood, training, codec, link)


@recipe(cites=("oh2022fedbabu",))
def fed_babu(
    net: nn.Module,
    *,
    steps: int = 50,
    local: Predicate | None = None,
    tuned: Predicate | None = None,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train a body under a head that stays as it began, the same for all clients; each client then
    fine-tunes the model.

    Parameters
    ----------
    steps
        Number of a client's fine-tuning steps, as in `personalised`. They are taken anew in every
        round that the client takes part in.
    local
        ``(parameter name, owning module) -> bool``: the head. Default: the parameters of the last
        layer.
    tuned
        ``(parameter name, owning module) -> bool``: what is fine-tuned. Default: every parameter.
    net, likelihood, training, codec, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If `local` chooses every parameter, or `steps` is below 1.

    References
    ----------
    Oh, Kim and Yun, "FedBABU: Toward Enhanced Representation for Federated Image Classification"
    (2022).
    """
    work = training or Training()
    return personalised(
        _with_own_parts("fed_babu", net, local, False, likelihood, work, codec, link),
        steps=steps,
        batch_size=work.batch_size,
        optimiser=work.optimiser,
        likelihood=likelihood,
        where=tuned,
    )


def last_layer(net: nn.Module) -> Predicate:
    """Return the predicate that chooses the parameters of the module that has the last one."""
    owner = head_of(net)
    return lambda name, module: name.rpartition(".")[0] == owner


def head_of(net: nn.Module) -> str:
    """Return the path of the module that has the last parameter."""
    return [name for name, _ in net.named_parameters()][-1].rpartition(".")[0]


def _with_own_parts(
    name: str,
    net: nn.Module,
    local: Predicate | None,
    trained: bool,
    likelihood: Likelihood | None,
    training: Training | None,
    codec: Codec | None,
    link: Link | None,
) -> Algorithm:
    """Return a method that shares a body; parameters as for `fed_per` and `OwnParts`."""
    begun, work = travelling(net, "static", where=name), training or Training()
    chosen = selected(net, begun, local or last_layer(net))
    if len(chosen) == len(begun):
        raise ArgumentError(
            f"{name}, local",
            "a predicate that leaves a parameter to share",
            f"all of {list(begun)}",
            "local=None" if local else "a network of two layers or more",
        )
    own = {one: begun.pop(one) for one in chosen}
    last = None if local else (net, head_of(net))
    return compose(
        name,
        net,
        OwnParts(work.likelihood_descent(net, likelihood), own, trained, last),
        training=work,
        initial=begun,
        codec=codec,
        link=link,
        personal=with_settings(net=net, own=own)(
            lambda state, memory: Personal(Model(net, state | own | memory))
        ),
    )
