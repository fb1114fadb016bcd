"""Any network as a Pyro model for any Pyro guide: priors on its parameters, then its likelihood.

    model = bayesian(net, Horseshoe(0.1))
    guide = AutoNormal(model, init_loc_fn=init_to_sample)
    SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO()).step(inputs, targets)

`declare` is the other way, for the support priors that D-Turbo-VBI infers by messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn
from torch.distributions import Distribution
from torch.func import functional_call

from bayesfed.errors import PriorError, complain
from bayesfed.models.modules import Predicate
from bayesfed.models.priors.likelihoods import Categorical, Likelihood
from bayesfed.models.priors.weights import WeightPrior
from bayesfed.trees import Tree, running_statistics, trainable


@dataclass(frozen=True)
class BayesianNet:
    """A network with priors on its parameters, callable as a Pyro model.

    Parameters
    ----------
    net
        Any module without sites of its own; never changed. Dropout is as its mode says.
    priors
        The chosen parameters' priors by name, in the network's order.
    values
        Every parameter as it was when declared: what those without a prior are. Copied; frozen ones are the network's own tensors.
    """

    net: nn.Module
    priors: Mapping[str, WeightPrior]
    values: Tree
    likelihood: Likelihood

    def __call__(self, inputs: Tensor, targets: Tensor | None = None, *, scale: float = 1.0) -> Tensor:
        """Run as a Pyro model: sample every weight under its parameter's name, then sample or observe ``y``.

        Draws are one after another: a network takes one set of weights, so neither ``Predictive(parallel=True)`` nor
        ``vectorize_particles`` is possible.

        Parameters
        ----------
        inputs
            ``(B, ...)``, what the network takes.
        targets
            What the likelihood takes; None draws them.
        scale
            Rows of the data set each row stands for: N / B for a minibatch.
        """
        weights = {name: prior.sample(name, self.values[name]) for name, prior in self.priors.items()}
        # Copied, since a forward pass may count in place.
        buffers = {name: value.clone() for name, value in self.net.named_buffers()}
        output = functional_call(self.net, {**self.values, **buffers, **weights}, (inputs,))
        return self.likelihood.observe(output, targets, scale)


def bayesian(
    net: nn.Module,
    prior: WeightPrior | Callable[[str], WeightPrior],
    *,
    likelihood: Likelihood | None = None,
    where: Predicate | None = None,
) -> BayesianNet:
    """Give the parameters of `net` that `where` chooses a prior; the others stay what they are.

    Parameters
    ----------
    prior
        One for each parameter alike, or a function of the parameter's name.
    likelihood
        Default `Categorical()` at temperature 1.
    where
        ``(parameter name, owning module) -> bool``. Default: every parameter that requires a gradient, so not the base under adapters.
        One that several layers share is asked for once, under its first name.

    Raises
    ------
    PriorError
        If `where` chooses nothing; if a prior is not a `WeightPrior` but a `Prior`, say, or a Pyro distribution; or if the network
        keeps running statistics (batch norm), which a draw would change.
    """
    named = dict(net.named_parameters())
    names = [name for name, value in named.items() if where or value.requires_grad]
    chosen = [name for name in names if where is None or where(name, net.get_submodule(name.rpartition(".")[0]))]
    if not chosen:
        raise PriorError(
            complain("bayesian", expected="a predicate that chooses a parameter", actual=f"none of {names}", hint="where=weight_matrices")
        )
    if running := running_statistics(net):
        raise PriorError(
            complain("bayesian", expected="a network without running statistics", actual=running, hint="nn.GroupNorm in place of batch norm")
        )
    # A Pyro distribution is callable and has a `sample` too, but of another meaning.
    priors = {name: prior(name) if callable(prior) and not isinstance(prior, Distribution) else prior for name in chosen}
    for name, own in priors.items():
        if not isinstance(own, WeightPrior) or isinstance(own, Distribution):
            found, hint = type(own).__name__, "Gaussian(1.0), or declare for a Prior"
            raise PriorError(complain(f"bayesian, parameter {name!r}", expected="a WeightPrior", actual=found, hint=hint))
    values = {name: value.detach() for name, value in named.items()} | trainable(net)
    return BayesianNet(net, priors, values, likelihood or Categorical())
