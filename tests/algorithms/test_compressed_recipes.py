"""Recipes that compress the up-link: they learn, they cost what they say, and degenerate settings
are FedAvg.
"""

from dataclasses import replace

import pytest
import torch

import bayesfed as bf
from bayesfed.compress import Coded, Float
from bayesfed.errors import ArgumentError
from bayesfed.federated import bits, rounds
from bayesfed.testing import check_sampler
from tests.conftest import tree_equal

WORK = bf.Training(steps=20, batch_size=32, optimiser=bf.Adam(3e-3))
RECIPES = {
    "fed_paq": (bf.fed_paq, {}, 0.75, 0.85),
    "qsgd": (bf.qsgd, {}, 0.25, 0.8),
    "qsgd top": (bf.qsgd, {"share": 0.1}, 0.1, 0.4),
    "uveqfed": (bf.uveqfed, {}, 0.25, 0.8),
    "uveqfed top": (bf.uveqfed, {"share": 0.1}, 0.1, 0.4),
    "dssm": (bf.dssm, {"share": 0.3}, 0.5, 0.6),
    "stc": (bf.stc, {"share": 0.1}, 0.1, 0.6),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_they_learn_and_send_less(name, digits, clients):
    recipe, options, most, least = RECIPES[name]
    _, test = digits
    net = bf.mlp([64, 64, 10], bf.Key(0, "net"))
    result = bf.run(
        recipe(net, **options, training=WORK), clients, rounds=10, test=test, progress=False
    )
    assert result.final("accuracy") > least
    dense = 10 * len(clients) * 32 * sum(leaf.numel() for leaf in result.model.parameters.values())
    assert result.bits("up") < most * dense
    assert result.bits() == bits(result.ledger) == sum(row.bits for row in result.ledger)


def test_sending_changes_whole_is_sending_models(net, clients):
    """With nothing left out, x + mean(x_k - x) is mean(x_k) up to rounding."""
    dense = list(rounds(bf.fed_avg(net, training=WORK), bf.InProcess(clients), rounds=2))[-1].state
    fine = list(
        rounds(
            bf.fed_paq(net, bits=24, codec=bf.Cast(32), training=WORK),
            bf.InProcess(clients),
            rounds=2,
        )
    )[-1].state
    for name, leaf in dense.items():
        assert torch.allclose(leaf, fine[name], atol=2e-4)


def test_coded_floats_are_cast_bit_for_bit(declared, clients):
    """Coded leaves the numbers as Cast does; only the bytes differ."""
    observations = sum(map(len, clients.values()))
    runs = [
        list(
            rounds(
                bf.d_turbo_vbi(declared, observations=observations, codec=codec, training=WORK),
                bf.InProcess(clients),
                rounds=3,
            )
        )
        for codec in (bf.Cast(32), Coded(Float(32)))
    ]
    assert tree_equal(runs[0][-1].state, runs[1][-1].state)
    spent = [sum(bits(report.rows) for report in reports) for reports in runs]
    assert spent[1] < spent[0]


@pytest.mark.parametrize("options", [{"workers": 2}, {"workers": 2, "kind": "thread"}])
@pytest.mark.parametrize("name", ["stc", "uveqfed"])
def test_shared_dither_and_memories_do_not_depend_on_the_pool(name, options, net, clients):
    recipe, arguments, *_ = RECIPES[name]
    algorithm = recipe(net, **arguments, training=replace(WORK, steps=4))
    serial, parallel = (
        list(rounds(algorithm, pool, rounds=3))[-1]
        for pool in (bf.InProcess(clients), bf.InProcess(clients, **options))
    )
    assert tree_equal(serial.state, parallel.state)


def test_resuming_stc_is_the_same_run(net, clients):
    algorithm = bf.stc(net, share=0.05, training=replace(WORK, steps=4))
    whole = list(rounds(algorithm, bf.InProcess(clients), rounds=4))
    half = whole[1].snapshot
    *_, resumed = rounds(algorithm, bf.InProcess(clients), rounds=4, resume=half)
    assert tree_equal(whole[-1].state, resumed.state)


def test_dynamic_sampling_decays():
    sampler, names = bf.federated.decaying(1.0, 0.2), [f"c{i}" for i in range(20)]
    check_sampler(sampler)
    assert [len(sampler(number, names, bf.Key(0, number))) for number in (0, 5, 10, 30)] == [
        20,
        7,
        3,
        1,
    ]
    for share, rate in ((0.0, 0.1), (1.1, 0.1), (0.5, -1.0)):
        with pytest.raises(ArgumentError, match="decaying, (share|rate): expected a number in"):
            bf.federated.decaying(share, rate)
