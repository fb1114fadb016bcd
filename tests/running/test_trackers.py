"""Callbacks for TensorBoard, MLflow and Weights & Biases: every round once, settings once, an
orderly end. Without the libraries themselves.
"""

import sys
from contextlib import contextmanager

import pytest

import bayesfed as bf
from bayesfed.errors import MissingExtraError
from bayesfed.running import Tracker
from bayesfed.running.settings import settings_of


class Memory:
    """A sink that remembers what it was told, and what is there from earlier runs."""

    def __init__(self, there=0):
        self.there, self.opened, self.steps, self.ended = there, [], {}, []

    @contextmanager
    def __call__(self, report, settings):
        self.opened.append(settings)
        told = None
        try:
            yield "an id", self.there, self.write
        except Exception as error:
            told = error
            raise
        finally:
            self.ended.append(told)

    def write(self, step, figures):
        assert step not in self.steps
        self.steps[step] = figures


@pytest.fixture
def plain(net):
    return bf.fed_avg(net, training=bf.Training(steps=1))


@pytest.fixture
def started(plain, clients, digits):
    def start(sink, *more, rounds=2, resume=None, config=None):
        tracker = Tracker(sink, config)
        callbacks = [tracker, *more]
        return tracker, bf.run(
            plain,
            clients,
            rounds=rounds,
            test=digits[1],
            callbacks=callbacks,
            resume=resume,
            progress=False,
        )

    return start


def test_every_round_is_written_with_what_later_callbacks_enter(started):
    sink = Memory()
    tracker, result = started(
        sink, lambda report: report.metrics.update(late=1.0), config={"mine": "x"}
    )
    assert tracker.run_id == "an id"
    assert sink.ended == [None]
    (settings,) = sink.opened
    assert settings["algorithm"] == "fed_avg"
    assert (settings["seed"], settings["train.local.steps"], settings["mine"]) == (0, 1, "x")
    assert list(sink.steps) == [1, 2]
    last, record = sink.steps[2], result.history[1]
    assert last["metrics/accuracy"] == record.metrics["accuracy"]
    assert last["metrics/late"] == 1.0
    assert last["round/bits_up"] + last["round/bits_down"] == sum(row.bits for row in record.rows)
    assert last["total/megabytes"] == pytest.approx(result.bits() / 8e6)
    assert (last["round/clients"], last["round/left_out"], last["round/seconds"]) == (
        4,
        0,
        record.seconds,
    )
    assert not {"round/energy_j", "total/joules"} & last.keys()


@pytest.mark.parametrize("there", [0, 2, 3])
def test_a_resumed_run_writes_what_is_not_there_yet(started, there):
    _, first = started(Memory())
    sink = Memory(there)
    _, whole = started(sink, rounds=4, resume=first.snapshot)
    assert list(sink.steps) == list(range(there + 1, 5))
    assert sink.steps[4]["total/megabytes"] == pytest.approx(whole.bits() / 8e6)
    assert len(sink.opened) == len(sink.ended) == 1


def test_a_run_that_fails_is_closed_with_its_error(started, plain, clients):
    def fail(report):
        if report.round == 1:
            raise OSError("no disk")

    sink = Memory()
    with pytest.raises(OSError, match="no disk"):
        started(sink, fail)
    assert [str(error) for error in sink.ended] == ["no disk"]
    # In a loop of one's own, `with` ends the run; one that begins anew ends the last.
    sink = Memory()
    with Tracker(sink) as tracker:
        for _ in range(2):
            for report in bf.federated.rounds(plain, bf.InProcess(clients), rounds=1):
                tracker(report)
            sink.steps.clear()
    assert sink.ended == [None, None]


def test_joules_are_written_where_there_are_devices():
    from tests.support.recipes import fed_hq

    sink, tiny = Memory(), fed_hq()
    bf.run(tiny.algorithm, tiny.pool(), rounds=1, callbacks=[Tracker(sink)], progress=False)
    assert sink.steps[1]["round/energy_j"] == sink.steps[1]["total/joules"] > 0
    assert sink.steps[1]["round/latency_s"] > 0


def test_settings_are_plain_and_leave_out_keys(plain, net):
    noisy = bf.private(plain, clip=1.0, noise=2.0, participants=3, key=bf.Key(7, "noise"))
    settings = settings_of(noisy)
    assert {type(value) for value in settings.values()} <= {bool, int, float, str}
    assert 2.0 in settings.values()
    assert not [name for name, value in settings.items() if "key" in name or value in (7, "noise")]
    work = bf.Training(optimiser=bf.Adam(0.25), schedule=bf.federated.cosine(0.1, 50))
    settings = settings_of(
        bf.d_turbo_vbi(bf.declare(net, likelihood=bf.Categorical()), observations=10, training=work)
    )
    assert settings["train.local.local.optimiser"] == "Adam"
    assert settings["train.local.local.optimiser.learning_rate"] == 0.25
    assert (settings["train.layers.exchange"], settings["train.server"]) == (
        "Exchange",
        "TurboStep",
    )
    assert len(settings) < 120


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_library_is_named_with_its_extra(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        MissingExtraError, match=rf"{name} is not installed; try: pip install 'bayesfed\[{name}\]'"
    ):
        getattr(bf.running, name)("somewhere")
