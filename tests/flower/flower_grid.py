"""A grid of nodes in this process, on a clock of its own: nodes come late, die, come back and
answer twice, and nothing waits.
"""

import itertools
from dataclasses import dataclass

from bayesfed.flower.experiment import Experiment
from bayesfed.flower.messages import FlowerMail, Received
from bayesfed.flower.pool import Flower
from bayesfed.flower.site import Site


@dataclass
class Letter:
    """What a message is here."""

    content: bytes
    node: int
    ttl_s: float
    id: str = ""
    error: str = ""
    gone: bool = False


class PlainMail(FlowerMail):
    """Bytes as they are."""

    def __init__(self):
        """Nothing of Flower is needed."""

    def outgoing(self, content, node, ttl_s):
        return Letter(content, node, ttl_s)

    def incoming(self, message):
        return Received(message.id, message.content, message.error, message.gone)


class FakeGrid:
    """Nodes by number; each is a function from bytes to bytes.

    A node works on one message at a time; `delays` says how long a node's message takes, by (node,
    how many it had before). `at` has things happen when the clock comes to them. `tamper` changes
    the replies that are pulled.
    """

    def __init__(self, nodes):
        self.nodes, self.now, self.delays, self.events = dict(nodes), 0.0, {}, []
        self.tamper = lambda replies: replies
        self.online_yet = set(self.nodes)
        self._ids, self._count, self._busy = itertools.count(1), {}, {}
        self._due = {}
        self.pushed = []

    def clock(self):
        return self.now

    def wait(self, seconds):
        self.now += seconds
        for event in sorted(
            (event for event in self.events if event[0] <= self.now), key=lambda event: event[0]
        ):
            self.events.remove(event)
            event[1]()

    def at(self, time, action):
        self.events.append((time, action))

    def kill(self, node, *, seen=True):
        """Stop a node; unless it is seen, Flower still says that it is online."""
        self.nodes.pop(node)
        if seen:
            self.online_yet.discard(node)
        self._due = {
            id: (due, target, letter)
            for id, (due, target, letter) in self._due.items()
            if target != node
        }

    def start(self, node, handler):
        self.nodes[node] = handler
        self.online_yet.add(node)

    def get_node_ids(self):
        return sorted(self.online_yet, reverse=True)

    def push_messages(self, messages):
        ids = []
        for letter in messages:
            id = f"message-{next(self._ids)}"
            self.pushed.append(letter)
            if letter.node in self.nodes:
                count = self._count[letter.node] = self._count.get(letter.node, -1) + 1
                begin = max(self.now, self._busy.get(letter.node, 0.0))
                self._busy[letter.node] = begin + self.delays.get((letter.node, count), 0.01)
                self._due[id] = (self._busy[letter.node], letter.node, letter)
            elif letter.node not in self.online_yet:
                self._due[id] = (self.now, letter.node, None)
            ids.append(id)
        return ids

    def pull_messages(self, message_ids):
        replies = []
        for id in message_ids:
            due, node, letter = self._due.get(id, (float("inf"), None, None))
            if due > self.now:
                continue
            del self._due[id]
            if letter is None:
                replies.append(
                    Letter(b"", node, 0.0, id, "Flower's error 5, Node Unavailable", gone=True)
                )
            else:
                replies.append(Letter(self.nodes[node](letter.content), node, 0.0, id))
        return self.tamper(replies)


def sites(algorithm, clients, folder, secrets=None, **options):
    """Return a node a client, numbered out of order; each letter meets a new `Site`, as it does in
    a new process.
    """
    experiment = Experiment(
        algorithm=algorithm, data=lambda name: clients[name], rounds=1, **options
    )

    def node(name):
        return lambda letter: Site(
            name, experiment, folder, secret=(secrets or {}).get(name)
        ).handle(letter)

    return {9000 - 7 * number: node(name) for number, name in enumerate(sorted(clients))}


def pool_over(algorithm, clients, folder, grid=None, **options):
    """Return a pool over a fake grid, and the grid."""
    grid = grid or FakeGrid(sites(algorithm, clients, folder))
    return Flower(
        grid, len(clients), mail=PlainMail(), clock=grid.clock, wait=grid.wait, **options
    ), grid
