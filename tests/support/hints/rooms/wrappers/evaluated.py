"""Messages of `evaluate_clients`."""

import bayesfed as bf
from bayesfed.algorithms import evaluate_clients
from bayesfed.federated import evaluate
from tests.house.wrong_calls.given import CLIENTS, DATA, net

COMPLETE = ("bayesfed/algorithms/wrappers/evaluated.py",)
MASKED = bf.secure(
    bf.fed_avg(net(), training=bf.Training(steps=1)),
    participants=len(CLIENTS),
    largest=8.0,
    heaviest=1000.0,
    masks=False,
)


def scored(**options):
    """Run under secure sums."""
    return bf.run(MASKED, CLIENTS, rounds=1, progress=False, **options)


CASES = [
    (
        lambda: evaluate_clients(MASKED),
        "callbacks=[evaluate(test)] of rows that the server has",
        lambda: scored(callbacks=[evaluate(DATA)]),
    ),
]
