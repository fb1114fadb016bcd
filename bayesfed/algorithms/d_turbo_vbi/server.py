"""`TurboStep`: the server of D-Turbo-VBI. It averages mu and sigma, then exchanges messages between
Module A and Module B.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from bayesfed.algorithms.d_turbo_vbi.chosen import candidates, chosen
from bayesfed.algorithms.d_turbo_vbi.collapse import taken_back, warn_of_empty_layers
from bayesfed.algorithms.d_turbo_vbi.density import ToDensity, no_field, smallest
from bayesfed.algorithms.d_turbo_vbi.held_out import retempered
from bayesfed.algorithms.d_turbo_vbi.returns import STANDS, heard, seen_at, standing
from bayesfed.algorithms.d_turbo_vbi.totals import Changed, asked, density_of, figures
from bayesfed.algorithms.d_turbo_vbi.watch import NLL, Watch
from bayesfed.federated import Reducer
from bayesfed.federated.aggregation.servers import summed
from bayesfed.federated.core import Info
from bayesfed.federated.training.held_out_scores import SCORES
from bayesfed.inference import Exchange, Inferred, Structured, kl_divergence
from bayesfed.inference.turbo.blocks import Blocks
from bayesfed.inference.turbo.elbo import (
    POINT,
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
SECRET = ("log_odds", *MESSAGES, "before", STANDS[:-1])


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
    trained, and its evidence is that of a mean of 0 under the sd of the round.

    Parameters
    ----------
    before_averaging
        True updates q(s) and q(rho) from the previous mean; False from the new one, as the text
        after (23) says.
    field
        ``round -> log-odds`` that are added to the prior of every support, so that a sparse prior
        can set in gradually; or `ToDensity`.
    warm_up
        Number of rounds before q(s) is first updated. Until then every entry stays active.
    inclusion_levels
        Number of levels to which q(s) is rounded for the clients, who weigh prior precisions by it.
        With 1 it is not sent: clients compute it from the means that they have and from the site's
        mean prior log-odds, ``prior/NAME``.
    returning
        Share of the active entries for which what clients said is kept, as in `Returns`.
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
    returning: float = 0.0

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

    def initial(self, points: Tree, sd: float | None, inclusion: float | None = None) -> Tree:
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
        # Active with certainty at first: no data have been seen that could switch an entry off.
        first_odds = CERTAIN if inclusion is None else math.log(inclusion / (1 - inclusion))
        for name, site in self.declared.sites.items():
            first = sd or 0.1 * (narrowest if self.spread == "shared" else scales[name])
            mean = points[name].reshape(site.matrix).clone()
            leaves = {
                f"log_odds/{name}": torch.full(site.matrix, first_odds),
                **_leaves(name, self.exchange.start(site)),
                spread_leaf(name, self.spread): torch.full(
                    site.matrix if self.spread == "weight" else (), first
                ),
            }
            state |= {
                f"mean/{name}": mean,
                f"before/{name}": torch.ones_like(mean, dtype=torch.bool),
            }
            state |= {
                leaf: value.to(torch.promote_types(value.dtype, mean.dtype))
                for leaf, value in leaves.items()
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
            If much of what had been gained is lost in several rounds in a row.
        """
        total, sites, now = summed(reducer, "moments"), self.declared.sites, self.supports(state)
        before = {name: state[f"before/{name}"] for name in sites}
        state = state | {f"before/{name}": support for name, support in now.items()}
        if not total.weight:
            return state, {}
        (state, mean), policy = heard(state, total.mean(), now, self.returning), self.policy
        nll = float(mean.pop(NLL))
        watch, risen = Watch.of(state[WATCH]).after(nll, round, policy)
        state = state | {WATCH: watch.leaf()}
        said: Info = {}
        if SCORES in mean:
            state, mean, said = retempered(state, mean, self.spreads if watch.settled else ())
        if not self.use_prior or round < self.warm_up or (policy and not watch.settled):
            return self._unchanged(state | mean, said)
        old = self.belief(state)
        if self.spread == "weight":
            # Nobody trained the inactive entries: one that returns starts from the spike's sd.
            mean |= {
                f"sd/{name}": torch.where(site.active, mean[f"sd/{name}"], site.sd)
                for name, site in old.items()
            }
        if policy and watch.lost:
            log_odds, info = taken_back(state, before, now, risen)
            return state | mean | log_odds, info | said | {
                "field": float(state[FIELD]),
                **asked(self.policy, state),
            }
        # The mean-field guide keeps q(rho) of the last round until q(s) has been updated. Inactive
        # entries are judged as active ones with mean 0 would be: by this round's sd.
        judged = state if self.before_averaging else state | mean
        seen = {
            name: replace(
                site,
                mean=seen_at(name, judged[f"mean/{name}"], state),
                sd=judged[spread_leaf(name, self.spread)].expand_as(site.mean),
            )
            for name, site in old.items()
        }
        if isinstance(self.field, ToDensity):
            wanted, least = self.field.wanted(now, watch.keep)
            field = self._sought(seen, state, wanted, least)
        else:
            field = self.field(round)
        run = {name: self._run(self.exchange, name, seen, state, field) for name in sites}
        odds, above = {name: belief.log_odds for name, (belief, _, _) in run.items()}, 0.0
        if policy:
            odds, above = chosen(candidates(self.declared, odds, now, least), wanted)
        result, changed = state | mean, dict[str, Changed]()
        for name, site in sites.items():
            _, messages, inferred = run[name]
            prior = messages.prior_log_odds - above
            result |= _leaves(name, replace(messages, prior_log_odds=prior)) | {
                f"mean/{name}": torch.where(odds[name] > 0, mean[f"mean/{name}"], 0.0),
                f"log_odds/{name}": odds[name],
            }
            new = self.belief_of(site, result)
            divergence = float(kl_divergence(new, prior, site.precision))
            floor = policy.least(len(now[name]), now[name].numel()) if policy else 0
            changed[name] = Changed(now[name], new.active, inferred, divergence, floor)
        result[FIELD] = state[FIELD].new_tensor(field)
        result |= standing(result, supports := self.supports(result))
        warn_of_empty_layers(now, supports)
        return result, figures(changed, state) | said | {
            "field": float(result[FIELD]),
            **asked(self.policy, state),
        }

    def _unchanged(self, state: Tree, said: Info) -> tuple[Tree, Info]:
        """Return the state of a round that switched nothing off, and its figures with others."""
        supports = self.supports(state)
        info = {"density": density_of(supports, state), "reactivated": 0.0, "switched_off": 0.0}
        info |= asked(self.policy, state) | said
        if self.use_prior:
            divergences = [
                kl_divergence(
                    self.belief_of(site, state), state[f"prior_log_odds/{name}"], site.precision
                )
                for name, site in self.declared.sites.items()
            ]
            info["kl"] = float(torch.stack(divergences).sum())
        return state, info

    def _sought(self, seen: Belief, state: Tree, wanted: int, least: Mapping[str, int]) -> float:
        """Return the field that gives about the wanted number of active entries."""
        trial = replace(self.exchange, certify=False, learn_transitions=False)

        @cache
        def count(field: float) -> int:
            runs = {name: self._run(trial, name, seen, state, field)[0] for name in seen}
            return sum(max(least[name], int(run.active.sum())) for name, run in runs.items())

        return smallest(count, wanted, float(state[FIELD]), within=max(1, wanted // 50))

    def _run(
        self, exchange: Exchange, name: str, seen: Belief, state: Tree, field: float
    ) -> tuple[SiteBelief, SupportState, Inferred]:
        site, support = self.declared.sites[name], self.support_of(name, state)
        return exchange.run(site, seen[name], support, self.blocks, field)

    def published_last(self, state: Tree) -> Tree:
        """Return the supports that clients hold."""
        return {f"support/{name}": state[f"before/{name}"] for name in self.declared.sites}

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
