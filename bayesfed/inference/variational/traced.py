"""`TracedGuide`: draws of a fitted guide, of the server or of a client, and their densities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import torch
from pyro import poutine
from torch import Tensor

from bayesfed.data import Dataset
from bayesfed.data.dataset import unchecked
from bayesfed.errors import PosteriorError
from bayesfed.errors.checks import checked
from bayesfed.inference.variational.layout import Layout
from bayesfed.inference.variational.program import Pair, Program
from bayesfed.inference.variational.terms import axes_of, traced
from bayesfed.keys import Key, forked
from bayesfed.trees import Tree, under

# Prefix of a client's own parameters in what the method's local step keeps.
LOCAL = "local/"


@dataclass(frozen=True)
class TracedGuide:
    """The guide at the parameters of a finished run.

    It has no local latents: where they are needed, they are drawn from the model, given the shared
    sites, as for a client that never took part. `at_client` has those of a client.

    Parameters
    ----------
    pair, layout
        The model and guide, and what the guide's parameters mean.
    parameters
        Shared parameters, unconstrained.
    program
        The model and the guide as they were given, from which a client's own guide is built.
    own
        A client's own parameters, unconstrained; empty for the server.
    server
        The server's posterior, from which that of a client was made.
    client
        The client's name; empty for the server, and for a client without one.
    place
        Prefix of a client's own parameters in its memory.
    """

    pair: Pair
    layout: Layout
    parameters: Tree
    program: Program | None = None
    own: Tree = field(default_factory=dict)
    server: TracedGuide | None = None
    client: str = ""
    place: str = LOCAL

    @property
    def stays(self) -> tuple[str, ...]:
        """Names of the parameters that stay with clients, and that this posterior lacks."""
        return () if self.server else self.layout.local

    def at_client(
        self, memory: Mapping[str, Tensor], data: Dataset | None = None, name: str = ""
    ) -> Self:
        """Return the posterior of one client, with its local latents and whatever else of it stays
        there.

        For the same key, `draw` returns the same shared sites for every client, and independent
        local ones for clients of different names.

        Parameters
        ----------
        memory
            What the client keeps, as in `Snapshot.memories`.
        data
            Rows of the client. If each row has a local latent, they must be the rows that were
            fitted. Default: the example of the method.
        name
            The client's name. Local sites of clients are independent under q, so their draws need
            streams of their own.

        Raises
        ------
        PosteriorError
            If the client never took part, or its local latents do not fit the rows.
        """
        kept, pair = under(memory, self.place), self.pair
        if missing := [leaf for leaf in self.layout.local if leaf not in kept]:
            hint = "a client that took part, or `Predictive(result.posterior, ...)` for a new one"
            raise PosteriorError(
                "posterior at a client", "what the client keeps", f"no {missing}", hint
            )
        if self.program is not None and self.program.builds and data is not None:
            pair = self.program.at(data, Key(0, "at_client"))
        own = {leaf: kept[leaf] for leaf in self.layout.local}
        for path, leaf in own.items():
            if (shape := pair.first[path].shape) != leaf.shape:
                expected = f"rows for a local latent {tuple(leaf.shape)}"
                hint = "the client's own rows, as they were fitted"
                raise PosteriorError(f"posterior at a client, {path}", expected, tuple(shape), hint)
        return replace(self, pair=pair, own=own, server=self, client=name)

    @property
    def constants(self) -> Tree:
        """Mean and sd of every Gaussian block, in the guide's own space."""
        result = {}
        for block in self.layout.blocks:
            if moments := block.moments(self.pair, self.parameters):
                result[f"{block.name}.mean"], result[f"{block.name}.sd"] = moments
        return result

    @checked()
    def draw(self, key: Key) -> Tree:
        """Return one draw of every shared site, and of the local ones for a client, in their own
        space.
        """
        return self._values(self._trace(key))

    def draw_with_densities(self, key: Key) -> tuple[Tree, Tree]:
        """Return the draw of `draw` for this key, and the log densities ``log_q`` and ``log_prior``
        at it in nats.

        Densities are those of the shared sites; for a client, those of its local sites, given the
        shared ones.
        """
        trace, densities = self._with_densities(key)
        return self._values(trace), {
            name: value for name, value in densities.items() if name != "log_likelihood"
        }

    def _with_densities(self, key: Key, shared: Any = None) -> tuple[Any, Tree]:
        """Return the guide's trace, and the log densities of `draw_with_densities` and of the
        example's targets at it; arguments as for `_trace`.
        """
        layout, rows = self.layout, {*self.layout.split.rows}
        names = layout.local_sites if self.server else (*layout.sites, *layout.split.prior)
        trace = self._trace(key, shared)
        with torch.no_grad(), self.pair.held(self._all()):
            trace.compute_log_prob(
                lambda name, node: (
                    (name.removesuffix("_unconstrained") in layout.local_sites) is bool(self.server)
                )
            )
            given = self._values(trace)
            with forked(key.child("model")):
                joint = poutine.trace(poutine.condition(self.pair.model, data=given)).get_trace(
                    *self.pair.example
                )
            joint.compute_log_prob(lambda name, node: name in names or name in rows)
        found: dict[str, Any] = {"log_q": 0.0, "log_prior": 0.0, "log_likelihood": 0.0}
        for whole in (trace, joint):
            for name, node in whole.nodes.items():
                if "log_prob_sum" in node:
                    prior = "log_likelihood" if name in rows else "log_prior"
                    found["log_q" if whole is trace else prior] += node["log_prob_sum"]
        return trace, {name: torch.as_tensor(value) for name, value in found.items()}

    def _trace(self, key: Key, shared: Any = None) -> Any:
        """Return the guide's trace; for a client, with the server's draw of the shared sites, which
        is `shared` where it was drawn before.
        """
        guide = self.pair.guide
        if self.server:
            shared = self.server._trace(key) if shared is None else shared.copy()
            key = key.child("local", self.client)
            # Plates are the client's own as well: theirs may have other lengths.
            stays = {
                *self.layout.local_sites,
                *(
                    name
                    for name, node in shared.nodes.items()
                    if type(node.get("fn")).__name__ == "_Subsample"
                ),
            }
            for name in list(shared.nodes):
                if name.removesuffix("_unconstrained") in stays:
                    shared.remove_node(name)
            guide = poutine.replay(guide, trace=shared)
        with forked(key), torch.no_grad(), self.pair.held(self._all()):
            return poutine.trace(guide).get_trace(*self.pair.example)

    @checked()
    def draw_prior(self, key: Key) -> Tree:
        """Return one draw of every shared site from the prior."""
        with forked(key), torch.no_grad(), self.pair.held(self._all()):
            trace = poutine.trace(self.pair.model).get_trace(self.pair.example[0])
        return self._values(trace)

    @cached_property
    def axes(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the axes of every site: of its plates, else the site's own and numbers."""
        key = Key(0, "axes")
        draw, rows = self.draw(key), unchecked(*self.pair.example)
        with forked(key), torch.no_grad(), self.pair.held(self._all()):
            found = traced(self.pair.model, draw, rows).nodes
        names = [name for name in (*draw, *self.layout.split.derived) if name in found]
        named = {name: axes_of(name, found[name]) for name in names}
        # A Gaussian may be of values in another space, or of several sites.
        more = {
            name: named[site]
            for name, leaf in self.constants.items()
            if len(named.get(site := name.rpartition(".")[0], ())) == leaf.ndim
        }
        return named | more

    def _values(self, trace: Any) -> Tree:
        return {
            name: trace.nodes[name]["value"].detach().clone()
            for name in (*self.layout.sites, *(self.layout.local_sites if self.server else ()))
            if name in trace.nodes
        }

    def _all(self) -> Tree:
        return {**self.pair.first, **self.parameters, **self.own}
