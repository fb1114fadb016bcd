"""What a run knows of its own health: whether it settled, whom it never heard, and whether it kept
what it was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bayesfed.federated import Record
from bayesfed.running.settling import Settling

# Clients that are named; of the others there is their number.
NAMED = 3


@dataclass(frozen=True)
class Health:
    """What a run knows of its own health. None is what the method does not have or nobody knows.

    Parameters
    ----------
    settling
        How far a variational run is from its fixed point.
    unheard
        Share of all rows of each client that was never heard (`Result.unheard`).
    density, density_asked
        Share of the weights that are active after the last round, and the share asked for.
    k_hat
        That of the importance weights of a method that has them, what `Result.k_hat` returned last,
        or a callback entered as ``k_hat``; above 0.7 the posterior is far from the exact one.
    log_evidence, log_evidence_error
        The log marginal likelihood of all rows in nats, and its standard error.
    epsilon, delta
        Privacy that is promised for all rounds so far: to everybody (`private`), or against the
        server (`local_privacy`).
    doubt
        What speaks against the result, in the method's own words, which the run warned of; empty if
        nothing does.
    """

    settling: Settling | None = None
    unheard: Mapping[str, float] | None = None
    density: float | None = None
    density_asked: float | None = None
    k_hat: float | None = None
    log_evidence: float | None = None
    log_evidence_error: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    doubt: str = ""

    def figures(self) -> dict[str, float]:
        """Return what is known as numbers: ``settled`` is 1 or 0, ``unheard`` a share of rows."""
        found = {
            "settled": self.settling and float(self.settling.settled),
            "unheard": None if self.unheard is None else sum(self.unheard.values()),
            **{name: getattr(self, name) for name in FIGURES},
        }
        return {name: value for name, value in found.items() if value is not None}

    def __str__(self) -> str:
        said = []
        if self.settling is not None:
            reasons = ", ".join(self.settling.reasons)
            said.append(f"not settled: {reasons}" if reasons else "settled")
        if self.unheard:
            names = ", ".join([*self.unheard][:NAMED]) + ", ..." * (len(self.unheard) > NAMED)
            share = f"{len(self.unheard)}, with {sum(self.unheard.values()):.1%} of the rows"
            said.append(f"never heard: {names} ({share})")
        if self.density is not None:
            asked = self.density_asked
            said.append(f"density {self.density:.3f}" + (f", asked {asked:.3f}" if asked else ""))
        if self.k_hat is not None:
            said.append(f"k-hat {self.k_hat:.2f}")
        if self.log_evidence is not None:
            error = f" +- {self.log_evidence_error:.2g}" if self.log_evidence_error else ""
            said.append(f"log evidence {self.log_evidence:.2f}{error}")
        if self.epsilon is not None:
            said.append(f"epsilon {self.epsilon:.3g} at delta {self.delta:.1g}")
        return "; ".join(filter(None, [*said, self.doubt]))


FIGURES = (
    "density",
    "density_asked",
    "k_hat",
    "log_evidence",
    "log_evidence_error",
    "epsilon",
    "delta",
)


def health(
    history: Sequence[Record],
    settling: Settling | None,
    silent: Mapping[str, float] | None,
    known: Mapping[str, float],
    doubt: str,
) -> Health:
    """Return the health of a run; `known` are figures that are not in its records, `doubt` is what
    the method says against its result.
    """
    found: dict[str, float] = {}
    for record in history:
        found |= {**record.server, **record.metrics}
    found |= known
    # `local_privacy` has a name of its own for what it promises.
    figures = {name: found.get(name, found.get(f"local_{name}")) for name in FIGURES}
    return Health(settling, silent, **figures, doubt=doubt)
