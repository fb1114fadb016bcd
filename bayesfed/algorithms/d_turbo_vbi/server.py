"""`TurboStep`: the server of D-Turbo-VBI. It averages mu and sigma, then exchanges messages between Module A and Module B."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from bayesfed.errors import ArgumentError, complain
from bayesfed.federated.aggregation.servers import summed
from bayesfed.federated.core.protocols import CHANGE, Info
from bayesfed.federated.core.update import Reducer
from bayesfed.inference.sum_product.result import Inferred
from bayesfed.inference.turbo.blocks import Blocks, Structured, kl_divergence
from bayesfed.inference.turbo.elbo import Spread, encode_inclusion, spread_leaf
from bayesfed.inference.turbo.exchange import Exchange, SupportState
from bayesfed.models.priors.belief import Belief, SiteBelief
from bayesfed.models.priors.declared import Declared, Site
from bayesfed.trees import Tree


def no_field(round: int) -> float:
    """Add nothing to the declared prior."""
    return 0.0


def ramp(to: float, rounds: int) -> Callable[[int], float]:
    """Return a field that grows linearly from 0 to `to` log-odds over `rounds` and then stays there.

    Hard pruning from round 0 removes weights before the data can support them.
    """
    if rounds < 1:
        raise ArgumentError(complain("ramp", expected="rounds >= 1", actual=rounds, hint="ramp(-2.0, 28)"))
    return lambda round: to * min(1.0, round / rounds)


# Leaves of a site's state that are not published.
SECRET = ("log_odds", "prior_log_odds", "evidence", "messages", "transitions", "before")


@dataclass(frozen=True)
class TurboStep:
    """Average mu and sigma, then update q(rho) and q(s) in closed form and exchange with the support graph.

    The mean of mu and of sigma, (23), is the Wasserstein-2 barycentre of diagonal Gaussians. It needs only sums.

    State, for each site: ``mean``, ``log_odds`` of q(s), ``prior_log_odds`` (the message v_{h -> s}), ``evidence`` (the
    message v_{eta -> s}), ``messages`` (warm start of Module B), ``transitions`` (of the grid, if learned), ``before`` (the support that
    was published last); the sd leaves; the points.
    An inactive entry has mean 0 and the spike's sd. It is neither sent nor trained, and it keeps the evidence with which it was switched off.

    Parameters
    ----------
    before_averaging
        True updates q(s) and q(rho) from the previous mean, the order Algorithm 1 prints; False from the new one,
        the order of the text after (23).
    field
        ``round -> log-odds`` that are added to the prior of every support, so that a sparse prior can set in gradually.
    warm_up
        Number of rounds before q(s) is first updated. Until then every entry stays active.
    inclusion_levels
        Number of levels to which q(s) is rounded for the clients, who weigh prior precisions by it.
    """

    declared: Declared
    spread: Spread = "shared"
    blocks: Blocks = Structured()
    exchange: Exchange = Exchange()
    use_prior: bool = True
    before_averaging: bool = False
    field: Callable[[int], float] = no_field
    warm_up: int = 0
    inclusion_levels: int = 256

    def initial(self, points: Tree, sd: float) -> Tree:
        """Return the state in which every entry is active and q(w) is narrow around the given parameters."""
        state: Tree = {name: leaf for name, leaf in points.items() if name not in self.declared.sites}
        for name, site in self.declared.sites.items():
            support = self.exchange.start(site)
            state |= {
                f"{name}.mean": points[name].reshape(site.matrix).clone(),
                # Active with certainty at first: no data have been seen that could switch an entry off.
                f"{name}.log_odds": torch.full(site.matrix, 20.0),
                f"{name}.prior_log_odds": support.prior_log_odds,
                f"{name}.evidence": support.evidence,
                f"{name}.messages": support.messages,
                f"{name}.transitions": support.transitions,
                f"{name}.before": torch.ones(site.matrix, dtype=torch.bool),
                spread_leaf(name, self.spread): torch.full(site.matrix if self.spread == "weight" else (), sd),
            }
        return state

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Publish means, inclusion probabilities, sds, points and supports. A client that heard the last round gets the changes of the supports."""
        hidden = {f"{name}.{leaf}" for name in self.declared.sites for leaf in SECRET}
        result = {name: leaf for name, leaf in state.items() if name not in hidden}
        for name in self.declared.sites:
            log_odds = state[f"{name}.log_odds"]
            result[f"{name}.inclusion"] = encode_inclusion(torch.sigmoid(log_odds), self.inclusion_levels)
            known = version is not None and version == round - 1
            result[f"{name}.support" + CHANGE * known] = (log_odds > 0) ^ state[f"{name}.before"] if known else log_odds > 0
        return result

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Average, then exchange messages between the modules, site by site."""
        total = summed(reducer, "moments")
        state = state | {f"{name}.before": state[f"{name}.log_odds"] > 0 for name in self.declared.sites}
        if not total.weight:
            return state, {}
        mean = total.mean()
        if not self.use_prior or round < self.warm_up:
            return state | mean, {"density": 1.0}
        result, totals = dict(state), _Totals()
        result |= {name: leaf for name, leaf in mean.items() if name.removesuffix(".mean") not in self.declared.sites}
        for name, site in self.declared.sites.items():
            old, support = self.belief_of(site, state), self.support_of(name, state)
            if self.spread == "weight":
                # Nobody trained the inactive entries: one that returns starts from the spike's sd.
                result[f"{name}.sd"] = torch.where(old.active, mean[f"{name}.sd"], old.sd)
            fresh = self.belief_of(site, result | {f"{name}.mean": mean[f"{name}.mean"], f"{name}.log_odds": state[f"{name}.log_odds"]})
            # The mean-field guide keeps q(rho) of the last round until q(s) has been updated.
            seen = old if self.before_averaging else replace(fresh, shapes=old.shapes, rates=old.rates)
            belief, support, inferred = self.exchange.run(site, seen, support, self.blocks, self.field(round))
            result |= {
                f"{name}.mean": torch.where(belief.active, mean[f"{name}.mean"], 0.0),
                f"{name}.log_odds": belief.log_odds,
                f"{name}.prior_log_odds": support.prior_log_odds,
                f"{name}.evidence": support.evidence,
                f"{name}.messages": support.messages,
                f"{name}.transitions": support.transitions,
            }
            new = self.belief_of(site, result)
            totals.add(name, old, new, inferred)
            totals.kl += float(kl_divergence(new, support.prior_log_odds, site.precision))
        return result, totals.info()

    def belief(self, state: Tree) -> Belief:
        """Return the posterior of every site."""
        return {name: self.belief_of(site, state) for name, site in self.declared.sites.items()}

    def belief_of(self, site: Site, state: Tree) -> SiteBelief:
        """Return one site's posterior; inactive entries have the spike's sd."""
        log_odds, mean = state[f"{site.name}.log_odds"], state[f"{site.name}.mean"]
        spike = (site.precision.rates[0] / site.precision.shapes[0]) ** 0.5
        sd = torch.where(log_odds > 0, state[spread_leaf(site.name, self.spread)], spike)
        unit = mean.new_ones(2, 1, 1)
        return self.blocks.start(SiteBelief(mean, sd, log_odds, unit, unit), site.precision)

    def support_of(self, name: str, state: Tree) -> SupportState:
        """Return one site's support messages."""
        return SupportState(*(state[f"{name}.{leaf}"] for leaf in ("prior_log_odds", "evidence", "messages", "transitions")))


class _Totals:
    """Figures over all sites for the report."""

    def __init__(self) -> None:
        self.active = self.entries = self.returned = self.removed = self.sweeps = 0
        self.residual, self.multistable, self.kl, self.converged, self.layers = 0.0, 0.0, 0.0, True, dict[str, float]()

    def add(self, name: str, old: SiteBelief, new: SiteBelief, inferred: Inferred) -> None:
        entries = new.active.numel()
        self.active += int(new.active.sum())
        self.entries += entries
        self.returned += int((new.active & ~old.active).sum())
        self.removed += int((old.active & ~new.active).sum())
        self.residual, self.sweeps = max(self.residual, inferred.residual), max(self.sweeps, inferred.sweeps)
        self.converged &= inferred.converged
        self.multistable += math.nan if inferred.multistable_share is None else entries * inferred.multistable_share
        self.layers |= {f"density/{name}": float(new.active.float().mean()), f"bp_residual/{name}": inferred.residual}
        if inferred.multistable_share is not None:
            self.layers[f"bp_multistable/{name}"] = inferred.multistable_share

    def info(self) -> Info:
        return {
            "density": self.active / self.entries,
            "reactivated": float(self.returned),
            "switched_off": float(self.removed),
            "bp_residual": self.residual,
            "bp_sweeps": float(self.sweeps),
            "bp_converged": float(self.converged),
            **({} if math.isnan(self.multistable) else {"bp_multistable": self.multistable / self.entries}),
            "kl": self.kl,
            **self.layers,
        }
