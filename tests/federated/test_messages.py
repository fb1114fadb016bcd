"""What travels in a round: the bytes the ledger counts, active entries only, and sums the server
may see.
"""

import itertools

import torch

import bayesfed as bf
from bayesfed.algorithms.d_turbo_vbi import ToDensity
from bayesfed.federated import bits, rounds
from bayesfed.keys import Key
from tests.federated.test_engine import final, turbo


def test_the_ledger_counts_the_bytes_that_were_sent(declared, clients):
    report = final(turbo(declared, clients, codec=bf.Cast(16)), bf.InProcess(clients), rounds=1)
    assert [(row.client, row.direction) for row in report.rows] == [
        (name, way) for name in sorted(clients) for way in ("down", "up")
    ]
    weights = sum(site.matrix[0] * site.matrix[1] for site in declared.sites.values())
    biases = 26
    down, up = (bits(report.rows, way) / 8 / len(clients) for way in ("down", "up"))
    # Down: two bytes a mean, one an inclusion, a bit a support. Up: two bytes a mean. Biases and
    # one sd at two bytes.
    assert weights * 3.125 + 2 * (biases + 1) < down < weights * 3.125 + 2 * (biases + 1) + 700
    assert weights * 2 + 2 * (biases + 1) < up < weights * 2 + 2 * (biases + 1) + 500


def test_only_active_entries_travel(declared, clients):
    algorithm = turbo(declared, clients, codec=bf.Cast(16), density=ToDensity(patience=0, keep=0.5))
    reports = list(rounds(algorithm, bf.InProcess(clients), rounds=3))
    total = sum(site.matrix[0] * site.matrix[1] for site in declared.sites.values())
    for before, after in itertools.pairwise(reports):
        active = before.server["density"] * total
        (row, *_) = [row for row in after.rows if row.direction == "up"]
        assert abs(row.bits / 8 - 2 * active) < 600
        for name in declared.sites:
            mean, log_odds = after.state[f"mean/{name}"], after.state[f"log_odds/{name}"]
            assert bool((mean[log_odds <= 0] == 0).all())


def test_the_posterior_mean_reported_is_the_average_of_the_clients(declared, clients):
    """The server step sees sums only: its mean against one computed from the clients' own
    replies.
    """
    algorithm = turbo(declared, clients, codec=bf.Cast(32), use_prior=False)
    report = final(algorithm, bf.InProcess(clients), rounds=1)
    (phase,) = algorithm.phases
    state, _ = phase.scope.parted(algorithm.initial)
    message = phase.server.publish(state, 0, None)
    total, count = 0.0, 0
    for profile in bf.InProcess(clients).profiles:
        assignment = phase.assign(state, 0, profile, Key(0))
        fit = phase.local.fit(
            assignment.view.restrict(message),
            {},
            clients[profile.name],
            Key(0, "train", 0, profile.name, "fit"),
            assignment.options,
        )
        total, count = (
            total + profile.samples * fit.payload["mean/1.weight"].double(),
            count + profile.samples,
        )
    assert torch.allclose(
        report.state["mean/1.weight"].double().reshape(-1), total / count, atol=1e-6
    )
