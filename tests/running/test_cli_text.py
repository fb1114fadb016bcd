"""Experiment files on texts: partitions by domain, as docs/how-to/text.md makes them by hand."""

from pathlib import Path

import pytest
import torch

import bayesfed as bf
from bayesfed.cli.main import main
from bayesfed.data import by_domain, concatenated
from bayesfed.errors import DataError
from bayesfed.running.experiments import experiment
from bayesfed.running.experiments.build import build
from bayesfed.running.experiments.experiment import ExperimentError
from tests.data.test_sentiment import write
from tests.data.test_text import WORDS
from tests.data.test_text import folder as tiny  # noqa: F401 (a fixture)

SHIPPED = Path(__file__).parents[2] / "examples" / "experiments" / "text" / "fs_lora.toml"
TEXT = """\
rounds = 1
draws = 2

[data]
kind = "split_texts"
texts = {{ kind = "sentiment", folder = "{texts}", domains = ["tweets", "movies"] }}
tokenizer = "{model}"
share = 0.25
length = 12

[partition]
{partition}

[net]
kind = "lora"
rank = 4
where = "query_value"
head = ["classifier"]
net = {{ kind = "text_classifier", encoder = "{model}" }}

[recipe]
kind = "fs_lora"
ranks = [4, 2]
capacity = "fixed"
training = {{ steps = 1 }}
"""
WITHIN = 'kind = "within_domains"\nsplit = '
BY_CLASS = WITHIN + '{ kind = "dirichlet", clients = 2, alpha = 0.5 }'


@pytest.fixture
def make(tiny, tmp_path):  # noqa: F811
    rated = [
        (
            1.0 if number % 2 else -1.0,
            f"{WORDS[number % len(WORDS)]} {WORDS[number // 5 % len(WORDS)]} {number}",
        )
        for number in range(48)
    ]
    write(tmp_path, movies=rated[:32], tweets=rated[32:])

    def made(partition):
        path = tmp_path / "texts.toml"
        path.write_text(TEXT.format(texts=tmp_path, model=tiny, partition=partition))
        return path

    return made


def test_every_domain_is_split_over_its_own_clients_by_hand(make, tiny, tmp_path):  # noqa: F811
    built = build(experiment.read(make(BY_CLASS)), 3)
    texts, _ = bf.data.sentiment(tmp_path, domains=["tweets", "movies"]).split(
        0.25, bf.Key(3, "data")
    )
    tokens = bf.data.tokenised(texts, tiny, length=12)
    parts = bf.data.within_domains(
        tokens.domains,
        lambda rows, key: bf.dirichlet(tokens.targets[rows], 2, 0.5, key),
        bf.Key(3, "partition"),
    )
    expected = bf.federate(tokens, parts)
    assert (
        list(built.clients)
        == list(expected)
        == ["movies-000", "movies-001", "tweets-000", "tweets-001"]
    )
    for name, part in expected.items():
        assert torch.equal(built.clients[name].inputs, part.inputs)
        assert set(built.clients[name].domains) <= {name.partition("-")[0]}
    assert sum(map(len, built.clients.values())) == len(texts) == 36


@pytest.mark.parametrize(
    ("partition", "sizes"),
    [
        ('kind = "by_domain"', {"movies": 24, "tweets": 12}),
        (
            WITHIN + '{ kind = "iid", clients = 2 }',
            {"movies-000": 12, "movies-001": 12, "tweets-000": 6, "tweets-001": 6},
        ),
        (
            WITHIN + '{ kind = "shards", clients = 2, per_client = 1 }',
            {"movies-000": 12, "movies-001": 12, "tweets-000": 6, "tweets-001": 6},
        ),
    ],
)
def test_partitions_of_domains(make, partition, sizes):
    clients = build(experiment.read(make(partition)), 0).clients
    assert {name: len(part) for name, part in clients.items()} == sizes


def test_it_runs(make, tmp_path, capsys):
    assert main(["run", str(make(BY_CLASS)), "--out", str(tmp_path / "results"), "--quiet"]) == 0
    assert "fs_lora" in (tmp_path / "results/texts/experiment.toml").read_text()
    assert "accuracy %" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("partition", "told"),
    [
        (
            'kind = "within_domains"',
            "partition.split: expected `split`: a partition of each domain over clients of its own",
        ),
        (
            WITHIN + '"dirichlet"',
            "partition.split.clients: expected `clients`: a whole number, found nothing",
        ),
        (
            WITHIN + '{ kind = "iid", clients = 2, alpha = 1 }',
            (
                "line 13, partition.split.alpha: expected a key of iid: clients, minimum, "
                "found `alpha`"
            ),
        ),
        (
            WITHIN + '{ kind = "dirichlt", clients = 2 }',
            'expected one of dirichlet, iid, shards, found "dirichlt" (text); try "dirichlet"',
        ),
        (
            WITHIN + '{ kind = "iid", clients = 0 }',
            "line 11, partition: partition: expected at least one client, found 0",
        ),
    ],
)
def test_wrong_splits_are_told(make, partition, told):
    with pytest.raises(ExperimentError) as caught:
        build(experiment.read(make(partition)), 0)
    assert told in str(caught.value)


def test_rows_without_domains_are_told():
    text = (
        'rounds = 1\ndata = { kind = "blobs" }\npartition = "by_domain"\nnet = { kind = "mlp", '
        'widths = [8, 3] }\nrecipe = "fed_avg"\n'
    )
    with pytest.raises(
        ExperimentError,
        match=(
            "line 3, partition: partition by domain: expected rows with domains, found none; "
            "try data that know"
        ),
    ):
        build(experiment.parse(text), 0)


def test_domains_follow_their_rows():
    data = bf.Dataset(
        torch.arange(4.0)[:, None], torch.tensor([0, 1, 0, 1]), domains=("a", "b", "c", "d")
    )
    assert data[slice(1, 3)].domains == ("b", "c")
    assert data[torch.tensor([3, 0])].domains == ("d", "a")
    assert data[torch.tensor([True, False, False, True])].domains == ("a", "d")
    assert data.to("cpu").domains == data.domains
    assert concatenated([data, data[slice(0, 1)]]).domains == ("a", "b", "c", "d", "a")
    assert concatenated([data, bf.Dataset(data.inputs, data.targets)]).domains == ()
    assert list(by_domain(data.domains)) == ["a", "b", "c", "d"]
    with pytest.raises(
        DataError, match="Dataset domains: expected a name for each of 4 rows, found 1"
    ):
        bf.Dataset(data.inputs, data.targets, domains=("a",))


@pytest.mark.text
def test_the_shipped_experiment_fits_together(monkeypatch):
    monkeypatch.chdir(SHIPPED.parents[3])
    file = experiment.read(SHIPPED)
    file.tree["data"].pop("cache")
    built = build(file, 0)
    assert len(built.clients) == 20
    assert {name.partition("-")[0] for name in built.clients} == {
        "movies",
        "products",
        "tweets",
        "editorials",
    }
    assert built.algorithm.name == SHIPPED.stem
