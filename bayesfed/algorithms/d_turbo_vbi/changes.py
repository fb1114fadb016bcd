"""`Changes`: messages that say what has changed since a client last heard from the server.

What a message costs otherwise is every active mean, in both directions. The changes of means are
coarser: four bits of a change with error feedback do what sixteen of the value do.
`Changes.ternary` costs least: sparse ternary changes of a model that is sparse from the start,
whose first support and values the clients draw from a key. Supports are sent as the entries that
flipped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from numpy.random import Generator
from torch import Tensor

from bayesfed.algorithms.d_turbo_vbi.returns import CODEC
from bayesfed.algorithms.d_turbo_vbi.server import TurboStep
from bayesfed.compress import Codec, Coded, Float, LeafCodec, Sparse, Ternary, Uniform
from bayesfed.compress.masks.cheapest import CheapestMask
from bayesfed.compress.support import SUPPORT
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import SHARE, checked_class
from bayesfed.federated import Exchange, Holding
from bayesfed.inference.turbo.elbo import POINT
from bayesfed.keys import Key
from bayesfed.models import Declared
from bayesfed.models.modules import initial_scale
from bayesfed.models.random_fields.clusters import Clusters
from bayesfed.trees import Tree

SEED, FIGURES = "seed", "figures"
KEY = Key(0, "d_turbo_vbi")


@checked_class({}, start=SHARE)
@dataclass(frozen=True)
class Changes:
    """How changes of means are sent, and where the first means come from.

    Parameters
    ----------
    up, down
        Codecs of the change of a leaf in each direction. Default: uniform grids of four and six
        bits. Both ends keep what a message leaves out and add it to the next one.
    codec
        Codec of the messages to clients, exact on what `down` decodes to. Default: `Sparse`.
    cache
        A client that missed at most this many rounds gets the changes that it missed; others, and
        new ones, get the active means.
    start
        Share of the weights that are active at first, drawn from `key` with values of one magnitude
        and either sign. None starts from the network's own values, all of them active, which are
        then sent. Of clusters (`Inputs`, `Outputs`), whole ones are drawn: that share of the
        outputs of every layer, and those of the last layer all.
    key
        Key of the first support and values.
    learn
        Whether supports are learned. False keeps the first support: the control that a learned
        support is to be compared with.

    Raises
    ------
    ArgumentError
        If `start` is not in (0, 1], or there is none and the support is not learned.

    References
    ----------
    Evci et al., "Rigging the lottery: making all tickets winners" (2020), for densities of layers:
    a layer of M rows and N columns has a share in proportion to (M + N) / (M N).
    """

    up: LeafCodec = Uniform(4)
    down: LeafCodec = Uniform(6)
    codec: Codec = Coded(Sparse())
    cache: int = 1
    start: float | None = None
    key: Key = KEY
    learn: bool = True

    def __post_init__(self) -> None:
        if self.start is None and not self.learn:
            raise ArgumentError(
                "Changes", "a start, if the support is not learned", "start=None", "start=0.1"
            )

    @classmethod
    def ternary(
        cls,
        start: float = 0.1,
        *,
        up: float = 0.15,
        down: float = 0.25,
        cache: int = 1,
        key: Key | None = None,
        learn: bool = True,
    ) -> Changes:
        """Return the changes that cost least: the signs of the largest ones and one magnitude for
        each leaf, from a sparse start.

        A network needs more rounds with them than with values.

        Parameters
        ----------
        start
            Share of the weights that are active at first.
        up, down
            Share of the active entries that a message changes.
        cache, key, learn
            As in `Changes`.
        """
        mask = CheapestMask()
        return cls(
            Ternary(up, mask),
            Ternary(down, mask),
            Coded(Sparse(), brief=True),
            cache,
            start=start,
            key=key or KEY,
            learn=learn,
        )

    def uplink(self) -> Codec:
        """Return the codec of clients' payloads, whose errors `Exchange` keeps."""
        whole = {name: Float(32) for name in ("shared/sd", "sd/*", "run/*")}
        return Coded(self.up, CODEC | whole, brief=self.start is not None)

    def exchanged(
        self, server: TurboStep, state: Tree, holding: Holding, values: tuple[str, ...]
    ) -> tuple[Exchange, Tree]:
        """Return layer and first state of D-Turbo-VBI with changes as messages.

        Parameters
        ----------
        server, state, holding
            Server, first state and layer of the algorithm that sends values.
        values
            Names of the leaves that clients send whole: sds and scores.
        """
        declared = server.declared
        clusters = {name: one for name, site in declared.sites.items() if (one := site.clusters)}
        drawn = Drawn({name: site.matrix for name, site in declared.sites.items()}, clusters)
        told = drawn.told(declared, self) if self.start is not None else None
        if told:
            state = drawn.state(state, told)
        layer = Exchange(
            held=(*holding.held, "mean/*", f"{POINT}/*"),
            before=holding.before,
            codec=self.down,
            cache=self.cache,
            values=(*values, *(f"prior/{name}" for name in declared.sites)),
            masks=server.supports,
            told=told,
            drawn=drawn if told else None,
        )
        return layer, state


@dataclass(frozen=True)
class Drawn:
    """First supports and values, drawn from a key: what server and clients can both compute from a
    few numbers.

    Parameters
    ----------
    matrices
        Shape ``(M, N)`` of every site.
    clusters
        Clusters of the sites whose entries are drawn in clusters.
    """

    matrices: Mapping[str, tuple[int, int]]
    clusters: Mapping[str, Clusters] = field(default_factory=dict)

    def told(self, declared: Declared, changes: Changes) -> Tree:
        """Return the leaves that a first message says them with: the seed, and share and magnitude
        of every site.
        """
        start = changes.start or 1.0
        # As many channels of every layer: what a convolution costs falls with the square of their
        # share.
        shares = densities(self.matrices, start) | {
            name: 1.0 if name == declared.last else start
            for name, clusters in self.clusters.items()
            if clusters.whole_rows
        }
        magnitudes = [
            initial_scale(declared.initial[name]) / math.sqrt(shares[name])
            for name in self.matrices
        ]
        figures = torch.tensor(
            [[shares[name] for name in self.matrices], magnitudes],
            dtype=declared.initial[next(iter(self.matrices))].dtype,
        )
        return {SEED: torch.tensor(changes.key.child("start").integer()), FIGURES: figures}

    def __call__(self, told: Tree) -> Tree:
        """Return supports ``(M, N)`` and active means, given the leaves of `told`."""
        result: Tree = {}
        key, device = Key(int(told[SEED])), told[FIGURES].device
        for (name, matrix), (share, magnitude) in zip(
            self.matrices.items(), told[FIGURES].T.tolist(), strict=True
        ):
            random = key.child(name).numpy()
            support = (
                self._whole(self.clusters[name], share, random)
                if name in self.clusters
                else torch.from_numpy(random.random(matrix)) < share
            )
            signs = torch.from_numpy(random.random(int(support.sum()))) < 0.5
            values = torch.where(signs, -magnitude, magnitude).to(told[FIGURES].dtype)
            result |= {SUPPORT + name: support.to(device), f"mean/{name}": values.to(device)}
        return result

    @staticmethod
    def _whole(clusters: Clusters, share: float, random: Generator) -> Tensor:
        """Return a support in which a share of the clusters are active, at least one."""
        order = torch.from_numpy(random.permutation(clusters.count))
        active = order < max(1, round(share * clusters.count))
        return clusters.spread(active.reshape(clusters.model.shape))

    def state(self, state: Tree, told: Tree) -> Tree:
        """Return a state of `TurboStep` before the first round with these supports and values."""
        held, result = self(told), dict(state)
        for name in self.matrices:
            support = held[SUPPORT + name]
            mean = torch.zeros_like(state[f"mean/{name}"])
            mean[support] = held[f"mean/{name}"]
            result |= {
                f"mean/{name}": mean,
                f"log_odds/{name}": torch.where(support, 1.0, -1.0) * state[f"log_odds/{name}"],
                f"before/{name}": support,
            }
        return result


def densities(matrices: Mapping[str, tuple[int, int]], share: float) -> dict[str, float]:
    """Return the share of active entries of every matrix, in proportion to ``(M + N) / (M N)``, at
    most 1, so that `share` of all are active.
    """
    entries, full = {name: rows * columns for name, (rows, columns) in matrices.items()}, set[str]()
    while True:
        free = [name for name in matrices if name not in full]
        wanted = share * sum(entries.values()) - sum(entries[name] for name in full)
        factor = wanted / sum(sum(matrices[name]) for name in free) if free else 0.0
        shares = {
            name: 1.0 if name in full else factor * sum(matrices[name]) / entries[name]
            for name in matrices
        }
        beyond = {name for name in free if shares[name] > 1}
        if not beyond:
            return shares
        full |= beyond
