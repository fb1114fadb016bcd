"""D-Turbo-VBI over the air: sums of active entries, and standard deviations that noise made
negative.
"""

import warnings

import pytest
import torch
from pyro.infer.autoguide import AutoNormal

import bayesfed as bf
from bayesfed.algorithms.d_turbo_vbi import ToDensity
from bayesfed.errors import CollapseWarning, UpdateError
from bayesfed.federated import Digital
from bayesfed.federated.engine.reports import channel_uses
from tests.conftest import tree_equal

CLEAR = bf.OverTheAir(bf.wireless.ChannelInversion(0.0, "weakest"), power_w=1.0, noise_w=0.0)


def turbo(net, rows, link, **options):
    declared = bf.declare(net, likelihood=bf.Categorical(temperature=0.2))
    fixed = {
        "training": bf.Training(steps=3),
        "codec": bf.Cast(32),
        "density": ToDensity(patience=0),
    }
    return bf.d_turbo_vbi(declared, observations=rows, link=link, **fixed, **options)


@pytest.mark.parametrize("spread", ["shared", "layer", "weight"])
def test_turbo_over_a_clear_channel_is_as_digitally_and_sends_active_entries_only(
    spread, digits, clients, net
):
    rows = len(digits[0])
    plain, linked, air = (
        bf.run(turbo(net, rows, link, spread=spread), clients, rounds=3, progress=False)
        for link in (None, Digital(), CLEAR)
    )
    assert tree_equal(plain.snapshot.state, linked.snapshot.state)
    for name, leaf in plain.snapshot.state.items():
        if name.endswith((".mean", "sd")):
            assert torch.allclose(air.snapshot.state[name], leaf, atol=1e-5)
    whole, last = (channel_uses(air.history[number].rows) for number in (0, -1))
    assert last < whole


@pytest.mark.parametrize("spread", ["shared", "weight"])
def test_a_sd_that_noise_made_negative_stops_the_run(spread, digits, clients, net):
    link = bf.OverTheAir(bf.wireless.ChannelInversion(0.3), snr_db=-25.0)
    algorithm = turbo(net, len(digits[0]), link, spread=spread)
    # The noise undoes rounds before it makes a standard deviation negative.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CollapseWarning)
        with pytest.raises(UpdateError, match="expected standard deviations above 0"):
            bf.run(algorithm, clients, rounds=12, progress=False)


def test_moments_that_noise_made_improper_stop_the_run_too(digits, clients, net):
    train, _ = digits
    model, link = (
        bf.bayesian(net, bf.Gaussian(0.5)),
        bf.OverTheAir(bf.wireless.ChannelInversion(0.3), snr_db=-30.0),
    )
    rule = {
        "fusion": bf.inference.Wasserstein(),
        "scale": "global",
        "observations": len(train),
        "example": train[:2],
        "training": bf.Training(steps=2, batch_size=16),
    }
    with pytest.raises(UpdateError, match="expected standard deviations above 0"):
        bf.run(
            bf.federated_svi(model, AutoNormal, link=link, **rule),
            clients,
            rounds=2,
            progress=False,
        )
