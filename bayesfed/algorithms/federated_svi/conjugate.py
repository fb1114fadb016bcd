"""Conjugate models in closed form: clients send what their rows add to the prior's natural
parameters, and the server adds it all up.

With a prior ``p(z) ∝ exp(<eta_0, T(z)>)`` and a likelihood ``p(D_t | z) ∝ exp(<s_t, T(z)>)`` the
posterior of all rows has ``eta = eta_0 + sum_t s_t`` (Bishop, 2006, 2.4): no approximation and no
iterations, whatever the partition.

======================  ==============================================
notation                here
======================  ==============================================
eta_0, eta              `prior`, the state
s_t                     ``statistics(rows)``, in the client's memory
T                       the caller's; not needed here
======================  ==============================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Codec
from bayesfed.compress.codecs import exact
from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError, DataError, PosteriorError
from bayesfed.federated import (
    Algorithm,
    Assignment,
    Digital,
    Fit,
    Kind,
    Link,
    LocalOptions,
    Phase,
    Profile,
    Reducer,
    Whole,
)
from bayesfed.federated.aggregation.servers import summed
from bayesfed.federated.core import Info
from bayesfed.federated.core.layering import of_core
from bayesfed.federated.core.settings import with_settings
from bayesfed.keys import Key
from bayesfed.trees import Tree, shapes, zip_map

Statistics = Callable[[Dataset], Tree]


@dataclass(frozen=True)
class NaturalParameters:
    """The natural parameters of the posterior, in the place of a model. They predict nothing: the
    family is the caller's.
    """

    parameters: Tree

    def __call__(self, inputs: Tensor) -> Tensor:
        """Refuse: predictions depend on the family.

        Raises
        ------
        PosteriorError
            Always.
        """
        raise PosteriorError(
            "conjugate",
            "a look at `model.parameters`, the posterior's natural parameters",
            "a call",
            "no `test` rows",
        )


@dataclass(frozen=True)
class AddStatistics:
    """A client's step: the statistics of its rows, less those it sent before, which its memory
    keeps.

    Parameters
    ----------
    statistics
        ``statistics(rows)``, a tree of the names and shapes of the prior.
    zeros
        A tree like the prior, all zero: the statistics of a client without rows.
    kind
        "natural": natural parameters.
    """

    statistics: Statistics
    zeros: Tree
    kind: Kind = "natural"

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Send the change.

        Raises
        ------
        DataError
            If names or shapes of the statistics differ from the prior's, or a number is not finite.
        """
        now, before = self._checked(data) if len(data) else self.zeros, memory
        change = {
            name: leaf - before[name] if name in before else leaf.clone()
            for name, leaf in now.items()
        }
        return Fit(change, dict(now), {"samples": float(len(data))})

    def _checked(self, data: Dataset) -> Tree:
        given = {
            name: torch.as_tensor(leaf).detach().cpu()
            for name, leaf in self.statistics(data).items()
        }
        expected, actual = shapes(self.zeros), shapes(given)
        if actual != expected:
            raise DataError(
                "conjugate, statistics",
                f"shapes {expected}",
                actual,
                "one leaf for each of the prior's",
            )
        if broken := [name for name, leaf in given.items() if not bool(torch.isfinite(leaf).all())]:
            raise DataError(
                "conjugate, statistics", "finite numbers", f"{broken} are not", "a look at the rows"
            )
        return {name: given[name].to(leaf.dtype) for name, leaf in self.zeros.items()}


@dataclass(frozen=True)
class AddNatural:
    """Add the clients' changes to the posterior's natural parameters. Nothing is published: clients
    do not need it.
    """

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Publish nothing."""
        return {}

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Add the sum of the changes."""
        return zip_map(torch.add, state, summed(reducer, "natural").total), {}


@recipe(cites=("bishop2006pattern",))
def conjugate(
    prior: Tree, statistics: Statistics, *, codec: Codec | None = None, link: Link | None = None
) -> Algorithm:
    """Infer a conjugate model exactly, in one round.

    A client that takes part again sends only what changed. So more rounds on the same rows change
    nothing, and a client whose rows changed corrects what it sent. `Result.model.parameters` are
    the posterior's natural parameters.

    Parameters
    ----------
    prior
        Natural parameters of the prior, floating point, of any names and shapes; counted once, by
        the server.
    statistics
        ``statistics(rows)``: what the likelihood of a client's rows adds to them, a tree of the
        same names and shapes. Not called for a client without rows, which adds exactly nothing.
        With ``InProcess(..., workers=...)`` it must be picklable.
    codec
        Codec of the clients' messages. Default: floats as the prior has them, 32 or 64 bits. A
        codec that rounds, rounds the answer too.

    link
        How statistics reach the server. Default: `Digital()`.

    Raises
    ------
    ArgumentError
        If the prior is empty or not of finite floating-point numbers.

    References
    ----------
    Bishop, "Pattern Recognition and Machine Learning" (2006).
    """
    if not prior or not all(
        leaf.is_floating_point() and bool(torch.isfinite(leaf).all()) for leaf in prior.values()
    ):
        actual = {name: str(leaf.dtype) for name, leaf in prior.items()}
        raise ArgumentError(
            "conjugate, prior", "finite floating-point leaves", actual, "{'h': torch.zeros(8)}"
        )
    initial = {name: leaf.detach().cpu().clone() for name, leaf in prior.items()}
    codec = codec or exact(initial)
    view = Whole(shapes(initial))

    @with_settings(codec=codec, view=view)
    def assign(state: Tree, round: int, profile: Profile, key: Key) -> Assignment:
        return Assignment(view, 1.0, codec, codec)

    local = AddStatistics(
        statistics, {name: torch.zeros_like(leaf) for name, leaf in initial.items()}
    )
    return of_core(
        "conjugate",
        initial,
        (Phase("train", assign, local, AddNatural(), link or Digital()),),
        NaturalParameters,
    )
