"""`TurboStep`: the server of D-Turbo-VBI. It averages mu and sigma, then exchanges messages between
Module A and Module B.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from bayesfed.algorithms.d_turbo_vbi.collapse import active_in, taken_back, warn_of_empty_layers
from bayesfed.algorithms.d_turbo_vbi.density import HELD, ToDensity, held_rows, no_field
from bayesfed.algorithms.d_turbo_vbi.totals import Changed, density_of, figures
from bayesfed.algorithms.d_turbo_vbi.watch import NLL, Watch
from bayesfed.federated import Reducer
from bayesfed.federated.aggregation.servers import summed
from bayesfed.federated.core import Info
from bayesfed.federated.training.held_out_scores import SCORES, better
from bayesfed.inference import Exchange, Structured, kl_divergence
from bayesfed.inference.turbo.blocks import Blocks
from bayesfed.inference.turbo.elbo import (
    POINT,
    TEMPERATURE,
    Spread,
    encode_inclusion,
    spread_leaf,
    spread_leaves,
)
from bayesfed.inference.turbo.exchange import SupportState
from bayesfed.models import Belief, Declared, Site, SiteBelief
from bayesfed.models.modules import initial_scale
from bayesfed.trees import Tree

# Leaves of the state that belong to no site: the last field, and what is remembered of the fit.
FIELD, WATCH = "run/field", "run/watch"
# Log-odds of an entry that is active without a doubt.
CERTAIN = 20.0
# Leaves of a site's state: its support's messages, and all that are not published.
MESSAGES = ("prior_log_odds", "evidence", "messages", "transitions")
SECRET = ("log_odds", *MESSAGES, "before")


@dataclass(frozen=True)
class TurboStep:
    """Average mu and sigma, then update q(rho) and q(s) in closed form and exchange with the
    support graph.

    The mean of mu and of sigma, (23), is the Wasserstein-2 barycentre of diagonal Gaussians. It
    needs only sums.

    State, for each site: ``mean``, ``log_odds`` of q(s), ``prior_log_odds`` (the message v_{h ->
    s}), ``evidence`` (the message v_{eta -> s}), ``messages`` (warm start of Module B),
    ``transitions`` (of the grid, if learned), ``before`` (the support that was published last); the
    sd leaves; the points. An inactive entry has mean 0 and the spike's sd. It is neither sent nor
    trained, and it keeps the evidence with which it was switched off.

    Parameters
    ----------
    before_averaging
        True updates q(s) and q(rho) from the previous mean, the order Algorithm 1 prints; False
        from the new one, the order of the text after (23).
    field
        ``round -> log-odds`` that are added to the prior of every support, so that a sparse prior
        can set in gradually; or `ToDensity`.
    warm_up
        Number of rounds before q(s) is first updated. Until then every entry stays active.
    inclusion_levels
        Number of levels to which q(s) is rounded for the clients, who weigh prior precisions by it.
        With 1 it is not sent: clients compute it from the means that they have and from the site's
        mean prior log-odds, ``prior/NAME``.
    """

    declared: Declared
    spread: Spread = "shared"
    blocks: Blocks = Structured()
    exchange: Exchange = Exchange()
    use_prior: bool = True
    before_averaging: bool = False
    field: Callable[[int], float] | ToDensity = no_field
    warm_up: int = 0
    inclusion_levels: int = 256

    @property
    def asked(self) -> Info:
        """The density that is asked for, as a figure; nothing where a field is."""
        return {"density_asked": self.policy.target} if self.policy else {}

    @property
    def policy(self) -> ToDensity | None:
        """How the density falls; None where a field is given instead."""
        return self.field if isinstance(self.field, ToDensity) else None

    @property
    def spreads(self) -> tuple[str, ...]:
        """Names of the leaves that hold sds."""
        return spread_leaves(self.declared.sites, self.spread)

    def supports(self, state: Tree) -> Tree:
        """Return which entries of every site are active."""
        return {name: state[f"log_odds/{name}"] > 0 for name in self.declared.sites}

    def initial(self, points: Tree, sd: float | None) -> Tree:
        """Return the state in which every entry is active and q(w) is narrow around the given
        parameters.
        """
        state: Tree = {
            f"{POINT}/{name}": leaf
            for name, leaf in points.items()
            if name not in self.declared.sites
        }
        state |= {FIELD: torch.zeros((), dtype=torch.float64), WATCH: Watch().leaf()}
        scales = {name: initial_scale(points[name]) for name in self.declared.sites}
        narrowest = min(scales.values())
        for name, site in self.declared.sites.items():
            first = sd or 0.1 * (narrowest if self.spread == "shared" else scales[name])
            state |= {
                f"mean/{name}": points[name].reshape(site.matrix).clone(),
                # Active with certainty at first: no data have been seen that could switch an entry
                # off.
                f"log_odds/{name}": torch.full(site.matrix, CERTAIN),
                **_leaves(name, self.exchange.start(site)),
                f"before/{name}": torch.ones(site.matrix, dtype=torch.bool),
                spread_leaf(name, self.spread): torch.full(
                    site.matrix if self.spread == "weight" else (), first
                ),
            }
        return state

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Publish means, inclusion probabilities, sds, points and supports."""
        result = {
            name: leaf
            for name, leaf in state.items()
            if name not in (FIELD, WATCH) and name.partition("/")[0] not in SECRET
        }
        for name in self.declared.sites:
            log_odds = state[f"log_odds/{name}"]
            if self.inclusion_levels > 1:
                result[f"inclusion/{name}"] = encode_inclusion(
                    torch.sigmoid(log_odds), self.inclusion_levels
                )
            else:
                result[f"prior/{name}"] = self._mean_prior(name, state)
            result[f"support/{name}"] = log_odds > 0
        return result

    def _mean_prior(self, name: str, state: Tree) -> Tensor:
        """Return the mean log-odds, over a site's active entries, that q(s) has beyond the
        evidence; `CERTAIN` where entries are active in clusters.
        """
        log_odds = state[f"log_odds/{name}"]
        certain, active = log_odds.new_tensor(CERTAIN), log_odds > 0
        if self.declared.sites[name].clusters or not active.any():
            return certain
        return (log_odds - state[f"evidence/{name}"])[active].mean().clamp(max=certain)

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Average, then exchange messages between the modules, site by site.

        Raises
        ------
        CollapseError
            If much of what the local fit had gained is lost in several rounds in a row.
        """
        total, sites, now = summed(reducer, "moments"), self.declared.sites, self.supports(state)
        before = {name: state[f"before/{name}"] for name in sites}
        state = state | {f"before/{name}": support for name, support in now.items()}
        if not total.weight:
            return state, {}
        mean, policy = total.mean(), self.policy
        shrunk = (active_in(before) - active_in(now)) / max(1, active_in(before))
        watch, risen = Watch.of(state[WATCH]).after(
            float(mean.pop(NLL)), round, policy or ToDensity(), shrunk
        )
        state = state | {WATCH: watch.leaf()}
        if SCORES in mean:
            state, mean = self._retempered(state, mean, watch)
        if not self.use_prior or round < self.warm_up or (policy and not watch.settled):
            return self._unchanged(state | mean)
        old = self.belief(state)
        if self.spread == "weight":
            # Nobody trained the inactive entries: one that returns starts from the spike's sd.
            mean |= {
                f"sd/{name}": torch.where(site.active, mean[f"sd/{name}"], site.sd)
                for name, site in old.items()
            }
        if policy and watch.lost:
            log_odds, info = taken_back(state, before, now, risen)
            return state | mean | log_odds, info | {"field": float(state[FIELD]), **self.asked}
        # The mean-field guide keeps q(rho) of the last round until q(s) has been updated.
        seen = {
            name: old[name]
            if self.before_averaging
            else replace(site, shapes=old[name].shapes, rates=old[name].rates)
            for name, site in self.belief(state | mean).items()
        }
        fields = self._fields(seen, state, round, watch.keep)
        result, changed = state | mean, dict[str, Changed]()
        for name, site in sites.items():
            belief, messages, inferred = self.exchange.run(
                site, seen[name], self.support_of(name, state), self.blocks, fields[name]
            )
            held = self._held(site, belief.log_odds)
            result |= _leaves(name, messages) | {
                f"mean/{name}": torch.where(held > 0, mean[f"mean/{name}"], 0.0),
                f"log_odds/{name}": held,
            }
            new = self.belief_of(site, result)
            divergence = float(kl_divergence(new, messages.prior_log_odds, site.precision))
            least = policy.least(*site.matrix) if policy else 0
            changed[name] = Changed(now[name], new.active, inferred, divergence, least)
        result[FIELD] = state[FIELD].new_tensor(min(fields.values()))
        warn_of_empty_layers(now, self.supports(result))
        return result, figures(changed, state) | {"field": float(result[FIELD]), **self.asked} | (
            {"temperature": float(result[TEMPERATURE])} if TEMPERATURE in result else {}
        )

    def _unchanged(self, state: Tree) -> tuple[Tree, Info]:
        """Return the state of a round that switched nothing off, and its figures."""
        active = torch.cat([support.flatten() for support in self.supports(state).values()])
        density = density_of(int(active.sum()), len(active), state)
        info = {"density": density, "reactivated": 0.0, "switched_off": 0.0, **self.asked}
        if self.use_prior:
            divergences = [
                kl_divergence(
                    self.belief_of(site, state), state[f"prior_log_odds/{name}"], site.precision
                )
                for name, site in self.declared.sites.items()
            ]
            info["kl"] = float(torch.stack(divergences).sum())
        return state, info

    def _retempered(self, state: Tree, mean: Tree, watch: Watch) -> tuple[Tree, Tree]:
        """Return the state with the temperature, and the means with the sds, that held-out rows ask
        for, once the network has learned.
        """
        mean = dict(mean)
        scores, temperature = mean.pop(SCORES), state[TEMPERATURE]
        factor = better(scores, float(temperature)) if watch.settled else 1.0
        return state | {TEMPERATURE: temperature * factor}, {
            name: leaf * factor**0.5 if name in self.spreads else leaf
            for name, leaf in mean.items()
        }

    def _fields(self, seen: Belief, state: Tree, round: int, keep: float) -> Mapping[str, float]:
        """Return the field of every site in this round."""
        sites = self.declared.sites
        if not isinstance(self.field, ToDensity):
            return dict.fromkeys(sites, self.field(round))
        trial = replace(self.exchange, certify=False, learn_transitions=False)

        @cache
        def count(name: str, field: float) -> int:
            site, support = sites[name], self.support_of(name, state)
            log_odds = trial.run(site, seen[name], support, self.blocks, field)[0].log_odds
            # Rows that are held active change the number of active entries by as many as there are
            # rows, unless clusters go.
            return int(((self._held(site, log_odds) if site.clusters else log_odds) > 0).sum())

        sizes = {name: site.matrix for name, site in sites.items()}
        active = {name: int(site.active.sum()) for name, site in seen.items()}
        return self.field.fields(count, sizes, active, float(state[FIELD]), keep)

    def _held(self, site: Site, log_odds: Tensor) -> Tensor:
        """Return log-odds under which no output of a layer is cut off, or, where entries go in
        clusters, no output of the last layer.
        """
        if not self.policy or not site.rows_are_outputs(self.declared.net):
            return log_odds
        if site.clusters is None:
            return held_rows(log_odds)
        last = site.name == self.declared.last and site.clusters.whole_rows
        return log_odds.clamp(min=HELD) if last else log_odds

    def belief(self, state: Tree) -> Belief:
        """Return the posterior of every site."""
        return {name: self.belief_of(site, state) for name, site in self.declared.sites.items()}

    def belief_of(self, site: Site, state: Tree) -> SiteBelief:
        """Return one site's posterior; inactive entries have the spike's sd."""
        log_odds, mean = state[f"log_odds/{site.name}"], state[f"mean/{site.name}"]
        spike = (site.precision.rates[0] / site.precision.shapes[0]) ** 0.5
        sd = torch.where(log_odds > 0, state[spread_leaf(site.name, self.spread)], spike)
        unit = mean.new_ones(2, 1, 1)
        return self.blocks.start(SiteBelief(mean, sd, log_odds, unit, unit), site.precision)

    def support_of(self, name: str, state: Tree) -> SupportState:
        """Return one site's support messages."""
        return SupportState(**{leaf: state[f"{leaf}/{name}"] for leaf in MESSAGES})


def _leaves(name: str, support: SupportState) -> Tree:
    """Return a site's support messages as leaves of the state."""
    return {f"{leaf}/{name}": getattr(support, leaf) for leaf in MESSAGES}
