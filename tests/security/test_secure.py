"""Secure sums: the bits of sums without masks whoever drops out, what a client never answers, what
the server never keeps, what is refused.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

import bayesfed as bf
from bayesfed.algorithms import evaluate_clients
from bayesfed.algorithms.wrappers.secure_sums import FixedPoint, Vault, degree
from bayesfed.algorithms.wrappers.secure_sums.graphs import neighbours
from bayesfed.algorithms.wrappers.secure_sums.sessions import Session
from bayesfed.errors import (
    ArgumentError,
    CheckpointError,
    ClientError,
    TooFewClientsError,
    UpdateError,
)
from bayesfed.federated import Digital, OverTheAir, checkpoint, rounds
from bayesfed.federated.core.protocols import Skip
from bayesfed.federated.training.model_sizes import fixed
from bayesfed.trees import without
from tests.conftest import tree_equal
from tests.flower.flower_grid import pool_over
from tests.support.hostile.interference import dropping

WORK = bf.Training(steps=2, batch_size=8)
NAMES = [f"client-{number}" for number in range(6)]
RANGE = {"participants": 6, "largest": 8.0, "heaviest": 20.0}


def rows(number):
    inputs = torch.randn(8 + number, 5, generator=bf.Key(number, "rows").generator())
    return bf.Dataset(inputs, inputs[:, :3].argmax(1))


CLIENTS = {name: rows(number) for number, name in enumerate(NAMES)}


def net(width=4):
    return bf.mlp([5, width, 3], bf.Key(0, "net"))


def avg(**changes):
    return bf.fed_avg(net(), training=WORK, **changes)


def reports(algorithm, pool=None, **changes):
    return list(
        rounds(
            algorithm,
            pool or bf.InProcess(CLIENTS),
            **{"rounds": 1, "on_client_error": "drop", **changes},
        )
    )


def last(algorithm, pool=None, **changes):
    return reports(algorithm, pool, **changes)[-1]


def both(algorithm, drop=None, twin_drop=None, pool=None, **options):
    """The states of two rounds with masks and without, in which the same clients are in the sum."""
    given = {**RANGE, **options}
    masked = last(dropping(bf.secure(algorithm, **given), drop or {}), pool, rounds=2)
    plain = last(dropping(bf.secure(algorithm, masks=False, **given), twin_drop or {}), rounds=2)
    return masked, plain


def pooled():
    return bf.pooled(net(), local="factors", covariates="inputs", training=WORK)


def hetero():
    return bf.hetero_fl([net(), net(2)], fixed(NAMES, 2), training=WORK)


@pytest.mark.parametrize(
    ("made", "phase", "options"),
    [
        (avg, "none", {}),
        (lambda: bf.scaffold(net(), training=WORK), "train-keys", {"bits": 64}),
        (hetero, "train-shares", {"profile": bf.federated.Profile(NAMES[0], 8)}),
        (lambda: bf.scaffold(net(), training=WORK), "train", {}),
        (lambda: bf.server_optimised(avg(), bf.FedAdam(0.01)), "train-open", {"bits": 64}),
        (pooled, "none", {}),
    ],
    ids=["nobody", "keys", "shares", "masked", "open", "covariates"],
)
def test_masked_sums_have_the_bits_of_sums_without_masks(made, phase, options):
    drop = {phase: NAMES[4:5]}
    masked, plain = both(
        made(), drop, {} if phase in ("none", "train-open") else {"train": NAMES[4:5]}, **options
    )
    assert (
        masked.server["summed"]
        == plain.server["summed"]
        == (6 if phase in ("none", "train-open") else 5)
    )
    assert tree_equal(without(masked.state, "secure/"), plain.state)
    assert not masked.clients[NAMES[0]]


def test_memories_are_those_of_sums_without_masks_also_of_clients_that_drop_out_last():
    masked, plain = both(bf.scaffold(net(), training=WORK), {"train-open": NAMES[:1]})
    assert tree_equal(without(masked.state, "secure/"), plain.state)
    close = last(bf.scaffold(net(), training=WORK), rounds=2).state
    assert all(torch.allclose(leaf, close[name], atol=1e-5) for name, leaf in plain.state.items())


def test_too_many_dropouts_lose_the_round_and_nothing_else():
    algorithm = bf.secure(bf.scaffold(net(), training=WORK), **RANGE)
    losing = dropping(algorithm, {"train-open": NAMES[:3]}, rounds=[0])
    first, second = reports(losing, rounds=2)
    assert tree_equal(without(first.state, "secure/"), without(losing.initial, "secure/"))
    assert first.server["summed"] == 0.0
    assert (
        "the round is lost: 3 of at least 4 shares of the seed of client 'client-0' came"
        in first.refused["client-5"]
    )
    assert first.state["secure/lost"].tolist() == [0]
    # What clients kept in the lost round is taken back: the second round is that of a run whose
    # first had nobody in it.
    plain = bf.secure(bf.scaffold(net(), training=WORK), masks=False, **RANGE)
    assert second.server["summed"] == 6.0
    skipped = replace(
        plain,
        phases=tuple(
            replace(
                phase,
                assign=lambda state, round, *rest, phase=phase: (
                    Skip("no") if not round else phase.assign(state, round, *rest)
                ),
            )
            for phase in plain.phases
        ),
    )
    assert tree_equal(without(second.state, "secure/"), last(skipped, rounds=2).state)
    few = last(bf.secure(avg(), **RANGE), bf.InProcess(dict(list(CLIENTS.items())[:2])))
    assert "2 clients sent keys, too few to hide one among the others" in few.refused["client-0"]
    with pytest.raises(TooFewClientsError, match="the round is lost"):
        last(
            bf.secure(avg(), **RANGE),
            bf.InProcess(dict(list(CLIENTS.items())[:2])),
            on_client_error="raise",
        )


def test_scores_that_are_lost_cost_no_memory_of_the_training():
    scored = evaluate_clients(bf.scaffold(net(), training=WORK), worst=False)
    lost = {"clients' scores-open": NAMES[:3]}
    masked = dropping(bf.secure(scored, **RANGE), lost, rounds=[0])
    first, second = reports(masked, rounds=2)
    assert "own_accuracy" not in first.server
    assert first.state["secure/lost"].tolist() == []
    plain = last(bf.secure(scored, masks=False, **RANGE), rounds=2)
    assert tree_equal(without(second.state, "secure/"), plain.state)
    assert second.server == plain.server
    # A round of the training that is lost is taken back, whatever becomes of its scores.
    losing = dropping(bf.secure(scored, **RANGE), {"train-open": NAMES[:3]}, rounds=[0])
    first, second = reports(losing, rounds=2)
    assert first.state["secure/lost"].tolist() == [0]
    assert "own_accuracy" in first.server
    assert not tree_equal(without(second.state, "secure/"), plain.state)


def test_keys_are_in_no_checkpoint_and_workers_answer_as_well(tmp_path):
    algorithm = dropping(
        bf.secure(bf.scaffold(net(), training=WORK), **RANGE, vault=tmp_path / "vault"),
        {"train": NAMES[:1]},
    )
    with bf.InProcess(CLIENTS, workers=2) as pool:
        result = bf.run(
            algorithm,
            pool,
            rounds=2,
            callbacks=[checkpoint(tmp_path / "saved")],
            on_client_error="drop",
            progress=False,
        )
    masked = last(
        dropping(
            bf.secure(bf.scaffold(net(), training=WORK), masks=False, **RANGE), {"train": NAMES[:1]}
        ),
        rounds=2,
    )
    assert tree_equal(without(result.snapshot.state, "secure/"), masked.state)
    saved = b"".join(path.read_bytes() for path in (tmp_path / "saved").iterdir())
    paths = (tmp_path / "vault").rglob("*.session")
    sessions = [Session.model_validate_json(path.read_bytes()) for path in paths]
    assert len(sessions) == 12
    kept = [secret for one in sessions for secret in (one.masking, one.boxing, one.seed) if secret]
    # Only the client that dropped out still has its secrets.
    assert len(kept) == 6
    assert not any(secret in saved or secret.hex().encode() in saved for secret in kept)
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "vault").iterdir()} == {0}
    assert not any("secure/round" in name for name in result.snapshot.state)


def circle(count=5, threshold=3):
    """Sessions of which each is a neighbour of all others, after they have shared; and the boxes
    for each.
    """
    sessions = [Session.fresh() for _ in range(count)]
    around = [[other for other in range(count) if other != place] for place in range(count)]
    for place, one in enumerate(sessions):
        one.share([sessions[other].public for other in around[place]], threshold)
    boxes = [
        [sessions[other].boxes[around[other].index(place)] for other in around[place]]
        for place in range(count)
    ]
    return sessions, boxes


def test_a_session_masks_one_vector_and_answers_one_question_for_disjoint_sets():
    sessions, boxes = circle()
    one, everyone = sessions[0], [True] * 4
    vector = np.arange(6, dtype=np.uint32)
    with pytest.raises(UpdateError, match="partners of the mask"):
        one.open([0, 1, 2, 3], [], boxes[0])
    masked = one.mask(vector, everyone, 32)
    assert np.array_equal(masked, one.mask(vector, everyone, 32))
    for other, flags in ((vector + 1, everyone), (vector, [True, True, True, False])):
        with pytest.raises(UpdateError, match="reveal their difference"):
            one.mask(other, flags, 32)
    before = one.model_copy()
    one.share([session.public for session in sessions[1:]], 3)
    assert one == before
    with pytest.raises(UpdateError, match="the neighbours of this session"):
        one.share([session.public for session in sessions[1:4]], 3)
    for active, dropped in (
        ([0, 1, 2, 3], [3]),
        ([0, 1, 2], [2, 3]),
        ([0, 1, 2, 2], []),
        ([0, 1, 2], []),
        ([0, 1, 2, 4], []),
        ([0, 1], [2, 3]),
    ):
        with pytest.raises(UpdateError, match=r"disjoint sets|or more active"):
            one.open(active, dropped, boxes[0])
    assert one.seed
    given = one.open([0, 1, 2], [3], boxes[0])
    assert [len(share) for share in given] == [16] * 4
    again = Session.model_validate_json(one.model_dump_json())
    assert given == again.open([0, 1, 2], [3], boxes[0])
    for active, dropped in (([0, 1, 3], [2]), ([0, 1, 2, 3], [])):
        with pytest.raises(UpdateError, match="unmask a single update"):
            one.open(active, dropped, boxes[0])
    assert one.seed + one.masking + one.boxing == b""
    with pytest.raises(UpdateError, match="before any share is given"):
        one.mask(vector, everyone, 32)
    twice = Session.fresh()
    for others, threshold in (
        ([sessions[1].public] * 3, 2),
        ([twice.public, sessions[1].public], 2),
        ([sessions[1].public, sessions[2].public], 1),
    ):
        with pytest.raises(UpdateError, match=r"public keys that differ|a threshold"):
            twice.share(others, threshold)


@pytest.mark.parametrize("bits", [32, 64])
def test_a_masked_vector_is_uniform_to_whoever_lacks_the_masks(bits):
    sessions, _ = circle()
    masked = sessions[0].mask(np.zeros(1 << 17, dtype=f"<u{bits // 8}"), [True] * 4, bits)
    assert chisquare(np.bincount(masked.view(np.uint8), minlength=256)).pvalue > 1e-4
    assert (
        chisquare(np.bincount((masked >> (bits - 8)).astype(np.int64), minlength=256)).pvalue > 1e-4
    )


def test_out_of_range_is_an_error_and_nothing_wraps():
    point = FixedPoint(32, 3, 2.0, 5.0, (("a", (2,)),), "value")
    extreme = point.encode({"a": torch.tensor([2.0, -2.0])}, 5.0)
    total = point.decode(extreme + extreme + extreme)
    assert total.total["a"].tolist() == [30.0, -30.0]
    assert total.weight == 15.0
    for payload, weight in (
        ([2.001, 0.0], 1.0),
        ([float("nan"), 0.0], 1.0),
        ([0.0, 0.0], 5.1),
        ([0.0, 0.0], -1.0),
    ):
        with pytest.raises(UpdateError, match="the range agreed for the run"):
            point.encode({"a": torch.tensor(payload)}, weight)
    with pytest.raises(ClientError, match=r"entries of at most 0.01, found .*a larger largest"):
        last(bf.secure(avg(), **{**RANGE, "largest": 0.01}), on_client_error="raise")
    with pytest.raises(UpdateError, match="at most 4 clients, found 6"):
        last(bf.secure(avg(), **{**RANGE, "participants": 4}))
    with pytest.raises(ArgumentError, match=r"a weight of at most 10, found 11.*equal_weights"):
        last(bf.secure(avg(), **{**RANGE, "heaviest": 10.0}))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (
            lambda: bf.robust(avg(), bf.federated.Median()),
            "found 'robust', which needs every update",
        ),
        (lambda: bf.fed_paq(net(), training=WORK), "no codec on the up-link, found Coded"),
        (lambda: avg(link=Digital(max_norm=3.0)), "no check of norms"),
        (lambda: avg(link=OverTheAir(snr_db=20.0)), "found OverTheAir; try Digital"),
        (
            lambda: bf.private(avg(), clip=1.0, noise=1.0, participants=6, key=bf.Key(0)),
            "at_client=True",
        ),
        (
            lambda: bf.local_privacy(
                bf.private(
                    avg(), clip=1.0, noise=1.0, participants=6, key=bf.Key(0), at_client=True
                ),
                clip=1.0,
                noise=9.0,
                key=bf.Key(1),
            ),
            "whose clients clip last",
        ),
        (
            lambda: bf.private(
                avg(), clip=1e-4, noise=1.0, participants=6, key=bf.Key(0), at_client=True
            ),
            "a hundredth of the clip.*bits=64",
        ),
        (lambda: bf.fed_hm(net(), [1.0, 0.5], fixed(NAMES, 2), training=WORK), "profile=Profile"),
        (lambda: bf.secure(avg(), **RANGE), "a method of one phase"),
        (
            lambda: bf.flex_lora(bf.lora(net(), 2, bf.Key(0)), [2], lambda *_: 0, training=WORK),
            "secure, 'flex_lora'",
        ),
    ],
    ids=[
        "robust",
        "codec",
        "norms",
        "air",
        "server clips",
        "noise after the clip",
        "tiny clip",
        "view",
        "twice",
        "apart",
    ],
)
def test_what_needs_updates_apart_is_refused_in_words(made, words):
    with pytest.raises(ArgumentError, match=words):
        bf.secure(made(), **RANGE)


def test_privacy_with_clipping_at_the_client_and_its_epsilon():
    private = bf.private(
        avg(),
        clip=1.0,
        noise=0.5,
        participants=6,
        key=bf.Key(3, "noise"),
        delta=1e-3,
        at_client=True,
    )
    given = {**RANGE, "heaviest": 1.0}
    masked, plain = (
        last(bf.secure(private, **given), rounds=2),
        last(bf.secure(private, masks=False, **given), rounds=2),
    )
    assert tree_equal(without(masked.state, "secure/"), plain.state)
    assert masked.server["epsilon"] == last(private, rounds=2).server["epsilon"]
    changed = bf.secure(private, **given)
    with pytest.raises(ArgumentError, match="epsilon would not hold"):
        last(
            replace(
                changed,
                phases=tuple(
                    replace(phase, server=changed.phases[-1].server) for phase in changed.phases
                ),
            )
        )
    local = bf.local_privacy(avg(), clip=1.0, noise=0.5, key=bf.Key(3, "noise"), delta=1e-3)
    assert (
        last(bf.secure(local, **given)).server["local_epsilon"]
        == last(local).server["local_epsilon"]
    )


def test_degrees_keep_the_three_promises_and_graphs_are_symmetric():
    assert degree(10, 0.3, 0.1) == (9, 6)
    assert degree(100, 0.3, 0.1) == (54, 24)
    assert degree(10_000, 0.3, 0.1) == (124, 47)
    assert degree(2, 0.3, 0.1) is None
    for number in (6, 11):
        graph = neighbours(12, number)
        assert all(len({place, *row}) == number + 1 for place, row in enumerate(graph.tolist()))
        assert all(place in graph[other] for place, row in enumerate(graph) for other in row)
    with pytest.raises(ArgumentError, match="together below 1"):
        bf.secure(avg(), **RANGE, dropouts=0.6, colluding=0.4)


def test_over_flower_in_new_processes_and_asked_twice(tmp_path):
    algorithm = bf.secure(bf.scaffold(net(), training=WORK), **RANGE, vault=tmp_path / "vault")
    pool, grid = pool_over(algorithm, CLIENTS, tmp_path / "memory")
    node, handler = next(iter(grid.nodes.items()))
    # The node does its work twice, and only the second answer arrives.
    grid.nodes[node] = lambda letter: [handler(letter) for _ in range(2)][1]
    plain = last(bf.secure(bf.scaffold(net(), training=WORK), masks=False, **RANGE), rounds=2)
    assert tree_equal(without(last(algorithm, pool, rounds=2).state, "secure/"), plain.state)


def test_a_vault_that_is_not_there_is_named(tmp_path):
    vault = Vault(tmp_path)
    names = [vault.add("client/..").name for _ in range(6)]
    with vault.opened("client/..", names[-1]) as session:
        assert session.name == names[-1]
    for name in (names[0], "../../passwd", ""):
        with pytest.raises(CheckpointError, match="vault=FOLDER"), vault.opened("client/..", name):
            pass
    folder = Vault().folder
    assert not folder.exists()
