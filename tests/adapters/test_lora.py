"""Adapters over frozen weights: the layer, networks of them, and what every method makes of
parameters that are frozen.
"""

import copy
import math
import pickle

import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.federated.core.owners import owned
from bayesfed.federated.training.batch_norm import travelling
from bayesfed.models import adapters, costs, lora_rank, lora_scale, merged, resized
from bayesfed.models.adapters.lora_layers import Frozen, LoraLinear
from bayesfed.trees import parameters, placed, trainable
from tests.conftest import tree_equal

KEY = bf.Key(0, "lora")


class Encoder(nn.Module):
    """Rows of an image as tokens, one encoder layer, a classifier."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=dropout, batch_first=True)
        self.classifier = nn.Linear(16, 10)

    def forward(self, x):
        return self.classifier(self.layer(self.embed(x.reshape(-1, 8, 8))).mean(1))


def encoder():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Encoder()


def trained(net, scale=0.3, seed=0):
    """The network with drawn numbers in the place of zeros."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in adapters(net).values():
            layer.lora_b.copy_(scale * torch.randn(layer.lora_b.shape, generator=generator))
    return net


@pytest.fixture
def images(digits):
    return digits[1].inputs[:12]


@pytest.mark.parametrize(("scaling", "expected"), [("lora", 16 / 9), ("rs", 16 / 3)])
def test_the_scale_is_in_one_place(scaling, expected):
    assert lora_scale(9, 16, scaling) == pytest.approx(expected)
    layer = adapters(bf.lora(bf.mlp([4, 3], KEY), 9, KEY, scaling=scaling))["1"]
    assert layer.scale == lora_scale(9, 16, scaling)
    x, layer = (
        torch.randn(5, 4),
        adapters(trained(bf.lora(bf.mlp([4, 3], KEY), 9, KEY, scaling=scaling)))["1"],
    )
    product = expected * layer.lora_b @ layer.lora_a
    assert torch.allclose(
        layer(x), x @ (layer.base.weight + product).T + layer.base.bias, atol=1e-5
    )


def test_new_adapters_change_nothing_and_are_named(images):
    net = encoder()
    before = copy.deepcopy(net.state_dict())
    made = bf.lora(net, 4, KEY, head=["classifier"])
    assert torch.equal(made.train()(images), net.train()(images))
    assert set(adapters(made)) == {"embed", "layer.linear1", "layer.linear2"}
    adapted = {f"{name}.lora_{leaf}" for name in adapters(made) for leaf in "ab"}
    assert trainable(made).keys() == adapted | {"classifier.weight", "classifier.bias"}
    again = bf.lora(net, 4, KEY, head=["classifier"])
    assert tree_equal(parameters(made), parameters(again))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(value.requires_grad for value in net.parameters())


def test_frozen_weights_are_one_tensor_however_many_networks():
    net = encoder()
    made = bf.lora(net, 4, KEY, head=["classifier"])
    others = [resized(made, k) for k in (3, 1)] + [copy.deepcopy(made)]
    weights = dict(net.named_parameters())
    for other in (made, *others):
        for name, value in other.named_parameters():
            if not value.requires_grad:
                assert (
                    value.data_ptr()
                    == weights[
                        name.replace(".base.", ".").replace("embed.base", "embed")
                    ].data_ptr()
                )
    head = made.get_submodule("classifier")
    assert head.weight.data_ptr() != net.classifier.weight.data_ptr()


def test_encoders_that_read_weights_by_themselves_see_the_adapter(images):
    net = trained(bf.lora(encoder(), 4, KEY)).eval()
    with torch.no_grad():
        fast = net(images)
    assert torch.allclose(fast, net(images).detach(), atol=1e-5)
    assert not torch.allclose(fast, encoder().eval()(images), atol=1e-2)


def test_merged_is_the_same_function_and_shares_nothing(images):
    pretrained = encoder()
    net = trained(bf.lora(pretrained, 4, KEY, head=["classifier"], dropout=0.1)).eval()
    plain = merged(net)
    assert plain.state_dict().keys() == pretrained.state_dict().keys()
    assert torch.allclose(plain(images), net(images), atol=1e-5)
    assert all(
        value.requires_grad and not isinstance(value, Frozen) for value in plain.parameters()
    )
    shared = {value.data_ptr() for value in (*pretrained.parameters(), *net.parameters())}
    assert not shared & {value.data_ptr() for value in plain.parameters()}
    other = {"embed.lora_b": torch.zeros(16, 4)}
    assert torch.equal(merged(net, other).embed.weight, pretrained.embed.weight)
    with pytest.raises(UpdateError, match="embed.weight"):
        merged(net, {"embed.weight": torch.zeros(16, 8)})
    with pytest.raises(UpdateError, match="shape"):
        merged(net, {"embed.lora_b": torch.zeros(16, 3)})


def test_work_and_memory_fall_with_the_rank():
    net = bf.lora(bf.mlp([64, 32, 10], KEY), 8, KEY)
    example = torch.zeros(1, 8, 8)
    for k in (8, 3, 1):
        made = resized(net, k)
        macs = {row.layer.removesuffix(".base"): 0 for row in costs(made, example)}
        for row in costs(made, example):
            macs[row.layer.removesuffix(".base")] += row.macs
        assert macs["1"] == 64 * 32 + k * (64 + 32)
        assert sum(leaf.numel() for leaf in trainable(made).values()) == k * (64 + 32 + 32 + 10)


def test_dropout_is_of_the_adapter_alone_and_in_training_alone(images):
    net = trained(bf.lora(bf.mlp([64, 10], KEY), 4, KEY, dropout=0.5))
    x, layer = torch.ones(2000, 64), adapters(net)["1"]
    net.eval()
    whole = layer(x)
    assert torch.equal(layer(x), whole)
    net.train()
    dropped = layer(x)
    assert not torch.equal(layer(x), dropped)
    assert torch.allclose(dropped.mean(0), whole[0], atol=0.1)
    assert not any(
        isinstance(module, nn.Dropout)
        for module in bf.lora(bf.mlp([64, 10], KEY), 4, KEY).modules()
    )
    assert resized(net, 2).get_submodule("1").rate == 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": 0}, "rank"),
        ({"alpha": 0.0}, "alpha"),
        ({"alpha": math.inf}, "alpha"),
        ({"scaling": "half"}, "scaling"),
        ({"dropout": 1.0}, "dropout"),
        ({"head": ["none"]}, "names of modules"),
        ({"where": lambda name, module: False}, "a layer to replace"),
        ({"where": lambda name, module: name.endswith("bias")}, "nn.Linear"),
        (
            {"where": lambda name, module: name == "layer.self_attn.out_proj.weight"},
            "NonDynamically",
        ),
    ],
    ids=["rank", "zero", "infinite", "scaling", "dropout", "head", "nothing", "bias", "attention"],
)
def test_bad_arguments_are_errors_in_words(change, message):
    with pytest.raises(ArgumentError, match=message):
        bf.lora(encoder(), **{"rank": 4, "key": KEY} | change)


def test_networks_without_or_with_adapters_are_told_apart():
    net = bf.lora(encoder(), 4, KEY)
    with pytest.raises(ArgumentError, match="without adapters"):
        bf.lora(net, 4, KEY)
    with pytest.raises(ArgumentError, match="adapters of one rank"):
        lora_rank(encoder())
    for k in (0, 5):
        with pytest.raises(ArgumentError, match="rank from 1 to 4"):
            resized(net, k)
    with pytest.raises(ArgumentError, match="LoraLinear"):
        LoraLinear(nn.Linear(3, 2), torch.zeros(2, 4), torch.zeros(3, 3), 1.0)


def test_adapters_leave_the_pyro_store_alone_and_pickle(images):
    import pyro

    net = trained(bf.lora(encoder(), 4, KEY)).eval()
    before = set(pyro.get_param_store().keys())
    out = net(images)
    assert set(pyro.get_param_store().keys()) == before
    assert torch.equal(pickle.loads(pickle.dumps(net))(images), out)


def test_what_is_frozen_neither_trains_nor_travels(clients, net):
    frozen = copy.deepcopy(net)
    next(frozen.parameters()).requires_grad_(False)
    first = next(name for name, _ in net.named_parameters())
    run = bf.run(
        bf.fed_avg(frozen, training=bf.Training(steps=2)), clients, rounds=1, progress=False
    )
    assert owned(run.snapshot.state, "model").keys() == parameters(net).keys() - {first}
    assert torch.equal(next(frozen.parameters()), next(net.parameters()))
    assert len(run.history[0].clients) == len(clients)
    with pytest.raises(ArgumentError, match="requires a gradient"):
        travelling(copy.deepcopy(net).requires_grad_(False), "static", where="test")


def test_placing_takes_frozen_leaves_from_the_module_and_misses_others(net):
    own = parameters(net)
    first, *rest = own
    with pytest.raises(KeyError), placed(net, {name: own[name] for name in rest}):
        pass
    assert tree_equal(parameters(net), own)
    next(net.parameters()).requires_grad_(False)
    with placed(net, {name: torch.zeros_like(own[name]) for name in rest}):
        inside = parameters(net)
    assert torch.equal(inside[first], own[first])
    assert not any(bool(inside[name].any()) for name in rest)
    with placed(net, {name: torch.zeros_like(leaf) for name, leaf in own.items()}):
        assert not bool(parameters(net)[first].any())
