"""Over the air: what is heard, who is refused, what it cost, and that any recipe runs on it."""

import math
from dataclasses import replace

import pytest
import torch
from pyro.infer.autoguide import AutoNormal

import bayesfed as bf
from bayesfed.compress import Coded, Uniform
from bayesfed.errors import ArgumentError, ClientError
from bayesfed.federated import Add, Digital, Keep, rounds
from bayesfed.federated.aggregation.views import Whole
from bayesfed.federated.core.algorithm import Model
from bayesfed.federated.core.owners import of, owned
from bayesfed.federated.core.protocols import Assignment, Fit
from bayesfed.federated.core.sums import Sum
from bayesfed.federated.engine.reports import channel_uses
from bayesfed.federated.links.compressed_sensing import Compressed
from bayesfed.federated.links.over_the_air import OverTheAir
from bayesfed.wireless.power_control import ChannelInversion, Gbma
from tests.conftest import tree_equal

# Everybody is heard at the same strength, and nothing else is.
CLEAR = OverTheAir(ChannelInversion(0.0, "weakest"), power_w=1.0, noise_w=0.0)
NAMES = ("ann", "ben", "cho")


class Says:
    """A local that sends what it is told, and remembers that it was asked."""

    kind = "delta"

    def __init__(self, payloads):
        self.payloads = payloads

    def fit(self, message, memory, data, key, options):
        said = self.payloads[int(data.targets[0])]
        return Fit(
            dict(said),
            {"asked": memory.get("asked", torch.zeros(())) + 1},
            {"samples": float(len(data))},
        )


def saying(payloads, link, reducer=Sum):
    """Return an algorithm whose state is the mean of what clients say, and its pool; client k holds
    k + 1 rows.
    """
    template = bf.fed_avg(torch.nn.Linear(2, 1))
    shapes = {name: tuple(leaf.shape) for name, leaf in payloads[0].items()}

    def assign(state, round, profile, key):
        return Assignment(Whole(shapes), float(profile.samples), up=bf.Cast(64))

    phase = replace(
        template.phases[0],
        assign=assign,
        local=Says(payloads),
        server=Add(),
        link=link,
        reducer=reducer,
    )
    initial = {name: torch.zeros_like(leaf) for name, leaf in payloads[0].items()}
    algorithm = replace(
        template,
        name="saying",
        initial=of("model", initial),
        phases=(phase,),
        predictor=lambda state: Model(torch.nn.Identity(), owned(state, "model")),
    )
    clients = {
        name: bf.Dataset(torch.zeros(k + 1, 1), torch.full((k + 1,), k))
        for k, name in enumerate(NAMES[: len(payloads)])
    }
    return algorithm, clients


def payloads(count=3, scale=1.0):
    generator = bf.Key(0, "payloads").generator()
    return [
        {
            "w": scale * torch.randn(7, 3, generator=generator, dtype=torch.float64),
            "b": 1e-3 * torch.randn(5, generator=generator).double(),
        }
        for _ in range(count)
    ]


def only(algorithm, clients, **run):
    return list(rounds(algorithm, bf.InProcess(clients), rounds=1, **run))[-1]


def mean(said, weights):
    return {
        name: sum(w * tree[name] for w, tree in zip(weights, said, strict=True)) / sum(weights)
        for name in said[0]
    }


@pytest.mark.parametrize("reals", [1, 2])
@pytest.mark.parametrize("per", ["symbol", "matrix"])
@pytest.mark.parametrize("budget", ["mean", "largest"])
def test_without_noise_and_with_equal_gains_it_is_the_digital_mean(reals, per, budget):
    said = payloads()
    report = only(*saying(said, replace(CLEAR, reals=reals, per=per, budget=budget)))
    for name, leaf in mean(said, (1, 2, 3)).items():
        assert torch.allclose(report.state[f"model/{name}"], leaf, rtol=1e-10, atol=1e-12)
    assert channel_uses(report.rows) == math.ceil(26 / reals)


@pytest.mark.parametrize("recipe", ["fed_avg", "federated_svi"])
def test_recipes_run_over_a_clear_channel_as_digitally(recipe, digits, clients, net):
    train, _ = digits

    def made(link):
        if recipe == "fed_avg":
            return bf.fed_avg(net, training=bf.Training(steps=3, batch_size=16), link=link)
        model = bf.bayesian(net, bf.Gaussian(0.5))
        rule = {
            "fusion": bf.SummedGradients(0.01),
            "scale": "local",
            "observations": len(train),
            "example": train[:2],
        }
        return bf.federated_svi(
            model, AutoNormal, training=bf.Training(steps=2, batch_size=16), link=link, **rule
        )

    air, digital = (
        bf.run(made(link), clients, rounds=2, progress=False) for link in (CLEAR, Digital())
    )
    for name, leaf in digital.snapshot.state.items():
        assert torch.allclose(air.snapshot.state[name], leaf, atol=1e-4)
    assert air.bits("up") < digital.bits("up") / 50
    assert air.bits("down") == digital.bits("down")


def test_the_mean_over_fading_and_noise_is_right():
    """GBMA, 400 rounds: each entry's mean is that of the clients', |z| < 4, and its spread as
    predicted.
    """
    said = [{"w": tree["w"]} for tree in payloads()]
    algorithm, clients = saying(said, OverTheAir(Gbma(), power_w=4.0, noise_w=0.5))
    algorithm = replace(algorithm, phases=(replace(algorithm.phases[0], server=Latest()),))
    found = torch.stack(
        [report.state["model/w"] for report in rounds(algorithm, bf.InProcess(clients), rounds=400)]
    )
    weights, expected = (1, 2, 3), mean(said, (1, 2, 3))["w"]
    energies = [
        w**2 * float(tree["w"].square().sum()) for w, tree in zip(weights, said, strict=True)
    ]
    amplitude = math.sqrt(4.0 * 21 / (sum(energies) / 3))
    fading = (4 / math.pi - 1) * sum(
        (w * tree["w"]) ** 2 for w, tree in zip(weights, said, strict=True)
    )
    variance = (fading + 0.5 / 2 / (amplitude * math.sqrt(math.pi) / 2) ** 2) / 36
    assert float(((found.mean(0) - expected) / (variance / 400).sqrt()).abs().max()) < 4
    assert float((found.var(0) / variance).log().abs().max()) < 0.4


class Latest:
    """A server whose state is the latest mean."""

    def publish(self, state, round, version):
        return state

    def step(self, state, reducer, round):
        return reducer.total.mean(), {}


def test_power_is_as_asked_and_stands_in_the_ledger():
    said = payloads()
    for link, expected in (
        (OverTheAir(snr_db=10.0, noise_w=0.1), 1.0),
        (OverTheAir(power_w=2.0, noise_w=0.1), 2.0),
    ):
        report = only(*saying(said, link))
        up = [row for row in report.rows if row.direction == "up"]
        assert sum(row.cost.mean_power_w for row in up) / 3 == pytest.approx(expected)
        assert all(row.cost.peak_power_w >= row.cost.mean_power_w > 0 for row in up)
        # Weight and two energies, digitally.
        assert [row.bits for row in up] == [3 * 64] * 3
    report = only(*saying(said, OverTheAir(power_w=2.0, noise_w=0.1, budget="largest")))
    powers = [row.cost.mean_power_w for row in report.rows if row.direction == "up"]
    assert max(powers) <= 2.0 * (1 + 1e-9)
    # The paper's: the power of a whole matrix.
    report = only(
        *saying(
            [{"w": tree["w"]} for tree in said], OverTheAir(power_w=2.0, noise_w=0.1, per="matrix")
        )
    )
    assert sum(
        21 * row.cost.mean_power_w for row in report.rows if row.direction == "up"
    ) / 3 == pytest.approx(2.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e9])
def test_a_client_that_diverged_is_refused_and_the_others_are_as_without_it(bad):
    said = payloads()
    said[1]["w"][2, 1] = bad
    link = OverTheAir(snr_db=20.0)
    algorithm, clients = saying(said, link)
    report = only(algorithm, clients, on_client_error="drop")
    assert list(report.refused) == ["ben"]
    others = {name: data for name, data in clients.items() if name != "ben"}
    assert tree_equal(report.state, only(algorithm, others).state)
    with pytest.raises(ClientError, match="client 'ben', round 0.*'w'"):
        only(algorithm, clients)


def test_ragged_payloads_are_refused():
    said = payloads()
    said[2] = {**said[2], "w": said[2]["w"][:5]}
    report = only(*saying(said, OverTheAir(snr_db=20.0)), on_client_error="drop")
    assert "expected shape" in report.refused["cho"]


def test_silent_clients_are_left_out_and_their_memory_waits():
    said = payloads()
    algorithm, clients = saying(said, OverTheAir(ChannelInversion(0.9), power_w=1.0, noise_w=0.0))
    algorithm = replace(algorithm, phases=(replace(algorithm.phases[0], server=Latest()),))
    asked = dict.fromkeys(NAMES, 0)
    seen, before = set(), algorithm.initial
    for report in rounds(algorithm, bf.InProcess(clients), rounds=12, on_client_error="drop"):
        heard = [row.client for row in report.rows if row.direction == "up" and row.accepted]
        seen.add(len(heard))
        for name in heard:
            asked[name] += 1
        if not heard:
            assert tree_equal(report.state, before)
            continue
        before = report.state
        expected = mean(
            [said[NAMES.index(name)] for name in heard], [NAMES.index(name) + 1 for name in heard]
        )
        assert torch.allclose(report.state["model/w"], expected["w"], rtol=1e-9)
        silent = [row for row in report.rows if row.direction == "up" and not row.accepted]
        assert all(
            "below the threshold" in row.reason and row.cost.mean_power_w == 0 for row in silent
        )
        assert {
            name: float(memory["model/asked"]) for name, memory in report.snapshot.memories.items()
        } == {n: k for n, k in asked.items() if k}
    assert 0 in seen
    assert len(seen) > 2


def test_nobody_on_the_air_is_an_error_in_words():
    algorithm, clients = saying(payloads(), OverTheAir(ChannelInversion(9.0), power_w=1.0))
    with pytest.raises(ClientError, match="a client on the air"):
        only(algorithm, clients)


def test_nothing_to_say_is_said_without_noise():
    said = [{"w": torch.zeros(4, 2, dtype=torch.float64)} for _ in range(3)]
    report = only(*saying(said, OverTheAir(snr_db=0.0)))
    assert not report.state["model/w"].any()
    assert channel_uses(report.rows) == 0


def test_what_a_codec_rounds_is_rounded_on_the_air(digits, clients, net):
    coarse = bf.fed_avg(net, training=bf.Training(steps=3), link=CLEAR, codec=Coded(Uniform(2)))
    found = bf.run(coarse, clients, rounds=1, progress=False).snapshot.state
    digital = bf.run(
        bf.fed_avg(net, training=bf.Training(steps=3), codec=Coded(Uniform(2))),
        clients,
        rounds=1,
        progress=False,
    ).snapshot.state
    assert all(torch.allclose(found[name], leaf, atol=1e-5) for name, leaf in digital.items())


def test_a_client_whose_numbers_are_too_large_to_be_added_is_refused_by_name():
    """Projected, they are infinite: the leaf of all clients was left at zero."""
    said = [{"w": torch.full((600,), size)} for size in (3e38, 1.0, 1.0)]
    link = replace(CLEAR, sensing=Compressed(200, 256), max_norm=math.inf)
    report = only(*saying(said, link), on_client_error="drop")
    assert set(report.refused) == {"ann"}
    assert float(report.state["model/w"].abs().max()) > 0


def test_sparse_sums_are_recovered_from_projections():
    generator = bf.Key(1, "sparse").generator()
    support = torch.rand(2000, generator=generator) < 0.04
    said = [
        {
            "w": torch.where(support, torch.randn(2000, generator=generator), 0.0).double(),
            "b": torch.ones(3).double(),
        }
        for _ in range(3)
    ]
    report = only(*saying(said, replace(CLEAR, sensing=Compressed(128, 256))))
    expected = mean(said, (1, 2, 3))
    assert float((report.state["model/w"] - expected["w"]).norm() / expected["w"].norm()) < 0.02
    assert torch.allclose(report.state["model/b"], expected["b"])
    assert channel_uses(report.rows) == 8 * 128 + 3


def test_workers_and_resuming_give_the_same_bits(clients, net):
    algorithm = bf.fed_avg(
        net, training=bf.Training(steps=2), link=OverTheAir(snr_db=15.0, estimate_variance=0.1)
    )
    whole = bf.run(algorithm, clients, rounds=3, progress=False).snapshot
    half = bf.run(algorithm, clients, rounds=1, progress=False).snapshot
    assert tree_equal(
        bf.run(algorithm, clients, rounds=3, progress=False, resume=half).snapshot.state,
        whole.state,
    )
    assert tree_equal(
        bf.run(
            algorithm, bf.InProcess(clients, workers=2), rounds=3, progress=False
        ).snapshot.state,
        whole.state,
    )


def test_rules_that_need_updates_apart_are_refused():
    with pytest.raises(ArgumentError, match="expected a sum, found Keep"):
        only(*saying(payloads(), CLEAR, Keep))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "snr_db or power_w"),
        ({"snr_db": 1.0, "power_w": 1.0}, "snr_db or power_w"),
        ({"snr_db": float("nan")}, r"snr_db: expected a number in \(-inf, inf\)"),
        ({"snr_db": float("inf")}, r"snr_db: expected a number in \(-inf, inf\)"),
        ({"power_w": 0.0}, "power_w: expected a number in"),
        ({"power_w": 1.0, "noise_w": -1.0}, "noise_w: expected a number in"),
        ({"power_w": 1.0, "reals": 3}, "reals: expected one of 1, 2"),
        ({"power_w": 1.0, "per": "row"}, "one of 'symbol', 'matrix'"),
        ({"power_w": 1.0, "budget": "all"}, "one of 'mean', 'largest'"),
        ({"power_w": 1.0, "estimate_variance": -0.1}, "estimate_variance"),
    ],
)
def test_arguments_are_checked(arguments, words):
    with pytest.raises(ArgumentError, match=words):
        OverTheAir(**arguments)
