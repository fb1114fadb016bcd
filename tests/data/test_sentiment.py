"""Rated sentences: the files' format, classes, splits and partitions by domain."""

from pathlib import Path

import numpy as np
import pytest
import torch

import bayesfed as bf
from bayesfed.data import Texts, by_domain
from bayesfed.errors import ArgumentError, DataError

FILES = {
    "movies": "movieReviewSnippets_GroundTruth.txt",
    "products": "amazonReviewSnippets_GroundTruth.txt",
    "tweets": "tweets_GroundTruth.txt",
    "editorials": "nytEditorialSnippets_GroundTruth.txt",
}
FOLDER = Path(__file__).parents[2] / "hutto_ICWSM_2014"
KEY = bf.Key(0, "split")


def write(folder, **domains):
    """Write files as the published ones are: CRLF between lines, none at the end."""
    for name, rows in domains.items():
        lines = [f"{number}_1\t{rating}\t{text}" for number, (rating, text) in enumerate(rows)]
        (folder / FILES[name]).write_bytes("\r\n".join(lines).encode())
    return folder


def drawn(count, domains=("a", "b"), repeats=0):
    """Texts of two classes and some domains, the first `repeats` of them again at the end."""
    rows = [
        (f"text {number}", number % 2, domains[number // 2 % len(domains)])
        for number in range(count)
    ]
    texts, labels, homes = zip(*rows, *rows[:repeats], strict=True)
    return Texts(texts, torch.tensor(labels), homes)


def test_ratings_become_classes_and_the_middle_goes(tmp_path):
    write(
        tmp_path,
        movies=[(2.5, "good"), (-0.4, "hm"), (0, "so"), (-3.875, "bad")],
        tweets=[(0.5, "ok “then” é"), (0.6, "fine ")],
    )
    found = bf.data.sentiment(str(tmp_path), domains=["tweets", "movies"], threshold=0.5)
    assert (list(found.texts), found.labels.tolist(), list(found.domains)) == (
        ["fine", "good", "bad"],
        [1, 1, 0],
        ["tweets", "movies", "movies"],
    )
    found = bf.data.sentiment(tmp_path, domains=["movies", "tweets"])
    assert found.texts == ("good", "hm", "bad", "ok “then” é", "fine")
    assert found.labels.tolist() == [1, 0, 0, 1, 1]
    assert found.labels.dtype == torch.int64
    found = bf.data.sentiment(tmp_path, domains=["movies", "tweets"], threshold=0.5, neutral=True)
    assert found.labels.tolist() == [2, 1, 1, 0, 1, 2]


def test_sentences_of_a_document_have_a_home_in_common(tmp_path):
    for name, ids in (("products", ("7_1", "7_2", "12_1")), ("tweets", ("1", "2"))):
        (tmp_path / FILES[name]).write_text("\n".join(f"{one}\t1.5\tgood" for one in ids))
    found = bf.data.sentiment(tmp_path, domains=["products", "tweets"], by="document")
    assert found.domains == ("products/7", "products/7", "products/12", "tweets", "tweets")
    assert set(bf.data.sentiment(tmp_path, domains=["products", "tweets"]).domains) == {
        "products",
        "tweets",
    }


def test_missing_files_name_the_command(tmp_path):
    write(tmp_path, movies=[(1, "good")])
    for folder, name in ((tmp_path, "amazonReview"), (tmp_path / "nowhere", "movieReview")):
        with pytest.raises(
            DataError,
            match=(
                rf"expected {name}.*no such files; try `pip download --no-deps --no-binary "
                r":all: vaderSentiment==3.3.2"
            ),
        ):
            bf.data.sentiment(folder)
    assert len(bf.data.sentiment(tmp_path, domains=["movies"])) == 1


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"3\tno number\tgood", "could not convert"),
        (b"3\t\tgood", "could not convert"),
        (b"3\tnan\tgood", "a rating of nan"),
        (b"3\t4.5\tgood", "a rating of 4.5"),
        (b"3\t1.5\t ", "no text"),
        (b"3\t1.5", "not enough values"),
        (b"3\t1.5\tgood\tmore", "too many values"),
        (b"", "not enough values"),
        (b"3\t1.5\tcaf\xe9", "can't decode byte 0xe9"),
    ],
    ids=["word", "empty", "nan", "range", "blank", "fields", "more", "line", "encoding"],
)
def test_bad_lines_name_file_and_line(tmp_path, line, found):
    (tmp_path / FILES["tweets"]).write_bytes(b"1\t2.0\tgood\r\n" + line + b"\r\n2\t1.0\tfine")
    with pytest.raises(
        DataError,
        match=(
            r"tweets_GroundTruth.txt, line 2: expected an id, a rating from -4 to 4 and a "
            rf"text.*{found}"
        ),
    ):
        bf.data.sentiment(tmp_path, domains=["tweets"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"domains": ["films"]}, "domains"),
        ({"domains": []}, "domains"),
        ({"domains": "movies"}, "domains"),
        ({"domains": ["movies"] * 2}, "domains"),
    ]
    + [({"by": "author"}, "by")]
    + [({"threshold": value}, "threshold") for value in (-0.1, 4, float("nan"))],
    ids=["unknown", "none", "string", "twice", "by", "negative", "large", "nan"],
)
def test_bad_arguments_are_errors_in_words(tmp_path, change, message):
    write(tmp_path, movies=[(1, "good")])
    with pytest.raises(ArgumentError, match=f"sentiment, {message}"):
        bf.data.sentiment(tmp_path, **{"domains": ["movies"]} | change)


def test_nothing_left_is_an_error(tmp_path):
    write(tmp_path, movies=[(1, "good")])
    with pytest.raises(DataError, match=r"ratings beyond 3.*smaller threshold"):
        bf.data.sentiment(tmp_path, domains=["movies"], threshold=3)


def test_texts_need_a_label_each():
    with pytest.raises(DataError, match="a label and a domain for every text"):
        Texts(["one", "two"], torch.tensor([1]), ["a", "a"])
    with pytest.raises(DataError, match="a label and a domain for every text"):
        Texts(["one"], torch.tensor([[1]]), ["a"])
    with pytest.raises(DataError, match="integers from 0"):
        Texts(["one"], torch.tensor([-1]), ["a"])
    with pytest.raises(DataError, match="integers from 0"):
        Texts(["one"], torch.tensor([0.5]), ["a"])
    with pytest.raises(DataError, match="a tensor, an array or a frame, found a list"):
        Texts(["one"], [0], ["a"])
    assert Texts(["one"], np.array([1]), ["a"]).labels.tolist() == [1]


@pytest.mark.parametrize("second", ["\t", ("two",), ("a", "\t"), ("a", float("nan")), None, ["a"]])
def test_texts_are_all_single_or_all_pairs_with_words(second):
    first = ("a", "b") if isinstance(second, tuple) else "one"
    with pytest.raises(DataError, match=r"or tuples of two for pairs, found others in rows \[1\]"):
        Texts([first, second], torch.tensor([0, 1]), ["a", "a"])


def test_splits_are_of_every_class_and_domain_and_the_keys_own():
    texts = drawn(80, domains=("a", "b"))
    train, test = texts.split(0.2, KEY)
    assert len(test) == 16
    assert sorted({*train.texts, *test.texts}) == sorted(texts.texts)
    for name in ("a", "b"):
        rows = by_domain(test.domains)[name]
        assert test.labels[rows].tolist().count(1) == 4
        assert len(rows) == 8
    again, other = texts.split(0.2, KEY), texts.split(0.2, bf.Key(1, "split"))
    assert again[1].texts == test.texts
    assert other[1].texts != test.texts
    assert [text for text in texts.texts if text in set(test.texts)] == list(test.texts)
    for share in (0, 1, -0.5, float("nan")):
        with pytest.raises(ArgumentError, match="share"):
            texts.split(share, KEY)


def test_a_text_that_repeats_is_on_one_side():
    texts = drawn(40, repeats=20)
    for seed in range(3):
        train, test = texts.split(0.3, bf.Key(seed, "split"))
        assert not {*train.texts} & {*test.texts}
        assert len(train) + len(test) == 60


def test_domains_are_split_over_clients_of_their_own():
    texts = drawn(90, domains=("a", "b", "c"))
    key = bf.Key(0, "partition")
    parts = bf.data.within_domains(
        texts.domains, lambda rows, key: bf.dirichlet(texts.labels[rows], 2, 0.1, key), key
    )
    assert list(parts) == [f"{name}-00{number}" for name in "abc" for number in range(2)]
    assert sorted(torch.cat(list(parts.values())).tolist()) == list(range(90))
    for name, rows in parts.items():
        assert {texts.domains[row] for row in rows.tolist()} <= {name[0]}
    homes = by_domain(texts.domains)
    lonely = bf.dirichlet(texts.labels[homes["b"]], 2, 0.1, key.child("b"))
    assert torch.equal(parts["b-001"], homes["b"][lonely[1]])
    even = bf.data.within_domains(texts.domains, lambda rows, key: bf.iid(len(rows), 3, key), key)
    assert {len(rows) for rows in even.values()} == {10}


def test_holding_out_covers_every_row_once():
    train, test = bf.held_out([0, 0, 0, 0, 1, 1, "x"], 0.5, KEY)
    assert sorted(train.tolist() + test.tolist()) == list(range(7))
    assert train.tolist() == sorted(train.tolist())
    assert sum(row < 4 for row in test.tolist()) == 2
    assert sum(row in (4, 5) for row in test.tolist()) == 1
    assert [side.tolist() for side in bf.held_out([], 0.5, KEY)] == [[], []]


@pytest.mark.text
def test_the_published_files():
    texts = bf.data.sentiment(FOLDER)
    counts = {name: len(rows) for name, rows in by_domain(texts.domains).items()}
    assert counts == {"movies": 10_568, "products": 3610, "tweets": 4196, "editorials": 4946}
    movies = bf.data.sentiment(FOLDER, domains=["movies"])
    assert movies.labels.bincount().tolist() == [5326, 5242]
    assert "We’ve seen the hippie turned yuppie plot before" in movies.texts[-2]
    documents = by_domain(bf.data.sentiment(FOLDER, by="document").domains)
    assert {name: sum(key.startswith(f"{name}/") for key in documents) for name in counts} == {
        "movies": 0,
        "products": 299,
        "tweets": 0,
        "editorials": 498,
    }
    _, test = texts.split(0.2, KEY)
    assert abs(len(test) / len(texts) - 0.2) < 0.002
