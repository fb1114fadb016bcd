"""The warnings of `infer`."""

from __future__ import annotations

import math
import warnings

from bayesfed.errors import ConvergenceWarning, MultistableWarning, UnverifiedWarning
from bayesfed.errors.plurals import plural
from bayesfed.inference.sum_product.result import Inferred
from bayesfed.models.random_fields.grid import Grid

# Strips are within 0.003 on average up to the coupling where the infinite grid orders, sinh 2J = 1;
# there the bound is 3 tanh J.
ORDERED = 3 * math.tanh(math.asinh(1.0) / 2)


def warn_of(inferred: Inferred, tol: float) -> None:
    """Warn, once, of messages that did not settle, of several fixed points, or of strong couplings
    that nothing vouches for.
    """
    if not inferred.converged:
        warnings.warn(
            f"infer: after {plural(inferred.sweeps, 'sweep')} a message still changed by "
            f"{inferred.residual:.2g} nats (tol {tol:g}): marginals are "
            "those of an unfinished run; try more sweeps, damping=0.5, or a weaker coupling",
            ConvergenceWarning,
            stacklevel=3,
        )
        return
    share = inferred.multistable_share
    if share is not None and share > 0.01:
        warnings.warn(
            f"infer: {share:.1%} of the variables have a probability that depends on the "
            "starting messages: belief propagation has several fixed "
            f"points here and its marginals are overconfident; try {_remedy(inferred)}, a weaker "
            "coupling or stronger evidence",
            MultistableWarning,
            stacklevel=3,
        )
    elif (words := _unverified(inferred)) is not None:
        warnings.warn(words, UnverifiedWarning, stacklevel=3)


def _unverified(inferred: Inferred) -> str | None:
    bound = inferred.trust_bound
    if bound is None or inferred.trust != "unverified":
        return None
    if inferred.hard:
        return (
            "infer: tables that forbid combinations form cycles. Belief propagation cannot "
            "tell whether they contradict each other, and may give "
            "a variable the wrong state with certainty; try method='exact'"
        )
    if bound < (ORDERED if inferred.method == "strip" else 1):
        return None
    return (
        f"infer: couplings are strong ({bound:.2f}; below 1 there is one fixed point): "
        "marginals can be far off and overconfident although the "
        f"messages settled; try {_remedy(inferred)}, certify=True, or a weaker "
        "coupling"
    )


def _remedy(inferred: Inferred) -> str:
    other = "method='strip'" if isinstance(inferred.model, Grid) else "method='exact' or 'gbp'"
    return {"strip": "larger strip_rows", "gbp": "method='exact'"}.get(inferred.method, other)
