"""The ArviZ export, tables, pictures and the front door."""

import sys
from dataclasses import replace

import arviz_base
import numpy as np
import pytest
import torch
import xarray

import bayesfed as bf
from bayesfed.algorithms.d_turbo_vbi import ToDensity
from bayesfed.errors import ArgumentError
from bayesfed.federated import keep
from bayesfed.inspect import (
    plot_accuracy_against_bits,
    plot_forest,
    plot_inputs,
    plot_series,
    plot_support_maps,
    plot_unit_maps,
    save,
    table,
    to_arviz,
)


@pytest.fixture(scope="module")
def finished():
    train, test = bf.digits()
    clients = bf.federate(train, bf.dirichlet(train.targets, 4, 0.5, bf.Key(0, "partition")))
    declared = bf.declare(
        bf.mlp([64, 16, 10], bf.Key(0, "net")), likelihood=bf.Categorical(temperature=0.2)
    )
    work = bf.Training(steps=20, batch_size=16, optimiser=bf.Adam(5e-3))
    frames = {}
    result = bf.run(
        bf.d_turbo_vbi(
            declared,
            observations=len(train),
            training=work,
            density=ToDensity(patience=0, keep=0.5),
        ),
        clients,
        rounds=4,
        test=test,
        progress=False,
        callbacks=[keep("prior_log_odds/1.weight", frames, every=2)],
    )
    return result, test[slice(0, 30)], frames


def export(finished, **changes):
    result, data, _ = finished
    return to_arviz(
        result.algorithm, result.snapshot.state, result.history, data, **{"draws": 8, **changes}
    )


def test_every_group_is_there_with_names(finished):
    result, data, _ = finished
    out = result.to_arviz(data, draws=8)
    assert out.posterior["1.weight.w"].dims == ("chain", "draw", "1.weight.unit", "1.weight.input")
    assert out.posterior["1.weight.w"].shape == (1, 8, 16, 64)
    assert set(out.posterior.data_vars) == {
        f"{site}.{leaf}" for site in ("1.weight", "3.weight") for leaf in ("w", "rho", "s")
    }
    assert out.posterior_predictive["y"].dims == ("chain", "draw", "row")
    assert out.log_likelihood["y"].shape == (1, 8, 30)
    assert np.array_equal(out.observed_data["y"], data.targets)
    federation = out.federation
    assert federation["bits_up"].dims == ("round", "client")
    assert float(federation["bits_up"].sum()) == result.bits("up")
    assert float(federation["bits_down"].sum()) == result.bits("down")
    assert {"elbo", "density", "accuracy", "reactivated", "bp_residual", "bp_multistable"} <= set(
        federation.data_vars
    )
    assert {"bp_residual.1.weight", "bp_multistable.3.weight"} <= set(federation.data_vars)
    assert float(federation["bp_multistable"].max()) == 0
    assert float(federation["bp_residual.1.weight"].max()) <= 1e-2
    assert bool((federation["accepted"] == 1).all())


@pytest.mark.slow
def test_draws_are_those_of_the_posterior(finished):
    result, data, _ = finished
    posterior = result.posterior
    out = export(finished, draws=400)
    site = posterior.belief["3.weight"]
    inclusion = out.constant_data["3.weight.inclusion"].to_numpy()
    assert np.allclose(inclusion, site.inclusion)
    drawn = out.posterior["3.weight.s"].mean(("chain", "draw")).to_numpy()
    assert np.abs(drawn - inclusion).max() < 5 * 0.5 / 20
    mean = out.posterior["3.weight.w"].mean(("chain", "draw")).to_numpy()
    assert np.all(np.abs(mean - site.mean.numpy()) < 6 * site.sd.expand_as(site.mean).numpy() / 20)
    assert float(out.posterior["3.weight.rho"].mean()) / float(
        site.expected_precision.mean()
    ) == pytest.approx(1, abs=0.1)
    model = result.model(data.inputs)
    assert model.shape == (30, 10)
    right = (out.posterior_predictive["y"].to_numpy() == data.targets.numpy()).mean()
    # Chance is 0.1; this is a posterior after 80 steps.
    assert right > 0.15
    # log p(y | one draw) agrees with the likelihood at that draw.
    draw = {
        name: torch.from_numpy(out.posterior[name][0, 0].to_numpy().astype(np.float32))
        for name in ("1.weight.w", "3.weight.w")
    }
    logits = posterior.predict(draw, data.inputs)
    assert np.allclose(
        out.log_likelihood["y"][0, 0],
        torch.log_softmax(logits, 1)[torch.arange(30), data.targets],
        atol=1e-5,
    )


def test_the_same_seed_draws_the_same(finished):
    first, second, other = export(finished), export(finished), export(finished, seed=1)
    assert first.posterior.equals(second.posterior)
    assert first.posterior_predictive.equals(second.posterior_predictive)
    assert not first.posterior.equals(other.posterior)


def test_thinning_keeps_coordinates(finished):
    whole, thin = export(finished), export(finished, thin=5)
    assert thin.posterior["1.weight.unit"].to_numpy().tolist() == [0, 5, 10, 15]
    assert np.array_equal(
        thin.posterior["1.weight.w"], whole.posterior["1.weight.w"][..., ::5, ::5]
    )


@pytest.mark.parametrize("backend", [None, arviz_base])
def test_netcdf_round_trip_in_both_generations_of_arviz(finished, tmp_path, backend, monkeypatch):
    if backend:
        monkeypatch.setitem(sys.modules, "arviz", backend)
    out = export(finished)
    assert isinstance(out, xarray.DataTree) is (backend is arviz_base)
    out.to_netcdf(tmp_path / "run.nc")
    with xarray.open_datatree(tmp_path / "run.nc", engine="h5netcdf") as back:
        for group in (
            "posterior",
            "posterior_predictive",
            "log_likelihood",
            "observed_data",
            "constant_data",
            "federation",
        ):
            xarray.testing.assert_equal(
                back[group].to_dataset(), out[group].to_dataset() if backend else out[group]
            )
        assert back["federation"]["client"].to_numpy().tolist() == [
            f"client-{i:03d}" for i in range(4)
        ]


def test_a_large_posterior_has_fewer_draws_by_default(finished):
    assert export(finished, draws=None).posterior.sizes["draw"] == 100


def test_a_method_without_posterior_exports_its_federation(finished):
    _, data, _ = finished
    result = bf.run(
        bf.fed_avg(bf.mlp([64, 10], bf.Key(0)), training=bf.Training(steps=2)),
        {"a": data},
        rounds=2,
        progress=False,
    )
    out = result.to_arviz()
    assert list(out.groups()) == ["federation"]
    assert "elbo" not in out.federation
    assert list(result.to_arviz(data).groups()) == ["observed_data", "federation"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"draws": 0}, "draws and thin >= 1"),
        ({"thin": 0}, "draws and thin"),
        ({"draws": 10**6}, "thin=4 or fewer draws"),
    ],
)
def test_bad_exports_are_refused(finished, changes, words):
    with pytest.raises(ArgumentError, match=words):
        export(finished, **changes)


def test_result_answers(finished, tmp_path):
    from safetensors.torch import load_file

    result, _data, _ = finished
    assert (
        result.bits()
        == result.bits("up") + result.bits("down")
        == sum(row.bits for row in result.ledger)
    )
    assert [number for number, _ in result.series("accuracy")] == [0, 1, 2, 3]
    assert result.final("accuracy") == result.series("accuracy")[-1][1]
    with pytest.raises(ArgumentError, match="'accuracy'.*found 'acuracy'"):
        result.final("acuracy")
    result.save_model(tmp_path / "model.safetensors")
    saved = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(saved[name], leaf) for name, leaf in result.model.parameters.items())
    active = sum(
        round(result.final(f"density/{site}") * saved[site].numel())
        for site in ("1.weight", "3.weight")
    )
    sent = sum(int((saved[site] != 0).sum()) for site in ("1.weight", "3.weight"))
    # What has just come back starts at zero.
    assert active - sent == result.final("reactivated")


def test_tables_line_up(finished):
    text = finished[0].table(every=2)
    lines = text.splitlines()
    assert lines[0].split()[:4] == ["round", "elbo", "accuracy", "density"]
    assert len({len(line) for line in lines}) == 1
    assert [line.split()[0] for line in lines[2:]] == ["0", "1", "3"]
    assert table(["name", "n"], [["a", 1], ["bcd", 1234]]).splitlines() == [
        "name      n",
        "----  -----",
        "a         1",
        "bcd   1,234",
    ]


def test_pictures_say_what_they_show(finished, tmp_path):
    result, _, frames = finished
    maps = plot_support_maps(frames, title="layer", history=result.history, site="1.weight")
    assert all(
        "messages within" in panel.texts[0].get_text()
        and "0.0% multistable" in panel.texts[0].get_text()
        for panel in maps
    )
    units = plot_unit_maps(result.posterior.belief["1.weight"].inclusion, (8, 8), count=5)
    chosen = [int(panel.get_title().removeprefix("unit ")) for panel in units if panel.get_title()]
    inclusion = result.posterior.belief["1.weight"].inclusion
    assert chosen == sorted(inclusion.sum(1).topk(5).indices.tolist())
    assert np.allclose(units[2].images[0].get_array(), inclusion[chosen[2]].reshape(8, 8))
    assert [panel.get_title() for panel in maps] == ["round 1", "round 2", "round 4"]
    shown = maps[-1].images[0].get_array()
    assert np.allclose(shown, torch.sigmoid(frames[3]))
    elbo = result.plot_elbo()
    assert elbo.get_ylabel() == "ELBO (nats)"
    assert len(elbo.lines[0].get_xdata()) == 4
    curve = plot_accuracy_against_bits({"ours": result.history, "twice": result.history})
    assert curve.lines[0].get_xdata()[-1] == pytest.approx(result.bits() / 8e6)
    site = result.posterior.belief["1.weight"]
    forest = plot_forest(site, count=5)
    likeliest = divmod(int((site.inclusion + 1e-9 * site.mean.abs()).argmax()), 64)
    labels = [label.get_text() for label in forest.get_yticklabels()]
    assert len(labels) == 5
    assert labels[-1] == "unit {}, input {}".format(*likeliest)
    for number, axes in enumerate((maps[0], elbo, curve, forest, units[0])):
        save(axes, tmp_path / "new" / f"{number}.png")
        assert (tmp_path / "new" / f"{number}.png").stat().st_size > 5000


def test_numbers_below_a_saved_forest_have_room(finished, tmp_path):
    site = finished[0].posterior.belief["1.weight"]
    mean, ones = torch.linspace(-0.98, 0.8, 20).view(4, 5), torch.ones(4, 5)
    forest = plot_forest(replace(site, mean=mean, sd=0.07 * ones, log_odds=ones))
    # A saved picture is wider than the one that is laid out.
    save(forest, tmp_path / "forest.png")
    assert 4 <= len(forest.get_xticks()) <= 7


def test_inputs_are_bars_of_the_likeliest_or_a_map(finished):
    probabilities = finished[0].inputs()
    bars = plot_inputs(probabilities, count=5)
    drawn = [patch.get_width() for patch in bars.patches]
    named = [probabilities[label.get_text()] for label in bars.get_yticklabels()]
    assert drawn == named == sorted(probabilities.values())[-5:]
    (image,) = plot_inputs(probabilities, (8, 8)).get_images()
    assert image.get_array().flatten().tolist() == pytest.approx(list(probabilities.values()))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda site: plot_support_maps({}), "at least one frame"),
        (lambda site: plot_unit_maps(site.inclusion, (7, 8)), r"expected \(M, 56\)"),
        (lambda site: plot_inputs({"a": 0.5, "b": 0.1}, (2, 2)), "a size whose product"),
        (lambda site: plot_inputs({}), "found .'0 inputs', 20, None"),
        (lambda site: plot_series({"a": []}, label="x"), "a value"),
        (lambda site: plot_forest(site, count=0), "count >= 1"),
    ],
)
def test_bad_pictures_are_refused(finished, call, words):
    result = finished[0]
    with pytest.raises(ArgumentError, match=words):
        call(result.posterior.belief["1.weight"])
