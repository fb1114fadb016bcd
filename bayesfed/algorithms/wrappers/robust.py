"""`robust`: any method that adds changes or values, with a robust rule in place of the sum."""

from __future__ import annotations

from dataclasses import replace

from bayesfed.algorithms.registry import ALGORITHM
from bayesfed.algorithms.wrappers.noising import check_not_private
from bayesfed.algorithms.wrappers.phases import check_digital, each_phase, equally_weighted
from bayesfed.errors.checks import Role, checked
from bayesfed.federated.aggregation.reducers import Keep
from bayesfed.federated.aggregation.robust import Robust, Rule
from bayesfed.federated.core.algorithm import Algorithm, Phase


@checked(
    algorithm=ALGORITHM,
    rule=Role(
        lambda rule: callable(rule) and not isinstance(rule, type),
        "a robust rule",
        "Median(), TrimmedMean(0.2)",
    ),
)
def robust(algorithm: Algorithm, rule: Rule) -> Algorithm:
    """Combine the updates of clients by a robust rule; the server then does with the result what
    the method does with a sum.

    Hostile clients can still do what the rule lets through: see the bounds of each rule, and
    `SECURITY.md`. A client that a rule leaves out counts as heard: its memory advances, and its
    bits are in the ledger.

    Parameters
    ----------
    rule
        `Median()`, `TrimmedMean(share)`, `Krum(byzantine, keep)` or `NormGate(factor)`.

    Raises
    ------
    ArgumentError
        If clients send something other than changes or values, the channel adds their updates, the
        server does not take a sum, or the method is `private`.
    """

    def changed(phase: Phase) -> Phase:
        hint = (
            "one of the two: a rule has no bound on what one client moves, and the reported "
            "epsilon would not hold"
        )
        check_not_private(phase.server, f"robust, {algorithm.name!r}", hint)
        check_digital(phase, f"robust, {algorithm.name!r}")
        return replace(
            phase,
            assign=equally_weighted(phase.assign),
            server=Robust(phase.server, rule),
            reducer=Keep,
        )

    return each_phase(algorithm, "robust", changed)
