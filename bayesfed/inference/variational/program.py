"""A Pyro model and guide run at given parameters: the global parameter store and the user's modules are as they were afterwards.

Parameters are a flat tree of unconstrained tensors: ``guide.NAME`` and ``model.NAME`` of PyroModules (automatic guides among them),
``NAME`` of ``pyro.param``. They never live anywhere else: modules get them for the length of a block, and ``pyro.param`` reads them from a
scope of the store that is closed again.
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

from bayesfed.data.dataset import Dataset
from bayesfed.errors import ArgumentError, complain
from bayesfed.keys import Key, forked
from bayesfed.trees import Tree, placed

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
        The same of the guide, or a class of automatic guide (or a partial of one), built anew where it runs: what local latents
        need, whose shapes differ between clients.

    Raises
    ------
    ArgumentError
        If either cannot be called.
    """

    model: Runs
    guide: Runs

    def __post_init__(self) -> None:
        for name, found in (("model", self.model), ("guide", self.guide)):
            if not callable(found):
                raise ArgumentError(complain(f"federated_svi, {name}", expected="a PyroModule or a function", actual=found, hint="AutoNormal"))

    @property
    def builds(self) -> bool:
        """Whether every client builds a guide of its own."""
        kind = self.guide.func if isinstance(self.guide, partial) else self.guide
        return isinstance(kind, type) and issubclass(kind, AutoGuide)

    def at(self, data: Dataset, key: Key) -> Pair:
        """Run both once on `data`, so that automatic guides learn their shapes and parameters take their first values."""
        guide = self.guide(self.model) if self.builds else self.guide
        with forked(key), quiet_store() as store:
            guide(data.inputs, data.targets)
            pyro.poutine.block(self.model)(data.inputs, data.targets)
            state = store.get_state()
        modules = modules_of(self.model, guide)
        known = {id(value) for _, module in modules for value in module.parameters()}
        first = {name: value.detach().clone() for name, value in state["params"].items() if id(value) not in known}
        own = {name: state["constraints"][name] for name in first}
        for prefix, module in modules:
            first |= {prefix + name: value.detach().clone() for name, value in module.named_parameters()}
        return Pair(self.model, guide, own, first, (data.inputs, data.targets))


@dataclass(frozen=True)
class Pair:
    """A model and a guide that have run.

    Parameters
    ----------
    constraints
        Of the parameters in the store.
    first
        What the parameters were at first, unconstrained.
    example
        The inputs and targets they ran on.
    """

    model: Runs
    guide: Runs
    constraints: Mapping[str, Constraint]
    first: Tree
    example: tuple[Tensor, Tensor]

    @contextmanager
    def held(self, tree: Mapping[str, Tensor]) -> Iterator[None]:
        """Let both use these parameters inside the block."""
        with ExitStack() as stack:
            stack.enter_context(quiet_store({"params": {n: tree[n] for n in self.constraints}, "constraints": dict(self.constraints)}))
            for prefix, module in modules_of(self.model, self.guide):
                own = {name.removeprefix(prefix): leaf for name, leaf in tree.items() if name.startswith(prefix) and name not in self.constraints}
                stack.enter_context(placed(module, own))
            yield

    def constraint(self, name: str) -> Constraint:
        """Return what a parameter is constrained to."""
        if name in self.constraints:
            return self.constraints[name]
        for prefix, module in modules_of(self.model, self.guide):
            if name.startswith(prefix) and name.endswith("_unconstrained"):
                owner, _, leaf = name.removeprefix(prefix).removesuffix("_unconstrained").rpartition(".")
                found: Constraint = cast(Any, module.get_submodule(owner))._pyro_params[leaf][0]
                return found
        return constraints.real

    def constrained(self, name: str, value: Tensor) -> Tensor:
        """Return a parameter as the guide sees it."""
        found: Tensor = transform_to(self.constraint(name))(value)
        return found

    def unconstrained(self, name: str, value: Tensor) -> Tensor:
        """Return a parameter as it is stored."""
        found: Tensor = transform_to(self.constraint(name)).inv(value)
        return found


def modules_of(model: Runs, guide: Runs) -> list[tuple[str, nn.Module]]:
    """Return those of the two that are modules, with the prefix of their parameters."""
    return [(f"{name}.", found) for name, found in (("guide", guide), ("model", model)) if isinstance(found, nn.Module)]


@contextmanager
def quiet_store(state: Any = None) -> Iterator[Any]:
    """Open a parameter store of this block's own. Modules put their parameters into it and keep them."""
    store = pyro.get_param_store()
    with pyro.settings.context(module_local_params=False), store.scope(state):
        yield store
