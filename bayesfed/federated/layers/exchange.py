"""`Exchange`: both ends send how far the model moved, and keep what the compression left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from bayesfed.compress import LeafCodec, Ternary, scatter_active
from bayesfed.compress.leaf import Reader, Writer
from bayesfed.compress.support import mask_of
from bayesfed.errors import UpdateError
from bayesfed.errors.checks import checked_class, whole
from bayesfed.federated.core import Fit, Info, Inner, Moment, Sent, Traits, Update, Visit, of, owned
from bayesfed.federated.layers.holding import CHANGE, Holding, named, nothing
from bayesfed.keys import Key, forked_key
from bayesfed.trees import Tree, under

# Kinds of leaves: of the state, what compression left out, and sums of the last changes, with
# their number; of a first message, what values are drawn from.
RESIDUAL, SUM, START = "residual", "sum", "start"


@checked_class({}, cache=whole(1, "1"))
@dataclass(frozen=True)
class Exchange(Holding):
    """An exchange of changes in both directions.

    A client sends the change of every leaf that it received. The server compresses their mean, plus
    what was left out before, and the core steps on the values that follow: those that clients hold,
    plus the compressed change. What compression leaves out is added to the next change. Entries
    that the core switches off lose what was left out of them.

    Parameters
    ----------
    codec
        Codec of the change of a leaf. The messages need another one that is exact on its results,
        such as `Sparse`.
    cache
        A client that missed at most this many rounds gets the sum of the changes that it missed.
        Others, and new ones, get the values.
    values
        Patterns of the names of leaves that are sent whole.
    masks
        ``model -> masks by site``, where only active entries of the leaves ``KIND/SITE`` are sent.
        Default: all entries are.
    told, drawn
        Leaves from which clients draw in round 0 the values and supports of the leaves that have
        masks, which are then not sent, and the function that draws them. What they draw is what the
        state before round 0 has.

    Raises
    ------
    ArgumentError
        If `cache` is below 1.

    References
    ----------
    Sattler, Wiedemann, Mueller and Samek, "Robust and communication-efficient federated learning
    from non-IID data" (2019), Algorithm 2; Tang et al., "DoubleSqueeze: parallel stochastic
    gradient descent with double-pass error-compensated compression" (2019), for errors that both
    ends keep.
    """

    owner: str = "exchange"
    feedback: bool = True
    codec: LeafCodec = field(default_factory=lambda: Ternary(0.01))
    cache: int = 1
    values: tuple[str, ...] = ()
    masks: Callable[[Tree], Tree] = nothing
    told: Tree | None = None
    drawn: Callable[[Tree], Tree] | None = None
    # Where nobody was heard, the sums of changes must say so: a client may have missed the round.
    traits: ClassVar[Traits] = Traits(
        silent=True,
        late="as changes",
        needs="sum",
        takes=("value", "moments"),
        gives={"value": "delta"},
        holds=True,
    )

    def start(self, moment: Moment) -> Tree:
        """Return zeros for every leaf of which changes are sent."""
        model = moment.shown(moment.model, 0, None)
        names = [
            name
            for name, leaf in model.items()
            if leaf.is_floating_point() and not named(name, self.values)
        ]
        sums = [_sum(back) for back in range(1, self.cache + 1)]
        return {
            f"{kind}/{name}": torch.zeros_like(model[name])
            for kind in (RESIDUAL, *sums)
            for name in names
        }

    def publish(
        self, own: Tree, message: Tree, moment: Moment, version: int | None
    ) -> tuple[Tree, Tree]:
        """Publish the sums of the changes since `version`, or values; in round 0 to all what first
        values are drawn from, if there is something.
        """
        first = self.told is not None and moment.round == 0 and version is None
        behind = moment.round - version if version is not None else 0
        # In round 0 everybody holds what the state says: no mask has changed since "round -1".
        message, told = super().publish(own, message, moment, -1 if first else version)
        if not first and not 1 <= behind <= self.cache:
            return message, told
        whole, masks = dict(message), self.masks(moment.model)
        told |= of(START, self.told or {}) if first else {}
        for name in self._names(own):
            if name not in message or (first and name.partition("/")[2] not in masks):
                # A leaf of which nothing is drawn.
                continue
            change = torch.zeros_like(message[name]) if first else own[f"{_sum(behind)}/{name}"]
            mask = mask_of(name, change, masks)
            whole.pop(name)
            told[f"{CHANGE}/{name}"] = change if mask is None else change[mask]
        return whole, told

    def send(self, visit: Visit, fit: Fit) -> Sent:
        """Send the change of every leaf but `values`."""
        payload = {
            name: leaf if named(name, self.values) else leaf - visit.message[name]
            for name, leaf in fit.payload.items()
        }
        return super().send(visit, fit._replace(payload=payload))

    def holds(self, visit: Visit) -> Tree:
        """Return what a client holds: in its first round, what it draws."""
        told = owned(visit.told, START)
        if not told:
            return super().holds(visit)
        if self.drawn is None:
            raise UpdateError(
                "first message",
                "values",
                f"{sorted(told)} to draw them from",
                "the server's own method",
            )
        return self.drawn(told)

    def step(
        self, own: Tree, moment: Moment, total: Update | None, inner: Inner
    ) -> tuple[Tree, Tree, Info]:
        """Compress the mean change, leaf by leaf, and let the core step on the values that follow.

        Raises
        ------
        UpdateError
            If the core publishes other values than it was given.
        """
        round, masks = moment.round, self.masks(moment.model)
        names = self._names(own)
        if total is None or not total.weight:
            model, info = inner(None)
            zeros = {name: torch.zeros_like(own[f"{RESIDUAL}/{name}"]) for name in names}
            return self._moved(own, zeros, {}), model, info
        held = moment.shown(moment.model, round, None)
        mean, changes, residuals = total.mean(), Tree(), Tree()
        rounding = forked_key().child("change")
        for name in names:
            wanted = mean[name] + own[f"{RESIDUAL}/{name}"]
            mask = mask_of(name, wanted, masks)
            changes[name] = self._compressed(wanted, mask, rounding.child(name))
            residuals[name] = wanted - changes[name]
        handed = mean | {name: held[name] + change for name, change in changes.items()}
        kind = "value" if total.kind == "delta" else total.kind
        model, info = inner(Update(handed, 1.0, kind))
        after, then = self.masks(model), moment.shown(model, round + 1, None)
        for name in names:
            mask = mask_of(name, handed[name], after)
            kept = handed[name] if mask is None else torch.where(mask, handed[name], 0.0)
            if not torch.equal(then[name], kept):
                raise UpdateError(
                    f"Exchange, leaf {name!r}",
                    "the values that were handed on",
                    "other ones",
                    "a server that averages, such as Average",
                )
            if mask is not None:
                gone = torch.where(mask, 0.0, handed[name])
                residuals[name] = torch.where(mask, residuals[name], 0.0)
                if gone.any():
                    # A sum takes back the values that were switched off.
                    changes[name] = changes[name] - gone
        return self._moved(own, changes, residuals), model, info

    def _moved(self, own: Tree, changes: Tree, residuals: Tree) -> Tree:
        """Return the layer's leaves with new sums of changes and residuals."""
        result = own | of(RESIDUAL, residuals)
        for name, change in changes.items():
            result[f"{_sum(1)}/{name}"] = change
            for back in range(1, self.cache):
                result[f"{_sum(back + 1)}/{name}"] = own[f"{_sum(back)}/{name}"] + change
        return result

    def _names(self, own: Tree) -> list[str]:
        return list(under(own, f"{RESIDUAL}/"))

    def _compressed(self, wanted: Tensor, mask: Tensor | None, key: Key) -> Tensor:
        leaf, out = wanted if mask is None else wanted[mask], Writer()
        self.codec.write(leaf, key, out)
        decoded = self.codec.read(Reader(out.bytes()), tuple(leaf.shape), key).to(leaf)
        return decoded if mask is None else scatter_active(decoded, mask)


def _sum(back: int) -> str:
    return f"{SUM}-{back}"
