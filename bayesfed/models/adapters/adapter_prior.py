"""Gaussian priors of adapters and of the head that is trained with them.

    net = lora(pretrained, 8, key, head=["head"])
    model = bayesian(net, adapter_prior(net, a=0.1, b=0.1))

The priors may be centred on the network's current values or on zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import nn

from bayesfed.errors.checks import check, choice
from bayesfed.models.adapters.lora import lora_rank
from bayesfed.models.priors.weights import Gaussian, WeightPrior
from bayesfed.trees import trainable

Around = Literal["initial", "zero"]


def adapter_prior(
    net: nn.Module, *, a: float = 0.1, b: float = 0.1, head: float = 0.1, around: Around = "initial"
) -> Callable[[str], WeightPrior]:
    """Return a function from a trained parameter's name to its prior, as `bayesian` takes it.

    Parameters
    ----------
    net
        Network with adapters, as returned by `lora`.
    a, b, head
        Standard deviations of A, of B and of all other trained parameters, in units of the weights.
    around
        "initial": priors are centred on the current values, which are zero for a fresh B, so the
        centre is the pretrained function. "zero": all priors are centred on zero. That is a saddle:
        with B and A both zero, neither has a gradient, so a guide has to start elsewhere, as
        `SliceNormal` does.

    Raises
    ------
    ArgumentError
        If the network has no adapters or their ranks differ, a standard deviation is not positive,
        or `around` is unknown.
    """
    lora_rank(net)
    check("adapter_prior, around", around, choice("initial", "zero"))
    sds, others = {"lora_a": Gaussian(a).sd, "lora_b": Gaussian(b).sd}, Gaussian(head).sd
    centres = trainable(net) if around == "initial" else {}
    return lambda name: Gaussian(sds.get(name.rpartition(".")[2], others), centres.get(name, 0.0))
