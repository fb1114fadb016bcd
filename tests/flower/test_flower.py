"""The pool over a Flower grid, on a grid in this process: the same bits, memories in two phases,
nodes that come and go.
"""

import re
from dataclasses import replace

import pandas as pd
import pytest
import torch

import bayesfed as bf
from bayesfed.algorithms import evaluate_clients
from bayesfed.errors import ArgumentError, CheckpointError, ClientError, DataError, PosteriorError
from bayesfed.federated import fraction, load, rounds
from bayesfed.flower.experiment import Experiment
from bayesfed.flower.letters import Answer, Hello, Name, read_reply
from bayesfed.flower.pool import Flower
from bayesfed.models.nets.norms import untracked
from bayesfed.trees import parameters
from tests.conftest import tree_equal
from tests.flower.flower_grid import FakeGrid, PlainMail, pool_over, sites
from tests.support.pools import Counter, check_pool
from tests.support.random_networks import KINDS, drawing_net
from tests.support.saving import save

WORK = bf.Training(steps=3, batch_size=16)


def fed_avg(net, clients):
    return bf.fed_avg(net, training=WORK)


def noisy(inputs):
    return inputs + 0.1 * torch.randn_like(inputs)


def in_parts(net, clients):
    work = bf.Training(steps=3, batch_size=16, accumulate=2, bfloat16=True, augment=noisy)
    return bf.fed_avg(net, training=work)


def turbo(net, clients):
    declared = bf.declare(net, likelihood=bf.Categorical(temperature=0.2))
    return bf.d_turbo_vbi(declared, observations=sum(map(len, clients.values())), training=WORK)


def lora(net, clients):
    return bf.fs_lora(
        bf.lora(net, 4, bf.Key(0, "lora")), [4, 2, 1], bf.federated.dynamic(3), training=WORK
    )


def ternary(net, clients):
    return bf.stc(net, training=WORK)


def statistics(net, clients):
    layers = [
        torch.nn.Flatten(),
        torch.nn.Linear(64, 8),
        torch.nn.BatchNorm1d(8),
        torch.nn.ReLU(),
        torch.nn.Linear(8, 8),
        torch.nn.BatchNorm1d(8),
    ]
    plain = untracked(torch.nn.Sequential(*layers, torch.nn.Linear(8, 10)))
    return bf.batch_statistics(plain, parameters(plain), torch.zeros(2, 8, 8))


def last(algorithm, pool, count=3, **options):
    *_, report = rounds(algorithm, pool, rounds=count, **{"on_client_error": "drop", **options})
    return report


def figures(report):
    """Return all that two runs must share: everything but the seconds."""
    return (
        sorted((replace(row, seconds=0.0) for row in report.rows), key=str),
        dict(report.clients),
        report.server,
    )


RECIPES = {
    "fed_avg": fed_avg,
    "d_turbo_vbi": turbo,
    "fs_lora": lora,
    "stc": ternary,
    "in parts": in_parts,
    "batch_statistics": statistics,
    "evaluate_clients": lambda net, clients: evaluate_clients(fed_avg(net, clients)),
    **{name: lambda net, clients, name=name: fed_avg(drawing_net(name), clients) for name in KINDS},
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_over_nodes_is_the_run_in_process_bit_for_bit(name, net, clients, tmp_path):
    algorithm = RECIPES[name](net, clients)
    pool, _ = pool_over(algorithm, clients, tmp_path)
    here = list(rounds(algorithm, bf.InProcess(clients), rounds=3, sampler=fraction(0.8)))
    there = list(rounds(algorithm, pool, rounds=3, sampler=fraction(0.8)))
    for left, right in zip(here, there, strict=True):
        assert tree_equal(left.state, right.state)
        assert figures(left) == figures(right)


def test_scores_are_summed_under_masks_over_nodes(net, clients, tmp_path):
    """They are those of the same sums in process, where no client has a mask."""
    scored = evaluate_clients(bf.equal_weights(fed_avg(net, clients)), worst=False)
    bounds = {"participants": 4, "largest": 8.0, "bits": 64}
    masked = bf.secure(scored, **bounds, vault=tmp_path / "vault")
    there = last(masked, pool_over(masked, clients, tmp_path)[0], 2)
    here = last(bf.secure(scored, **bounds, masks=False), bf.InProcess(clients), 2)
    assert {"own_accuracy", "own_accuracy_by_rows", "summed"} == there.server.keys()
    assert there.server == here.server
    assert not any(there.clients.values())
    assert {row.phase for row in there.rows} > {"clients' scores-keys", "clients' scores-open"}
    assert all(torch.equal(leaf, there.state[name]) for name, leaf in here.state.items())


def test_a_regression_by_formula_needs_no_frame_but_made_up_ones(tmp_path):
    columns = {"x": [-1.0, 0.0, 1.0, 0.0], "k": [*"abab"], "y": [0.4, 0.7, 2.1, 1.4]}
    one = pd.DataFrame(columns)
    frames = {name: one.sample(20, replace=True, random_state=k) for k, name in enumerate("pq")}
    made = bf.running.prepared("y ~ x + k", {"p": one, "q": one[::-1]})
    rows = {name: made.design.rows(frame, name) for name, frame in frames.items()}
    pool, _ = pool_over(made.algorithm, rows, tmp_path)
    here, there = (bf.run(made.algorithm, at, progress=False) for at in (rows, pool))
    assert tree_equal(here.snapshot.state, there.snapshot.state)
    fit = bf.running.Regression(made.design, made.model, there)
    assert fit.table().equals(bf.running.Regression(made.design, made.model, here).table())
    with pytest.raises(PosteriorError, match="memories.name. of a run in this process"):
        fit.without("p").table()
    with pytest.raises(DataError, match="'k': expected categories of the fit, found .'c'.; try"):
        made.design.rows(one.assign(k="c"), "p")
    with pytest.raises(
        ArgumentError, match="pandas frames by site.*or running.prepared of made-up"
    ):
        bf.regression("y ~ x + k", pool)


def test_the_pool_obeys_the_laws(tmp_path):
    def make(data):
        algorithm = bf.fed_avg(bf.mlp([1, 2], bf.Key(0)), training=WORK)
        (phase,) = algorithm.phases
        return pool_over(
            replace(algorithm, phases=(replace(phase, local=Counter()),)), data, tmp_path
        )[0]

    check_pool(make)


def test_our_names_not_flowers_numbers_say_who_is_who(net, clients, tmp_path):
    algorithm = fed_avg(net, clients)
    pool, grid = pool_over(algorithm, clients, tmp_path)
    assert [profile.name for profile in pool.profiles] == sorted(clients)
    assert [profile.samples for profile in pool.profiles] == [
        len(clients[name]) for name in sorted(clients)
    ]
    grid = FakeGrid(sites(algorithm, clients, tmp_path, device=lambda name: {"speed": 2.0}))
    pool, _ = pool_over(algorithm, clients, tmp_path, grid)
    assert {profile.device["speed"] for profile in pool.profiles} == {2.0}
    for node, handler in list(grid.nodes.items())[:1]:
        grid.start(1, handler)
        with pytest.raises(ClientError, match="two nodes say"):
            pool_over(algorithm, clients, tmp_path, grid)
        grid.kill(1)
        grid.kill(node)
    with pytest.raises(
        ClientError,
        match=r"1 more to come after 5 s, heard of \['client-001', 'client-002', 'client-003'\]",
    ):
        pool_over(algorithm, clients, tmp_path, grid, hello_s=5.0)
    pool = Flower(
        grid, ["client-002", "client-001"], mail=PlainMail(), clock=grid.clock, wait=grid.wait
    )
    assert [profile.name for profile in pool.profiles] == ["client-001", "client-002"]
    with pytest.raises(
        ClientError, match="more than 2 clients, .*the names of those that are meant"
    ):
        Flower(grid, 2, mail=PlainMail(), clock=grid.clock, wait=grid.wait)


def test_what_is_no_client_is_said_and_asked_nothing_more(net, clients, tmp_path):
    algorithm = fed_avg(net, clients)
    other = sites(turbo(net, clients), clients, tmp_path)
    grid = FakeGrid({1: lambda letter: b"nonsense", 2: next(iter(other.values()))})
    experiment = Experiment(algorithm=algorithm, data=clients.get, rounds=1)
    with pytest.raises(
        ClientError,
        match=r"client 'client-000' \(node 2\): it has another experiment than the server: "
        r"algorithm, .* are others",
    ) as caught:
        Flower(
            grid,
            1,
            mail=PlainMail(),
            clock=grid.clock,
            wait=grid.wait,
            hello_s=3.0,
            experiment=experiment.fingerprint,
            parts=experiment.parts,
        )
    assert "node 1: message: expected magic" in str(caught.value)
    assert len(grid.pushed) == 2
    empty = {"client-000": clients["client-000"][slice(0, 0)]}
    with pytest.raises(DataError, match="1 client, all empty"):
        pool_over(algorithm, empty, tmp_path)


@pytest.mark.parametrize(
    ("clients", "options"),
    [(0, {}), (-1, {}), ([], {}), (3, {"deadline_s": 0.0}), (3, {"poll_s": -1.0})],
)
def test_bad_arguments_are_refused(clients, options):
    with pytest.raises(ArgumentError, match="Flower(, .*_s)?: expected"):
        Flower(FakeGrid({}), clients, mail=PlainMail(), **options)


# Late, missing, twice


def counting(net):
    """Federated averaging whose clients remember how often they were believed."""
    (phase,) = bf.fed_avg(net, training=WORK).phases

    class Counting:
        kind = phase.local.kind

        def fit(self, message, memory, data, key, options):
            count = memory.get("count", torch.zeros(())) + 1
            fit = phase.local.fit(message, {}, data, key, options)
            return fit._replace(memory={"count": count}, info={"count": float(count)})

    return replace(bf.fed_avg(net, training=WORK), phases=(replace(phase, local=Counting()),))


def counts(report):
    return {name: info["count"] for name, info in report.clients.items()}


def test_a_straggler_is_left_out_its_late_answer_refused_and_its_memory_has_not_moved(
    net, clients, tmp_path
):
    algorithm = counting(net)
    pool, grid = pool_over(algorithm, clients, tmp_path, deadline_s=10.0)
    slow = pool._roster.nodes["client-001"]
    grid.delays[slow, 2] = 15.0  # its second task; the first message was the greeting
    first, second, third, fourth = rounds(algorithm, pool, rounds=4, on_client_error="drop")
    assert not first.refused
    assert second.refused["client-001"] == (
        f"deadline: not answered by its node {slow} within 10 s; try a larger deadline_s"
    )
    assert counts(third) == {"client-000": 3, "client-001": 2, "client-002": 3, "client-003": 3}
    assert counts(fourth) == {"client-000": 4, "client-001": 3, "client-002": 4, "client-003": 4}
    late = [(row.client, row.field) for row in third.rows if not row.accepted]
    assert late == [("client-001", "round")]


def test_if_nobody_answers_in_time_the_run_stops_and_says_so(net, clients, tmp_path):
    pool, grid = pool_over(fed_avg(net, clients), clients, tmp_path, deadline_s=10.0)
    grid.delays = {(node, 1): 100.0 for node in grid.nodes}
    with pytest.raises(ClientError, match="no client is left .*client-003: deadline: not answered"):
        last(fed_avg(net, clients), pool)


def test_a_node_that_is_gone_is_a_row_of_the_report(net, clients, tmp_path):
    pool, grid = pool_over(fed_avg(net, clients), clients, tmp_path)
    node = pool._roster.nodes["client-002"]
    grid.delays[node, 1] = 5.0
    grid.at(2.0, lambda: grid.kill(node))
    first, second = rounds(fed_avg(net, clients), pool, rounds=2, on_client_error="drop")
    gone = {"client-002": "node: its node is offline; try starting it again"}
    assert first.refused == second.refused == gone
    assert grid.now < 10.0  # nobody waited for the deadline
    with pytest.raises(ClientError, match="client 'client-002', round 0, stage 'node'"):
        last(fed_avg(net, clients), pool, on_client_error="raise")


@pytest.mark.parametrize("seen", [True, False])
def test_a_node_that_is_killed_and_started_again_is_asked_again(net, clients, tmp_path, seen):
    """Unseen: Flower still believes in the dead node when the new one comes."""
    algorithm = counting(net)
    pool, grid = pool_over(algorithm, clients, tmp_path, deadline_s=100.0)
    node, reference = pool._roster.nodes["client-002"], last(algorithm, bf.InProcess(clients))
    handler = grid.nodes[node]
    grid.delays[node, 2] = 5.0

    def kill():
        grid.kill(node, seen=seen)
        grid.start(4, handler)

    reports = []
    for report in rounds(algorithm, pool, rounds=3, on_client_error="drop"):
        reports.append(report)
        if report.round == 0:
            grid.at(grid.now + 2.0, kill)
    assert tree_equal(reports[-1].state, reference.state)
    assert reports[1].clients["client-002"] == {"count": 2.0, "attempts": 2.0}
    assert counts(reports[2]) == dict.fromkeys(sorted(clients), 3.0)
    assert not any(report.refused for report in reports)


def test_a_second_answer_counts_for_nothing(net, clients, tmp_path):
    algorithm = counting(net)
    pool, grid = pool_over(algorithm, clients, tmp_path)
    grid.tamper = lambda replies: [*replies, *replies]
    report = last(algorithm, pool)
    assert tree_equal(report.state, last(algorithm, bf.InProcess(clients)).state)
    assert counts(report) == dict.fromkeys(sorted(clients), 3.0)
    assert {row.field for row in report.rows if not row.accepted} <= {"duplicate", "round"}
    assert any(not row.accepted for row in report.rows)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda content: content[:-1] + bytes([content[-1] ^ 1]),
            "reply: message: expected a matching digest",
        ),
        (
            lambda content: Name(bf.federated.Profile("x", 1), "").write(),
            "reply: a name, not an answer",
        ),
        (
            lambda content: Answer("client-009", 0, "train").write(),
            "reply: an answer to .'client-009', 0, 'train'., not to",
        ),
        (lambda content: Hello().write(), "reply: letter: expected kind 'answer', found 'hello'"),
        (lambda content: replace(read_reply(content), packed=b"x").write(), "gate: "),
    ],
    ids=["damaged", "name", "other", "hello", "payload"],
)
def test_an_answer_that_is_none_is_refused_by_its_client(net, clients, tmp_path, change, words):
    pool, grid = pool_over(fed_avg(net, clients), clients, tmp_path)
    broken = pool._roster.nodes["client-003"]
    grid.tamper = lambda replies: [
        replace(reply, content=change(reply.content)) if reply.node == broken else reply
        for reply in replies
    ]
    report = last(fed_avg(net, clients), pool, 1)
    assert re.match(words, report.refused["client-003"])
    assert len(report.clients) == 3


def test_an_app_that_fails_is_a_row_of_the_report(net, clients, tmp_path):
    pool, grid = pool_over(fed_avg(net, clients), clients, tmp_path)
    node = pool._roster.nodes["client-000"]
    grid.tamper = lambda replies: [
        replace(reply, error="Flower's error 2, boom") if reply.node == node else reply
        for reply in replies
    ]
    assert last(fed_avg(net, clients), pool, 2).refused == {
        "client-000": "app: Flower's error 2, boom"
    }


# Memories


def test_a_resumed_run_goes_back_with_its_clients(net, clients, tmp_path):
    algorithm = ternary(net, clients)
    whole = last(algorithm, bf.InProcess(clients), 5)
    pool, grid = pool_over(algorithm, clients, tmp_path / "clients")
    for report in rounds(algorithm, pool, rounds=4):
        if report.round == 1:
            save(tmp_path / "run.bfd", report.snapshot)
    # The server fell behind by two rounds; clients keep what they had.
    experiment = sites(algorithm, clients, tmp_path / "clients", save_every=2)
    grid = FakeGrid(experiment)
    pool, _ = pool_over(algorithm, clients, tmp_path / "clients", grid)
    report = last(algorithm, pool, 5, resume=load(tmp_path / "run.bfd"))
    assert not report.refused
    assert tree_equal(report.state, whole.state)
    with pytest.raises(CheckpointError, match="expected leaves slot.round, slot.phase"):
        pool.restore({"client-000": {"feedback/x": torch.zeros(1)}})


def test_a_memory_that_is_lost_is_said_and_a_method_without_memory_does_not_care(
    net, clients, tmp_path
):
    for algorithm, lost in ((counting(net), True), (fed_avg(net, clients), False)):
        pool, grid = pool_over(algorithm, clients, tmp_path / algorithm.name / str(lost))
        node, elsewhere = (
            pool._roster.nodes["client-001"],
            sites(algorithm, clients, tmp_path / "elsewhere"),
        )
        reports = []
        for report in rounds(algorithm, pool, rounds=2, on_client_error="drop"):
            reports.append(report)
            grid.nodes[node] = elsewhere[node]
        assert (
            reports[1]
            .refused.get("client-001", "")
            .startswith("memory: CheckpointError, memory: expected one of Slot" if lost else "")
        )
        assert len(reports[1].refused) == lost
