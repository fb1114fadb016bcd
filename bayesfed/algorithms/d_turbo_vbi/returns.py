"""`Returns`: a way back for weights by their own data.

An entry that is off is not trained, so that nothing of its own speaks for it: without `Returns`
only its neighbours in the field do. In some rounds clients therefore say for which such entries
their rows speak most (`bayesfed.inference.turbo.returning`), and the server lets Module A see the
q(w) that these would have. Which entries are active is then settled as ever, by evidence and field:
an entry returns, at zero, if it is more probable than one that is active. Its mean moves only from
the next round on, so what was said for it stands until its own is larger; at every further call it
counts half as much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesfed.algorithms.d_turbo_vbi.density import is_sparse
from bayesfed.compress import LeafCodec, Sparse
from bayesfed.compress.quantisers.sparsify import Signs
from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import COUNT, checked_class, number
from bayesfed.federated import Fit, LocalOptions
from bayesfed.federated.core import Around, of
from bayesfed.inference import MeanFieldElbo
from bayesfed.inference.turbo.returning import largest, steps_from_zero, ternary
from bayesfed.keys import Key
from bayesfed.trees import Tree, besides, under

# Beginning of the names of the leaves: of a payload, and of the state.
SAID, STANDS = "run/returns/", "returns/"
# Share of the first learning rate below which what returned would no longer be learned.
LEAST_RATE = 0.25
# Leaves of a payload that hold signs and one magnitude.
CODEC: dict[str, LeafCodec] = {f"{SAID}*": Sparse(Signs())}


@checked_class({}, share=number("[0, 1]", "0.1"), every=COUNT)
@dataclass(frozen=True)
class Returns:
    """How weights that are off may return by their own data.

    Parameters
    ----------
    share
        For at most this share of a layer's number of active entries a client speaks at a call, by
        signs and one magnitude. 0: none returns.
    every
        Rounds from call to call. There is none before weights may be switched off, nor once the
        learning rate is below a quarter of its first.

    Raises
    ------
    ArgumentError
        If a number is outside its range.
    """

    share: float = 0.1
    every: int = 3

    def asked(self, round: int, rate: float) -> float:
        """Return the share in a round with this factor of the learning rate; 0 without a call."""
        return self.share if round % self.every == self.every - 1 and rate >= LEAST_RATE else 0.0


def settled(returns: Returns | None, learns: bool, start: float | None) -> Returns | None:
    """Return how weights return: as was asked for, or as is the default; None if they do not.

    Parameters
    ----------
    returns
        What was asked for.
    learns, start
        Whether clients send changes of a support that is learned, and its share at first.
    """
    if returns and returns.share and not learns:
        raise ArgumentError(
            "d_turbo_vbi, returns", "changes of a support that is learned", "none", "returns=None"
        )
    if returns is None and learns and is_sparse(start):
        return Returns()
    return returns if returns and returns.share else None


@dataclass(frozen=True)
class Asked(LocalOptions):
    """Options of a client that may be called.

    Parameters
    ----------
    returns
        Share of the active entries for which it is to speak.
    """

    returns: float = 0.0


@dataclass(frozen=True)
class Speaking(Around):
    """A local step that says, where it is asked, for which entries that are off its rows speak."""

    objective: MeanFieldElbo
    options: ClassVar[type[LocalOptions]] = Asked

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Run the local step; add signs and magnitudes, from the model that was received."""
        fit = self.local.fit(message, memory, data, key, options)
        share = options.returns if isinstance(options, Asked) else 0.0
        if not share or not len(data):
            return fit
        steps = steps_from_zero(
            self.objective, message, data, options.scale * len(data), key.child("returns")
        )
        return fit._replace(
            payload=fit.payload
            | {
                SAID + name: ternary(step, math.ceil(share * int(message[f"support/{name}"].sum())))
                for name, step in steps.items()
            }
        )


def heard(state: Tree, mean: Tree, supports: Tree, share: float) -> tuple[Tree, Tree]:
    """Return the state with what was said for entries that are off, and the means without it.

    Clients say it for different entries: as many of a site as one of them may are kept.
    """
    said, stands = under(mean, SAID), Tree()
    for name, step in said.items():
        support = supports[name]
        most = math.ceil(share * int(support.sum()))
        fades = state[STANDS + name] / 2
        stands[STANDS + name] = torch.where(support, fades, largest(~support * step, most))
    return state | stands, besides(mean, of(SAID[:-1], said))


def seen_at(name: str, mean: Tensor, state: Tree) -> Tensor:
    """Return a site's means as Module A sees them: what was said for an entry stands until its own
    mean is larger.
    """
    step = state.get(STANDS + name)
    return mean if step is None else torch.where(step.abs() > mean.abs(), step, mean)


def standing(state: Tree, supports: Tree) -> Tree:
    """Return what still stands: what was said for entries that did not return does not."""
    return of(
        STANDS[:-1],
        {name: step * supports[name] for name, step in under(state, STANDS).items()},
    )
