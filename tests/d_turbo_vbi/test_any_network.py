"""Networks that are not a chain of layers with matrices of their own: tied weights, shared layers,
constant buffers, recurrent cells.
"""

import pytest
import torch
from torch import Tensor, nn

import bayesfed as bf
from bayesfed.errors import ClientError, PriorError
from bayesfed.trees import parameters, running_statistics
from tests.conftest import tree_equal

WORK = bf.Training(steps=3, batch_size=16)


class Tied(nn.Module):
    """An autoencoder whose decoder is the transposed encoder, twice the same layer, and a head."""

    def __init__(self):
        super().__init__()
        self.encode, self.twice, self.head = nn.Linear(64, 12), nn.Linear(12, 12), nn.Linear(64, 10)
        self.again, self.decode = nn.Linear(64, 12), nn.Linear(12, 64)
        self.again.weight = self.encode.weight

    def forward(self, rows: Tensor) -> Tensor:
        code = self.twice(
            torch.relu(
                self.twice(torch.relu(self.encode(rows.flatten(1)) + self.again(rows.flatten(1))))
            )
        )
        return self.head(torch.relu(self.decode(code)))


class Rotary(nn.Module):
    """Attention over the rows of an image, with rotary positions: a constant that is saved, or is
    not.
    """

    def __init__(self, persistent: bool):
        super().__init__()
        self.embed, self.attend, self.head = (
            nn.Linear(8, 12),
            nn.MultiheadAttention(12, 2, batch_first=True),
            nn.Linear(12, 10),
        )
        self.register_buffer("inv_freq", 1 / 100 ** (torch.arange(6) / 6), persistent=persistent)

    def forward(self, rows: Tensor) -> Tensor:
        tokens = self.embed(rows.reshape(len(rows), 8, 8))
        angle = torch.arange(8)[:, None] * self.inv_freq
        left, right = tokens.chunk(2, -1)
        turned = torch.cat(
            [left * angle.cos() - right * angle.sin(), left * angle.sin() + right * angle.cos()], -1
        )
        return self.head(self.attend(turned, turned, turned, need_weights=False)[0].mean(1))


class Counting(nn.Module):
    """A norm of one's own, whose statistics have a name that says nothing."""

    def __init__(self, replaced: bool):
        super().__init__()
        self.body, self.replaced = nn.Linear(64, 10), replaced
        self.register_buffer("centre", torch.zeros(64))

    def forward(self, rows: Tensor) -> Tensor:
        rows = rows.flatten(1)
        if self.training and self.replaced:
            self.centre = 0.9 * self.centre + 0.1 * rows.mean(0).detach()
        elif self.training:
            self.centre.mul_(0.9).add_(rows.mean(0).detach(), alpha=0.1)
        return self.body(rows - self.centre)


class Gru(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head, self.scale = (
            nn.GRU(8, 12, batch_first=True),
            nn.Linear(12, 10),
            nn.Parameter(torch.tensor(1.0)),
        )

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.cell(rows.reshape(len(rows), 8, 8))[0][:, -1]) * self.scale


NETS = {
    "tied": Tied,
    "rotary": lambda: Rotary(False),
    "saved rotary": lambda: Rotary(True),
    "gru": Gru,
}


def seeded(make):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


@pytest.mark.parametrize("name", NETS)
def test_recipes_for_any_network_train_and_send_each_parameter_once(name, clients):
    net = seeded(NETS[name])
    before = parameters(net) | {key: value.clone() for key, value in net.named_buffers()}
    count = sum(map(len, clients.values()))
    recipes = (
        bf.fed_avg(net, training=WORK),
        bf.stc(net, share=0.1, training=WORK),
        bf.d_turbo_vbi(bf.declare(net), observations=count, training=WORK),
    )
    for algorithm in recipes:
        result = bf.run(algorithm, clients, rounds=2, progress=False)
        model = result.model
        assert set(model.parameters) == {key for key, _ in net.named_parameters()}
        assert not tree_equal(model.parameters, parameters(net))
        assert torch.isfinite(model(clients["client-000"].inputs[:3])).all()
    assert tree_equal(parameters(net) | dict(net.named_buffers()), before)


def test_a_weight_that_two_layers_share_is_one_site_whose_noise_both_layers_have(clients):
    net = seeded(Tied)
    declared = bf.declare(net)
    assert list(declared.sites) == ["encode.weight", "twice.weight", "head.weight", "decode.weight"]
    result = bf.run(
        bf.d_turbo_vbi(declared, observations=sum(map(len, clients.values())), training=WORK),
        clients,
        rounds=1,
        progress=False,
    )
    draw = result.posterior.draw(bf.Key(0))
    assert "again.weight" not in draw
    rows = clients["client-000"].inputs[:2]
    assert result.posterior.observe(draw, rows, bf.Key(1)).batch_shape == (2,)


def test_buffers_are_constants_until_a_forward_pass_changes_one(clients):
    assert running_statistics(Rotary(True)) == ["inv_freq"]
    assert running_statistics(Rotary(False)) == running_statistics(Rotary(True), certain=True) == []
    for replaced in (False, True):
        net = Counting(replaced)
        with pytest.raises(
            ClientError,
            match=r"found \['centre'\], changed by a forward pass in training mode; try buffers=",
        ):
            bf.run(bf.fed_prox(net, strength=0.1, training=WORK), clients, rounds=1, progress=False)
        assert not net.centre.any()
        result = bf.run(
            bf.fed_avg(net, training=WORK, buffers="mean"), clients, rounds=1, progress=False
        )
        assert result.snapshot.state["model/centre"].any()
    with pytest.raises(PriorError, match=r"without running statistics, found \['centre'\]"):
        bf.bayesian(Counting(False), bf.Gaussian(1.0))(clients["client-000"].inputs[:2])
