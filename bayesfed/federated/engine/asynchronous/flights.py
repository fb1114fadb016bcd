"""`Flight`: an answer that is on its way to the server in simulated time, and flights as tensors,
for snapshots.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch

from bayesfed.federated.core import Cost, Info, Update
from bayesfed.federated.engine.ledger import Row
from bayesfed.trees import Tree, under

ABOUT = "about"


@dataclass(frozen=True)
class Flight:
    """An answer on its way.

    Parameters
    ----------
    due
        Simulated second in which it arrives.
    row
        Its row of the ledger, which names the client and the round in which it was asked.
    info
        Figures of the client.
    update
        What it adds to the sum.
    memory
        What the client keeps once the answer has arrived.
    """

    due: float
    row: Row
    info: Info
    update: Update
    memory: Tree

    @property
    def order(self) -> tuple[float, str, int]:
        """Its place among all flights: by time, then by name."""
        return self.due, self.row.client, self.row.round


def to_tree(clock: float, flights: Sequence[Flight], bases: Mapping[int, Tree]) -> Tree:
    """Return flights as tensors by name.

    Parameters
    ----------
    clock
        Simulated seconds so far.
    flights
        The flights.
    bases
        By round: what the server published then.
    """
    about = {"clock": clock, "flights": [_about(flight) for flight in flights]}
    tree = {ABOUT: torch.frombuffer(bytearray(json.dumps(about).encode()), dtype=torch.uint8)}
    for number, flight in enumerate(flights):
        weights = flight.update.weight if isinstance(flight.update.weight, dict) else {}
        for part, leaves in (
            ("total", flight.update.total),
            ("weight", weights),
            ("memory", flight.memory),
        ):
            tree |= {f"{number}/{part}/{name}": leaf for name, leaf in leaves.items()}
    return tree | {
        f"base/{round}/{name}": leaf for round, base in bases.items() for name, leaf in base.items()
    }


def from_tree(tree: Tree) -> tuple[float, list[Flight], dict[int, Tree]]:
    """Return clock, flights and bases that `to_tree` made a tree of."""
    if not tree:
        return 0.0, [], {}
    about = json.loads(tree[ABOUT].numpy().tobytes())
    flights, bases = [], dict[int, Tree]()
    for number, entry in enumerate(about["flights"]):
        leaves = under(tree, f"{number}/")
        weight = under(leaves, "weight/") if entry["weight"] is None else entry["weight"]
        row = Row(**{**entry["row"], "cost": Cost(**entry["row"]["cost"])})
        update = Update(under(leaves, "total/"), weight, entry["kind"])
        flights.append(Flight(entry["due"], row, entry["info"], update, under(leaves, "memory/")))
    for name, leaf in under(tree, "base/").items():
        round, _, rest = name.partition("/")
        bases.setdefault(int(round), {})[rest] = leaf
    return about["clock"], flights, bases


def _about(flight: Flight) -> dict[str, object]:
    weight = None if isinstance(flight.update.weight, dict) else flight.update.weight
    return {
        "due": flight.due,
        "row": asdict(flight.row),
        "info": flight.info,
        "kind": flight.update.kind,
        "weight": weight,
    }
