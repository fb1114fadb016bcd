"""Messages of results: what they are asked for, folders of them, reports; and of runs that ended
too early.
"""

import functools
import math
import shutil
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
from pyro.infer.autoguide import AutoNormal

import bayesfed as bf
from bayesfed.cli import runs
from bayesfed.cli.main import main
from bayesfed.errors import ConvergenceWarning
from bayesfed.federated import checkpoint, evaluate
from bayesfed.inference.evaluation.predictive import Predictive
from bayesfed.running import Folder, report
from bayesfed.running.experiments import experiment
from bayesfed.running.folders import named_folders
from bayesfed.running.settings import note_versions
from tests.house.wrong_calls.given import (
    CLIENTS,
    DATA,
    KEY,
    TEST,
    avg,
    done,
    go,
    svi,
    svi_done,
)
from tests.posteriors import test_own_posteriors as own
from tests.support.hints.rooms.running.experiments import written

COMPLETE = tuple(
    f"bayesfed/running/{name}"
    for name in (
        "experiments/reopened.py",
        "folders.py",
        "launch.py",
        "networks.py",
        "reporting",
        "result.py",
        "settling.py",
    )
)
HINT = "Predictive(result.posterior, inputs, key) of bayesfed.inference.evaluation.predictive"
INPUTS = own.TEST["a"].inputs


@functools.cache
def local():
    """Return a run whose offsets stay with clients."""
    return own.fit(own.offsets, own.CLIENTS, rounds=1)


@functools.cache
def several():
    """Return a run of two networks."""
    return go(bf.ensemble([avg(), avg()]))


def new():
    """Return the path of a folder that is not there yet."""
    return Path(tempfile.mkdtemp()) / "mine"


@functools.cache
def kept():
    """Return a folder of results."""
    folder = new()
    done().save(folder)
    return folder


def page(**damaged):
    """Report on results, in which files have other words (None: are not there)."""
    folder = shutil.copytree(kept(), new())
    for name, words in damaged.items():
        path = folder / "seed-0" / name.replace("_", ".")
        path.unlink(missing_ok=True)
        if words is not None:
            path.write_text(words)
    report(folder, folder / "page.html")


def again(folder=None):
    """Save a run in a folder, where it is, and in another one."""
    done().save(folder or new())


def location(inputs, targets=None):
    """Draw real targets around a location."""
    at = pyro.sample("at", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(inputs)):
        return pyro.sample("y", dist.Normal(at, 1.0), obs=targets)


def fitted(rounds):
    """Fit a location in so many rounds."""
    go(
        svi(
            location,
            functools.partial(AutoNormal, init_scale=0.35),
            fusion=bf.PVI(damping=1.0),
            training=bf.Training(20, batch_size=None, optimiser=bf.Adam(0.005)),
        ),
        {"a": replace(DATA, targets=DATA.inputs[:, 0])},
        rounds=rounds,
    )


def finished(*, ran):
    """Run an experiment, or only begin, and look for its finished seeds."""
    out = Path(tempfile.mkdtemp())
    if ran:
        runs.run_file(experiment.read(written()), out, say=str, progress=False)
    note_versions(out / "mine")
    named_folders("compare", [Folder(out / "mine")])


def heard(*names):
    """Fit a posterior that adds the clients up, with one of them in each round."""
    sampler = lambda round, every, key: [names[round]]  # noqa: E731
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        go(svi(), CLIENTS, rounds=len(names), sampler=sampler)


def begun():
    """Return a folder of results without a finished run."""
    folder = new()
    note_versions(folder)
    return folder


@functools.cache
def asked():
    """Return a regression before its fit."""
    rows = np.arange(8.0)
    return bf.running.prepared("y ~ x", {"a": pd.DataFrame({"x": rows, "y": rows % 3})})


@functools.cache
def regressed():
    """Return the end of its run."""
    return bf.run(asked().algorithm, asked().clients, progress=False).snapshot


def checkpointed(origin=None):
    """Return a folder with the checkpoint of a regression."""
    folder = new() / "checkpoints"
    origin = regressed().origin if origin is None else origin
    checkpoint(folder).save(replace(regressed(), origin=origin))
    return folder


def opened(folder, **options):
    """Open a folder of results."""
    return bf.open(folder, **options)


CASES = [
    (lambda: opened(begun()), "bayesfed run FILE --out", lambda: finished(ran=True)),
    (
        lambda: opened(kept(), algorithm=svi()),
        "that of the run",
        lambda: opened(kept(), algorithm=done().algorithm),
    ),
    (
        lambda: opened(kept(), algorithm=bf.fed_avg(bf.mlp([4, 3], KEY))),
        "the algorithm of the run",
        lambda: opened(kept(), algorithm=done().algorithm),
    ),
    (
        lambda: opened(kept()),
        "open(folder, algorithm=algorithm)",
        lambda: opened(kept(), algorithm=done().algorithm),
    ),
    (
        lambda: opened(kept(), seed=7, algorithm=done().algorithm),
        "0",
        lambda: opened(kept(), seed=0, algorithm=done().algorithm),
    ),
    (lambda: opened(checkpointed(), seed=7), "0", lambda: opened(checkpointed(), seed=0)),
    (
        lambda: opened(checkpointed({"regression": {}})),
        "open(folder, algorithm=prepared(...).algorithm)",
        lambda: opened(checkpointed({"regression": {}}), algorithm=asked().algorithm),
    ),
    # What a result is asked for.
    (
        lambda: several().network(),
        "result.model, which predicts",
        lambda: several().model(TEST.inputs),
    ),
    (
        lambda: done().posterior,
        "laplace(result.model) after this run",
        lambda: go(bf.laplace(done().model)).posterior,
    ),
    (lambda: svi_done().belief, "Result.posterior", lambda: svi_done().posterior),
    (lambda direction: done().bits(direction), "sideways"),
    (
        lambda: done().series("accuracy"),
        "run(..., test=data)",
        lambda: go(test=TEST).series("accuracy"),
    ),
    (
        lambda: done().series("mine"),
        "a callback that enters it",
        lambda: go(callbacks=[evaluate(TEST, name="mine")]).series("mine"),
    ),
    (
        lambda: go(test=TEST, callbacks=[evaluate(TEST)]),
        "evaluate(rows, name='validation')",
        lambda: go(test=TEST, callbacks=[evaluate(TEST, name="validation")]).series("validation"),
    ),
    (
        lambda: go(callbacks=[lambda report: report.metrics.update(mine=None)]),
        "float('nan')",
        lambda: go(callbacks=[lambda report: report.metrics.update(mine=math.nan)]),
    ),
    (
        lambda: local().predictive(INPUTS, client="nobody"),
        "'a'",
        lambda: local().predictive(INPUTS, client="a", draws=2),
    ),
    (
        lambda: local().predictive(INPUTS),
        "client='name'",
        lambda: local().predictive(INPUTS, client="a", draws=2),
    ),
    (
        lambda: local().predictive(INPUTS),
        HINT,
        lambda: Predictive(local().posterior, INPUTS, KEY),
    ),
    (
        lambda: svi_done().predictive(DATA.inputs[0]),
        "inputs[None]",
        lambda: svi_done().predictive(DATA.inputs[0][None]),
    ),
    # Folders.
    (
        lambda: report(tempfile.mkdtemp(), new()),
        "a folder that `bayesfed run` or `Result.save` made",
        page,
    ),
    (
        lambda: page(rounds_jsonl="{"),
        "running it again, with another folder",
        page,
    ),
    (
        lambda: report([], new()),
        "bayesfed report results/NAME",
        lambda: main(["report", str(kept())]),
    ),
    (
        lambda: finished(ran=False),
        "bayesfed run FILE",
        lambda: finished(ran=True),
    ),
    (lambda: done().save(kept()), "another folder", lambda: done().save(new())),
    (
        lambda: local().save(new(), test=own.TEST["a"]),
        "{name: rows}",
        lambda: local().save(new(), test=own.TEST),
    ),
    # Reports.
    (
        lambda: page(clients_csv="client,accuracy\na,high"),
        "a line for each client below client,rows,rounds,accuracy,...",
        lambda: page(clients_csv="client,rows,rounds,accuracy\na,3,1,0.5\n"),
    ),
    (
        lambda: page(metrics_json="{"),
        "running the experiment again in another folder",
        page,
    ),
    (lambda: page(posterior_nc="text"), "leaving it out", lambda: page(posterior_nc=None)),
    # Runs that ended too early.
    (lambda: fitted(1), "more rounds", lambda: fitted(7)),
    (
        lambda: go(bf.swag(avg(), begin=0)),
        "rounds=2",
        lambda: go(bf.swag(avg(), begin=0), rounds=2),
    ),
    (lambda: heard("a"), "more rounds", lambda: heard("a", "b")),
]
