"""`Roster`: which node is which client. Flower's node numbers are random, so clients say their
names in a handshake.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bayesfed.errors import BayesfedError, ClientError
from bayesfed.federated import Profile
from bayesfed.flower.fingerprint import differing
from bayesfed.flower.letters import Hello, Name, read_reply
from bayesfed.flower.messages import Received

log = logging.getLogger("bayesfed.flower")
# Most parts of an experiment that a message names.
SHOWN = 6


@dataclass
class Roster:
    """The nodes and the names of their clients.

    If a new node says a known name, it takes the name over: without node authentication a restarted
    SuperNode has a new number, and Flower takes a minute to notice that the old one is dead. Nodes
    that give an invalid answer, or have another experiment, are listed in `strangers` and are not
    asked again.

    Parameters
    ----------
    experiment
        The fingerprint that clients must have; "" accepts any.
    parts
        Digests of the parts of the experiment, by name, to say which differ.
    greet
        ``(content, node) -> message id``, or None if the message could not be sent.
    nodes
        Nodes by client.
    profiles
        Profiles by client.
    strangers
        Nodes that are not clients, with the reason.
    names
        The client that a node last said it was, also of nodes that are gone.
    greeted
        Nodes that have not answered yet, by message id.
    twice
        Clients whose name two nodes have said.
    """

    experiment: str
    parts: Mapping[str, str]
    greet: Callable[[bytes, int], str | None]
    nodes: dict[str, int] = field(default_factory=dict)
    profiles: dict[str, Profile] = field(default_factory=dict)
    strangers: dict[int, str] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    greeted: dict[str, int] = field(default_factory=dict)
    twice: set[str] = field(default_factory=set)
    _known: set[int] = field(default_factory=set)

    def look(self, online: set[int]) -> None:
        """Greet new nodes, and forget nodes that are gone."""
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
        """Forget a client's node; it is greeted again if it comes back."""
        node = self.nodes.pop(name)
        self._known.discard(node)
        log.warning("node %s of client %r is gone: %s", node, name, why)

    def hear(self, received: Received) -> None:
        """Enter the answer to a greeting."""
        node = self.greeted.pop(received.id)
        try:
            reply = read_reply(received.content) if not received.error else None
            if reply is not None:
                said = reply.profile.name if isinstance(reply, Name) else reply.client
                self.names |= {node: said} if said else {}
        except BayesfedError as problem:
            self._strange(node, str(problem))
            return
        if reply is None:
            self._strange(node, received.error)
        elif not isinstance(reply, Name):
            self._strange(node, f"{reply.stage}: {reply.reason}")
        elif self.experiment and reply.experiment != self.experiment:
            self._strange(node, _another(self.parts, reply.parts))
        else:
            self._enter(node, reply.profile)

    def _enter(self, node: int, profile: Profile) -> None:
        name = profile.name
        if name in self.nodes:
            self.twice.add(name)
            log.warning(
                "client %r is at node %s now, no longer at %s", name, node, self.nodes[name]
            )
        self.nodes[name] = node
        self.profiles.setdefault(name, profile)

    def _strange(self, node: int, why: str) -> None:
        self.strangers[node] = f"{self.called(node)}: {why}"
        log.warning("%s is not a client of this run: %s", self.called(node), why)

    def called(self, node: int) -> str:
        """Return how messages call a node: by its client, if it has ever said one."""
        name = self.names.get(node, "")
        return f"client {name!r} (node {node})" if name else f"node {node}"

    def missing(self, names: int | frozenset[str]) -> list[str]:
        """Return the clients still missing: their names, or how many."""
        if isinstance(names, int):
            return [f"{names - len(self.nodes)} more"] if len(self.nodes) < names else []
        return sorted(names - self.nodes.keys())

    def refusal(self, what: str, hint: str) -> ClientError:
        """Return the error of a failed handshake, and what to try."""
        heard = f"heard of {sorted(self.nodes)}"
        odd = "".join(f"; {why}" for why in self.strangers.values())
        return ClientError("all", 0, "hello", f"{what}, {heard}{odd}; try {hint}")


def _another(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Return that a client has another experiment, and in which parts."""
    others = differing(here, there) if here and there else []
    more = f" and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
    which = f": {', '.join(others[:SHOWN])}{more} are others" if others else ""
    return f"it has another experiment than the server{which}"
