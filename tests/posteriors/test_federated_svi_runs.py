"""Runs of federated SVI: workers and resuming, turns, evidence, predictions, failures."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyro
import pytest
import torch
from pyro.infer.autoguide import AutoMultivariateNormal

import bayesfed as bf
from bayesfed.errors import ArgumentError, ClientError, UndeterminedWarning
from bayesfed.federated import evidence, load
from bayesfed.inference.variational.fusion import PVI
from bayesfed.keys import Key
from tests.posteriors.test_federated_svi import clients, fitted, line, rows, same
from tests.support.saving import save

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["pvi", "gradients", "wasserstein"])
def test_workers_resuming_and_batches(rule):
    found, data = clients()
    whole = fitted(rule=rule, rounds=4, batch_size=8)
    half = fitted(rule=rule, rounds=2, batch_size=8)
    resumed = fitted(rule=rule, rounds=4, batch_size=8, run={"resume": half.snapshot})
    assert same(whole.snapshot.state, resumed.snapshot.state)
    parallel = fitted(
        rule=rule, rounds=4, batch_size=8, parts=(bf.InProcess(found, workers=2), data)
    )
    assert same(whole.snapshot.state, parallel.snapshot.state)


@pytest.mark.slow
def test_a_fitted_model_is_saved_and_continues_in_another_process(tmp_path):
    """Two processes and a file between them give the bits of one run: server state and the clients'
    sites.
    """
    whole = fitted(rounds=4)
    script = (
        "import sys; from tests.posteriors import test_federated_svi as t; from "
        "bayesfed.federated import load; from tests.support.saving import save\n"
        "save(sys.argv[1], t.fitted(rounds=4, run={'resume': load(sys.argv[1])}).snapshot)"
    )
    save(tmp_path / "run", fitted(rounds=2).snapshot)
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "run")], cwd=ROOT, check=True
    )
    found = load(tmp_path / "run")
    assert found.round == 4
    assert same(found.state, whole.snapshot.state)
    assert found.memories.keys() == whole.snapshot.memories.keys()
    assert all(
        same(memory, found.memories[name]) for name, memory in whole.snapshot.memories.items()
    )


def test_two_runs_in_one_process_do_not_know_of_each_other():
    """The first, of another rule and guide, leaves nothing behind: with or without it the second
    has the same bits.
    """
    alone = fitted(rule="gradients").snapshot.state
    fitted(AutoMultivariateNormal, "pvi", rounds=1)
    torch.manual_seed(12)
    pyro.param("slope_loc", torch.ones(2))
    assert same(fitted(rule="gradients").snapshot.state, alone)
    pyro.clear_param_store()


@pytest.mark.slow
def test_one_client_after_the_other_needs_no_damping():
    parts = clients()
    settings = {
        "parts": parts,
        "rounds": 12,
        "steps": 60,
        "optimiser": bf.federated.NaturalGradient(0.2),
    }
    turns = fitted(
        rule=PVI(damping=1.0), run={"sampler": bf.federated.in_turn}, **settings
    ).posterior.constants
    together = fitted(rule=PVI(damping=0.4), **settings).posterior.constants
    for name, leaf in turns.items():
        assert (
            float(((leaf - together[name]) / together[name.replace(".mean", ".sd")]).abs().max())
            < 0.3
        )


@pytest.mark.slow
def test_the_elbo_of_all_rows_rises_round_by_round():
    _, data = clients()
    result = fitted(rule=PVI(damping=0.4), rounds=6, steps=30, run={"callbacks": [evidence(data)]})
    found = [value for _, value in result.series("elbo")]
    assert len(found) == 6
    assert found[-1] > found[0] + 1
    assert found[-1] == pytest.approx(
        result.posterior.elbo(data, Key(1, "other"), draws=500), abs=1.5
    )
    assert (
        fitted(rule=PVI(damping=0.4), rounds=1, steps=1).snapshot.state.keys()
        == result.snapshot.state.keys()
    )
    with pytest.raises(ArgumentError, match="log_weights"):
        bf.run(
            bf.conjugate({"h": torch.zeros(1)}, lambda rows: {"h": torch.ones(1)}),
            clients()[0],
            rounds=1,
            callbacks=[evidence(data)],
            progress=False,
        )
    for name in ("draws", "every"):
        with pytest.raises(
            ArgumentError, match=f"evidence, {name}: expected a whole number >= 1, found 0"
        ):
            evidence(data, **{name: 0})


@pytest.mark.slow
def test_predictions_importance_weights_and_export():
    result = fitted(rule=PVI(damping=0.5), rounds=6, steps=30)
    data = rows(40, "test")
    posterior = result.posterior
    weights = posterior.log_weights(clients()[1], Key(0, "weights"), draws=100)
    assert weights.shape == (100,)
    assert posterior.elbo(clients()[1], Key(0, "weights"), draws=100) == pytest.approx(
        float(weights.mean())
    )
    assert float((result.model(data.inputs) - data.targets).square().mean()) < 0.4
    out = result.to_arviz(data, draws=20)
    assert set(out.posterior.data_vars) == {"slope", "noise"}
    assert out.prior["slope"].shape == (1, 20, 2)
    assert out.log_likelihood["y"].shape == out.posterior_predictive["y"].shape == (1, 20, 40)
    assert out.constant_data["slope.mean"].shape == (2,)
    assert np.isfinite(out.federation["bits_up"].to_numpy()).all()


def test_failures_name_the_client_and_lose_nothing():
    def broken(inputs, targets=None):
        if (
            targets is not None
            and len(targets) == 20
            and bool((targets == rows(60).targets[:20]).all())
        ):
            raise RuntimeError("sensor unplugged")
        return line(inputs, targets)

    with pytest.raises(ClientError, match="client-0.*sensor unplugged"):
        fitted(model=broken)
    with pytest.warns(UndeterminedWarning, match=r"never heard were 'client-0' \(33.3% of the"):
        result = fitted(model=broken, run={"on_client_error": "drop"})
    assert set(result.history[0].refused) == {"client-0"}
    with pytest.raises(ClientError, match="stage 'fit'.*scale"):
        fitted(optimiser=bf.Adam(1e30))
