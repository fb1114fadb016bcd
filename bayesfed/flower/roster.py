"""Which node is which client: our names, by a handshake, over Flower's random node numbers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from bayesfed.errors import BayesfedError, ClientError
from bayesfed.federated.core.protocols import Profile
from bayesfed.flower.letters import Hello, Name, read_reply
from bayesfed.flower.messages import Received

log = logging.getLogger("bayesfed.flower")


@dataclass
class Roster:
    """Greet nodes and keep their names.

    A node that comes later and says a name that is known takes that name over: without node authentication a SuperNode that was started again has a
    new number, and Flower takes a minute to see that the old one is dead. Nodes that answer nonsense, or have another experiment, are told in
    `strangers` and asked nothing more.

    Parameters
    ----------
    experiment
        The fingerprint that clients must have; "" takes any.
    greet
        ``(content, node) -> message id or None``.
    """

    experiment: str
    greet: Callable[[bytes, int], str | None]
    nodes: dict[str, int] = field(default_factory=dict)
    profiles: dict[str, Profile] = field(default_factory=dict)
    strangers: dict[int, str] = field(default_factory=dict)
    greeted: dict[str, int] = field(default_factory=dict)
    twice: set[str] = field(default_factory=set)
    _known: set[int] = field(default_factory=set)

    def look(self, online: set[int]) -> None:
        """Greet nodes that are new; forget those that are gone."""
        for name, node in list(self.nodes.items()):
            if node not in online:
                self.leave(name, "it is offline")
        for node in sorted(online - self._known):
            if (id := self.greet(Hello().write(), node)) is not None:
                self._known.add(node)
                self.greeted[id] = node
        self._known &= online
        self.greeted = {id: node for id, node in self.greeted.items() if node in online}

    def leave(self, name: str, why: str) -> None:
        """Take a client's node for gone; it is greeted again if it is seen again."""
        node = self.nodes.pop(name)
        self._known.discard(node)
        log.warning("node %s of client %r is gone: %s", node, name, why)

    def hear(self, received: Received) -> None:
        """Take the answer to a greeting."""
        node = self.greeted.pop(received.id)
        try:
            reply = read_reply(received.content) if not received.error else None
        except BayesfedError as problem:
            self._strange(node, str(problem))
            return
        if reply is None:
            self._strange(node, received.error)
        elif not isinstance(reply, Name):
            self._strange(node, f"{reply.stage}: {reply.reason}")
        elif self.experiment and reply.experiment != self.experiment:
            self._strange(node, f"client {reply.profile.name!r} has another experiment than the server")
        else:
            self._enter(node, reply.profile)

    def _enter(self, node: int, profile: Profile) -> None:
        name = profile.name
        if name in self.nodes:
            self.twice.add(name)
            log.warning("client %r is at node %s now, no longer at %s", name, node, self.nodes[name])
        self.nodes[name] = node
        self.profiles.setdefault(name, profile)

    def _strange(self, node: int, why: str) -> None:
        self.strangers[node] = why
        log.warning("node %s is no client: %s", node, why)

    def missing(self, names: int | frozenset[str]) -> list[str]:
        """Return what is still to come: names, or how many clients."""
        if isinstance(names, int):
            return [f"{names - len(self.nodes)} more"] if len(self.nodes) < names else []
        return sorted(names - self.nodes.keys())

    def refusal(self, what: str) -> ClientError:
        """Return the error of a handshake that failed."""
        heard = f"heard of {sorted(self.nodes)}"
        odd = "".join(f"; node {node}: {why}" for node, why in self.strangers.items())
        return ClientError("all", 0, "hello", f"{what}, {heard}{odd}")
