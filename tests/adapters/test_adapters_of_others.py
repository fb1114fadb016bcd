"""Adapters of other libraries: their factors are no layers of the network."""

import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.errors import ArgumentError
from bayesfed.keys import Key
from bayesfed.models.low_rank.replacing import factors_beside

KEY = Key(0, "adapters of others")


class Beside(nn.Module):
    """A frozen layer plus two factors, under names that say nothing."""

    def __init__(self, layer, rank):
        super().__init__()
        self.p = layer.requires_grad_(False)
        self.q = nn.Linear(layer.in_features, rank, bias=False)
        self.r = nn.Linear(rank, layer.out_features, bias=False)
        # As all libraries begin: it computes the same.
        nn.init.zeros_(self.r.weight)

    def forward(self, x):
        return self.p(x) + 0.5 * self.r(self.q(x))


def net():
    return nn.Sequential(Beside(nn.Linear(6, 5), 2), nn.ReLU(), nn.Linear(5, 3))


CALLS = {
    "lora": lambda net, **options: bf.lora(net, 2, KEY, **options),
    "hybrid": lambda net, **options: bf.models.hybrid(net, 0.5, **options),
    "fixed_rank": lambda net, **options: bf.models.fixed_rank(net, 2, **options),
}


@pytest.mark.parametrize("call", CALLS)
def test_factors_of_an_adapter_get_no_adapter_of_their_own(call):
    with pytest.raises(ArgumentError, match=rf"{call}, layer '0.q': .* a factor of an adapter"):
        CALLS[call](net())


def test_a_predicate_may_leave_them_out():
    found = bf.lora(net(), 2, KEY, where=lambda name, module: name == "2.weight")
    assert set(bf.models.adapters(found)) == {"2"}


def test_factors_of_peft_are_found_and_merged_networks_are_taken():
    peft = pytest.importorskip("peft")
    plain = bf.mlp([6, 5, 3], KEY)
    adapted = peft.get_peft_model(plain, peft.LoraConfig(r=2, target_modules=["1", "3"]))
    assert {name.rpartition("model.")[2] for name in factors_beside(adapted)} == {
        f"{layer}.lora_{factor}.default" for layer in (1, 3) for factor in "AB"
    }
    with pytest.raises(ArgumentError, match="a factor of an adapter over frozen weights"):
        bf.lora(adapted, 2, KEY)
    rows = torch.randn(4, 6)
    merged = adapted.merge_and_unload()
    assert torch.allclose(bf.lora(merged, 2, KEY)(rows), merged(rows))


@pytest.mark.parametrize("frozen", [0, 1])
def test_other_networks_with_a_frozen_layer_of_such_shapes_are_taken(frozen):
    bottleneck = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 2), nn.Linear(2, 6))
    bottleneck[frozen].requires_grad_(False)
    assert not factors_beside(bottleneck)
    parallel = nn.ModuleDict({"a": nn.Linear(6, 6), "b": nn.Linear(6, 2), "c": nn.Linear(2, 6)})
    parallel["a"].requires_grad_(False)
    assert not factors_beside(parallel)
    assert len(bf.models.adapters(bf.lora(bottleneck, 2, KEY))) == 3
