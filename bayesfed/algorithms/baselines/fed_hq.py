"""FedHQ (Chen et al., "Dynamic aggregation for heterogeneous quantization in federated learning",
2021): as many levels as the channel bears.

Notation: s_k, a client's quantisation levels -> what `Budgeted` finds for its beta; q_k, the
quantiser's relative variance -> `FlexibleMap.error`; p_k, weights that minimise
``sum_k p_k^2 (1 + q_k)``, the part of its bound that depends on them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn

from bayesfed.algorithms.composing import compose
from bayesfed.algorithms.registry import recipe
from bayesfed.algorithms.wrappers.on_devices import Devices, Planner
from bayesfed.compress import Codec
from bayesfed.compress.budgets import Budgeted, FlexibleMap
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import number
from bayesfed.federated import Algorithm, Assignment, Link, Skip, Training, layered
from bayesfed.federated.core import Turn
from bayesfed.models import Likelihood
from bayesfed.trees import Tree
from bayesfed.wireless import Device, device_rate


@recipe(cites=("chen2021dynamic",), sending=number("(0, 1)", "0.25"))
def fed_hq(
    net: nn.Module,
    planner: Planner,
    settings: FlexibleMap,
    *,
    sending: float = 0.25,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Quantise updates as finely as a client's channel allows within a share of the deadline, and
    weigh clients by how little that loses.

    Parameters
    ----------
    net
        The network, as in `fed_avg`.
    planner
        A planner of one size, the whole network. Its beta bounds what the channel allows.
    settings
        Settings by message size with one share of kernels:
        ``fit_flexible(updates, key, shares=(1.0,))`` leaves nothing out.
    sending
        Share of the deadline that is used for sending.
    training
        Optimiser and schedule of the local work; its steps and batches are the planner's. Default
        optimiser: ``Sgd(0.05)``.
    codec
        Codec of the down-link. Default: 32-bit floats.
    likelihood, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If the planner shrinks, `settings` has several shares, or `sending` is not in (0, 1).

    References
    ----------
    Chen et al., "Dynamic Aggregation for Heterogeneous Quantization in Federated Learning" (2021).
    """
    if (actual := [row.alpha for row in planner.sizes]) != [1.0]:
        raise ArgumentError(
            "fed_hq, planner", "the whole network alone", actual, "shrunk_shares(..., [1.0])"
        )
    if len(found := sorted({setting.share for setting in settings.settings})) > 1:
        raise ArgumentError("fed_hq, settings", "settings of one share", found, "shares=(1.0,)")
    work = replace(training or Training(), steps=1, batch_size=planner.batch_size, epochs=None)
    base = compose(
        "fed_hq",
        net,
        work.fitting(net, likelihood, "delta"),
        training=work,
        codec=codec,
        link=link,
    )

    layer = Levels(
        planner=planner, deadline_s=planner.deadline_s, settings=settings, sending=sending
    )
    return layered(base, layer, where="fed_hq")


@dataclass(frozen=True, kw_only=True)
class Levels(Devices):
    """Turns that are planned for a device, with as many bits as its channel allows.

    Parameters
    ----------
    settings
        Settings of the up-link's codec by message size.
    sending
        Share of the deadline that is used for sending.
    """

    planner: Planner
    settings: FlexibleMap
    sending: float

    def plan(self, own: Tree, turn: Turn, assignment: Assignment) -> Assignment | Skip:
        """Plan for the share of bits that the channel allows."""
        settings, planner = self.settings, self.planner
        device = Device.from_figures(turn.profile.device)
        size_bits = 32 * planner.sizes[0].parameters
        gain = device.gain(device.distance_m(turn.key, turn.profile.name, turn.round))
        share = device_rate(device, gain) * self.sending * planner.deadline_s / size_bits
        beta = min(max(share, planner.beta[0]), planner.beta[1])
        devices = Devices(
            planner=replace(planner, beta=(beta, beta)),
            up=lambda planned: Budgeted(settings, planned),
        )
        planned = devices.plan(own, turn, assignment)
        if isinstance(planned, Skip):
            return planned
        return replace(planned, weight=1 / (1 + settings.error(beta)))
