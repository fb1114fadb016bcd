"""The air: what is expected of it in theory, ten thousand rounds of it, and what it refuses."""

import functools
import math
import weakref

import pytest
import torch
from scipy.special import exp1

from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.keys import Key
from bayesfed.wireless.channels import Gain, channel_uses, fading, pack, transmit, unpack
from bayesfed.wireless.power_control import (
    ChannelInversion,
    Gbma,
    Precoding,
    common_amplitude,
)

KEY = Key(0, "air")
ROUNDS = 10_000
CLIENTS = ("ann", "ben", "cho")
# Two real numbers a client.
VALUES = {
    name: torch.tensor(pair, dtype=torch.float64)
    for name, pair in (("ann", [1.0, -2.0]), ("ben", [0.5, 3.0]), ("cho", [-1.5, 0.0]))
}


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@functools.cache
def gains(round, clients=CLIENTS, variance=0.0, key=KEY):
    return {client: fading(key, client, round, estimate_variance=variance) for client in clients}


def known(found):
    return {client: gain.known for client, gain in found.items()}


def true(found):
    return {client: gain.true for client, gain in found.items()}


def play(control, rounds, *, noise_w=0.0, amplitude=1.0, reals=1, variance=0.0, values=VALUES):
    """Return the estimated sums (rounds, 2) of rounds somebody was heard in, and what was
    received.
    """
    sums, received = [], []
    packed = [(client, pack(payload, reals)) for client, payload in values.items()]
    for round in range(rounds):
        found = gains(round, tuple(values), variance)
        try:
            plan = control.precode(known(found), amplitude, estimate_variance=variance)
        except UpdateError:
            continue
        received.append(transmit(packed, true(found), plan, noise_w=noise_w, key=KEY, round=round))
        sums.append(received[-1].sum(2, reals))
    return torch.stack(sums), received


def z_of_mean(draws, expected):
    return float(
        ((draws.mean(dim=0) - expected) / (draws.std(dim=0) / math.sqrt(len(draws)))).abs().max()
    )


def z_of_variance(draws, expected, mean):
    return z_of_mean((draws - mean).square(), expected)


TOTAL = sum(VALUES.values())
ENERGY = sum(value.square() for value in VALUES.values())


@pytest.fixture(scope="module")
def drawn():
    return [fading(KEY, "ann", round, estimate_variance=0.5) for round in range(ROUNDS)]


def test_gains_are_standard_rayleigh(drawn):
    h = torch.tensor([gain.true for gain in drawn], dtype=torch.complex128)
    parts = torch.view_as_real(h)
    assert z_of_mean(parts, 0.0) < 4
    assert z_of_mean(parts.square(), 0.5) < 4
    assert z_of_mean(parts.prod(dim=1, keepdim=True), 0.0) < 4
    assert z_of_mean(h.abs()[:, None], math.sqrt(math.pi) / 2) < 4
    assert z_of_mean(h.abs().square()[:, None], 1.0) < 4
    for threshold in (0.3, 1.0):
        assert z_of_mean((h.abs() >= threshold).double()[:, None], math.exp(-(threshold**2))) < 4


def test_an_estimate_is_the_gain_and_an_error_of_its_own(drawn):
    h, estimate = (
        torch.tensor([getattr(gain, name) for gain in drawn], dtype=torch.complex128)
        for name in ("true", "known")
    )
    error = estimate - h
    assert z_of_mean(torch.view_as_real(error).square(), 0.25) < 4
    assert z_of_mean(torch.view_as_real(error * h.conj()), 0.0) < 4
    assert z_of_mean((estimate.abs() >= 0.8).double()[:, None], math.exp(-(0.8**2) / 1.5)) < 4
    # What the receive scales rest on: E[h | h + e] = (h + e) / (1.5).
    assert z_of_mean(torch.view_as_real((h - estimate / 1.5) * estimate.conj()), 0.0) < 4


def test_a_gain_depends_on_its_name_alone():
    assert gains(3) == gains(3)
    assert gains(3, CLIENTS[::-1]) == gains(3)
    assert gains(3, ("cho",))["cho"] == gains(3)["cho"]
    assert true(gains(3, variance=0.5)) == true(gains(3))
    assert (
        len(
            {
                gain.true
                for round in (3, 4)
                for key in (KEY, Key(1))
                for gain in gains(round, key=key).values()
            }
        )
        == 12
    )
    assert fading(KEY, "ann", 0) == Gain(fading(KEY, "ann", 0).known, fading(KEY, "ann", 0).true)


@pytest.mark.parametrize("variance", [pytest.param(0.0, marks=pytest.mark.slow), 0.5])
def test_gbma_is_unbiased_for_the_sum_with_the_variance_it_states(variance):
    sums, _ = play(
        Gbma(), 3000 if variance else ROUNDS, noise_w=0.8, amplitude=1.7, variance=variance
    )
    assert z_of_mean(sums, TOTAL) < 4
    rho = 1.7 * math.sqrt(math.pi / (1 + variance)) / 2
    assert (
        z_of_variance(
            sums, (4 / math.pi * (1 + variance / 2) - 1) * ENERGY + 0.8 / (2 * rho**2), TOTAL
        )
        < 4
    )


def test_gbma_as_printed_is_unbiased_for_products_and_not_for_sums():
    for variance in (0.0, 0.5):
        alone, _ = play(
            Gbma("product"),
            4000,
            variance=variance,
            values={"ann": torch.tensor([2.0, -3.0], dtype=torch.float64)},
        )
        if not variance:
            assert z_of_mean(alone[:, :1], 2.0 * math.sqrt(math.pi) / 2) < 4
            assert z_of_mean(alone[:, :1], 2.0) > 10
        assert z_of_mean(alone.prod(dim=1, keepdim=True), -6.0) < 4


@pytest.mark.slow
def test_ten_equal_payloads_under_gbma_spread_by_a_sixth():
    values = {f"client-{index}": torch.ones(2, dtype=torch.float64) for index in range(10)}
    sums, _ = play(Gbma(), 1000, values=values)
    share = math.sqrt(4 / math.pi - 1) / math.sqrt(10)
    assert round(100 * share, 1) == 16.5
    assert z_of_mean(sums[:, :1] / 10, 1.0) < 4
    assert z_of_variance(sums[:, :1] / 10, share**2, 1.0) < 4


@pytest.mark.slow
def test_inversion_is_the_sum_of_those_on_the_air_plus_noise():
    control = ChannelInversion(0.6)
    sums, received = play(control, ROUNDS, noise_w=0.8, amplitude=1.7)
    survivors = torch.stack([sum(VALUES[client] for client in got.heard) for got in received])
    rho = 1.7 / math.sqrt(float(exp1(0.36)))
    assert all(got.scale == pytest.approx(rho) for got in received)
    assert z_of_mean(sums, survivors.mean(dim=0)) < 4
    assert z_of_mean(sums - survivors, 0.0) < 4
    assert z_of_variance(sums - survivors, 0.8 / (2 * rho**2), 0.0) < 4
    heard = sum(len(got.heard) for got in received) / (3 * ROUNDS)
    chance = math.exp(-0.36)
    assert abs(heard - chance) < 4 * math.sqrt(chance * (1 - chance) / (3 * ROUNDS))


@pytest.mark.parametrize("reals", [1, 2])
def test_inversion_of_an_estimate_is_unbiased_with_the_variance_it_states(reals):
    sums, received = play(ChannelInversion(0.6), 3000, variance=0.5, reals=reals)
    errors = sums - torch.stack([sum(VALUES[client] for client in got.heard) for got in received])
    assert z_of_mean(errors, 0.0) < 4
    u = 0.36 / 1.5
    share = 0.25 * math.exp(u) * float(exp1(u))
    energy = torch.stack([sum(VALUES[client].square() for client in got.heard) for got in received])
    assert (
        z_of_mean(
            errors.square() - share * (energy if reals == 1 else energy.sum(dim=1, keepdim=True)),
            0.0,
        )
        < 4
    )


@pytest.mark.parametrize(
    "control",
    [ChannelInversion(0.6), ChannelInversion(0.6, "peak"), ChannelInversion(0.0, "weakest")],
)
def test_inversion_without_noise_is_exact(control):
    sums, received = play(control, 50)
    expected = torch.stack([sum(VALUES[client] for client in got.heard) for got in received])
    assert torch.allclose(sums, expected, rtol=1e-13, atol=1e-13)
    if control.threshold == 0:
        assert all(got.heard == CLIENTS for got in received)
        assert torch.allclose(sums, TOTAL.expand(50, 2), atol=1e-13)


@pytest.mark.parametrize("reals", [1, 2])
def test_noise_is_half_on_each_axis(reals):
    plan, count = Precoding({"ann": 2.0}, 2.0), 20_000
    got = transmit(
        [("ann", pack(torch.zeros(count, dtype=torch.float64), reals))],
        {"ann": 1.0},
        plan,
        noise_w=3.0,
        key=KEY,
        round=0,
    )
    axes = torch.view_as_real(got.symbols)
    assert z_of_mean(axes, 0.0) < 4
    assert z_of_variance(axes, 1.5, 0.0) < 4
    assert z_of_mean(axes.prod(dim=1, keepdim=True), 0.0) < 4
    assert z_of_variance(got.sum(count, reals)[:, None], 3.0 / (2 * 2.0**2), 0.0) < 4


@pytest.mark.parametrize("per", ["symbol", "matrix"])
@pytest.mark.parametrize("reals", [1, 2])
def test_power_is_what_was_asked_for(per, reals):
    budget_w = 2 * 10**2.5
    values = torch.randn(3136, generator=KEY.generator(), dtype=torch.float64)
    symbols, uses = pack(values, reals), channel_uses(3136, reals)
    a = common_amplitude(budget_w, float(values.square().sum()), uses, per)
    found = gains(0)
    got = transmit(
        ((client, symbols) for client in CLIENTS),
        true(found),
        Gbma().precode(known(found), a),
        noise_w=2.0,
        key=KEY,
        round=0,
    )
    for spent in got.spent.values():
        matrix_w = uses * spent.mean_w
        assert (spent.mean_w if per == "symbol" else matrix_w) == pytest.approx(budget_w)
        assert spent.peak_w == pytest.approx(a**2 * float(symbols.abs().max()) ** 2)
        if per == "matrix" and reals == 1:
            # The paper's 25 dB of a 784 x 4 matrix.
            assert 10 * math.log10(spent.mean_w / 2.0) == pytest.approx(
                25 - 10 * math.log10(784 * 4)
            )
            assert round(10 * math.log10(spent.mean_w / 2.0)) == -10


def test_inversion_keeps_to_its_constraint():
    ones = dict.fromkeys(CLIENTS, torch.ones(2, dtype=torch.float64))
    loudest = {
        control: [
            max(use.mean_w for use in got.spent.values())
            for got in play(control, 300, values=ones)[1]
        ]
        for control in (
            ChannelInversion(0.5, "peak"),
            ChannelInversion(0.5, "weakest"),
            ChannelInversion(0.0, "weakest"),
        )
    }
    for control, powers in loudest.items():
        assert max(powers) <= 1 + 1e-12
        assert (min if control.constraint == "weakest" else max)(powers) > 0.95


@pytest.mark.parametrize("variance", [0.0, 0.5])
@pytest.mark.slow
def test_inversion_keeps_its_average_with_silent_rounds_counted_as_zero(variance):
    control, powers = ChannelInversion(0.5), torch.zeros(ROUNDS, 1, dtype=torch.float64)
    for round in range(ROUNDS):
        plan = control.precode(
            {"ann": gains(round, CLIENTS, variance)["ann"].known, "sure": 9.0},
            1.0,
            estimate_variance=variance,
        )
        powers[round] = abs(plan.coefficients.get("ann", 0.0)) ** 2
    assert z_of_mean(powers, 1.0) < 4
    assert float(powers.max()) <= 1 / (float(exp1(0.25 / (1 + variance))) / (1 + variance) * 0.25)


def test_streaming_is_all_at_once_and_the_same_bits_every_time():
    values = {
        client: torch.randn(501, generator=KEY.child(client).generator()) for client in CLIENTS
    }
    found = gains(7)
    plan = Gbma().precode(known(found), 1.3)

    def stream():
        return ((client, pack(payload, 2)) for client, payload in values.items())

    first, second = (
        transmit(stream(), true(found), plan, noise_w=0.5, key=KEY, round=7) for _ in range(2)
    )
    assert torch.equal(first.symbols, second.symbols)
    assert first.symbols.dtype == torch.complex64
    assert not torch.equal(
        first.symbols, transmit(stream(), true(found), plan, noise_w=0.5, key=KEY, round=8).symbols
    )
    noise = transmit(
        [("ann", torch.zeros(251, dtype=torch.complex64))],
        true(found),
        plan,
        noise_w=0.5,
        key=KEY,
        round=7,
    ).symbols
    rows = torch.stack([symbols for _, symbols in stream()])
    coefficients = torch.tensor(
        [found[client].true * plan.coefficients[client] for client in CLIENTS],
        dtype=torch.complex64,
    )
    assert torch.allclose(first.symbols, coefficients @ rows + noise, atol=1e-5)
    assert torch.equal(
        pack(values["ann"], 2)[:250], torch.view_as_complex(values["ann"][:500].view(250, 2))
    )


def test_payloads_are_left_as_they_are_and_let_go_one_by_one():
    sent, names = [], [f"client-{index}" for index in range(10)]

    def stream():
        for client in names:
            # The caller's loop still holds the one before.
            assert sum(reference() is not None for reference in sent) <= 1
            payload = torch.ones(4, dtype=torch.complex64)
            sent.append(weakref.ref(payload))
            yield client, payload
            assert bool((payload == 1).all())
            del payload

    ones = dict.fromkeys(names, 1.0)
    got = transmit(stream(), ones, Precoding(ones, 1.0), noise_w=0.0, key=KEY, round=0)
    assert len(sent) == 10
    assert torch.equal(got.sum(4, 1), torch.full((4,), 10.0))


@pytest.mark.parametrize("count", [1, 2, 7, 8])
@pytest.mark.parametrize("reals", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_packing_comes_back_and_keeps_energy(count, reals, dtype):
    values = torch.randn(count, generator=KEY.generator(), dtype=dtype)
    symbols = pack(values, reals)
    assert symbols.shape == (channel_uses(count, reals),) == (math.ceil(count / reals),)
    assert torch.equal(unpack(symbols, count, reals), values)
    assert float(symbols.abs().square().sum()) == pytest.approx(
        float(values.square().sum()), rel=1e-5
    )


def test_silent_clients_are_passed_over_and_absent_ones_not_heard():
    plan = ChannelInversion(0.5, "peak").precode({"ann": 1 + 0j, "ben": 0.1j, "cho": 2j}, 1.0)
    assert set(plan.coefficients) == {"ann", "cho"}
    everyone = {"ann": 1 + 0j, "ben": 0.1j, "cho": 2j}
    payloads = [
        ("ann", torch.ones(3, dtype=torch.complex64)),
        ("ben", torch.full((3,), math.nan, dtype=torch.complex64)),
    ]
    got = transmit(payloads, everyone, plan, noise_w=0.0, key=KEY, round=0)
    assert got.heard == ("ann",)
    assert torch.allclose(got.sum(3, 1), torch.ones(3))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: transmit([], {}, Precoding({"ann": 1.0}, 1.0), noise_w=0.0, key=KEY, round=4),
            UpdateError,
            "round 4: expected a client on the air, found none heard",
        ),
        (
            lambda: Gbma("mean"),
            ArgumentError,
            "unbiased: expected one of 'sum', 'product', found 'mean'",
        ),
        (
            lambda: Gbma().precode({}, 1.0),
            UpdateError,
            "Gbma: expected a client on the air, found none of 0",
        ),
        (
            lambda: Gbma().precode({"ann": 1j}, 0.0),
            ArgumentError,
            "Gbma.precode, amplitude: expected a positive finite number",
        ),
        (
            lambda: Gbma().precode({"ann": math.nan}, 1.0),
            ArgumentError,
            r"Gbma.precode, known: expected finite gains by client, found {'ann': nan}",
        ),
        (
            lambda: Gbma().precode({"ann": 1j}, 1.0, estimate_variance=math.inf),
            ArgumentError,
            "estimate_variance: expected a finite number from 0 up",
        ),
        (
            lambda: ChannelInversion(0.0),
            ArgumentError,
            r"a finite threshold > 0: the mean of 1/\|h\|\^2 is infinite, found 0.0",
        ),
        (lambda: ChannelInversion(-1.0, "weakest"), ArgumentError, "a finite threshold >= 0"),
        (
            lambda: ChannelInversion(0.3, "best"),
            ArgumentError,
            "'average', 'peak', 'weakest', found 'best'",
        ),
        (
            lambda: ChannelInversion(0.5).precode({"ann": 0.1, "ben": 0.2j}, 1.0),
            UpdateError,
            "a client on the air, found none of 2; try a lower threshold",
        ),
        (
            lambda: ChannelInversion(30.0).precode({"ann": 31.0}, 1.0),
            ArgumentError,
            "a threshold ever reached, found 30.0",
        ),
        (
            lambda: ChannelInversion(0.0, "weakest").precode({"ann": 0j}, 1.0),
            UpdateError,
            "none of 1",
        ),
    ],
)
def test_what_is_refused_and_why(call, error, words):
    with pytest.raises(error, match=words):
        call()
