"""`TurboStep`: the server of D-Turbo-VBI. It averages mu and sigma, then exchanges messages between
Module A and Module B.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from bayesfed.algorithms.d_turbo_vbi.density import HELD, ToDensity, held_rows
from bayesfed.algorithms.d_turbo_vbi.totals import Totals
from bayesfed.algorithms.d_turbo_vbi.watch import Watch
from bayesfed.errors import ArgumentError, CollapseError, CollapseWarning
from bayesfed.federated import Reducer
from bayesfed.federated.aggregation.servers import summed
from bayesfed.federated.core import Info
from bayesfed.federated.training.held_out_scores import SCORES, better
from bayesfed.inference import Exchange, Structured, kl_divergence
from bayesfed.inference.turbo.blocks import Blocks
from bayesfed.inference.turbo.elbo import POINT, TEMPERATURE, Spread, encode_inclusion, spread_leaf
from bayesfed.inference.turbo.exchange import SupportState
from bayesfed.models import Belief, Declared, Site, SiteBelief
from bayesfed.models.modules import initial_scale
from bayesfed.trees import Tree


def no_field(round: int) -> float:
    """Add nothing to the declared prior."""
    return 0.0


def ramp(to: float, rounds: int) -> Callable[[int], float]:
    """Return a field that grows linearly from 0 to `to` log-odds over `rounds` and then stays
    there.

    Hard pruning from round 0 removes weights before the data can support them.
    """
    if rounds < 1:
        raise ArgumentError("ramp", "rounds >= 1", rounds, "ramp(-2.0, 28)")
    return lambda round: to * min(1.0, round / rounds)


# Leaves of the state that belong to no site: the last field, what is remembered of the fit; and one
# of the payload.
FIELD, WATCH, NLL = "run/field", "run/watch", "run/nll"
# Rounds in a row that may be lost before the run ends.
MOST_LOST = 4
# Log-odds of an entry that is active without a doubt.
CERTAIN = 20.0
# Leaves of a site's state that are not published.
SECRET = ("log_odds", "prior_log_odds", "evidence", "messages", "transitions", "before")


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
            support = self.exchange.start(site)
            first = sd or 0.1 * (narrowest if self.spread == "shared" else scales[name])
            state |= {
                f"mean/{name}": points[name].reshape(site.matrix).clone(),
                # Active with certainty at first: no data have been seen that could switch an entry
                # off.
                f"log_odds/{name}": torch.full(site.matrix, CERTAIN),
                f"prior_log_odds/{name}": support.prior_log_odds,
                f"evidence/{name}": support.evidence,
                f"messages/{name}": support.messages,
                f"transitions/{name}": support.transitions,
                f"before/{name}": torch.ones(site.matrix, dtype=torch.bool),
                spread_leaf(name, self.spread): torch.full(
                    site.matrix if self.spread == "weight" else (), first
                ),
            }
        return state

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Publish means, inclusion probabilities, sds, points and supports."""
        hidden = {f"{leaf}/{name}" for name in self.declared.sites for leaf in SECRET} | {
            FIELD,
            WATCH,
        }
        result = {name: leaf for name, leaf in state.items() if name not in hidden}
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
        evidence; `CERTAIN` where whole rows are active or not.
        """
        log_odds, certain = state[f"log_odds/{name}"], state[f"log_odds/{name}"].new_tensor(CERTAIN)
        active = log_odds > 0
        if self.declared.sites[name].rows_are_clusters or not bool(active.any()):
            return certain
        return (log_odds - state[f"evidence/{name}"])[active].mean().clamp(max=certain)

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Average, then exchange messages between the modules, site by site."""
        total = summed(reducer, "moments")
        earlier = {name: state[f"before/{name}"] for name in self.declared.sites}
        state = state | {
            f"before/{name}": state[f"log_odds/{name}"] > 0 for name in self.declared.sites
        }
        if not total.weight:
            return state, {}
        mean = total.mean()
        nll = float(mean.pop(NLL))
        watch, risen = self._watched(state, nll, round, self._shrunk(state, earlier))
        if SCORES in mean:
            state, mean = self._retempered(state, mean, watch)
        if (
            not self.use_prior
            or round < self.warm_up
            or (isinstance(self.field, ToDensity) and not watch.settled)
        ):
            return self._unchanged(state | mean | {WATCH: watch.leaf()})
        result, totals = state | {WATCH: watch.leaf()}, Totals()
        result |= {name: leaf for name, leaf in mean.items() if not name.startswith("mean/")}
        heard = {
            name: self._heard(site, state, result, mean)
            for name, site in self.declared.sites.items()
        }
        if watch.lost and isinstance(self.field, ToDensity):
            return self._taken_back(state, earlier, result, mean, risen)
        fields = self._fields(heard, state, round, watch.keep)
        for name, (site, old, seen, known) in heard.items():
            belief, support, inferred = self.exchange.run(
                site, seen, known, self.blocks, fields[name]
            )
            belief = replace(belief, log_odds=self._held(site, belief.log_odds))
            result |= {
                f"mean/{name}": torch.where(belief.active, mean[f"mean/{name}"], 0.0),
                f"log_odds/{name}": belief.log_odds,
                f"prior_log_odds/{name}": support.prior_log_odds,
                f"evidence/{name}": support.evidence,
                f"messages/{name}": support.messages,
                f"transitions/{name}": support.transitions,
            }
            new = self.belief_of(site, result)
            totals.add(
                name,
                old,
                new,
                inferred,
                self.field.least(*site.matrix) if isinstance(self.field, ToDensity) else 0,
            )
            totals.kl += float(kl_divergence(new, support.prior_log_odds, site.precision))
        result[FIELD] = state[FIELD].new_tensor(min(fields.values()))
        self._warn_of_empty_layers(state, result)
        return result, totals.info() | {"field": float(result[FIELD])} | (
            {"temperature": float(result[TEMPERATURE])} if TEMPERATURE in result else {}
        )

    def _unchanged(self, state: Tree) -> tuple[Tree, Info]:
        """Return the state of a round that switched nothing off, and its figures."""
        active = torch.cat(
            [(state[f"log_odds/{name}"] > 0).flatten() for name in self.declared.sites]
        )
        info = {"density": float(active.double().mean()), "reactivated": 0.0, "switched_off": 0.0}
        if self.use_prior:
            sites = self.declared.sites.items()
            divergences = [
                kl_divergence(
                    self.belief_of(site, state), state[f"prior_log_odds/{name}"], site.precision
                )
                for name, site in sites
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
        spreads = {spread_leaf(name, self.spread) for name in self.declared.sites}
        return state | {TEMPERATURE: temperature * factor}, {
            name: leaf * factor**0.5 if name in spreads else leaf for name, leaf in mean.items()
        }

    def _heard(
        self, site: Site, state: Tree, result: Tree, mean: Tree
    ) -> tuple[Site, SiteBelief, SiteBelief, SupportState]:
        """Return a site, its belief before the round, its belief with the new q(w), and its
        support's messages.
        """
        name, old = site.name, self.belief_of(site, state)
        if self.spread == "weight":
            # Nobody trained the inactive entries: one that returns starts from the spike's sd.
            result[f"sd/{name}"] = torch.where(old.active, mean[f"sd/{name}"], old.sd)
        fresh = self.belief_of(
            site,
            result
            | {f"mean/{name}": mean[f"mean/{name}"], f"log_odds/{name}": state[f"log_odds/{name}"]},
        )
        # The mean-field guide keeps q(rho) of the last round until q(s) has been updated.
        seen = old if self.before_averaging else replace(fresh, shapes=old.shapes, rates=old.rates)
        return site, old, seen, self.support_of(name, state)

    def _fields(
        self,
        sites: Mapping[str, tuple[Site, SiteBelief, SiteBelief, SupportState]],
        state: Tree,
        round: int,
        keep: float,
    ) -> Mapping[str, float]:
        """Return the field of every site in this round."""
        if not isinstance(self.field, ToDensity):
            return dict.fromkeys(sites, self.field(round))
        trial = replace(self.exchange, certify=False, learn_transitions=False)

        @cache
        def count(name: str, field: float) -> int:
            site, _, seen, support = sites[name]
            log_odds = trial.run(site, seen, support, self.blocks, field)[0].log_odds
            # Rows that are held active change the number of active entries by as many as there are
            # rows, unless whole rows go.
            return int(
                ((self._held(site, log_odds) if site.rows_are_clusters else log_odds) > 0).sum()
            )

        sizes, active = (
            {name: site.matrix for name, (site, *_) in sites.items()},
            {name: int(old.active.sum()) for name, (_, old, *_) in sites.items()},
        )
        return self.field.fields(count, sizes, active, float(state[FIELD]), keep)

    def _held(self, site: Site, log_odds: Tensor) -> Tensor:
        """Return log-odds under which no output of a layer is cut off, or, where whole rows go, no
        output of the last layer.
        """
        if not isinstance(self.field, ToDensity) or not site.rows_are_outputs(self.declared.net):
            return log_odds
        if not site.rows_are_clusters:
            return held_rows(log_odds)
        return log_odds.clamp(min=HELD) if site.name == self.declared.last else log_odds

    def _watched(self, state: Tree, nll: float, round: int, shrunk: float) -> tuple[Watch, float]:
        """Return what is remembered of the local fit after this round, and the share of its gain
        that the round lost.

        Raises
        ------
        CollapseError
            If much of the gain is lost in several rounds in a row, in which no weight was switched
            off.
        """
        before = Watch.of(state[WATCH])
        after, risen = before.after(
            nll, round, self.field if isinstance(self.field, ToDensity) else ToDensity(), shrunk
        )
        if after.lost > MOST_LOST:
            actual = (
                f"{nll:.3g} nats a row, after {after.lowest:.3g} at best and {after.first:.3g} "
                f"in round 0, {after.lost} rounds in a row"
            )
            hint = (
                "a lower temperature of the likelihood, a smaller learning rate, or a higher "
                "density"
            )
            raise CollapseError("d_turbo_vbi", "a local fit that does not fall apart", actual, hint)
        return after, risen

    def _shrunk(self, state: Tree, earlier: Tree) -> float:
        """Return by what share of itself the number of active weights fell just before this
        round.
        """
        before, now = (
            sum(int(leaf.sum()) for leaf in earlier.values()),
            sum(int(state[f"before/{name}"].sum()) for name in earlier),
        )
        return (before - now) / max(1, before)

    def _taken_back(
        self, state: Tree, earlier: Tree, result: Tree, mean: Tree, risen: float
    ) -> tuple[Tree, Info]:
        """Return the state with the support of the last round but one: what was switched off since
        then is active again, at zero.
        """
        returned = active = entries = 0
        for name in self.declared.sites:
            log_odds = state[f"log_odds/{name}"]
            before = earlier[name] | (log_odds > 0)
            back = before & (log_odds <= 0)
            result[f"log_odds/{name}"] = torch.where(back, HELD, log_odds)
            result[f"mean/{name}"] = mean[f"mean/{name}"]
            returned, active, entries = (
                returned + int(back.sum()),
                active + int(before.sum()),
                entries + before.numel(),
            )
        text = (
            f"d_turbo_vbi: a round lost {risen:.0%} of what the local fit had gained; "
            f"{returned} weights are active again, and fewer are switched off"
        )
        warnings.warn(text, CollapseWarning, stacklevel=2)
        return result, {
            "density": active / entries,
            "reactivated": float(returned),
            "switched_off": 0.0,
            "taken_back": 1.0,
            "field": float(state[FIELD]),
        }

    def _warn_of_empty_layers(self, state: Tree, result: Tree) -> None:
        active = {
            name: (
                bool((state[f"log_odds/{name}"] > 0).any()),
                bool((result[f"log_odds/{name}"] > 0).any()),
            )
            for name in self.declared.sites
        }
        if empty := [name for name, (before, after) in active.items() if before and not after]:
            text = (
                f"d_turbo_vbi: no weight of {', '.join(empty)} is active any more; try "
                "density=..., which keeps a floor, or a lower temperature"
            )
            warnings.warn(text, CollapseWarning, stacklevel=2)

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
        return SupportState(
            *(
                state[f"{leaf}/{name}"]
                for leaf in ("prior_log_odds", "evidence", "messages", "transitions")
            )
        )
