"""Messages of `evaluate_clients`."""

from dataclasses import replace

import bayesfed as bf
from bayesfed.algorithms import evaluate_clients
from bayesfed.federated import evaluate
from tests.house.wrong_calls.given import CLIENTS, DATA, net

COMPLETE = ("bayesfed/algorithms/wrappers/evaluated.py",)
PLAIN = bf.fed_avg(net(), training=bf.Training(steps=1))
ENDS = replace(PLAIN, finished=lambda state: False)


def masked(algorithm):
    """Run under secure sums."""
    made = bf.secure(
        algorithm, participants=len(CLIENTS), largest=8.0, heaviest=1000.0, masks=False
    )
    bf.run(made, CLIENTS, rounds=1, progress=False)
    return made


MASKED = masked(PLAIN)


CASES = [
    (
        lambda: evaluate_clients(MASKED),
        "secure(evaluate_clients(algorithm, worst=False), ...)",
        lambda: masked(evaluate_clients(PLAIN, worst=False)),
    ),
    (
        lambda: evaluate_clients(ENDS),
        "callbacks=[evaluate(test)] of rows that the server has",
        lambda: bf.run(PLAIN, CLIENTS, rounds=1, callbacks=[evaluate(DATA)], progress=False),
    ),
]
