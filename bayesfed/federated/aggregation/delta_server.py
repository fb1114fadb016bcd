"""`DeltaServer`: the server sends how far the model moved since a client last heard of it. The
server's half of an exchange of changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from bayesfed.compress.buffer import Reader, Writer
from bayesfed.compress.leaf import LeafCodec
from bayesfed.compress.support import scatter_active
from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.federated.aggregation.servers import summed
from bayesfed.federated.core.algorithm import Server, published
from bayesfed.federated.core.protocols import CHANGE, Info
from bayesfed.federated.core.sums import Sum
from bayesfed.federated.core.update import Kind, Reducer, Update
from bayesfed.keys import Key
from bayesfed.trees import Tree

RESIDUAL, SUM = ".residual", ".sum-of-last-"


def dense(state: Tree) -> Tree:
    """Return no mask: every entry of every leaf is active."""
    return {}


@dataclass(frozen=True)
class DeltaServer:
    """A server around another, for clients that send changes (`DeltaUplink`), which compresses what
    it sends back as well.

    The mean change plus what was left out before is compressed. The inner server steps on the
    values that follow: those that clients hold, plus the compressed change. What the compression
    leaves out is added to the next change. The state is that of the inner server, whose values are
    those that clients hold, and for each leaf its ``.residual`` and the sums of the last 1 to
    `cache` changes. Entries that the inner server switches off lose their residual.

    Parameters
    ----------
    server
        Inner server, which takes values. It publishes the values that it was given, or zeros for
        entries that it switched off.
    codec
        Codec of a leaf's change. The messages need another one that is exact on its results, such
        as `Sparse`.
    kind
        Kind of update that the inner server takes.
    cache
        A client that missed at most this many rounds gets the sum of the changes it missed. Others,
        and new ones, get the values.
    values
        Patterns of the names of leaves that clients send whole.
    masks
        ``state -> masks by site``, where only active entries of the leaves ``SITE.*`` are sent.
        Default: all entries are.
    start
        Leaves ``start/*`` from which clients draw in round 0 the values and supports of the leaves
        that have masks, which are then not sent. What they draw is what the state before round 0
        has.

    Raises
    ------
    ArgumentError
        If `cache` is below 1.

    References
    ----------
    Sattler, Wiedemann, Mueller and Samek, "Robust and communication-efficient federated learning
    from non-IID data" (2019), Algorithm 2; Tang et al., "DoubleSqueeze: parallel stochastic
    gradient descent with double-pass error-compensated compression" (2019), for residuals at both
    ends.
    """

    server: Server
    codec: LeafCodec
    kind: Kind = "value"
    cache: int = 1
    values: tuple[str, ...] = ()
    masks: Callable[[Tree], Tree] = dense
    start: Tree | None = None
    # Where no client was heard, the sums of changes must say so: a client may then have missed a
    # round in which nothing changed.
    steps_alone: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        if self.cache < 1:
            raise ArgumentError("DeltaServer.cache", "a number of rounds >= 1", self.cache, "1")

    @property
    def stale(self) -> str | None:
        """How old answers are taken (`FedBuff`): as changes, if nothing but changes is sent and the
        inner server averages them.
        """
        return (
            "scaled"
            if getattr(self.server, "stale", None) == "rebased"
            and not self.values
            and self.masks is dense
            else None
        )

    def initial(self, state: Tree) -> Tree:
        """Return the state before the first round, given that of the inner server."""
        names = self._changing(self._values(state, 0))
        extra = {f"{name}{RESIDUAL}": torch.zeros_like(state[name]) for name in names}
        sums = {
            f"{name}{SUM}{back}": torch.zeros_like(state[name])
            for name in names
            for back in range(1, self.cache + 1)
        }
        return state | extra | sums

    def inner(self, state: Tree) -> Tree:
        """Return the inner server's state."""
        return {
            name: leaf
            for name, leaf in state.items()
            if not name.endswith(RESIDUAL) and SUM not in name
        }

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Publish the sums of the changes since `version`, or values; in round 0 to all what first
        values are drawn from, if there is a `start`.
        """
        first = self.start is not None and round == 0 and version is None
        behind = round - version if version is not None else 0
        # In round 0 everybody holds what the state says: the support has not changed since "round
        # -1".
        inner = published(self.server, self.inner(state), round, -1 if first else version)
        if not first and not 1 <= behind <= self.cache:
            return inner
        result, masks = dict(inner) | ((self.start or {}) if first else {}), self.masks(state)
        for name in self._changing(inner):
            if first and name.rpartition(".")[0] not in masks:
                # A leaf of which nothing is drawn.
                continue
            change = torch.zeros_like(state[name]) if first else state[f"{name}{SUM}{behind}"]
            mask = _mask(name, change, masks)
            result.pop(name)
            result[name + CHANGE] = change if mask is None else change[mask]
        return result

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Compress the mean change, leaf by leaf, and take the inner server's step on the values
        that follow.

        Raises
        ------
        UpdateError
            If the inner server publishes other values than it was given.
        """
        inner, masks = self.inner(state), self.masks(state)
        held = self._values(inner, round)
        names = self._changing(held)
        total = (
            summed(reducer, self.kind if self.kind != "value" else "delta")
            if getattr(reducer, "total", True)
            else None
        )
        if total is None or not total.weight:
            return self._kept(
                state, inner, {name: torch.zeros_like(state[name]) for name in names}, {}, {}
            ), {}
        mean, changes, residuals = total.mean(), dict[str, Tensor](), dict[str, Tensor]()
        for name in names:
            wanted = mean[name] + state[f"{name}{RESIDUAL}"]
            changes[name] = self._compressed(
                wanted, _mask(name, wanted, masks), Key(round, "change", name)
            )
            residuals[name] = wanted - changes[name]
        handed = mean | {name: held[name] + change for name, change in changes.items()}
        result, info = self.server.step(inner, Sum(Update(handed, 1.0, self.kind)), round)
        after, then = self.masks(result), self._values(result, round + 1)
        gone = dict[str, Tensor]()
        for name in names:
            mask = _mask(name, handed[name], after)
            if not torch.equal(
                then[name], handed[name] if mask is None else torch.where(mask, handed[name], 0.0)
            ):
                hint = "a server that averages, such as Average or TurboStep"
                raise UpdateError(
                    f"DeltaServer, leaf {name!r}",
                    "the values that were handed on",
                    "other ones",
                    hint,
                )
            if mask is not None:
                gone[name] = torch.where(mask, 0.0, handed[name])
                residuals[name] = torch.where(mask, residuals[name], 0.0)
        return self._kept(state, result, changes, residuals, gone), info

    def _kept(self, state: Tree, inner: Tree, changes: Tree, residuals: Tree, gone: Tree) -> Tree:
        """Return the state with new sums of changes; `gone` are values that were switched off,
        which a sum takes back.
        """
        result = dict(inner)
        for name, change in changes.items():
            moved = change - gone[name] if name in gone and bool(gone[name].any()) else change
            sums = [moved, *(state[f"{name}{SUM}{back}"] + moved for back in range(1, self.cache))]
            result |= {f"{name}{SUM}{back}": value for back, value in enumerate(sums, 1)}
            result[f"{name}{RESIDUAL}"] = residuals.get(name, state[f"{name}{RESIDUAL}"])
        # In the order of `initial`, so that a resumed run is the same to the bit.
        return {name: result[name] for name in state}

    def _changing(self, values: Tree) -> list[str]:
        """Return the names of the published leaves of which changes are sent: floating-point ones,
        but those that clients send whole.
        """
        return [
            name
            for name, leaf in values.items()
            if leaf.is_floating_point()
            and not any(fnmatchcase(name, pattern) for pattern in self.values)
        ]

    def _values(self, inner: Tree, round: int) -> Tree:
        return published(self.server, inner, round, None)

    def _compressed(self, wanted: Tensor, mask: Tensor | None, key: Key) -> Tensor:
        leaf, out = wanted if mask is None else wanted[mask], Writer()
        self.codec.write(leaf, key, out)
        decoded = self.codec.read(Reader(out.bytes()), tuple(leaf.shape), key).to(leaf)
        return decoded if mask is None else scatter_active(decoded, mask)


def _mask(name: str, leaf: Tensor, masks: Tree) -> Tensor | None:
    mask = masks.get(name.rpartition(".")[0])
    return mask if mask is not None and mask.shape == leaf.shape else None
