"""Differential privacy of clients: what one can do to the sum, the noise, and epsilon where it is
computed.
"""

import math
import sys
from dataclasses import dataclass, field, replace

import pytest
import torch
from dp_accounting import (
    GaussianDpEvent,
    NeighboringRelation,
    SampledWithoutReplacementDpEvent,
    rdp,
)
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.optimize import brentq
from scipy.stats import norm as gaussian

import bayesfed as bf
from bayesfed.algorithms.wrappers import accounting
from bayesfed.algorithms.wrappers.noising import Private
from bayesfed.compress import Coded, TopK
from bayesfed.errors import (
    ArgumentError,
    ClientError,
    MissingExtraError,
    UndeterminedWarning,
    UpdateError,
)
from bayesfed.federated import Layer, Sum, Update, feedback, fraction, layered, rounds
from bayesfed.federated.aggregation.changes import norm
from bayesfed.federated.clients.side import ClientSide
from bayesfed.federated.core.layers import Moment
from bayesfed.federated.core.owners import of, owned
from bayesfed.federated.engine.assembly import assembled
from bayesfed.inference.variational.fusion import MeanParameters
from bayesfed.trees import zip_map
from tests.conftest import tree_equal
from tests.support.hostile.byzantine import byzantine
from tests.support.recipes import lines, svi

WORK = bf.Training(steps=4, batch_size=16)
KEY = bf.Key(7, "secret")


def final(algorithm, clients, **changes):
    *_, last = rounds(algorithm, bf.InProcess(clients), **{"rounds": 2, **changes})
    return last


@pytest.mark.parametrize("recipe", [bf.fed_avg, bf.fed_paq, bf.stc, bf.dssm])
def test_without_clip_and_noise_it_is_the_method_to_the_bit(recipe, net, clients):
    algorithm = recipe(net, training=WORK)
    plain = final(bf.equal_weights(algorithm), clients)
    free = final(
        bf.private(algorithm, clip=math.inf, noise=0.0, participants=len(clients), key=KEY), clients
    )
    assert tree_equal(free.state, plain.state)
    assert free.server == plain.server
    assert "epsilon" not in free.server


def summed(algorithm, clients):
    """The sum that one round's server is given, noise aside."""
    heard = {}

    class Listening(Layer):
        def step(self, own, moment, total, inner):
            heard["total"] = total
            return super().step(own, moment, total, inner)

    final(layered(algorithm, Listening("listening")), clients, rounds=1)
    return heard["total"]


@pytest.mark.parametrize("recipe", [bf.fed_avg, bf.fed_paq])
@pytest.mark.parametrize("clip", [0.01, 0.3])
def test_one_client_moves_the_sum_by_at_most_the_clip(recipe, clip, net, clients):
    """Whatever it sends: neighbouring rounds differ by a client's change, replaced by zeros."""
    honest = recipe(net, training=WORK)
    without = bf.private(honest, clip=clip, noise=0.0, participants=4, key=KEY)
    base = owned(without.initial, "model")
    for factor in (1.0, -1.0, 1e4, 0.0):
        algorithm = bf.private(
            byzantine(honest, ["client-001"], factor), clip=clip, noise=0.0, participants=4, key=KEY
        )
        whole = summed(algorithm, clients)
        rest = summed(
            algorithm, {name: data for name, data in clients.items() if name != "client-001"}
        )
        assert (whole.weight, rest.weight) == (4.0, 3.0)
        by = zip_map(torch.sub, whole.total, rest.total)
        if whole.kind == "value":
            by = zip_map(torch.sub, by, base)
        # Sums are of single precision: values of the whole model, of norm 10.
        assert norm(by) <= clip + 2e-5
        assert norm(by) >= (0.99 * clip if abs(factor) > 1 else 0.0)


def test_messages_are_shortened_after_they_are_decoded(net, clients):
    """A codec's error or a memory of what was left out does not help a client past the clip."""
    honest = bf.fed_paq(net, bits=2, training=WORK)
    algorithm = bf.private(honest, clip=0.05, noise=0.0, participants=4, key=KEY)
    assert norm(summed(algorithm, {"client-000": clients["client-000"]}).total) <= 0.05
    phase = honest.phases[0]

    def feeding(*given):
        return replace(phase.assign(*given), up=Coded(TopK(0.1)))

    fed = bf.private(
        layered(replace(honest, phases=(replace(phase, assign=feeding),)), feedback()),
        clip=0.05,
        noise=0.0,
        participants=4,
        key=KEY,
    )
    assert norm(summed(fed, {"client-000": clients["client-000"]}).total) <= 0.05


def test_clients_may_shorten_first(net, clients):
    for recipe in (bf.fed_avg, bf.fed_paq):
        algorithm = bf.private(
            recipe(net, training=WORK),
            clip=0.05,
            noise=0.0,
            participants=4,
            key=KEY,
            at_client=True,
        )
        local, state = ClientSide.of(algorithm.phases[0]), owned(algorithm.initial, "model")
        message = {name: leaf.detach().clone() for name, leaf in state.items()}
        payload = local.fit(
            message, {}, clients["client-000"], bf.Key(0, "fit"), bf.federated.LocalOptions()
        ).payload
        moved = payload if local.kind == "delta" else zip_map(torch.sub, payload, message)
        assert 0.049 < norm(moved) < 0.05001


class Saying:
    """A local step of a kind, which is never taken."""

    def __init__(self, kind):
        self.kind = kind

    def fit(self, message, memory, data, key, options):
        """Nobody asks."""


@pytest.mark.parametrize("kind", ["delta", "value"])
def test_noise_has_the_stated_variance(kind):
    """Over entries and rounds: mean 0 and sd z C / participants on the model; another name is
    another draw.
    """
    model, sent = {"a": torch.ones(200, 300), "b": torch.zeros(7)}, torch.full((200, 300), 0.25)
    local, state = Saying(kind), of("model", model)
    algorithm = bf.compose("saying", torch.nn.Linear(1, 1), local, initial=model)
    noisy = bf.private(algorithm, clip=0.5, noise=2.0, participants=4, key=KEY)
    server = assembled(noisy.phases[0]).server
    found = []
    for round in range(4):
        total = {"a": 3 * sent + (3.0 if kind == "value" else 0.0), "b": torch.zeros(7)}
        found.append(
            server.step(state, Sum(Update(total, 3.0, kind)), round)[0]["model/a"].double()
        )
    # Three of four came: the fourth counts as no change.
    noise = torch.stack(found) - 1 - 0.75 * 0.25
    count = noise.numel()
    assert abs(float(noise.mean())) < 5 * 0.25 / count**0.5
    assert float(noise.std()) == pytest.approx(2.0 * 0.5 / 4, rel=5 / (2 * count) ** 0.5)
    assert abs(float((noise[0] * noise[1]).mean())) < 5 * 0.25**2 / noise[0].numel() ** 0.5
    again, _ = server.step(
        state,
        Sum(
            Update(
                {"a": 3 * sent + (3.0 if kind == "value" else 0.0), "b": torch.zeros(7)}, 3.0, kind
            )
        ),
        0,
    )
    assert torch.equal(again["model/a"].double(), found[0])


def test_noise_is_added_though_nobody_has_rows(net, clients, digits):
    empty = {"nobody": digits[0][:0]}
    algorithm = bf.private(
        bf.fed_avg(net, training=WORK), clip=0.1, noise=1.0, participants=4, key=KEY
    )
    report = final(algorithm, {**clients, **empty}, rounds=1, sampler=lambda *_: ["nobody"])
    moved = norm(zip_map(torch.sub, report.state, algorithm.initial))
    entries = sum(leaf.numel() for leaf in report.state.values())
    assert moved == pytest.approx(0.1 / 4 * entries**0.5, rel=0.15)


def exact_epsilon(noise, count, delta):
    """Of the Gaussian mechanism `count` times, as one of noise / sqrt(count) (Balle and Wang, 2018,
    theorem 8).
    """
    mu = math.sqrt(count) / noise
    return brentq(
        lambda e: (
            gaussian.cdf(mu / 2 - e / mu) - math.exp(e) * gaussian.cdf(-mu / 2 - e / mu) - delta
        ),
        1e-9,
        500,
    )


@pytest.mark.parametrize(("noise", "count"), [(1.0, 1), (1.0, 10), (5.0, 1), (5.0, 100), (0.7, 3)])
def test_epsilon_of_the_gaussian_mechanism(noise, count):
    delta = 1e-5
    found = bf.algorithms.epsilon(noise, count, delta)
    assert found == pytest.approx(exact_epsilon(noise, count, delta), rel=1e-6)
    # On the grid of a sample of everybody, and by Rényi orders (Mironov, 2017).
    grid = accounting._losses(2 * noise, 1 - 1e-9).self_compose(count, 1e-15)
    assert found <= grid.get_epsilon_for_delta(delta) <= 1.0001 * found + 1e-4
    orders = [1 + x / 10 for x in range(1, 100)] + list(range(11, 64)) + [128, 256, 512, 1024]
    assert found < min(
        count * a / (2 * noise**2) + math.log1p(-1 / a) - math.log(delta * a) / (a - 1)
        for a in orders
    )


@pytest.mark.parametrize(("noise", "drawn"), [(1.0, 20), (3.0, 500), (8.0, 1)])
def test_epsilon_of_a_sample_is_that_of_its_losses(noise, drawn):
    """One round by hand (Zhu, Dong and Wang, 2022, theorem 11); many between the composition of
    one pair, by dp-accounting, and that of Rényi orders (Wang, Balle and Kasiviswanathan, 2019).
    """
    share, delta = drawn / 1000, 1e-6
    among = {"participants": drawn, "population": 1000}
    mu = 2 / noise

    def spent(e):
        inner = math.log1p(math.expm1(e) / share)
        return share * (
            gaussian.cdf(mu / 2 - inner / mu) - math.exp(inner) * gaussian.cdf(-mu / 2 - inner / mu)
        )

    one = brentq(lambda e: spent(e) - delta, 1e-12, 100) if spent(0) > delta else 0.0
    assert bf.algorithms.epsilon(noise, 1, delta, **among) == pytest.approx(one, abs=1e-4)
    found = bf.algorithms.epsilon(noise, 60, delta, **among)
    pair = pld.from_gaussian_mechanism(noise / 2, sampling_prob=share)
    accountant = rdp.RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    each = GaussianDpEvent(noise / 2)
    accountant.compose(SampledWithoutReplacementDpEvent(1000, drawn, each), 60)
    assert pair.self_compose(60).get_epsilon_for_delta(delta) - 1e-3 <= found
    assert found <= accountant.get_epsilon(delta)


@pytest.mark.parametrize("among", [{}, {"participants": 20, "population": 1000}])
@pytest.mark.parametrize("wished", [0.3, 2.0, 30.0])
def test_noise_for_an_epsilon_is_the_least(wished, among):
    noise = bf.algorithms.noise_for(wished, 50, 1e-5, **among)
    assert bf.algorithms.epsilon(noise, 50, 1e-5, **among) <= wished
    assert bf.algorithms.epsilon(noise / 1.002, 50, 1e-5, **among) > wished


def test_a_delta_that_allows_to_tell_all_of_a_client_is_told(net, clients):
    settings = {"clip": 0.1, "noise": 1.0, "participants": 4, "key": KEY}
    algorithm = bf.private(bf.fed_avg(net, training=WORK), **settings, delta=0.3)
    with pytest.warns(UndeterminedWarning, match="below one over 4 clients.*try delta=0.0"):
        final(algorithm, clients, rounds=1)


def test_epsilon_grows_with_rounds_and_shrinks_with_noise_and_sampling():
    spent = [bf.algorithms.epsilon(1.0, count, 1e-5) for count in (1, 2, 10, 100)]
    assert spent == sorted(spent)
    assert bf.algorithms.epsilon(2.0, 10, 1e-5) < bf.algorithms.epsilon(1.0, 10, 1e-5)
    sampled = [
        bf.algorithms.epsilon(2.0, 10, 1e-5, participants=m, population=1000)
        for m in (1, 10, 100, 1000)
    ]
    assert sampled == sorted(sampled)
    # Everybody, replaced by somebody else: twice the sensitivity.
    assert sampled[-1] == pytest.approx(bf.algorithms.epsilon(1.0, 10, 1e-5), rel=1e-9)


def test_epsilon_is_in_the_report_where_it_was_asked_for_only(net, clients):
    algorithm = bf.fed_avg(net, training=WORK)
    settings = {"clip": 0.1, "noise": 1.0, "participants": 4, "key": KEY}
    assert not {"epsilon", "delta"} & set(final(bf.private(algorithm, **settings), clients).server)
    result = bf.run(
        bf.private(algorithm, **settings, delta=1e-5), clients, rounds=3, progress=False
    )
    assert [value for _, value in result.series("epsilon")] == [
        bf.algorithms.epsilon(1.0, count, 1e-5) for count in (1, 2, 3)
    ]
    assert result.final("delta") == 1e-5
    sampled = bf.private(algorithm, **{**settings, "participants": 2}, delta=1e-5, population=4)
    result = bf.run(sampled, clients, rounds=2, sampler=fraction(0.5), progress=False)
    assert result.final("epsilon") == bf.algorithms.epsilon(
        1.0, 2, 1e-5, participants=2, population=4
    )
    with pytest.raises(UpdateError, match="private, round 0: expected at most 2 clients, found 4"):
        final(bf.private(algorithm, **{**settings, "participants": 2}), clients)


def test_without_dp_accounting_there_is_no_epsilon(net, clients, monkeypatch):
    accounting._spent.cache_clear()
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    algorithm, settings = (
        bf.fed_avg(net, training=WORK),
        {"clip": 0.1, "noise": 1.0, "participants": 4, "key": KEY},
    )
    with pytest.raises(
        MissingExtraError,
        match=r"dp-accounting is not installed; try: pip install 'bayesfed\[dp\]'",
    ):
        bf.private(algorithm, **settings, delta=1e-5)
    assert "epsilon" not in final(bf.private(algorithm, **settings), clients, rounds=1).server


def test_a_resumed_run_has_the_same_noise(net, clients):
    algorithm = bf.private(
        bf.fed_paq(net, training=WORK), clip=0.1, noise=0.5, participants=4, key=KEY
    )
    first = final(algorithm, clients, rounds=1)
    assert tree_equal(
        final(algorithm, clients, resume=first.snapshot).state, final(algorithm, clients).state
    )
    other = replace(
        algorithm,
        phases=bf.private(
            bf.fed_paq(net, training=WORK), clip=0.1, noise=0.5, participants=4, key=bf.Key(8)
        ).phases,
    )
    assert not tree_equal(final(other, clients).state, final(algorithm, clients).state)


def test_private_training_learns(net, digits):
    train, test = digits
    clients = bf.federate(train, bf.iid(len(train), 20, bf.Key(0, "parts")))
    algorithm = bf.private(
        bf.fed_avg(net, training=bf.Training(steps=10, batch_size=32, optimiser=bf.Sgd(0.3))),
        clip=1.0,
        noise=0.3,
        participants=20,
        key=KEY,
    )
    assert bf.run(algorithm, clients, rounds=6, test=test, progress=False).final("accuracy") > 0.5


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"clip": 0.0}, r"clip: expected a number in \(0, inf\]"),
        ({"clip": math.nan}, r"clip: expected a number in \(0, inf\]"),
        ({"clip": math.inf}, "a finite clip with noise"),
        ({"noise": -1.0}, r"noise: expected a number in \[0, inf\)"),
        ({"noise": math.inf}, r"noise: expected a number in \[0, inf\)"),
        ({"participants": 0}, "participants: expected a whole number >= 1"),
        ({"population": 9}, "a delta with population"),
        ({"delta": 1.5}, "epsilon, delta: expected a number between 0 and 1"),
        ({"delta": 1e-5, "noise": 0.0}, "epsilon, noise: expected a positive"),
        ({"delta": 1e-5, "population": 3}, "1 <= participants <= population"),
    ],
)
def test_bad_settings_are_refused(net, settings, words):
    with pytest.raises(ArgumentError, match=words):
        bf.private(
            bf.fed_avg(net),
            **{"clip": 0.1, "noise": 1.0, "participants": 4, "key": KEY, **settings},
        )


@pytest.mark.parametrize(
    ("fusion", "scale"), [(bf.SummedGradients(0.05), "local"), (MeanParameters(), "global")]
)
def test_a_posterior_of_gradients_or_parameters_has_a_private_form(fusion, scale):
    """Free of noise it is the method; a client moves the sum by `clip`; epsilon is that of the
    Gaussian mechanism.
    """
    data, made = lines(), svi(fusion, scale)
    settings = {"participants": len(data), "key": KEY}
    free = bf.private(made, clip=math.inf, noise=0.0, **settings)
    even = made if fusion.adds else bf.equal_weights(made)
    assert tree_equal(final(free, data).state, final(even, data).state)
    sums = []
    for few in (0, 1):
        probe = Noted()
        short = bf.private(layered(made, probe), clip=0.01, noise=0.0, **settings)
        final(short, data, rounds=1, sampler=lambda *given, few=few: [*data][few:])
        sums.append(probe.seen[0])
    assert norm(zip_map(torch.sub, *sums)) == pytest.approx(0.01, rel=1e-3)
    noisy = final(bf.private(made, clip=0.05, noise=2.0, delta=1e-5, **settings), data)
    loss = pld.from_gaussian_mechanism(2.0 / math.sqrt(2))
    assert noisy.server["epsilon"] == pytest.approx(loss.get_epsilon_for_delta(1e-5), rel=1e-3)
    local = bf.local_privacy(made, clip=0.05, noise=4.0, key=KEY, delta=1e-5)
    assert final(local, data).server["local_epsilon"] == noisy.server["epsilon"]


@dataclass(frozen=True)
class Noted(Layer):
    """Note the sums that steps are taken on."""

    owner: str = "noted"
    seen: list = field(default_factory=list)

    def step(self, own, moment, total, inner):
        self.seen.append(total.total)
        return own, *inner(total)


def test_what_cannot_be_is_refused(net, clients, declared):
    settings = {"clip": 0.1, "noise": 1.0, "participants": 4, "key": KEY}
    with pytest.raises(ArgumentError, match="one by one, found OverTheAir"):
        bf.private(bf.fed_avg(net, link=bf.OverTheAir(snr_db=20.0)), **settings)
    with pytest.raises(ArgumentError, match="found 'moments' .* which noise can make negative"):
        bf.private(bf.d_turbo_vbi(declared, observations=100), **settings)
    with pytest.raises(ArgumentError, match="found 'natural' .* fusion=SummedGradients"):
        bf.local_privacy(svi(bf.PVI(), "local"), clip=1.0, noise=1.0, key=KEY)
    with pytest.raises(
        ArgumentError, match="takes a sum, found 'robust', which needs every update"
    ):
        bf.private(bf.robust(bf.fed_avg(net), bf.federated.Median()), **settings)
    twice = bf.fed_avg(net)
    twice = replace(twice, phases=(twice.phases[0], replace(twice.phases[0], name="again")))
    with pytest.raises(ArgumentError, match=r"a method of one phase, found \['train', 'again'\]"):
        bf.private(twice, **settings)
    narrow = bf.hetero_fl(
        [net, bf.mlp([64, 8, 10], bf.Key(0, "net"))], bf.fixed(sorted(clients), 2), training=WORK
    )
    with pytest.raises(
        ClientError, match="expected clients of weight 1, found a weight for each entry"
    ):
        final(bf.private(narrow, **settings), clients)
    layer = Private(clip=1.0, noise=1.0, participants=4, kind="value")
    moment = Moment(0, {}, lambda model, round, version: model)
    with pytest.raises(UpdateError, match="clients of weight 1, found 3"):
        layer.admit({}, Update({"w": 3 * torch.ones(2)}, 3.0, "delta"), moment)
    with pytest.raises(UpdateError, match="values of the state's leaves"):
        layer.step({}, moment, Update({"w": torch.ones(2)}, 1.0, "value"), lambda total: total)


@pytest.mark.parametrize(
    "rule",
    [
        bf.federated.NormGate(2.0),
        bf.federated.Median(),
        bf.federated.TrimmedMean(0.2),
        bf.federated.Krum(1),
    ],
    ids=["gate", "median", "trimmed", "krum"],
)
def test_a_rule_around_privacy_is_refused_as_privacy_around_a_rule_is(net, rule):
    """A rule of whole updates or entries has another sensitivity than a sum, and the step would be
    divided by `participants` again.
    """
    noisy = bf.private(bf.fed_avg(net), clip=1.0, noise=1.0, participants=4, key=KEY, delta=1e-5)
    for private in (noisy, bf.equal_weights(noisy)):
        with pytest.raises(
            ArgumentError,
            match=(
                "robust, 'fed_avg': expected a method without 'private', found one with "
                "'private'; try one of the two"
            ),
        ):
            bf.robust(private, rule)
    with pytest.raises(ArgumentError, match="a method whose server takes a sum"):
        bf.private(bf.robust(bf.fed_avg(net), rule), clip=1.0, noise=1.0, participants=4, key=KEY)
