"""Any network as a Pyro model for any Pyro guide, with priors on its parameters and a likelihood.

    model = bayesian(net, Horseshoe(0.1))
    guide = AutoNormal(model, init_loc_fn=init_to_sample)
    SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO()).step(inputs, targets)

`declare` instead applies the support priors that D-Turbo-VBI infers by message passing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn
from torch.distributions import Distribution

from bayesfed.errors import PriorError
from bayesfed.errors.checks import Role, checked
from bayesfed.models.calling import called
from bayesfed.models.likelihoods.classes import Categorical
from bayesfed.models.likelihoods.rows import Likelihood
from bayesfed.models.modules import Predicate, initial_scale
from bayesfed.models.priors.declared import check_selected
from bayesfed.models.priors.weights import Gaussian, WeightPrior
from bayesfed.trees import Tree, trainable


@dataclass(frozen=True)
class BayesianNet:
    """A network with priors on its parameters, callable as a Pyro model.

    Parameters
    ----------
    net
        Any module without sites of its own; never changed. Dropout follows the module's mode.
    priors
        Priors of the selected parameters by name, in the network's order.
    values
        Values of all parameters at the time of the call to `bayesian`; parameters without a prior
        keep them. They are copies, except for frozen parameters, which are the network's own
        tensors.
    likelihood
        Distribution of the targets given the network's output.
    automatic
        Whether the priors were not given, so that a method may choose their scale.
    """

    net: nn.Module
    priors: Mapping[str, WeightPrior]
    values: Tree
    likelihood: Likelihood
    automatic: bool = False

    def __call__(
        self, inputs: Tensor, targets: Tensor | None = None, *, scale: float = 1.0
    ) -> Tensor:
        """Run as a Pyro model: sample every weight under its parameter's name, then sample or
        observe ``y``.

        A network takes one set of weights at a time, so neither ``Predictive(parallel=True)`` nor
        ``vectorize_particles`` is possible.

        Parameters
        ----------
        inputs
            ``(B, ...)``, inputs of the network.
        targets
            Targets of the likelihood. Default: they are sampled.
        scale
            Number of rows of the data set that each row stands for: N / B for a minibatch.
        """
        weights = {
            name: prior.sample(name, self.values[name]) for name, prior in self.priors.items()
        }
        # Copies, since a forward pass may change buffers in place.
        buffers = {name: value.clone() for name, value in self.net.named_buffers()}
        output = called(self.net, {**self.values, **buffers, **weights}, inputs)
        if changed := [
            name for name, value in buffers.items() if value.is_floating_point() and value._version
        ]:
            raise PriorError(
                "bayesian", "a network without running statistics", changed, "nn.GroupNorm"
            )
        return self.likelihood.observe(output, targets, scale)


@checked(
    prior=Role(
        lambda prior: not isinstance(prior, type),
        "a prior as a value",
        "Gaussian(1.0), or declare for a Prior",
    )
)
def bayesian(
    net: nn.Module,
    prior: WeightPrior | Callable[[str], WeightPrior] | None = None,
    *,
    likelihood: Likelihood | None = None,
    where: Predicate | None = None,
) -> BayesianNet:
    """Put a prior on the parameters of `net` that `where` selects; the others keep their values.

    Parameters
    ----------
    net
        Any module without sites of its own; never changed.
    prior
        One prior for all parameters, or a function from a parameter's name to its prior. Default:
        `Gaussian`, as wide as a parameter is in the beginning, unless the method chooses a scale,
        as `federated_svi` does with `Ivon`. That is too narrow for a new head on a body that stays
        as it is, whose weights have to grow: give ``Gaussian(1.0)``.
    likelihood
        Default: `Categorical()` at temperature 1.
    where
        ``(parameter name, owning module) -> bool``. Default: every parameter that requires a
        gradient. Others, such as the weights under adapters, are constants and never selected. It
        is called once for a parameter that several layers share, with its first name.

    Raises
    ------
    PriorError
        If `where` selects nothing; if a prior is not a `WeightPrior` but, say, a `Prior` or a Pyro
        distribution; or if the network has running statistics (batch norm), which a draw would
        change.
    """
    named = dict(net.named_parameters())
    selected = [
        name
        for name, value in named.items()
        if value.requires_grad
        and (where is None or where(name, net.get_submodule(name.rpartition(".")[0])))
    ]
    check_selected("bayesian", net, selected)
    # A Pyro distribution is callable and has a `sample` too, but with another meaning.
    priors = {
        name: prior(name)
        if callable(prior) and not isinstance(prior, Distribution)
        else prior or _wide(named[name])
        for name in selected
    }
    for name, own in priors.items():
        if not isinstance(own, WeightPrior) or isinstance(own, Distribution):
            raise PriorError(
                f"bayesian, parameter {name!r}",
                "a WeightPrior",
                type(own).__name__,
                "Gaussian(1.0), or declare for a Prior",
            )
    values = {name: value.detach() for name, value in named.items()} | trainable(net)
    return BayesianNet(net, priors, values, likelihood or Categorical(), prior is None)


def _wide(values: Tensor) -> Gaussian:
    """Return the prior as wide as a parameter is in the beginning."""
    return Gaussian(initial_scale(values))
