"""Whether a variational run has settled: what is left of its first guide, how far its last rounds
moved, how far clients' fits are apart.
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bayesfed.errors import ConvergenceWarning, UndeterminedWarning
from bayesfed.errors.plurals import plural
from bayesfed.federated import Algorithm, Profile, Record, Snapshot
from bayesfed.federated.core.seams import fusion_of
from bayesfed.inference.variational.fusion import KeepsFirstGuide
from bayesfed.trees import Tree

# Rounds that are looked at, and what may be left of a first guide.
LAST, LEFT = 3, 0.02
# Sds by which a mean may still move, now and in all rounds to come; and by which a logarithm of an
# sd may move in a round.
MOVES, TO_COME, SD_MOVES = 0.1, 0.3, 0.05
# Nats a row by which the loss of held-out rows may still fall from three rounds to the next.
FALLS = 0.01
TOO_FEW = "not enough rounds to tell how far means have to go"


@dataclass(frozen=True)
class Settling:
    """How far a run of `federated_svi` is from its fixed point.

    Parameters
    ----------
    first_guide
        Share of the first guide's natural parameters that clients' factors still hold, weighted by
        rows: 1 before the first round.
    moved, moved_sd
        Largest move of a mean in its sd, and of a logarithm of an sd, in the mean of the last three
        rounds.
    to_come
        Sds by which a mean would still move if its moves went on to shrink as they did; infinity if
        they do not shrink, NaN if there are not enough rounds to tell.
    apart
        Largest distance in sds between a client's last posterior and the one it began with:
        disagreement of the clients. NaN if not known.
    moved_rms
        Root of the mean square of the moves of all means in their sds, in the mean of the last
        three rounds; NaN if not known.
    held_out_falls
        Nats a row by which the negative log likelihood of held-out rows fell from the three rounds
        before to the last three; NaN without such rows or rounds.
    adds
        Whether the rule adds clients up. The posterior of such a rule ends at a point, so that
        every mean and sd must stop. Averages of thousands of weights, each with the noise of its
        steps, never stop as the largest of them moves: they are judged by `moved_rms` and
        `held_out_falls`.
    """

    first_guide: float
    moved: float
    moved_sd: float
    to_come: float
    apart: float
    moved_rms: float = math.nan
    held_out_falls: float = math.nan
    adds: bool = True

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the run has not settled; empty if it has."""
        if not self.adds:
            return self._reasons_of_average()
        sd = math.expm1(min(self.moved_sd, 50.0))
        to_come = f"means have about {self.to_come:.2g} sds to go"
        if not math.isfinite(self.to_come):
            to_come = TOO_FEW if math.isnan(self.to_come) else "moves of means do not shrink"
        told = {
            f"{self.first_guide:.0%} of the first guide is left": self.first_guide <= LEFT,
            f"the last rounds moved a mean by {self.moved:.2g} sds each": self.moved <= MOVES,
            f"the last rounds moved an sd by {sd:.0%} each": self.moved_sd <= SD_MOVES,
            to_come: self.to_come <= TO_COME,
        }
        return tuple(words for words, settled in told.items() if not settled)

    def _reasons_of_average(self) -> tuple[str, ...]:
        reasons = list[str]()
        if self.moved_rms > MOVES:
            moved = f"{self.moved_rms:.2g} sds each (root mean square)"
            reasons.append(f"the last rounds moved the means by {moved}")
        if self.held_out_falls > FALLS:
            fell = f"fell by {self.held_out_falls:.2g} nats a row in the last {LAST} rounds"
            reasons.append(f"the held-out loss {fell}")
        if math.isnan(self.to_come):
            reasons.append(TOO_FEW)
        return tuple(reasons)

    @property
    def settled(self) -> bool:
        """Whether there is no reason against it."""
        return not self.reasons


def settling(algorithm: Algorithm, history: Sequence[Record]) -> Settling | None:
    """Return how far a run is from its fixed point; None for methods that have none to be
    measured.
    """
    rounds = [record for record in history if "moved" in record.server]
    if not rounds:
        return None
    last, before = rounds[-LAST:], rounds[-2 * LAST : -LAST]

    def mean(name: str, of: Sequence[Record]) -> float:
        return sum(record.server.get(name, math.nan) for record in of) / len(of)

    moved, moved_sd = mean("moved", last), mean("moved_sd", last)
    infos = last[-1].clients.values()
    apart = max((info["apart"] for info in infos if "apart" in info), default=math.nan)
    enough = len(before) == LAST
    to_come = math.inf if enough else math.nan
    if enough and (earlier := mean("moved", before)) > moved:
        shrinks = (moved / earlier) ** (1 / LAST)
        to_come = moved * shrinks / (1 - shrinks)
    elif moved < MOVES / 10:
        to_come = moved
    falls = mean("held_out_nll", before) - mean("held_out_nll", last) if enough else math.nan
    fusion = fusion_of(algorithm.phases[-1].server)
    return Settling(
        first_guide=_first_guide(algorithm, history),
        moved=moved,
        moved_sd=moved_sd,
        to_come=to_come,
        apart=apart,
        moved_rms=mean("moved_rms", last),
        held_out_falls=falls,
        adds=fusion is None or fusion.adds,
    )


def warn_unless_settled(algorithm: Algorithm, state: Tree, history: Sequence[Record]) -> None:
    """Warn of a run that ended too early: whose posterior still moves, or whose method says so.

    Warns
    -----
    ConvergenceWarning
        With the reasons, if the posterior has not settled.
    UndeterminedWarning
        With what the method lacks.
    """
    if algorithm.unfinished and (lack := algorithm.unfinished(state, len(history))):
        away = ", ".join(map(repr, history[-1].refused)) if history else ""
        text = f"{algorithm.name}: {lack}" + (f"; away in the last round: {away}" if away else "")
        warnings.warn(text, UndeterminedWarning, stacklevel=4)
    fusion = fusion_of(algorithm.phases[-1].server)
    found = settling(algorithm, history) if fusion is not None else None
    if found is None or found.settled:
        return
    # The caller of `run`, which is behind the check of its arguments.
    after = plural(len(history), "round")
    text = f"{algorithm.name} has not settled after {after}: {'; '.join(found.reasons)}"
    warnings.warn(
        f"{text}; try more rounds, or more local steps; see result.settling",
        ConvergenceWarning,
        stacklevel=4,
    )


def unheard(
    algorithm: Algorithm, profiles: Sequence[Profile], snapshot: Snapshot
) -> dict[str, float]:
    """Return the share of all rows of each client with rows that was never heard, or of a method
    that has ended by itself not in its last round, largest first.
    """
    heard = snapshot.versions
    since = snapshot.round - 1 if algorithm.ended(snapshot.state) else 0
    missing = {
        one.name: one.samples for one in profiles if one.samples and heard.get(one.name, -1) < since
    }
    total = sum(one.samples for one in profiles) if missing else 0
    return {name: rows / total for name, rows in sorted(missing.items(), key=lambda one: -one[1])}


def warn_of_unheard(
    algorithm: Algorithm, shares: Mapping[str, float], history: Sequence[Record]
) -> None:
    """Warn of a posterior that lacks the rows of clients that were asked, or of any client where
    clients are added up.

    Warns
    -----
    UndeterminedWarning
        With the clients, and their shares of all rows.
    """
    fusion = fusion_of(algorithm.phases[-1].server)
    if shares and algorithm.posterior and not (fusion is not None and fusion.adds):
        asked = {row.client for record in history for row in record.rows}
        shares = {name: share for name, share in shares.items() if name in asked}
    if not (shares and algorithm.posterior):
        return
    told = [f"{name!r} ({share:.1%} of the rows)" for name, share in shares.items()]
    if len(told) > 3:
        told[3:] = [f"{len(told) - 3} more ({sum([*shares.values()][3:]):.1%})"]
    words = "not heard in the end" if algorithm.finished else "never heard"
    text = f"{algorithm.name}: {words} were {', '.join(told)}, and the posterior lacks them"
    hint = "try more rounds; result.history[-1].refused says why"
    warnings.warn(f"{text}; {hint}", UndeterminedWarning, stacklevel=4)


def _first_guide(algorithm: Algorithm, history: Sequence[Record]) -> float:
    fusion = fusion_of(algorithm.phases[-1].server)
    if not isinstance(fusion, KeepsFirstGuide):
        return 0.0
    taken: dict[str, list[float]] = defaultdict(list)
    for record in history:
        for name, info in record.clients.items():
            taken[name].append(info.get("samples", 0.0))
    total = sum(rows[-1] for rows in taken.values())
    left = sum(rows[-1] * fusion.kept(len(rows)) for rows in taken.values())
    return left / total if total else 1.0
