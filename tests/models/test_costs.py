"""Parameters and multiply-accumulates against formulas by hand, and the traffic and work of a
training.
"""

import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.errors import ArgumentError
from bayesfed.inspect.tables import table
from bayesfed.keys import Key
from bayesfed.models import (
    Cost,
    costs,
    femnist_cnn,
    fixed_rank,
    resnet18,
    resnet34,
    total_cost,
    vgg9,
)

KEY = Key(0, "net")


@pytest.fixture(autouse=True)
def _one_thread():
    """Tensors this small only make threads wait for one another, most of all on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_a_perceptron_costs_its_weights():
    rows = costs(bf.mlp([784, 256, 256, 10], KEY), torch.zeros(1, 28, 28))
    assert rows == [
        Cost("1", "Linear", 785 * 256, 784 * 256),
        Cost("3", "Linear", 257 * 256, 256 * 256),
        Cost("5", "Linear", 257 * 10, 256 * 10),
    ]
    assert total_cost(rows) == Cost("total", "", 269_322, 268_800)
    assert costs(bf.mlp([784, 256, 256, 10], KEY), torch.zeros(7, 28, 28)) == rows
    assert costs(nn.Linear(3, 4), torch.zeros(1, 5, 3)) == [Cost("", "Linear", 16, 5 * 12)]


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation", "groups", "sides"),
    [
        ((3, 3), 1, 1, 1, 1, (9, 12)),
        ((3, 3), 2, 1, 1, 1, (5, 6)),
        ((3, 3), 2, 0, 1, 1, (4, 5)),
        ((5, 1), (1, 3), 2, 1, 1, (9, 6)),
        ((3, 3), 1, 0, 2, 1, (5, 8)),
        ((3, 3), 1, 1, 1, 4, (9, 12)),
    ],
)
def test_a_convolution_costs_its_kernels_at_every_pixel_that_comes_out(
    kernel, stride, padding, dilation, groups, sides
):
    layer = nn.Conv2d(4, 8, kernel, stride, padding, dilation, groups)
    each = 4 // groups * 8 * kernel[0] * kernel[1]
    assert layer(torch.zeros(1, 4, 9, 12)).shape[2:] == sides
    assert costs(layer, torch.zeros(1, 4, 9, 12)) == [
        Cost("", "Conv2d", each + 8, each * sides[0] * sides[1])
    ]


def test_factorised_layers_cost_what_table_1_of_fedhm_says():
    m, n, k, r, side = 6, 10, 3, 2, 8
    pair = nn.Sequential(
        nn.Conv2d(m, r, (k, 1), padding=(1, 0), bias=False),
        nn.Conv2d(r, n, (1, k), padding=(0, 1), bias=False),
    )
    assert total_cost(costs(pair, torch.zeros(1, m, side, side)))[2:] == (
        r * k * (m + n),
        r * k * side**2 * (m + n),
    )
    # Three factors: u s is formed once a batch, R R M more.
    net = fixed_rank(nn.Sequential(nn.Linear(m, n, bias=False)), r)
    parameters, alone = total_cost(costs(net, torch.zeros(1, m)))[2:]
    assert (parameters, alone) == (r * (m + n) + r * r, r * (m + n) + r * r * n)
    assert total_cost(costs(net, torch.zeros(r * r * n, m))).macs == r * (m + n) + 1


@pytest.mark.parametrize(
    ("net", "image", "macs", "printed"),
    [
        (lambda: resnet18((3, 32, 32), 10, KEY), (3, 32, 32), 555_422_720, "0.56"),
        (lambda: resnet18((3, 32, 32), 10, KEY, norm="static"), (3, 32, 32), 555_422_720, "0.56"),
        (lambda: resnet34((3, 32, 32), 100, KEY, norm="group"), (3, 32, 32), 1_159_448_576, "1.16"),
        (lambda: vgg9((3, 32, 32), 10, KEY), (3, 32, 32), 135_369_728, "0.14"),
        (lambda: femnist_cnn(10, KEY), (28, 28), 12_273_152, "0.01"),
    ],
    ids=["resnet18", "static", "resnet34", "vgg9", "femnist_cnn"],
)
def test_the_reference_networks(net, image, macs, printed):
    built = net()
    found = total_cost(costs(built, torch.zeros(1, *image)))
    assert found == Cost("total", "", sum(leaf.numel() for leaf in built.parameters()), macs)
    assert f"{macs / 1e9:.2f}" == printed


def test_resnet18_by_hand():
    """Every group costs as much but for its first block: channels double while pixels are
    quartered.
    """
    full = 9 * 64 * 64 * 32 * 32
    stem, groups = 27 * 64 * 32 * 32, 4 * full + 3 * (full // 2 + 3 * full + full // 18)
    rows = costs(resnet18((3, 32, 32), 10, KEY), torch.zeros(1, 3, 32, 32))
    assert total_cost(rows).macs == stem + groups + 512 * 10
    by_name = {row.layer: row for row in rows}
    assert by_name["layer3.0.shortcut.0"] == Cost(
        "layer3.0.shortcut.0", "Conv2d", 128 * 256, full // 18
    )
    assert by_name["layer3.0.shortcut.1"] == Cost("layer3.0.shortcut.1", "BatchNorm2d", 512, 0)


class Pieces(nn.Module):
    """Operations outside any layer, a layer used twice, tied parameters, and a layer never used."""

    def __init__(self):
        super().__init__()
        self.once, self.idle = nn.Linear(4, 4, bias=False), nn.Linear(4, 3)
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.once.weight
        self.drop = nn.Dropout()

    def forward(self, inputs):
        squares = self.once(self.once(inputs)) @ torch.ones(4, 2)
        return (
            self.drop(squares + self.tied(inputs) @ torch.ones(4, 2))
            * torch.rand(1)
            @ torch.ones(2)
        )


def test_operations_count_where_they_run():
    net = Pieces().train()
    net.drop.eval()
    before = torch.get_rng_state()
    rows = costs(net, torch.zeros(1, 4))
    # 4 x 2 twice, and a product with a vector, which torch's counter leaves out.
    assert rows == [
        Cost("", "Pieces", 0, 18),
        Cost("once", "Linear", 16, 32),
        Cost("idle", "Linear", 15, 0),
        Cost("tied", "Linear", 0, 16),
    ]
    assert total_cost(rows).parameters == sum(leaf.numel() for leaf in net.parameters())
    assert torch.equal(before, torch.get_rng_state())
    assert (net.training, net.once.training, net.drop.training) == (True, True, False)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_attention_and_recurrence_are_not_lost():
    """What a CPU runs for them is one operation each, which torch's counter does not know."""
    tokens, width, hidden = 5, 8, 16
    layer = nn.TransformerEncoderLayer(width, 2, hidden, batch_first=True)
    projections, attention = 4 * tokens * width**2, 2 * tokens**2 * width
    fused = torch.backends.mha.get_fastpath_enabled()
    assert (
        total_cost(costs(layer, torch.rand(1, tokens, width))).macs
        == projections + attention + 2 * tokens * width * hidden
    )
    assert torch.backends.mha.get_fastpath_enabled() == fused
    for bidirectional in (False, True):
        lstm = nn.LSTM(width, 4, batch_first=True, bidirectional=bidirectional)
        assert costs(lstm, torch.rand(3, tokens, width))[0].macs == (
            1 + bidirectional
        ) * tokens * 16 * (width + 4)


def test_running_statistics_stay_and_a_failing_network_is_left_as_it_was():
    net = resnet18((3, 8, 8), 5, KEY, width=0.1)
    state = {name: value.clone() for name, value in net.state_dict().items()}
    costs(net, torch.rand(1, 3, 8, 8))
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    with pytest.raises(RuntimeError):
        costs(net, torch.rand(1, 4, 8, 8))
    assert net.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_rows_make_a_table():
    rows = costs(bf.mlp([4, 3, 2], KEY), torch.zeros(1, 4))
    assert table(Cost._fields, [*rows, total_cost(rows)]).splitlines() == [
        "layer  kind    parameters  macs",
        "-----  ------  ----------  ----",
        "1      Linear          15    12",
        "3      Linear           8     6",
        "total                  23    18",
    ]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: costs(nn.Linear(2, 2), torch.tensor(1.0)),
            r"costs.example: expected a batch \(B, ...\), B > 0, found \(\)",
        ),
        (lambda: costs(nn.Linear(2, 2), torch.zeros(0, 2)), r"costs.example: .* found \(0, 2\)"),
    ],
)
def test_bad_arguments_are_refused(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
