"""A Pyro model and guide run at given parameters. Afterwards the global parameter store and the
user's modules are as they were.

Parameters are a flat tree of unconstrained tensors: ``guide.NAME`` and ``model.NAME`` for
PyroModules (automatic guides among them), ``NAME`` for ``pyro.param``. Modules have them only
inside a block, and ``pyro.param`` reads them from a scope of the store that ends with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import pyro
from pyro.infer.autoguide import AutoGuide
from torch import Tensor, nn
from torch.distributions import constraints, transform_to

from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import shown
from bayesfed.errors.roles import takes
from bayesfed.inference.variational.terms import as_raised
from bayesfed.keys import Key, forked
from bayesfed.trees import Tree, placed, under

Constraint = constraints.Constraint
Runs = Callable[..., Any]


@dataclass(frozen=True)
class Program:
    """A model and its guide, each called as ``(inputs, targets)``.

    Parameters
    ----------
    model
        ``model(inputs, targets=None)``: a PyroModule or a function.
    guide
        The same for the guide, or what makes one of the model and is called anew where it runs: a
        class of automatic guide, a partial of one, a function ``(model) -> guide``. Local latents,
        whose shapes differ between clients, need that.

    Raises
    ------
    ArgumentError
        If either cannot be called.
    """

    model: Runs
    guide: Runs

    def __post_init__(self) -> None:
        hint = "def model(inputs, targets=None), or bayesian(net, Gaussian(1.0)) of a network"
        for name, given, other in (
            ("model", self.model, hint),
            ("guide", self.guide, "AutoNormal"),
        ):
            if not callable(given):
                expected = "a PyroModule or a function"
                raise ArgumentError(f"federated_svi, {name}", expected, given, other)
        if not takes(self.model.forward if isinstance(self.model, nn.Module) else self.model, 2):
            raise ArgumentError(
                "federated_svi, model", "a model of inputs and targets", shown(self.model), hint
            )

    @property
    def builds(self) -> bool:
        """Whether every client builds a guide of its own."""
        kind = self.guide.func if isinstance(self.guide, partial) else self.guide
        if isinstance(kind, type):
            return issubclass(kind, AutoGuide)
        # A function of the model alone, which makes a guide.
        return not isinstance(kind, nn.Module) and takes(kind, 1) and not takes(kind, 2)

    def at(self, data: Dataset, key: Key) -> Pair:
        """Run both once on `data`: automatic guides learn their shapes, and parameters take their
        first values.
        """
        guide = self.guide(self.model) if self.builds else self.guide
        with forked(key), quiet_store() as store, as_raised():
            guide(data.inputs, data.targets)
            pyro.poutine.block(self.model)(data.inputs, data.targets)
            state = store.get_state()
        modules = modules_of(self.model, guide)
        known = {id(value) for _, module in modules for value in module.parameters()}
        first = {
            name: value.detach().clone()
            for name, value in state["params"].items()
            if id(value) not in known
        }
        own = {name: state["constraints"][name] for name in first}
        for prefix, module in modules:
            first |= {
                prefix + name: value.detach().clone() for name, value in module.named_parameters()
            }
        return Pair(self.model, guide, own, first, (data.inputs, data.targets))


@dataclass(frozen=True)
class Pair:
    """A model and a guide after their first run.

    Parameters
    ----------
    model, guide
        As in `Program`, the guide built.
    constraints
        Constraints of the ``pyro.param`` parameters, by name.
    first
        First values of all parameters, unconstrained.
    example
        The inputs and targets of the first run.
    """

    model: Runs
    guide: Runs
    constraints: Mapping[str, Constraint]
    first: Tree
    example: tuple[Tensor, Tensor]

    @contextmanager
    def held(self, tree: Mapping[str, Tensor]) -> Iterator[None]:
        """Let model and guide use these parameters inside the block."""
        with ExitStack() as stack:
            stack.enter_context(
                quiet_store(
                    {
                        "params": {n: tree[n] for n in self.constraints},
                        "constraints": dict(self.constraints),
                    }
                )
            )
            for prefix, module in modules_of(self.model, self.guide):
                own = under(
                    {name: leaf for name, leaf in tree.items() if name not in self.constraints},
                    prefix,
                )
                stack.enter_context(placed(module, own))
            yield

    def constraint(self, name: str) -> Constraint:
        """Return the constraint of a parameter."""
        if name in self.constraints:
            return self.constraints[name]
        for prefix, module in modules_of(self.model, self.guide):
            if name.startswith(prefix) and name.endswith("_unconstrained"):
                owner, _, leaf = (
                    name.removeprefix(prefix).removesuffix("_unconstrained").rpartition(".")
                )
                constraint: Constraint = cast(Any, module.get_submodule(owner))._pyro_params[leaf][
                    0
                ]
                return constraint
        return constraints.real

    def constrained(self, name: str, value: Tensor) -> Tensor:
        """Return a parameter as the guide sees it."""
        seen: Tensor = transform_to(self.constraint(name))(value)
        return seen

    def unconstrained(self, name: str, value: Tensor) -> Tensor:
        """Return a parameter as it is stored."""
        stored: Tensor = transform_to(self.constraint(name)).inv(value)
        return stored


def modules_of(model: Runs, guide: Runs) -> list[tuple[str, nn.Module]]:
    """Return those of the two that are modules, with the prefix of their parameters."""
    return [
        (f"{name}.", module)
        for name, module in (("guide", guide), ("model", model))
        if isinstance(module, nn.Module)
    ]


@contextmanager
def quiet_store(state: Any = None) -> Iterator[Any]:
    """Open a scope of the parameter store inside the block, with `state` in it; modules keep the
    parameters that they put there.
    """
    store = pyro.get_param_store()
    with pyro.settings.context(module_local_params=False), store.scope(state):
        yield store
