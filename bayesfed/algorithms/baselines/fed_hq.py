"""FedHQ (Chen et al., "Dynamic aggregation for heterogeneous quantization in federated learning",
2021): as many levels as the channel bears.

Notation: s_k, a client's quantisation levels -> what `Budgeted` finds for its beta; q_k, the
quantiser's relative variance -> `FlexibleMap.error`; p_k, weights that minimise
``sum_k p_k^2 (1 + q_k)``, the part of its bound that depends on them.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from bayesfed.algorithms.composing import compose
from bayesfed.algorithms.registry import recipe
from bayesfed.algorithms.wrappers.on_devices import Planner, on_devices
from bayesfed.compress.budgets import Budgeted, FlexibleMap
from bayesfed.compress.codecs import Cast, Codec
from bayesfed.errors import ArgumentError
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.federated.core.protocols import Assignment, Link, Profile, Skip
from bayesfed.federated.training.local_work import Training
from bayesfed.keys import Key
from bayesfed.models.priors.likelihoods import Likelihood
from bayesfed.trees import Tree
from bayesfed.wireless.devices import Device
from bayesfed.wireless.energy import device_rate


@recipe(cites=("chen2021dynamic",))
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

    Raises
    ------
    ArgumentError
        If the planner shrinks, `settings` has several shares, or `sending` is not in (0, 1).
    """
    if [row.alpha for row in planner.sizes] != [1.0]:
        actual = [row.alpha for row in planner.sizes]
        raise ArgumentError(
            "fed_hq, planner", "the whole network alone", actual, "shrunk_shares(..., [1.0])"
        )
    if len({setting.share for setting in settings.settings}) > 1 or not 0 < sending < 1:
        found = (sorted({setting.share for setting in settings.settings}), sending)
        raise ArgumentError(
            "fed_hq",
            "settings of one share, sending in (0, 1)",
            found,
            "shares=(1.0,), sending=0.25",
        )
    size_bits = 32 * planner.sizes[0].parameters
    work = replace(training or Training(), steps=1, batch_size=planner.batch_size, epochs=None)
    base = compose(
        "fed_hq",
        net,
        work.fitting(net, likelihood, "delta"),
        training=work,
        codec=codec,
        up=Cast(32),
        link=link,
    )

    def levels(profile: Profile, round: int, key: Key) -> float:
        device = Device.from_figures(profile.device)
        rate = device_rate(device, device.gain(device.distance_m(key, profile.name, round)))
        return min(
            max(rate * sending * planner.deadline_s / size_bits, planner.beta[0]), planner.beta[1]
        )

    def assign(state: Tree, round: int, profile: Profile, key: Key) -> Assignment | Skip:
        beta = levels(profile, round, key)
        (phase,) = on_devices(
            base,
            replace(planner, beta=(beta, beta)),
            up=lambda planned: Budgeted(settings, planned),
        ).phases
        found = phase.assign(state, round, profile, key)
        return (
            found
            if isinstance(found, Skip)
            else replace(found, weight=1 / (1 + settings.error(beta)))
        )

    placed = on_devices(base, planner)
    return replace(placed, phases=(replace(placed.phases[0], assign=assign),))
