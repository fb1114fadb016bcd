"""What is believed about adapters: Gaussian priors of them and of the head that is trained with
them, and `SliceNormal`, a guide that can be cut into slices.

    net = lora(pretrained, 8, key, head=["head"])
    model = bayesian(net, adapter_prior(net, a=0.1, b=0.1))

Slice j is column j of B with row j of A. A layer uses only the sum of its slices, and the guide
draws slices independently. Prior, entropy and messages are then sums over slices, and any k of r
slices have a posterior of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.distributions import constraints

from bayesfed.errors.checks import POSITIVE, checked, checked_class
from bayesfed.models.adapters.lora import lora_rank
from bayesfed.models.priors.bayesian import BayesianNet
from bayesfed.models.priors.weights import Gaussian, WeightPrior
from bayesfed.trees import trainable


@checked_class(init_scale=POSITIVE)
@dataclass(frozen=True)
class SliceNormal:
    """A Gaussian guide of independent entries that starts at the network's own values, with
    parameters ``NAME.loc`` and ``NAME.scale``.

    Parameters
    ----------
    model
        Result of `bayesian`, with priors of one site each (`Gaussian`, `Laplace`, `SpikeAndSlab`).
    init_scale
        Initial standard deviation of every entry, in units of the weights.

    Raises
    ------
    ArgumentError
        If the scale is not positive.
    """

    model: BayesianNet
    init_scale: float = 0.01

    def __call__(self, inputs: Tensor, targets: Tensor | None = None) -> None:
        """Run as a Pyro guide: draw every parameter that has a prior."""
        for name in self.model.priors:
            loc = pyro.param(f"{name}.loc", self.model.values[name].clone)
            begun = torch.full_like(loc, self.init_scale)
            scale = pyro.param(f"{name}.scale", begun, constraint=constraints.positive)
            pyro.sample(name, dist.Normal(loc, scale).to_event(loc.ndim))


@checked()
def adapter_prior(
    net: nn.Module, *, a: float = 0.1, b: float = 0.1, head: float = 0.1
) -> Callable[[str], WeightPrior]:
    """Return a function from a trained parameter's name to its prior, as `bayesian` takes it.

    Priors are centred on the network's current values, which are zero for a fresh B, so the centre
    is the pretrained function.

    Parameters
    ----------
    net
        Network with adapters, as returned by `lora`.
    a, b, head
        Standard deviations of A, of B and of all other trained parameters, in units of the weights.

    Raises
    ------
    ArgumentError
        If the network has no adapters or their ranks differ, or a standard deviation is not
        positive.
    """
    lora_rank(net)
    sds, others = {"lora_a": Gaussian(a).sd, "lora_b": Gaussian(b).sd}, Gaussian(head).sd
    centres = trainable(net)
    return lambda name: Gaussian(sds.get(name.rpartition(".")[2], others), centres[name])
