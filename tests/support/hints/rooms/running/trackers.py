"""Messages of `bayesfed.running.trackers`, whose libraries are stood in for: `watch` has them."""

import sys
import tempfile
from pathlib import Path
from types import ModuleType
from unittest import mock

import bayesfed as bf
from tests.house.wrong_calls.given import go

COMPLETE = ("bayesfed/running/trackers",)


class MlflowError(Exception):
    """What MLflow raises."""


class Client(mock.MagicMock):
    """MLflow's client of a store that has no run."""

    def update_run(self, run_id, status):
        raise MlflowError(f"no run {run_id}")


def stood_in(name, **members):
    """Return a module with these members."""
    module = ModuleType(name)
    vars(module).update(members)
    return module


def tracked(kind, *args, **options):
    """Run with a tracker."""
    libraries = [
        stood_in("mlflow", MlflowClient=Client),
        stood_in("mlflow.entities", Metric=mock.Mock(), Param=mock.Mock()),
        stood_in("mlflow.exceptions", MlflowException=MlflowError),
        stood_in("tensorboard"),
        stood_in("torch.utils.tensorboard", SummaryWriter=mock.MagicMock()),
    ]
    with mock.patch.dict(sys.modules, {one.__name__: one for one in libraries}):
        go(callbacks=[getattr(bf.running, kind)(*args, **options)])


def begun():
    """Return a folder with events."""
    folder = Path(tempfile.mkdtemp())
    (folder / "events.out.tfevents.1").write_text("")
    return folder


CASES = [
    (lambda run_id: tracked("mlflow", run_id=run_id), "other"),
    (
        lambda: tracked("tensorboard", begun()),
        "another folder",
        lambda: tracked("tensorboard", tempfile.mkdtemp()),
    ),
]
