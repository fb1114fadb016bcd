"""Norms of the reference networks by name, and the running statistics of static batch norm, which
are estimated after training.

``"batch"`` is batch norm with running statistics (Ioffe and Szegedy, 2015). ``"static"`` is the
static batch norm of HeteroFL (Diao et al., 2021): batch norm without running statistics, so that it
has no buffers and always normalises by the batch it is given. Once training is over, the statistics
are computed from data, by the recipe `batch_statistics`. ``"group"`` is group norm (Wu and He,
2018), which does not depend on the other examples of a batch.
"""

from __future__ import annotations

import copy
import math
from itertools import chain
from typing import Literal, TypeVar, cast

import torch
from torch import nn

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import a, check, checked, one_of

Norm = Literal["batch", "static", "group"]
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
Net = TypeVar("Net", bound=nn.Module)


def norm_layer(channels: int, norm: Norm, *, where: str) -> nn.Module:
    """Return a new norm layer. Every norm has a scale and a shift for each channel, ``2 channels``
    parameters.

    Group norm has ``channels // size`` groups, where `size` is the greatest common divisor of 16
    and the number of channels or, if that is below 8, the smallest divisor of the number of
    channels from 8 upwards (below 8 channels: all of them). That makes 4, 8, 16 and 32 groups for
    64, 128, 256 and 512 channels. Groups of one channel are avoided, because they would erase each
    channel's scale.

    Parameters
    ----------
    channels
        Number of channels.
    norm
        ``"batch"``, ``"static"`` or ``"group"``.
    where
        Name of the network, for the error message.

    Raises
    ------
    ArgumentError
        If there is no such norm.
    """
    check(f"{where}, norm", norm, one_of(Norm, "'group'"))
    if norm == "group":
        size = math.gcd(16, channels)
        if size < 8:
            larger = (divisor for divisor in range(8, channels) if channels % divisor == 0)
            size = next(larger, channels)
        return nn.GroupNorm(channels // size, channels)
    return nn.BatchNorm2d(channels, track_running_stats=norm == "batch")


def batch_norms(net: nn.Module) -> dict[str, BatchNorm]:
    """Return the batch norms of a network by name, in order of registration; a shared one is listed
    once.
    """
    return {name: module for name, module in net.named_modules() if isinstance(module, BatchNorm)}


def check_tracked(
    net: nn.Module,
    where: str,
    hint: str = "the model of a round of bf.batch_statistics(net, parameters, inputs[:1])",
) -> None:
    """Raise `ArgumentError` if a batch norm is static: the outputs of a row then depend on the rows
    beside it.
    """
    if static := [name for name, norm in batch_norms(net).items() if norm.running_mean is None]:
        raise ArgumentError(where, "no batch norm without running statistics", static, hint)


def tracked(net: Net) -> Net:
    """Return a copy whose static batch norms have running statistics, of mean 0 and variance 1.
    Other modules are unchanged.
    """
    twin = copy.deepcopy(net)
    for norm in batch_norms(twin).values():
        if norm.running_mean is None:
            like = next(chain(norm.parameters(), net.parameters()), torch.empty(0))
            norm.running_mean, norm.running_var = (
                like.new_zeros(norm.num_features),
                like.new_ones(norm.num_features),
            )
            norm.num_batches_tracked = torch.zeros((), dtype=torch.long, device=like.device)
            norm.track_running_stats = True
    return twin


NETWORK = a(nn.Module, "a network", "mlp([64, 32, 10], Key(0))")


@checked(net=NETWORK)
def group_norms(net: Net) -> Net:
    """Return a copy whose batch norms are group norms, which have no statistics and do not depend
    on the other rows. Scales and shifts are kept; other modules are unchanged.

    A network that was trained with batch norms has to be trained on: its outputs are others.

    Examples
    --------
    >>> net = nn.Sequential(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16))
    >>> type(group_norms(net)[1]).__name__
    'GroupNorm'
    """
    # The network itself may be a norm, and a norm may be in several places.
    around, made = nn.Sequential(copy.deepcopy(net)), dict[nn.Module, nn.Module]()
    for name, norm in [*around.named_modules(remove_duplicate=False)]:
        if isinstance(norm, BatchNorm):
            if norm not in made:
                like = next(chain(norm.parameters(), net.parameters()), torch.empty(0))
                new = norm_layer(norm.num_features, "group", where="group_norms").to(like)
                new.load_state_dict(dict(norm.named_parameters()), strict=norm.affine)
                made[norm] = new.train(norm.training)
            around.set_submodule(name, made[norm])
    return cast(Net, around[0])


@checked(net=NETWORK)
def untracked(net: Net) -> Net:
    """Return a copy whose batch norms are static, that is without running statistics. Other modules
    are unchanged.
    """
    twin = copy.deepcopy(net)
    for norm in batch_norms(twin).values():
        norm.running_mean = norm.running_var = norm.num_batches_tracked = None
        norm.track_running_stats = False
    return twin
