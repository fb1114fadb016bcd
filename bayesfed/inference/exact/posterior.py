"""`ExactPosterior`: draws by resampling weighted points, their densities, and predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from bayesfed.data import Dataset
from bayesfed.errors import PosteriorError
from bayesfed.errors.checks import checked
from bayesfed.errors.names import Named
from bayesfed.inference.exact.at_values import constant, nodes
from bayesfed.inference.exact.drawn import drawn
from bayesfed.inference.exact.form import Form
from bayesfed.inference.exact.traced import doubled
from bayesfed.inference.exact.weighted import CLOSE, Weighted
from bayesfed.inference.variational.terms import axes_of, total_of
from bayesfed.keys import Key
from bayesfed.trees import Tree


@dataclass(frozen=True)
class ExactPosterior(Weighted):
    """The posterior of all sites' rows, as weighted points of which one is drawn; its parameters
    are those of `Weighted`.
    """

    @cached_property
    def axes(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the axes of every site: of its plates, else the site's own and numbers."""
        made = self.traced
        named = {name: axes_of(name, self._first[name]) for name in (*made.slots, *self._derived)}
        more = {f"{name}.{word}": named[name] for name in made.slots for word in ("mean", "sd")}
        return Named(named | more)

    def _place(self, key: Key) -> int:
        """Return the number of the point that is drawn."""
        place = torch.rand((), dtype=torch.float64, generator=key.generator())
        total = self.weights.cumsum(0)
        return int(torch.searchsorted(total, place * total[-1]))

    @checked()
    def draw(self, key: Key) -> Tree:
        """Return one draw of every shared site."""
        number = self._place(key)
        return {name: leaf[number].float() for name, leaf in self.values.items()}

    @checked()
    def draw_with_densities(self, key: Key) -> tuple[Tree, Tree]:
        """Return the draw of `draw` for this key, and ``log_prior``, the log density of the prior
        at it in nats, and ``log_prior/SITE``, that of each of its sites.
        """
        draw, rows = self.draw(key), self.traced.rows
        found = nodes(self.model, draw, rows.inputs, rows.targets).items()
        each = {name: total_of(node).float() for name, node in found if name in self.traced.prior}
        total = torch.stack([*each.values()]).sum()
        return draw, {"log_prior": total, **{f"log_prior/{name}": each[name] for name in each}}

    @checked()
    def log_likelihoods(self, key: Key, memories: Mapping[str, Tree]) -> Tree:
        """Return the log density in nats of the rows of each site that is not left out, at the draw
        of `draw` for this key; nothing unless those of all rows are known, as they are not under
        secure sums.
        """
        kept, number = self.kept(memories), self._place(key)
        found = {name: kept[name][number].float() for name in self.sites_in(memories)}
        with doubled():
            prior = self.traced.log_prior(self.state["points"][number])
        rest = self._left["value"][number] - prior
        return found if abs(float(rest - sum(found.values()))) < CLOSE else {}

    @checked()
    def derived(self, draw: Mapping[str, Tensor], key: Key) -> Tree:
        """Return the deterministic sites that no rows enter, at one draw."""
        rows = self.traced.rows
        found = nodes(self.model, draw, rows.inputs, rows.targets, key=key)
        return {name: found[name]["value"].float() for name in self._derived}

    @cached_property
    def _derived(self) -> list[str]:
        draw = {name: leaf[0] for name, leaf in self.values.items()}
        return constant(self.model, draw, Form.read(self.state["form"]))

    @checked()
    def draw_prior(self, key: Key) -> Tree:
        """Return one draw of every shared site from the prior; empty if it is improper, or has
        other terms than sites.
        """
        return {n: node["value"].float() for n, node in drawn(self.traced, key).items()}

    @checked()
    def observe(self, draw: Mapping[str, Tensor], inputs: Tensor, key: Key) -> TorchDistribution:
        """Return the distribution of the targets at one draw, batch ``(B,)``.

        Raises
        ------
        PosteriorError
            If the model has more than one observed site, or none.
        """
        named = self.observe_sites(draw, inputs, key)
        if len(named) != 1:
            hint = "Result.to_arviz, which has every site, or draws of the posterior"
            raise PosteriorError("predictions", "one observed site", [*named], hint)
        return next(iter(named.values()))

    @checked()
    def observe_sites(
        self, draw: Mapping[str, Tensor], inputs: Tensor, key: Key
    ) -> dict[str, TorchDistribution]:
        """Return the distribution of each observed site at one draw, by its name, without factors;
        parameters as for `observe`.
        """
        if not (names := self._named):
            return {}
        found = nodes(self.model, draw, inputs, key=key)
        return {name: found[name]["fn"] for name in names}

    @checked()
    def observed(self, draw: Mapping[str, Tensor], data: Dataset) -> Tree:
        """Return what each observed site observes of rows, by its name."""
        found = nodes(self.model, draw, data.inputs, data.targets)
        return {name: found[name]["value"] for name in self._named}

    @cached_property
    def _first(self) -> Mapping[str, Any]:
        """Nodes of the model at zeros, on a made-up row."""
        made = self.traced
        with doubled():
            values = made.values(torch.zeros(made.size))
        return nodes(self.model, values, made.rows.inputs, made.rows.targets)

    @property
    def _named(self) -> list[str]:
        names = self.traced.observed
        return [name for name in names if type(self._first[name]["fn"]).__name__ != "Unit"]
