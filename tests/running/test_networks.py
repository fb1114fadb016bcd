"""The transmitted model as a module and as a file: everything is in it that plain torch needs."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import bayesfed as bf
from bayesfed.errors import ArgumentError
from tests.support import recipes

WORK = bf.Training(steps=2, batch_size=8)


class Tied(nn.Module):
    """A network with a constant buffer, a count, a frozen layer and one weight by two names."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6, bias=False)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.last = nn.Linear(6, 3)
        self.register_buffer("centre", torch.linspace(-1, 1, 6))
        self.register_buffer("seen", torch.tensor(7))

    def forward(self, inputs):
        hidden = self.second(torch.relu(self.first(inputs - self.centre)))
        return self.last(torch.relu(self.frozen(hidden)))


def normed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


@pytest.mark.parametrize(
    ("make", "options"), [(Tied, {}), (normed, {"buffers": "mean"}), (recipes.adapted, {})]
)
def test_a_saved_model_is_all_that_the_network_loads(make, options, tmp_path):
    net, data = make(), recipes.rows()
    first = {name: leaf.clone() for name, leaf in net.state_dict().items()}
    result = bf.run(bf.fed_avg(net, training=WORK, **options), data, rounds=2, progress=False)
    result.save_model(tmp_path / "new" / "folder" / "model.safetensors")
    saved, inputs = (
        load_file(tmp_path / "new" / "folder" / "model.safetensors"),
        data["client-0"].inputs,
    )
    other = make()
    other.load_state_dict(saved, strict=True)
    assert torch.equal(other.eval()(inputs), result.model(inputs))
    network = result.network()
    assert not network.training
    assert torch.equal(network(inputs), result.model(inputs))
    assert {name: leaf.requires_grad for name, leaf in network.named_parameters()} == {
        name: leaf.requires_grad for name, leaf in net.named_parameters()
    }
    # A run, and what one does with its network, leaves the network that it was given alone.
    with torch.no_grad():
        for leaf in network.parameters():
            if leaf.requires_grad:
                leaf.add_(1.0)
    assert all(torch.equal(net.state_dict()[name], leaf) for name, leaf in first.items())


def test_the_network_can_be_exported():
    data = recipes.rows()
    result = bf.run(bf.fed_avg(Tied(), training=WORK), data, rounds=1, progress=False)
    inputs = data["client-1"].inputs
    batch = {"inputs": {0: torch.export.Dim("batch", min=2)}}
    program = torch.export.export(result.network(), (inputs,), dynamic_shapes=batch)
    assert torch.equal(program.module()(inputs[:5]), result.network()(inputs[:5]))


def test_an_ensemble_is_no_network(tmp_path):
    members = [bf.fed_avg(recipes.net(), training=WORK) for _ in range(2)]
    result = bf.run(bf.ensemble(members), recipes.rows(), rounds=1, progress=False)
    with pytest.raises(ArgumentError, match="a model of one network, found .*try result.model"):
        result.network()
    result.save_model(tmp_path / "model.safetensors")
    assert load_file(tmp_path / "model.safetensors").keys() == result.model.parameters.keys()
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(
        ArgumentError, match=r"expected a path to write to, found '.*taken/model': .*Errno"
    ):
        result.save_model(tmp_path / "taken" / "model")
