"""Adapters in the layout of `peft`: read by it, and what it wrote read here."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import bayesfed as bf
from bayesfed.errors import ArgumentError, DataError, UpdateError
from bayesfed.federated.core.algorithm import Model
from bayesfed.federated.core.owners import owned
from bayesfed.models import adapters
from bayesfed.models.adapters.lora_layers import Frozen
from bayesfed.trees import parameters, trainable
from tests.conftest import tree_equal

KEY = bf.Key(0, "peft")
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def classifier():
    from transformers import BertConfig, BertModel

    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 32,
    }
    with torch.random.fork_rng():
        torch.manual_seed(1)
        body = BertModel(
            BertConfig(
                vocab_size=20, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **sizes
            ),
            add_pooling_layer=False,
        )
    return bf.models.text_classifier(body, 2, KEY).eval()


def adapted(net=None, **settings):
    return bf.lora(
        net or classifier(),
        4,
        KEY,
        **{"where": bf.models.query_value, "head": ["classifier"]} | settings,
    )


def drawn(net, seed=0):
    """Numbers for all that is trained."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: 0.3 * torch.randn(value.shape, generator=generator)
        for name, value in trainable(net).items()
    }


def logits(net, tree=None):
    tokens = torch.stack(
        [
            torch.randint(0, 20, (7, 9), generator=torch.Generator().manual_seed(2)),
            torch.ones(7, 9, dtype=torch.int64),
        ],
        1,
    )
    return Model(net, parameters(net) | (tree or {}))(tokens)


def by_peft(folder, net=None):
    from peft import PeftModel

    return PeftModel.from_pretrained(net or classifier(), folder).eval()


@pytest.mark.parametrize("scaling", ["lora", "rs"])
@pytest.mark.parametrize("head", [["classifier"], []], ids=["head", "adapters"])
@pytest.mark.slow
def test_peft_reads_what_is_written_here(tmp_path, scaling, head):
    net = adapted(scaling=scaling, alpha=6.0, dropout=0.1, head=head)
    tree = drawn(net)
    bf.models.save_peft(net, tree, tmp_path / "new", scaling=scaling)
    there = by_peft(tmp_path / "new")
    assert torch.allclose(logits(there), logits(net, tree), atol=1e-5)
    assert not torch.allclose(logits(there), logits(classifier()), atol=1e-2)
    config = json.loads((tmp_path / "new" / CONFIG).read_text())
    assert (config["r"], config["use_rslora"], config["lora_dropout"]) == (4, scaling == "rs", 0.1)
    assert config["lora_alpha"] == pytest.approx(6)
    assert config["modules_to_save"] == (head or None)


@pytest.mark.slow
def test_peft_reads_either_scaling_of_one_function(tmp_path):
    net = adapted(scaling="rs", alpha=5.0)
    tree = drawn(net)
    for scaling in ("lora", "rs"):
        bf.models.save_peft(net, tree, tmp_path / scaling, scaling=scaling)
        assert torch.allclose(logits(by_peft(tmp_path / scaling)), logits(net, tree), atol=1e-5)


@pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing`:FutureWarning"
)  # peft asks transformers by its old name
def test_a_part_alone_is_written_by_its_own_names(tmp_path):
    net = adapted()
    tree = drawn(net)
    inner = {
        name.removeprefix("encoder."): value
        for name, value in tree.items()
        if name.startswith("encoder.")
    }
    bf.models.save_peft(net.encoder, inner, tmp_path)
    ids = torch.randint(0, 20, (3, 5))
    plain = classifier().encoder
    before = plain(input_ids=ids).last_hidden_state
    there = by_peft(tmp_path, plain)(input_ids=ids).last_hidden_state
    here = bf.models.merged(net, tree).encoder.eval()(input_ids=ids).last_hidden_state
    assert torch.allclose(there, here, atol=1e-5)
    assert not torch.allclose(before, here, atol=1e-2)


@pytest.mark.parametrize("rs", [False, True], ids=["lora", "rs"])
@pytest.mark.parametrize("whole", [["classifier"], None], ids=["head", "adapters"])
def test_what_peft_writes_is_read_here(tmp_path, rs, whole):
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=3,
        lora_alpha=7,
        use_rslora=rs,
        lora_dropout=0.2,
        target_modules=["query", "dense"],
        modules_to_save=whole,
    )
    there = get_peft_model(classifier(), config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in there.parameters():
            if value.requires_grad:
                value.copy_(0.3 * torch.randn(value.shape, generator=generator))
    there.save_pretrained(tmp_path)
    plain = classifier()
    before = parameters(plain)
    here = bf.models.load_peft(plain, tmp_path)
    assert torch.allclose(logits(here), logits(there), atol=1e-5)
    assert tree_equal(parameters(plain), before)
    assert len(adapters(here)) == 8
    assert all(layer.rate == 0.2 and layer.rank == 3 for layer in adapters(here).values())
    assert {name for name in trainable(here) if "lora" not in name} == (
        {"classifier.weight", "classifier.bias"} if whole else set()
    )
    assert all(isinstance(value, Frozen) for value in here.parameters() if not value.requires_grad)
    bf.models.save_peft(here, None, tmp_path / "again", scaling="rs" if rs else "lora")
    again = load_file(tmp_path / "again" / WEIGHTS)
    assert tree_equal(again, load_file(tmp_path / WEIGHTS))


def test_round_trips_are_the_same_bits(tmp_path):
    net = adapted()
    tree = drawn(net)
    bf.models.save_peft(net, parameters(net) | tree, tmp_path)
    assert tree_equal(trainable(bf.models.load_peft(classifier(), tmp_path)), tree)
    bf.models.save_peft(net, None, tmp_path)
    assert tree_equal(trainable(bf.models.load_peft(classifier(), tmp_path)), trainable(net))
    assert sorted(path.name for path in tmp_path.iterdir()) == [CONFIG, WEIGHTS]


def test_a_network_that_was_read_trains_on(tmp_path, clients):
    net = bf.lora(bf.mlp([64, 8, 10], KEY), 2, KEY)
    bf.models.save_peft(net, drawn(net), tmp_path)
    read = bf.models.load_peft(bf.mlp([64, 8, 10], KEY), tmp_path)
    run = bf.run(
        bf.fs_lora(
            read, [1], lambda profile, round, key: 0, training=bf.Training(steps=2, batch_size=16)
        ),
        clients,
        rounds=1,
        progress=False,
    )
    assert owned(run.snapshot.state, "model").keys() == trainable(net).keys()


# Refusals


@pytest.fixture
def written(tmp_path):
    net = adapted()
    bf.models.save_peft(net, drawn(net), tmp_path)
    return tmp_path


def configured(folder, **settings):
    path = folder / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def weighted(folder, change):
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
@pytest.mark.parametrize("damage", ["missing", "spoilt", "empty"])
def test_missing_and_damaged_files_are_named(written, name, damage):
    path = written / name
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(b"[1]" if damage == "spoilt" else b"")
    with pytest.raises(DataError, match=f"{name}: expected"):
        bf.models.load_peft(classifier(), written)


def test_pickles_are_refused_unread(written):
    (written / WEIGHTS).unlink()
    (written / "adapter_model.bin").write_bytes(b"")
    with pytest.raises(DataError, match="a pickle, which may run code"):
        bf.models.load_peft(classifier(), written)


@pytest.mark.parametrize(
    "settings",
    [
        {"peft_type": "IA3"},
        {"bias": "all"},
        {"use_dora": True},
        {"fan_in_fan_out": True},
        {"rank_pattern": {"query": 2}},
        {"alpha_pattern": {"query": 2}},
        {"init_lora_weights": "pissa"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_other_methods_are_refused_by_their_setting(written, settings):
    configured(written, **settings)
    with pytest.raises(DataError, match=f"plain LoRA of one rank, found .*{next(iter(settings))}"):
        bf.models.load_peft(classifier(), written)


@pytest.mark.parametrize(
    "settings",
    [
        {"r": 0},
        {"r": "4"},
        {"r": True},
        {"lora_alpha": None},
        {"lora_alpha": float("nan")},
        {"lora_dropout": "a"},
    ],
    ids=str,
)
def test_settings_that_are_no_numbers_are_refused(written, settings):
    configured(written, **settings)
    with pytest.raises(
        DataError, match=f"plain LoRA of one rank, found {next(iter(settings))} Input should"
    ):
        bf.models.load_peft(classifier(), written)


def test_wrong_ranks_and_keys_are_named(written):
    path = "encoder.encoder.layer.0.attention.self.query"
    configured(written, r=3)
    with pytest.raises(
        DataError,
        match=r"adapter_model.safetensors, rank 3, leaf '.*': expected shape \(.*3.*found \(.*4",
    ):
        bf.models.load_peft(classifier(), written)
    configured(written, r=4)
    weighted(written, lambda tensors: tensors.pop(f"base_model.model.{path}.lora_B.weight"))
    with pytest.raises(DataError, match=rf"leaf '{path}.lora_b'.*no such leaf"):
        bf.models.load_peft(classifier(), written)
    weighted(
        written,
        lambda tensors: tensors.update(
            {f"base_model.model.{path}.lora_B.weight": torch.zeros(16, 4)}
        ),
    )
    bf.models.load_peft(classifier(), written)
    weighted(
        written,
        lambda tensors: tensors.update(
            {"base_model.model.nowhere.lora_B.weight": torch.zeros(16, 4)}
        ),
    )
    with pytest.raises(DataError, match=r"layers of this network, found others: \['nowhere'\]"):
        bf.models.load_peft(classifier(), written)
    weighted(
        written,
        lambda tensors: (
            tensors.clear(),
            tensors.update({"query.lora_A.weight": torch.zeros(4, 16)}),
        ),
    )
    with pytest.raises(
        DataError,
        match=r"names that begin with 'base_model.model.', found \['query.lora_A.weight'\]",
    ):
        bf.models.load_peft(classifier(), written)


def test_trees_that_adapters_cannot_say_are_refused(tmp_path):
    net = adapted()
    with pytest.raises(UpdateError, match="nowhere.*an extra leaf"):
        bf.models.save_peft(net, {"nowhere": torch.zeros(1)}, tmp_path)
    name = next(iter(trainable(net)))
    with pytest.raises(UpdateError, match="shape"):
        bf.models.save_peft(net, {name: torch.zeros(1)}, tmp_path)
    base = next(name for name in parameters(net) if name.endswith("query.base.weight"))
    with pytest.raises(
        UpdateError,
        match=r"frozen weights as they were, found \['encoder.*query.base.weight'\]; try merged",
    ):
        bf.models.save_peft(net, {base: torch.zeros(16, 16)}, tmp_path)
    assert not list(tmp_path.iterdir())


def test_networks_that_peft_would_find_otherwise_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match="adapters of one rank"):
        bf.models.save_peft(classifier(), None, tmp_path)
    with pytest.raises(ArgumentError, match="one layer by itself"):
        bf.models.save_peft(bf.lora(nn.Linear(3, 2), 1, KEY), None, tmp_path)
    both = nn.ModuleDict(
        {"head": nn.Linear(3, 2), "other_head": nn.Linear(2, 2), "first": nn.Linear(3, 3)}
    )
    net = bf.lora(both, 1, KEY, where=lambda name, module: name == "first.weight", head=["head"])
    with pytest.raises(ArgumentError, match=r"names that end no other's, found \['other_head'\]"):
        bf.models.save_peft(net, None, tmp_path)
    net = bf.lora(
        both, 1, KEY, where=lambda name, module: name == "first.weight", head=["other_head"]
    )
    net.get_submodule("other_head").bias.requires_grad_(False)
    with pytest.raises(ArgumentError, match=r"found \['other_head.bias'\]"):
        bf.models.save_peft(net, None, tmp_path)
    with pytest.raises(ArgumentError, match="scaling"):
        bf.models.save_peft(adapted(), None, tmp_path, scaling="half")
