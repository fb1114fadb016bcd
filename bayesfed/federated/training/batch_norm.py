"""Running statistics of networks that are trained apart: what becomes of batch norm's buffers, which every forward pass of training changes.

==============  ==================================================================================================
``"static"``    there are none: networks that have any are refused, and may be made static (HeteroFL, Diao et al., 2021)
``"mean"``      they travel with the parameters both ways, and the server averages them by the same weights
``"local"``     every client keeps its own from round to round, and none travels (the statistics of FedBN, Li et al., 2021)
==============  ==================================================================================================

A statistic is any floating-point buffer. Counts, such as ``num_batches_tracked``, stay with a client that keeps its own; under "mean" every round
begins at the network's, which matters only to norms without a momentum: they then average over the batches of a round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from torch import nn

from bayesfed.data.dataset import Dataset
from bayesfed.errors import ArgumentError, complain
from bayesfed.federated.core.options import LocalOptions
from bayesfed.federated.core.protocols import Fit, Local
from bayesfed.federated.core.wrappers import Around
from bayesfed.keys import Key
from bayesfed.models.nets.norms import untracked
from bayesfed.trees import Tree, placed_buffers, running_statistics, shapes, trainable

Buffers = Literal["static", "mean", "local"]
"""What becomes of running statistics: none are kept; the server averages them; each client keeps its own."""
STATISTICS = "statistics/"


def travelling(net: nn.Module, buffers: Buffers, *, where: str) -> Tree:
    """Return a copy of what travels of a network under a policy: the parameters that it trains, and under "mean" its statistics.

    Parameters
    ----------
    where
        The method, for the error.

    Raises
    ------
    ArgumentError
        If there is no such policy, the network has nothing to train, or it has running statistics and the policy is "static".
    """
    if buffers not in get_args(Buffers):
        expected = f"one of {', '.join(map(repr, get_args(Buffers)))}"
        raise ArgumentError(complain(f"{where}, buffers", expected=expected, actual=repr(buffers), hint="'static'"))
    running = running_statistics(net)
    if running and buffers == "static":
        hint = 'nn.GroupNorm, norm="static", or buffers="mean" or "local" where the method has them (fed_avg, fed_hm, hetero_fl)'
        raise ArgumentError(complain(where, expected="a network without running statistics", actual=running, hint=hint))
    if not (trained := trainable(net)):
        actual = [name for name, _ in net.named_parameters()]
        raise ArgumentError(
            complain(where, expected="a parameter that requires a gradient", actual=f"all frozen of {actual}", hint="requires_grad_()")
        )
    own = {name: value.detach().clone() for name, value in net.named_buffers()}
    return trained | ({name: own[name] for name in running} if buffers == "mean" else {})


def buffered(local: Local, net: nn.Module, buffers: Buffers) -> Local:
    """Return a local that trains under a policy: the local itself where a network has no statistics."""
    return Buffered(local, net, buffers == "mean") if running_statistics(net) else local


def predicting(net: nn.Module, buffers: Buffers) -> nn.Module:
    """Return the network that a server predicts with.

    Under "local" a copy that normalises by the batch it is given, as static batch norm does: the server never hears of statistics, and those
    that the network began with belong to no trained weights. `bayesfed.algorithms.batch_statistics.recipe` queries them.
    """
    return untracked(net) if buffers == "local" and running_statistics(net) else net


@dataclass(frozen=True)
class Buffered(Around):
    """Let `local` train while the network holds copies of this client's statistics; its own are never touched.

    Parameters
    ----------
    local
        What trains the parameters.
    net
        The very network that `local` trains, in the modes it trains in: norms in evaluation mode keep their statistics as they are.
    travels
        Whether statistics come with the message and go with the payload, or stay in the memory. A client without a memory of this network, or
        with one of other widths, begins at the network's own.
    """

    net: nn.Module
    travels: bool

    def fit(self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions) -> Fit:
        """Fit with the statistics in place."""
        names, own = running_statistics(self.net), dict(self.net.named_buffers())
        kept = {name.removeprefix(STATISTICS): leaf for name, leaf in memory.items() if name.startswith(STATISTICS)}
        begun = kept if shapes(kept) == shapes(own) else own
        if self.travels:
            begun = own | {name: message[name] for name in names}
        model = {name: leaf for name, leaf in message.items() if not self.travels or name not in names}
        others = {name: leaf for name, leaf in memory.items() if not name.startswith(STATISTICS)}
        with placed_buffers(self.net, {name: leaf.to(data.inputs.device, copy=True) for name, leaf in begun.items()}):
            fit = self.local.fit(model, others, data, key, options)
            # Read again: a module may put a new buffer in the place of the old one.
            ended = {name: value.detach() for name, value in self.net.named_buffers()}
        if not self.travels:
            return fit._replace(memory=fit.memory | {STATISTICS + name: leaf for name, leaf in ended.items()})
        sent = {name: ended[name] - message[name] if self.kind == "delta" else ended[name] for name in names}
        return fit._replace(payload=fit.payload | sent)
