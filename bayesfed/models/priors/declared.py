"""Applying a `Prior` to a network: the Pyro model of D-Turbo-VBI.

Each parameter that the predicate selects becomes three sites, ``NAME.s`` (support), ``NAME.rho``
(precision) and ``NAME.w`` (weight), each of the shape of its weight *matrix*: ``(out, in)``
for a linear layer, ``(out, in * k * k)`` for a convolution. All other parameters are points,
passed to the model by value and without a prior.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyro
import pyro.distributions as dist
from torch import Tensor, nn

from bayesfed.errors import PriorError
from bayesfed.errors.checks import Role, checked
from bayesfed.models.calling import called, check_resolved
from bayesfed.models.likelihoods.classes import Categorical
from bayesfed.models.likelihoods.rows import Likelihood
from bayesfed.models.modules import Dense, Predicate, initial_scale, layer_weights
from bayesfed.models.priors.precisions import Gammas
from bayesfed.models.priors.prior import Prior
from bayesfed.models.random_fields.clusters import Clusters, Lowered
from bayesfed.models.random_fields.sampling import ClusteredSupport
from bayesfed.models.random_fields.whole import lowered
from bayesfed.trees import Tree, frozen, leaf_of, running_statistics, trainable


@dataclass(frozen=True)
class Site:
    """One parameter with a prior.

    Parameters
    ----------
    name, shape
        Name and shape of the parameter in the network.
    matrix
        Its shape as a matrix, ``(M, N)``.
    support, precision
        The parts of its prior, lowered to this matrix.
    """

    name: str
    shape: tuple[int, ...]
    matrix: tuple[int, int]
    support: Lowered
    precision: Gammas

    @property
    def module(self) -> str:
        """Name of the layer that owns the parameter."""
        return self.name.rpartition(".")[0]

    def rows_are_outputs(self, net: nn.Module) -> bool:
        """Return whether every row of the matrix makes one output of its layer: of a linear layer
        or a convolution.
        """
        return isinstance(net.get_submodule(self.module), Dense)

    @property
    def clusters(self) -> Clusters | None:
        """Which entries are active or inactive together; None where each is by itself."""
        return self.support if isinstance(self.support, Clusters) else None


@dataclass(frozen=True)
class Declared:
    """A network with a declared prior and likelihood.

    Parameters
    ----------
    net
        Any module without latent sites of its own; never changed.
    likelihood
        Distribution of the targets given the network's output.
    sites
        The parameters with a prior by name, in the network's order.
    """

    net: nn.Module
    likelihood: Likelihood
    sites: Mapping[str, Site]

    @property
    def initial(self) -> Tree:
        """The network's trained parameters, copied."""
        return trainable(self.net)

    @property
    def last(self) -> str | None:
        """The weights of the last linear layer or convolution, whose rows are taken for the outputs
        of the network; None if there are none.
        """
        return next(
            (
                name
                for name in reversed(list(self.sites))
                if self.sites[name].rows_are_outputs(self.net)
            ),
            None,
        )

    def model(
        self,
        points: Tree,
        inputs: Tensor,
        targets: Tensor | None = None,
        *,
        scale: float = 1.0,
        log_odds: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Run as a Pyro model: sample every site, then sample or observe ``y``.

        Parameters
        ----------
        points
            Values of the parameters that have no prior.
        inputs
            ``(B, ...)``, inputs of the network.
        targets
            Targets of the likelihood. Default: they are sampled.
        scale
            Factor on the log likelihood of each row: N / N_t in D-Turbo-VBI (21), or 1.
        log_odds
            ``(M, N)`` for each site: independent supports with these log-odds, Module A's prior
            (9), in place of the declared p(s).
        """
        weights = {}
        for name, site in self.sites.items():
            prior = (
                ClusteredSupport(site.support)
                if log_odds is None
                else dist.Bernoulli(logits=log_odds[name]).to_event(2)
            )
            support = pyro.sample(f"{name}.s", prior)
            precision = pyro.sample(
                f"{name}.rho", dist.Gamma(*site.precision.of(support)).to_event(2)
            )
            gaussian = dist.Normal(0.0, precision.rsqrt()).to_event(2)
            weights[name] = pyro.sample(f"{name}.w", gaussian).reshape(site.shape)
        output = called(self.net, {**points, **weights}, inputs)
        return self.likelihood.observe(output, targets, scale)


@checked(
    prior=Role(
        lambda prior: not isinstance(prior, type) and (isinstance(prior, Prior) or callable(prior)),
        "a Prior",
        "Prior(), or {'name': Prior()}.get",
    )
)
def declare(
    net: nn.Module,
    prior: Prior | Callable[[str], Prior] | None = None,
    *,
    where: Predicate = layer_weights,
    likelihood: Likelihood | None = None,
) -> Declared:
    """Apply a prior to the parameters of `net` that `where` selects.

    Parameters
    ----------
    net
        Any module without latent sites of its own; never changed.
    prior
        One prior for all parameters, or a function from a parameter's name to its prior. Default:
        `Prior()`, a Markov grid over Bernoulli-Gamma precisions.
    where
        ``(parameter name, owning module) -> bool``. Default: every matrix of a layer of torch,
        embeddings, recurrent cells and attention included; biases, norms and parameters of modules
        of one's own are points. A parameter that several layers share is one site, by its first
        name, if it is selected by any of its names. A frozen one is a constant of the network and
        is never selected.
    likelihood
        Default: `Categorical()`.

    Raises
    ------
    PriorError
        If `where` selects nothing, or a parameter that is not a matrix or a kernel; or if the
        network has running statistics (batch norm), which a round may not change silently.
    """
    one, sites = Prior() if prior is None or callable(prior) else prior, {}
    for name, value in net.named_parameters():
        chosen = any(where(alias, owner) for alias, owner in _owners(net, value))
        if not (chosen and value.requires_grad):
            continue
        if value.ndim < 2:
            raise PriorError(
                f"declare, parameter {name!r}",
                "a matrix or kernel",
                f"shape {tuple(value.shape)}",
                "a predicate without biases",
            )
        matrix = (value.shape[0], value[0].numel())
        own = prior(name) if callable(prior) else one
        sites[name] = Site(
            name,
            tuple(value.shape),
            matrix,
            lowered(own.support, net.get_submodule(name.rpartition(".")[0]), tuple(value.shape)),
            own.precision.lower(initial_scale(value)),
        )
    check_selected("declare", net, list(sites))
    return Declared(net, likelihood or Categorical(), sites)


def check_selected(where: str, net: nn.Module, selected: Sequence[str]) -> None:
    """Raise `PriorError` if no parameter is selected for a prior, or a draw would change running
    statistics of the network, `ArgumentError` if a weight is computed from parameters.
    """
    check_resolved(where, net)
    if not selected:
        found = trainable(net)
        still, names = frozen(net) and not found, list(found)
        # A weight of a layer or, without one, a parameter that the network itself has.
        first = max(names, key=lambda name: found[name].ndim, default="0.weight")
        actual = "frozen ones alone" if still else f"none of {names}"
        hint = "net.requires_grad_()" if still else f"where=lambda name, _: name == {first!r}"
        raise PriorError(where, "a predicate that chooses a parameter", actual, hint)
    if running := running_statistics(net, certain=True):
        raise PriorError(
            where,
            "a network without running statistics",
            running,
            "nn.GroupNorm in place of batch norm",
        )


def _owners(net: nn.Module, parameter: nn.Parameter) -> Iterator[tuple[str, nn.Module]]:
    """Yield every name of a parameter, with the layer that has it by this name: several where
    layers share it.
    """
    for path, module in net.named_modules():
        for leaf, value in module.named_parameters(recurse=False, remove_duplicate=False):
            if value is parameter:
                yield leaf_of(path, leaf), module
