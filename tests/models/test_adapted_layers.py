"""Adapters on layers that are not linear ones of torch: ``x W + b``, embeddings, convolutions."""

import pytest
import torch
from torch import Tensor, nn

import bayesfed as bf
from bayesfed.errors import ArgumentError


class Turned(nn.Module):
    """``x W + b``, as Conv1D of GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


def all_weights(name: str, module: nn.Module) -> bool:
    return name.endswith("weight")


@pytest.mark.parametrize(
    ("layer", "rows"),
    [
        (Turned(), torch.randn(5, 4)),
        (nn.Embedding(7, 4), torch.randint(7, (5, 3))),
        (nn.Conv2d(3, 5, 3, stride=2, padding=1), torch.randn(2, 3, 8, 8)),
        (nn.Conv1d(3, 5, 2, dilation=2), torch.randn(2, 3, 8)),
    ],
)
def test_an_adapter_starts_as_the_layer_and_merges_into_it(layer: nn.Module, rows: Tensor) -> None:
    net = nn.Sequential(layer)
    made = bf.lora(net, 2, bf.Key(0, "lora"), where=all_weights)
    assert torch.allclose(made(rows), net(rows), atol=1e-6)
    made[0].lora_b.data.normal_()  # type: ignore[union-attr,operator]
    assert not torch.allclose(made(rows), net(rows), atol=1e-2)
    assert torch.allclose(bf.models.merged(made)(rows), made(rows), atol=1e-5)
    made(rows).square().sum().backward()
    assert all(one.grad is not None for one in made.parameters() if one.requires_grad)


def test_layers_that_turn_their_weight_are_found_by_default() -> None:
    net = nn.Sequential(Turned(), nn.ReLU(), nn.Linear(6, 2))
    assert [*bf.models.adapters(bf.lora(net, 2, bf.Key(0, "lora")))] == ["0", "2"]
    with pytest.raises(ArgumentError, match="a layer to replace"):
        bf.lora(net, 2, bf.Key(0, "lora"), where=lambda name, module: "attention" in name)
