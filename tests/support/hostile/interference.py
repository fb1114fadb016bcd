"""Clients of a method of several phases that drop out, or send something else, in a phase of a
round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from bayesfed.compress.codecs import Codec
from bayesfed.data.dataset import Dataset
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.federated.core.options import LocalOptions
from bayesfed.federated.core.protocols import Arrival, Fit, Link, Scalar
from bayesfed.federated.core.seams import Around
from bayesfed.federated.core.update import Reducer
from bayesfed.keys import Key
from bayesfed.trees import Tree

# ``(phase, round, client, payload) -> payload``; raises an error where the client is to drop out.
Act = Callable[[str, int, str, Tree], Tree]
# ``(phase, client, message) -> message``.
Rewrite = Callable[[str, str, bytes], bytes]


def interfered(algorithm: Algorithm, act: Act, rewrite: Rewrite | None = None) -> Algorithm:
    """Return the algorithm with clients whose payloads pass through `act`, and whose packed
    messages pass through `rewrite`.
    """
    links = {
        phase.name: Rewriting(phase.link, rewrite) if rewrite else phase.link
        for phase in algorithm.phases
    }
    return replace(
        algorithm,
        phases=tuple(
            replace(phase, local=Interfering(phase.local, act), link=links[phase.name])
            for phase in algorithm.phases
        ),
    )


def dropping(
    algorithm: Algorithm, names: Mapping[str, Iterable[str]], rounds: Iterable[int] | None = None
) -> Algorithm:
    """Return the algorithm with clients that drop out.

    Parameters
    ----------
    algorithm
        The algorithm.
    names
        By phase: the clients that do their work in it and then do not answer.
    rounds
        Rounds in which they do so. Default: all.
    """
    when = None if rounds is None else frozenset(rounds)

    def act(phase: str, round: int, client: str, payload: Tree) -> Tree:
        if client in names.get(phase, ()) and (when is None or round in when):
            raise ConnectionError(f"dropped out in {phase!r}")
        return payload

    return interfered(algorithm, act)


@dataclass(frozen=True)
class Interfering(Around):
    """A local step around another, whose payload is changed or lost."""

    act: Act

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Fit, then change the payload, or raise an error."""
        fit = self.local.fit(message, memory, data, key, options)
        phase, round, client = key.path[:3]
        return fit._replace(payload=self.act(str(phase), int(round), str(client), fit.payload))


@dataclass(frozen=True)
class Rewriting:
    """A link around another, whose packed messages are changed."""

    link: Link
    rewrite: Rewrite

    def pack(self, payload: Tree, codec: Codec, meta: Mapping[str, Scalar], key: Key) -> bytes:
        """Pack, then change the message."""
        return self.rewrite(
            str(meta["phase"]), str(meta["client"]), self.link.pack(payload, codec, meta, key)
        )

    def collect(self, arrivals: Iterable[Arrival], reducer: Reducer, key: Key) -> Iterator[Arrival]:
        """Collect as the inner link does."""
        return self.link.collect(arrivals, reducer, key)
