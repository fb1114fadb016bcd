"""Running statistics of networks that are trained by several clients: policies for the buffers of
batch norm, which every training pass changes.

==============  ====================================================================================
``"static"``    networks with running statistics are refused; they can be made static (HeteroFL,
                Diao et al., 2021)
``"mean"``      they are sent with the parameters both ways, and the server averages them with the
                same weights
``"local"``     every client keeps its own from round to round, and none is sent (the statistics of
                FedBN, Li et al., 2021)
==============  ====================================================================================

A statistic is any floating-point buffer that is saved with its module. Under "static" only those of
batch and instance norm in training mode are refused at once. Other buffers, of any dtype, are taken
for constants; a client's turn that finds one changed puts it back and refuses the network.

Counts, such as ``num_batches_tracked``, stay with a client under "local". Under "mean" every round
begins with the counts of the network, which matters only for norms without a momentum: they then
average over the batches of one round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.federated.core import Around, Fit, Local, LocalOptions
from bayesfed.keys import Key
from bayesfed.models import untracked
from bayesfed.trees import (
    Tree,
    placed,
    running_statistics,
    shapes,
    trainable,
    under,
    without,
)

Buffers = Literal["static", "mean", "local"]
"""Policy for running statistics: networks with any are refused; the server averages them; each
client keeps its own.
"""
# Prefix of the names of statistics in a client's memory.
STATISTICS = "statistics/"


def travelling(net: nn.Module, buffers: Buffers, *, where: str) -> Tree:
    """Return a copy of the tensors of a network that are sent under a policy: its trained
    parameters, and under "mean" its statistics.

    Parameters
    ----------
    net
        Network; never changed.
    buffers
        Policy for running statistics.
    where
        Name of the method, for error messages.

    Raises
    ------
    ArgumentError
        If no parameter is trained, or the network has running statistics and the policy is
        "static".
    """
    running = running_statistics(net, certain=buffers == "static")
    if running and buffers == "static":
        hint = (
            'nn.GroupNorm, norm="static", or buffers="mean" or "local" where the method has '
            "them (fed_avg, fed_hm, hetero_fl)"
        )
        raise ArgumentError(where, "a network without running statistics", running, hint)
    if not (trained := trainable(net)):
        actual = [name for name, _ in net.named_parameters()]
        raise ArgumentError(
            where,
            "a parameter that requires a gradient",
            f"all frozen of {actual}",
            "requires_grad_()",
        )
    own = {name: value.detach().clone() for name, value in net.named_buffers()}
    return trained | ({name: own[name] for name in running} if buffers == "mean" else {})


def buffered(local: Local, net: nn.Module, buffers: Buffers) -> Local:
    """Return a local step that trains under a policy: the step itself if the network saves
    no buffers.

    Parameters
    ----------
    local
        Local step that trains `net`.
    net
        The very network that `local` trains.
    buffers
        Policy for running statistics.
    """
    if buffers == "static" or net.state_dict().keys().isdisjoint(dict(net.named_buffers())):
        return local
    return Buffered(local, net, buffers == "mean")


def predicting(net: nn.Module, buffers: Buffers) -> nn.Module:
    """Return the network that the server predicts with.

    Under "local" this is a copy that normalises by the batch it is given, as static batch norm
    does. The server receives no statistics, and those that the network began with do not belong to
    the trained weights. `bayesfed.algorithms.batch_statistics` queries statistics from clients.
    """
    return untracked(net) if buffers == "local" and running_statistics(net) else net


@dataclass(frozen=True)
class Buffered(Around):
    """A local step during which the network holds copies of this client's statistics. The network's
    own statistics are never changed.

    Parameters
    ----------
    local
        Local step that trains the parameters.
    net
        The very network that `local` trains, in its training modes: norms in evaluation mode keep
        their statistics as they are.
    travels
        True if statistics come with the message and go with the payload; False if they stay in the
        client's memory. A client without statistics in its memory, or with some of other shapes,
        begins with those of the network.
    """

    net: nn.Module
    travels: bool

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Run the local step with the statistics in place."""
        names, own = running_statistics(self.net), dict(self.net.named_buffers())
        kept = under(memory, STATISTICS)
        begun = kept if shapes(kept) == shapes(own) else own
        if self.travels:
            begun = own | {name: message[name] for name in names}
        model = {
            name: leaf for name, leaf in message.items() if not self.travels or name not in names
        }
        there = {name: leaf.to(data.inputs.device, copy=True) for name, leaf in begun.items()}
        with placed(self.net, there, "buffers"):
            fit = self.local.fit(model, without(memory, STATISTICS), data, key, options)
            # Read again, since a module may replace a buffer by a new one.
            ended = {name: value.detach() for name, value in self.net.named_buffers()}
        if not self.travels:
            return fit._replace(
                memory=fit.memory | {STATISTICS + name: leaf for name, leaf in ended.items()}
            )
        sent = {
            name: ended[name] - message[name] if self.kind == "delta" else ended[name]
            for name in names
        }
        return fit._replace(payload=fit.payload | sent)
