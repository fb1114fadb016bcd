"""A site's errors have two texts: its own, with everything, and the server's, without cells."""

import logging
import pickle
from pathlib import Path

import pandas as pd
import pytest

import bayesfed as bf
from bayesfed.errors import (
    SEE_LOG,
    ArgumentError,
    ClientError,
    DataError,
    LocalText,
    MissingExtraError,
    complain,
    public_text,
)
from bayesfed.federated.clients.process_group import Group
from bayesfed.federated.clients.ranks import Ranks
from bayesfed.federated.clients.turn import reason_of
from bayesfed.flower import Experiment
from bayesfed.flower.letters import Hello, read_reply
from bayesfed.flower.site import Site
from tests.support.letters import markers
from tests.support.letters.texts import messages, unreviewed


def test_what_travels_is_where_and_what_was_expected():
    found = DataError("column 'age'", "numbers", "PATIENT", "a column without PATIENT")
    assert public_text(found) == f"DataError, column 'age': expected numbers; {SEE_LOG}"
    assert "PATIENT" in str(found)
    assert public_text(DataError("PATIENT")) == f"DataError; {SEE_LOG}"
    assert public_text(ValueError("PATIENT")) == f"ValueError; {SEE_LOG}"
    assert public_text(MissingExtraError("flwr", "flower")).endswith("'bayesfed[flower]'")
    own = complain(LocalText("/home/ward"), "a file", "none", "another")
    assert public_text(ArgumentError(own)) == f"ArgumentError: expected a file; {SEE_LOG}"
    own = complain("rows", LocalText("the shape of /home/ward/a.png"), "none", "another")
    assert public_text(ArgumentError(own)) == f"ArgumentError, rows; {SEE_LOG}"
    copy = pickle.loads(pickle.dumps(found))
    assert public_text(copy) == public_text(found)


def test_a_failure_carries_both_texts():
    failure = ClientError("ward", 3, "fit", "ValueError: PATIENT", public="ValueError")
    assert failure.public_text == "client 'ward', round 3, stage 'fit': ValueError"
    assert str(failure.without_rows()) == failure.public_text
    assert "PATIENT" not in ClientError("ward", 3, "fit", "PATIENT").public_text
    assert pickle.loads(pickle.dumps(failure)).public_text == failure.public_text


def test_every_interpolated_part_of_a_public_text_is_known_to_be_no_cell():
    """A message whose *where* or *expected* has a value of another kind is looked at by a person:
    it joins the table in `tests.support.letters.texts`, or its value moves to what was found.
    """
    assert len(messages()) > 500
    assert not unreviewed()


def leaks(letters):
    """Return markers by letter of a site, or by what the server has."""
    return [
        hit
        for letter in letters
        for hit in (
            markers.found_in(letter)
            if letter.startswith(b"centre ")
            else markers.found_in_letter(letter)
        )
    ]


def test_markers_are_found_where_they_are():
    value = markers.NUMBERS[3]
    for text in (str(value), f"{value:g}", f"{value:.3g}", f"{value:,}", f"[{value}, 1]"):
        assert markers.found_in(f"found {text}".encode()), text
    for form in "dfqi":
        kind = float if form in "df" else int
        assert markers.found_in(b"xx" + markers.struct.pack(f"<{form}", kind(value)))
    assert markers.found_in(markers.TEXTS[3].encode())
    assert not markers.found_in(Hello().write())


def test_no_greeting_has_a_marker():
    refused, told = 0, 0
    for name, answer in markers.greetings(250):
        letter, _, log = markers.look(answer)
        assert not leaks([letter]), (name, read_reply(letter))
        stage = getattr(read_reply(letter), "stage", "")
        refused += stage == "data"
        told += bool(stage and markers.found_in(log.encode()))
    assert refused > 100
    # The site's own log has the cells, where a message has any.
    assert told > 25


def test_the_markers_would_be_found_if_the_full_text_were_sent(monkeypatch):
    monkeypatch.setattr("bayesfed.flower.site.public_text", reason_of)
    letters = [answer() for _, answer in markers.greetings(60)]
    assert len(leaks(letters)) > 10


@pytest.mark.parametrize(
    "begin", ["data raises", "a device", "file,", "app,", "a memory", "model trials", "fed_avg:"]
)
def test_no_other_road_has_a_marker(begin):
    roads = [(name, road) for name, road in markers.roads() if name.startswith(begin)]
    assert roads
    seen = 0
    for name, road in roads:
        letters, _, log = markers.look(road)
        assert letters, name
        assert not leaks(letters), name
        seen += bool(markers.found_in(log.encode()))
    # The road was gone: the site itself says the cells, or what stands for them, in its log.
    assert seen or begin == "fed_avg:"


@pytest.mark.slow
def test_no_road_at_all_has_a_marker():
    for name, road in markers.roads():
        letters, _, _ = markers.look(road)
        assert not leaks(letters), name


def test_the_sites_log_has_what_the_server_does_not_get(tmp_path, caplog):
    frame = markers.ONE.assign(died=[2, 1, 2, 1, 1, 1])
    made = bf.running.prepared("died ~ age", {"a": markers.ONE, "b": markers.ONE}, "bernoulli")
    experiment = Experiment(
        algorithm=made.algorithm, data=lambda client: made.design.rows(frame, client)
    )
    with caplog.at_level(logging.INFO, "bayesfed.site"):
        reply = read_reply(Site("a", experiment, tmp_path).handle(Hello().write()))
    assert reply.reason == (
        "DataError, site 'a', response 'died': expected for family 'bernoulli' 0 and 1, or "
        f"response['level']; {SEE_LOG}"
    )
    assert "client 'a', stage 'data'" in caplog.text
    assert "[2.0]" in caplog.text


def test_in_one_process_the_text_is_whole():
    frames = {"a": markers.ONE.assign(died=[2, 1, 2, 1, 1, 1]), "b": markers.ONE}
    with pytest.raises(DataError, match=r"found 1 column, such as \[\[2.0\]"):
        bf.regression("died ~ age", frames, family="bernoulli")


def test_a_rank_of_another_machine_sends_no_cells(caplog):
    far = Group(rank=1, size=2, remote=True)
    secret = markers.TEXTS[0]
    told = ClientError("a", 0, "fit", reason_of(ValueError(secret)), public="ValueError")
    for problem in (ValueError(secret), DataError("x", "y", secret, secret), told):
        sent = far.portable(problem)
        assert sent is not None
        assert secret not in str(sent)
        assert secret in caplog.text
        assert str(Group(rank=1, size=2).portable(problem)).endswith(str(problem))
    with Ranks({"a": bf.Dataset(torch_ones(), torch_ones())}) as ranks:
        object.__setattr__(ranks.group, "remote", True)
        ranks.pool.map = lambda sides, tasks: iter([(None, told)])
        ((_, outcome),) = ranks.map({}, [])
    assert outcome.reason == "ValueError"


def torch_ones():
    """Return rows."""
    return markers.torch.ones(3, 1)


def test_names_of_levels_may_travel_and_columns_of_a_frame_without_names_do_not(tmp_path):
    headless = pd.DataFrame([[*markers.texts(0, 8)]] * 6, columns=markers.texts(10, 8))
    made = bf.running.prepared("died ~ age", {"a": markers.ONE, "b": markers.ONE}, "bernoulli")
    letter = markers.greeted(made.algorithm, lambda client: made.design.rows(headless, client))
    assert not leaks([letter])
    assert "expected a column" in read_reply(letter).reason
    assert not Path("memory").exists()
