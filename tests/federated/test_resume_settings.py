"""A run is not continued with other settings or clients in silence: snapshots carry both, and the
error names what differs.
"""

import json
from dataclasses import replace

import pytest
import torch

import bayesfed as bf
from bayesfed.errors import ArgumentError
from bayesfed.federated import checkpoint, evaluate, fraction, load
from bayesfed.federated.engine.files.snapshots import _sealed
from bayesfed.federated.engine.settings import differences, settings_of_run
from tests.conftest import tree_equal

KEY = bf.Key(0)


def rows(count, seed=0):
    return bf.Dataset(
        torch.randn(count, 4, generator=bf.Key(seed, "rows").generator()), torch.arange(count) % 3
    )


CLIENTS = {"a": rows(6), "b": rows(8, 1)}


def avg(*, widths=(4, 3), seed=0, codec=None, **work):
    training = bf.Training(**{"steps": 2, "batch_size": 4, **work})
    return bf.fed_avg(bf.mlp(list(widths), bf.Key(seed)), training=training, codec=codec)


def run(algorithm=None, clients=None, **changes):
    return bf.run(
        algorithm or avg(), clients or CLIENTS, **{"rounds": 2, "progress": False, **changes}
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algorithm": avg(steps=5)}, "train.local.steps 2, now 5"),
        ({"algorithm": avg(batch_size=None)}, "train.local.batch_size 4, now None"),
        (
            {"algorithm": avg(optimiser=bf.Sgd(0.2))},
            "train.local.optimiser.learning_rate 0.05, now 0.2",
        ),
        ({"algorithm": avg(optimiser=bf.Adam(0.05))}, "train.local.optimiser Sgd, now Adam"),
        ({"algorithm": avg(schedule=bf.federated.cosine(0.1, 4))}, "schedule"),
        ({"algorithm": avg(codec=bf.Cast(16))}, "train.assign.down.bits 32, now 16"),
        ({"algorithm": avg(widths=(4, 5, 3))}, "state "),
        ({"clients": {**CLIENTS, "c": rows(3)}}, "clients 2: a, b, now 3: a, b, c"),
        ({"clients": {"a": rows(6), "b": rows(9)}}, "rows of clients 6, 8, now 6, 9"),
        ({"sampler": fraction(0.5)}, "sampler everyone, now Uniform"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_a_difference_is_named_and_may_be_overruled(changes, words):
    first = run(rounds=1).snapshot
    with pytest.raises(ArgumentError, match=f"found .*{words}") as caught:
        run(**changes, resume=first)
    assert str(caught.value).endswith(
        "try the settings and clients of the run, or resume_anyway=True"
    )
    if "state" not in words:
        second = run(**changes, resume=first, resume_anyway=True).snapshot
        assert differences(
            second.settings,
            settings_of_run(
                changes.get("algorithm") or avg(), changes.get("sampler", bf.federated.everyone), []
            ),
        )
        assert run(**changes, rounds=3, resume=second).snapshot.round == 3


def test_what_is_no_setting_may_change():
    """Another start of the net's weights, callbacks, policies and number of rounds: the snapshot
    has what counts.
    """
    first, whole = run(rounds=1).snapshot, run(rounds=3)
    again = run(
        avg(seed=9),
        rounds=3,
        resume=first,
        callbacks=[evaluate(rows(4))],
        on_client_error="drop",
        progress=False,
    )
    assert tree_equal(again.snapshot.state, whole.snapshot.state)


def test_frozen_weights_are_settings():
    def adapted(seed):
        net = bf.lora(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3)), 2, KEY)
        for leaf in net.parameters():
            if not leaf.requires_grad:
                torch.nn.init.normal_(leaf, generator=bf.Key(seed).generator())
        return bf.fed_lora(net, training=bf.Training(steps=1, batch_size=4))

    first = run(adapted(0), rounds=1).snapshot
    assert run(adapted(0), resume=first).snapshot.round == 2
    with pytest.raises(ArgumentError, match=r"train\.local\.objective\.net"):
        run(adapted(1), resume=first)


def test_checkpoints_carry_settings_and_those_of_earlier_versions_say_so(tmp_path):
    run(rounds=1, callbacks=[checkpoint(tmp_path)])
    assert load(tmp_path).settings == run(rounds=1).snapshot.settings
    with pytest.raises(ArgumentError, match=r"train\.local\.steps"):
        run(avg(steps=3), resume=load(tmp_path))
    record = json.loads((tmp_path / "00000001.json").read_text())
    del record["blake2b"], record["snapshot"]["settings"]
    (tmp_path / "00000001.json").write_bytes(_sealed(record))
    with pytest.raises(
        ArgumentError,
        match=(
            r"found a snapshot without settings, which an earlier version wrote; try "
            r"resume_anyway=True"
        ),
    ):
        run(resume=load(tmp_path))
    assert tree_equal(
        run(resume=load(tmp_path), resume_anyway=True).snapshot.state, run().snapshot.state
    )
    assert run(resume=replace(load(tmp_path), round=0, state=avg().initial)).snapshot.round == 2


def test_settings_of_layers_count():
    def private(noise):
        return bf.private(avg(), clip=1.0, noise=noise, participants=2, key=KEY)

    first = run(private(1.0), rounds=1).snapshot
    with pytest.raises(ArgumentError, match=r"train.layers.private.noise 1.0, now 0.5"):
        run(private(0.5), resume=first)
    around = bf.averaged(avg(), begin=0)
    with pytest.raises(ArgumentError, match="train.layers"):
        run(around, resume=run(rounds=1).snapshot)
    assert run(around).snapshot.settings["train.layers"] == "averaged"


def test_a_secret_key_is_not_written(tmp_path):
    algorithm = bf.private(
        avg(), clip=1.0, noise=1.0, participants=2, key=bf.Key(987654321987654321)
    )
    settings = run(algorithm, rounds=1, callbacks=[checkpoint(tmp_path)]).snapshot.settings
    assert settings["train.layers.private.noise"] == "1.0"
    assert "987654321987654321" not in "".join(
        path.read_text(errors="replace") for path in tmp_path.iterdir()
    )
