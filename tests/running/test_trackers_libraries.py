"""The callbacks against the real TensorBoard, MLflow and Weights & Biases, offline (extra
`watch`).
"""

import json
import math
import struct
import time

import pytest

import bayesfed as bf
from bayesfed.errors import ArgumentError

pytestmark = pytest.mark.watch
NAME = "round/bits_up"


@pytest.fixture
def start(net, clients, digits):
    plain = bf.fed_avg(net, training=bf.Training(steps=1))

    def started(tracker, *more, rounds=2, resume=None):
        callbacks = [
            tracker,
            lambda report: report.metrics.update({"odd": math.nan, "a@5": 0.5}),
            *more,
        ]
        return bf.run(
            plain,
            clients,
            rounds=rounds,
            test=digits[1],
            callbacks=callbacks,
            resume=resume,
            progress=False,
        )

    return started


def fail_after(rounds):
    def fail(report):
        # Trackers come after this callback, so the round in which it fails is not written.
        if report.round == rounds:
            raise KeyboardInterrupt

    return fail


def accuracies(result):
    return [
        (number + 1, pytest.approx(value, rel=1e-6)) for number, value in result.series("accuracy")
    ]


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return events, {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_tensorboard_reads_every_round_once(start, tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    folder = tmp_path / "runs" / "first"
    first = start(bf.running.tensorboard(folder, config={"mine": "a|b"}))
    events, read = scalars(folder)
    assert read["metrics/accuracy"] == accuracies(first)
    assert {
        "metrics/a@5",
        NAME,
        "round/bits_down",
        "round/seconds",
        "total/megabytes",
    } <= read.keys()
    assert events.Tags()["tensors"] == ["settings/text_summary"]
    text = events.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| train.local.steps | 1 |" in text
    assert "| mine | a\\|b |" in text
    # Interrupted after round 4 and gone on from round 2: rounds 3 and 4 count once.
    with pytest.raises(KeyboardInterrupt):
        start(bf.running.tensorboard(folder), fail_after(4), rounds=5, resume=first.snapshot)
    assert [step for step, _ in scalars(folder)[1][NAME]] == [1, 2, 3, 4]
    # One that ended before it wrote a round leaves nothing but the beginning of its file.
    SummaryWriter(str(folder), purge_step=3).close()
    whole = start(bf.running.tensorboard(folder), rounds=5, resume=first.snapshot)
    events, read = scalars(folder)
    assert read["metrics/accuracy"] == accuracies(whole)
    assert [step for step, _ in read[NAME]] == [1, 2, 3, 4, 5]
    assert len(events.Tensors("settings/text_summary")) == 1
    with pytest.raises(
        ArgumentError,
        match="tensorboard: expected a folder without events, or a run that is resumed",
    ):
        start(bf.running.tensorboard(folder))
    # In a new folder, earlier rounds come from the history.
    start(bf.running.tensorboard(tmp_path / "other"), rounds=3, resume=first.snapshot)
    assert [step for step, _ in scalars(tmp_path / "other")[1][NAME]] == [1, 2, 3]


# Said by MLflow's own tables to SQLAlchemy 2.1.
@pytest.mark.filterwarnings(
    "ignore:.*noload.*:DeprecationWarning", "ignore::sqlalchemy.exc.SADeprecationWarning"
)
def test_mlflow_stores_every_round_once(start, tmp_path):
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=uri)
    tracker = bf.running.mlflow(
        "digits",
        run_name="mine",
        tracking_uri=uri,
        config={f"option {number}": "x" for number in range(150)},
    )
    first = start(tracker)

    def steps(run_id, name=NAME):
        return [metric.step for metric in client.get_metric_history(run_id, name)]

    run = client.get_run(tracker.run_id)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "mine")
    assert run.data.params["train.local.steps"] == "1"
    assert run.data.params["option 149"] == "x"
    read = [
        (metric.step, metric.value)
        for metric in client.get_metric_history(tracker.run_id, "metrics/accuracy")
    ]
    assert read == accuracies(first)
    assert run.data.metrics["metrics/a_5"] == 0.5
    with pytest.raises(KeyboardInterrupt):
        start(
            bf.running.mlflow(run_id=tracker.run_id, tracking_uri=uri),
            fail_after(4),
            rounds=5,
            resume=first.snapshot,
        )
    assert client.get_run(tracker.run_id).info.status == "KILLED"
    start(
        bf.running.mlflow(run_id=tracker.run_id, tracking_uri=uri), rounds=5, resume=first.snapshot
    )
    assert steps(tracker.run_id) == [1, 2, 3, 4, 5]
    assert client.get_run(tracker.run_id).info.status == "FINISHED"
    other = bf.running.mlflow("digits", tracking_uri=uri)

    def fail(report):
        if report.round == 3:
            raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        start(other, fail, rounds=5, resume=first.snapshot)
    assert steps(other.run_id) == [1, 2, 3]
    assert client.get_run(other.run_id).info.status == "FAILED"
    with pytest.raises(ArgumentError, match="mlflow: expected an MLflow run to go on with"):
        start(bf.running.mlflow(run_id="0" * 32, tracking_uri=uri))


def blocks(data):
    """The records of a file of wandb: a log of LevelDB's, in blocks of 32 kB after a header of 7
    bytes.
    """
    place, whole = 7, b""
    while place + 7 < len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if place > len(data):
            # Still being written.
            return
        # Whole, or the last part of one.
        if kind in (1, 4):
            yield whole
            whole = b""


def offline(tracker, folder):
    """The figures, the settings and the exit code of the last offline run of a tracker."""
    from wandb.proto.wandb_internal_pb2 import Record

    path = max(
        folder.glob(f"wandb/offline-run-*-{tracker.run_id}/*.wandb"),
        key=lambda one: one.stat().st_mtime_ns,
    )
    rows, settings, exit_code = [], {}, None
    # Another process of wandb's writes the file, and may end it a little later than `finish` does.
    for _ in range(200):
        records = list(map(Record.FromString, blocks(path.read_bytes())))
        if any(record.HasField("exit") for record in records):
            break
        time.sleep(0.1)
    for record in records:
        settings |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        if record.HasField("history"):
            rows.append(
                {
                    item.key or ".".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }
            )
        if record.HasField("exit"):
            exit_code = record.exit.exit_code
    return rows, settings, exit_code


def test_wandb_has_every_round_once(start, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    options = {"mode": "offline", "dir": str(tmp_path)}
    tracker = bf.running.wandb("digits", config={"mine": "x"}, **options)
    first = start(tracker)
    rows, settings, exit_code = offline(tracker, tmp_path)
    assert [(row["_step"], row["metrics/accuracy"]) for row in rows] == accuracies(first)
    assert {NAME, "round/bits_down", "round/seconds", "total/megabytes"} <= rows[0].keys()
    assert settings["train.local.steps"] == 1
    assert settings["mine"] == "x"
    assert exit_code == 0
    # Offline runs of one id have a folder each, named by the second in which they began.
    again = bf.running.wandb(
        "digits", run_id=tracker.run_id, **(options | {"dir": str(tmp_path / "again")})
    )
    (tmp_path / "again").mkdir()
    with pytest.raises(KeyboardInterrupt):
        start(again, fail_after(4), rounds=5, resume=first.snapshot)
    rows, _, exit_code = offline(again, tmp_path / "again")
    assert [row["_step"] for row in rows] == [3, 4]
    assert exit_code == 1
    other = bf.running.wandb("digits", **options)
    start(other, rounds=3, resume=first.snapshot)
    assert [row["_step"] for row in offline(other, tmp_path)[0]] == [1, 2, 3]
