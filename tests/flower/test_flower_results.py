"""What a run over Flower leaves behind, and that it is opened again without frames."""

import contextlib
import io
import json
import os
import stat
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import bayesfed as bf
from bayesfed.errors import ArgumentError, CheckpointError
from bayesfed.federated import checkpoint, load
from bayesfed.federated.clients.memory.memories import ClientMemory, Slot
from bayesfed.flower import Experiment
from bayesfed.flower import worker as workers
from bayesfed.flower.client_app import forward
from bayesfed.flower.letters import Hello, read_reply
from bayesfed.flower.server_app import serve
from bayesfed.flower.site import Site
from bayesfed.running.formulas.records import of_record, to_record
from tests.flower.flower_grid import FakeGrid, PlainMail, sites
from tests.support.letters.markers import ONE

FORMULA = "died ~ age + ward"
CREATED = {}


def prepared(formula=FORMULA, **options):
    """Return a regression over two hospitals."""
    draw = np.random.default_rng(0)
    frames = {
        name: pd.DataFrame(
            {
                "age": draw.normal(60, 10, 40),
                "ward": draw.choice(["east", "west"], 40),
                "died": draw.integers(0, 2, 40),
            }
        )
        for name in ("basel", "bern")
    }
    return bf.running.prepared(formula, frames, "bernoulli", site="hospital", **options)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Return a regression, its fit in one process, the folder of the run over Flower, and what the
    server printed.
    """
    folder, made = tmp_path_factory.mktemp("flower"), prepared()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        over_flower(made, folder)
    here = bf.running.Regression(
        made.design, made.model, bf.run(made.algorithm, made.clients, progress=False)
    )
    return made, here, folder / "out", printed.getvalue()


def over_flower(made, folder):
    """Run the server app over sites of a regression."""
    grid = FakeGrid(sites(made.algorithm, made.clients, folder / "sites"))
    CREATED["experiment"] = Experiment(algorithm=made.algorithm, data=made.clients.get)
    run = {"experiment": f"{__name__}:created", "clients": 2, "out": str(folder / "out")}
    serve(grid, run, mail=PlainMail(), clock=grid.clock, wait=grid.wait)


def created():
    """Return the experiment of the run."""
    return CREATED["experiment"]


def test_a_run_over_flower_is_opened_as_the_fit(ran):
    made, here, out, _ = ran
    fit = bf.open(out)
    assert isinstance(fit, bf.running.Regression)
    assert fit.status == here.status
    assert fit.table().equals(here.table())
    assert repr(fit) == repr(here)
    assert (fit.design, fit.model) == (made.design, made.model)
    assert fit.design.homes == made.design.homes
    assert len(fit.plot().get_yticklabels()) > 2
    rows = ONE[["age", "ward"]]
    assert fit.predict(rows).equals(here.predict(rows))
    assert bf.open(out, algorithm=made.algorithm).table().equals(here.table())
    assert bf.open(out / "checkpoints").table().equals(here.table())


@pytest.mark.slow
def test_own_effects_stay_at_the_sites_and_the_error_says_so(tmp_path):
    frames = {"basel": ONE, "bern": ONE}
    over_flower(
        bf.running.prepared("died ~ 1 + (1 | hospital)", frames, "bernoulli", site="hospital"),
        tmp_path,
    )
    fit = bf.open(tmp_path / "out")
    with pytest.raises(ArgumentError, match='one that keeps them; try site=""'):
        fit.predict(ONE, site="basel")
    assert len(fit.predict(ONE, site="")) == len(ONE)
    assert "1|hospital_sigma" in fit.table().index


def test_the_server_writes_and_prints_the_coefficients(ran):
    _, here, out, printed = ran
    table = pd.read_csv(out / "coefficients.csv", index_col=0)
    assert np.allclose(table.loc["age", "mean"], here.table().loc["age", "mean"])
    assert f"{FORMULA}, bernoulli; status {here.status}" in printed
    assert "ward[west]" in printed
    rows = ONE[["age", "ward"]]
    # Without effects of its own, a site is as any other.
    assert bf.open(out).predict(rows, site="basel").equals(here.predict(rows, site="basel"))


def test_other_methods_say_what_they_need(tmp_path):
    rows = {"a": bf.Dataset(torch.ones(4, 2), torch.tensor([0, 1, 0, 1]))}
    algorithm = bf.fed_avg(bf.mlp([2, 3, 2], bf.Key(0)), training=bf.Training(steps=1))
    saved = [checkpoint(tmp_path / "checkpoints")]
    bf.run(algorithm, rows, rounds=2, callbacks=saved, progress=False)
    with pytest.raises(ArgumentError, match="'fed_avg'; try open.folder, algorithm=algorithm"):
        bf.open(tmp_path)
    result = bf.open(tmp_path, algorithm=algorithm)
    assert len(result.history) == 2
    with pytest.raises(ArgumentError, match="open, seed"):
        bf.open(tmp_path, algorithm=algorithm, seed=7)


def test_an_unfinished_run_is_opened_and_says_so(tmp_path):
    made = prepared("died ~ age")
    saved = [checkpoint(tmp_path / "checkpoints")]
    with pytest.warns(UserWarning, match="more rounds"):
        bf.run(made.algorithm, made.clients, rounds=2, callbacks=saved, progress=False)
    fit = bf.open(tmp_path)
    assert fit.status not in ("exact", "adapted")
    assert "status" in repr(fit)


def test_a_result_that_was_saved_is_a_fit_too(tmp_path):
    made = prepared("died ~ age")
    result = bf.run(made.algorithm, made.clients, progress=False)
    result.save(tmp_path / "saved")
    fit = bf.open(tmp_path / "saved")
    assert fit.table().equals(bf.running.Regression(made.design, made.model, result).table())


def test_records_are_plain_json_and_read_back_as_they_were():
    wards = pd.Categorical(["I", "II", "III"] * 2, ["II", "I", "III"], ordered=True)
    frames = {
        "a": ONE.assign(stage=wards, room=[1, 2, 3] * 2),
        "b": ONE.assign(stage=wards, room=4),
    }
    for formula, family in (
        ("stage ~ age + C(room)", "ordinal"),
        ("days ~ age + (age | ward)", "normal"),
        ("p(events, trials) ~ 1", "binomial"),
        ("censored(days, died) ~ scale(age)", "weibull"),
    ):
        made = bf.running.prepared(formula, frames, family)
        text = json.dumps(to_record(made.design, made.model), allow_nan=False)
        design, model = of_record(json.loads(text))
        assert (design, model, design.homes) == (made.design, made.model, made.design.homes)
        levels = [level for _, known in design.levels for level in known]
        assert [type(one) for one in levels] == [
            type(level) for _, known in made.design.levels for level in known
        ]
    with pytest.raises(CheckpointError, match="that this version wrote"):
        of_record({"design": {"kind": "Path", "text": "/"}, "model": 3})


def test_a_checkpoint_holds_the_regression(ran):
    out = ran[2]
    assert load(out / "checkpoints").origin["regression"]["design"]["formula"] == FORMULA


# Modes of files


def modes(folder):
    """Return the modes of a folder and of all that is in it."""
    return {stat.S_IMODE(path.lstat().st_mode) for path in (folder, *folder.rglob("*"))}


@pytest.fixture(params=[0o000, 0o022, 0o177])
def umask(request):
    """Work under a umask."""
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_what_clients_keep_is_theirs_alone_whatever_the_umask(tmp_path):
    memory = ClientMemory(tmp_path / "deep" / "er" / "memory")
    memory.pend(Slot(0, "train"), {"x": torch.ones(2)})
    memory.agree(Slot(0, "train"))
    assert modes(tmp_path / "deep") == {0o700, 0o600}
    rows = {"a": bf.Dataset(torch.ones(4, 2), torch.tensor([0, 1, 0, 1]))}
    saved = [checkpoint(tmp_path / "here" / "checkpoints")]
    net = bf.mlp([2, 3, 2], bf.Key(0))
    bf.run(bf.fed_avg(net), rows, rounds=2, callbacks=saved, progress=False)
    assert modes(tmp_path / "here") == {0o700, 0o600}


def test_a_memory_of_an_earlier_version_is_closed(tmp_path):
    folder = tmp_path / "memory"
    folder.mkdir(mode=0o755)
    ClientMemory(folder)
    assert modes(folder) == {0o700}


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("group", ["", "own"])
def test_a_socket_is_its_owners_and_a_groups(tmp_path, group):
    grp = pytest.importorskip("grp")
    name = grp.getgrgid(os.getgid()).gr_name if group else ""
    experiment = Experiment(
        algorithm=bf.fed_avg(bf.mlp([2, 3, 2], bf.Key(0))),
        data=lambda client: bf.Dataset(torch.ones(2, 2), torch.tensor([0, 1])),
    )
    socket, site = tmp_path / "s", Site("a", experiment, tmp_path / "memory")
    serving = threading.Thread(
        target=workers.serve, args=(site, socket), kwargs={"group": name}, daemon=True
    )
    serving.start()
    while not socket.is_socket():
        time.sleep(0.01)
    while group and stat.S_IMODE(socket.stat().st_mode) != 0o660:
        time.sleep(0.01)
    assert stat.S_IMODE(socket.stat().st_mode) == (0o660 if group else 0o600)
    assert read_reply(forward(str(socket), Hello().write())).profile.samples == 2
    with pytest.raises(ArgumentError, match="a group that the worker's user belongs to"):
        workers.serve(site, tmp_path / "other", group="no such group")
    assert not Path(tmp_path / "other").exists()


def test_data_that_is_no_function_is_refused_with_one():
    with pytest.raises(ArgumentError, match="data: expected a function.*try lambda client"):
        Experiment(algorithm=bf.fed_avg(bf.mlp([2, 3, 2], bf.Key(0))), data=3)
