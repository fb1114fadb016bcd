"""Compact inference against its slow exact twin: the dense network, called with the same sparse
parameters.
"""

import copy
import io

import pytest
import torch
from torch import nn
from torch.func import functional_call

import bayesfed as bf
from bayesfed.errors import ArgumentError
from bayesfed.models.compaction import forms, rewriting
from bayesfed.models.compaction.compact import compact
from bayesfed.models.compaction.forms import candidates
from bayesfed.models.modules import ELEMENTWISE
from bayesfed.trees import parameters


@pytest.fixture(autouse=True)
def _one_thread():
    """Small products run faster on one thread, and the tests share their cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


DENSITIES = [0.0, 0.01, 0.1, 0.5, 1.0]


def sparse(net, density, *, biases=True):
    """Parameters of about the right size: what is thinned out is scaled up, so that outputs stay of
    order one.
    """
    tree = {}
    for name, value in net.named_parameters():
        if value.ndim < 2:
            tree[name] = torch.randn_like(value) if biases else torch.zeros_like(value)
        else:
            fan_in = value[0].numel()
            tree[name] = (
                torch.randn_like(value)
                * (torch.rand_like(value) < density)
                / max(1.0, fan_in * density) ** 0.5
            )
    return tree


def agrees(net, tree, inputs, sample=None):
    """Check a rewritten network against its twin, and return it."""
    made = compact(net, tree, sample)
    expected = functional_call(copy.deepcopy(net).eval(), tree, (inputs,))
    found = made(inputs)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    assert not found.requires_grad
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    return made


def kinds(made):
    return {name: text.split()[0] for name, text in made.forms.items()}


class Branched(nn.Module):
    """A user's own network: a skip, a list, one layer used twice, one Sequential within."""

    def __init__(self):
        super().__init__()
        self.first, self.twice = nn.Linear(20, 30), nn.Linear(30, 30)
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 30)) for _ in range(2)]
        )
        self.last, self.again = nn.Linear(30, 5), self.twice

    def forward(self, x):
        x = self.again(torch.relu(self.twice(self.first(x))))
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)


@pytest.mark.parametrize("with_sample", [False, True])
@pytest.mark.parametrize("density", DENSITIES)
def test_a_perceptron_agrees(density, with_sample):
    net = bf.mlp([784, 100, 80, 10], bf.Key(0, "net"))
    inputs = torch.randn(1100, 28, 28)
    tree = sparse(net, density)
    made = agrees(net, tree, inputs, inputs[:200] if with_sample else None)
    agrees(net, sparse(net, density, biases=False), inputs[:50])
    if not with_sample and density in {0.1, 0.5}:
        assert kinds(made) == dict.fromkeys(["1", "3", "5"], "csr" if density == 0.1 else "dense")


@pytest.mark.parametrize("with_sample", [False, True])
@pytest.mark.parametrize("density", DENSITIES)
def test_a_convolution_network_agrees(density, with_sample):
    net = bf.cnn((1, 28, 28), 10, bf.Key(0, "net"), channels=(8, 12), hidden=32)
    inputs = torch.randn(20, 28, 28)
    agrees(net, sparse(net, density), inputs, inputs if with_sample else None)
    agrees(net, sparse(net, density, biases=False), inputs)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(6, 5),
        nn.Linear(6, 5, bias=False),
        nn.Conv2d(6, 5, 3),
        nn.Conv2d(6, 5, 3, 2, 1, bias=False),
    ],
)
@pytest.mark.parametrize(
    "active", [[], [(0, 0)], [(1, 2), (3, 2), (3, 5)], [(4, n) for n in range(6)]]
)
def test_every_form_of_a_layer_agrees_in_both_layouts(layer, active):
    """The forms themselves, chosen or not; a single active weight and none among them."""
    layer = copy.deepcopy(layer).requires_grad_(False)
    mask = torch.zeros(5, 6)
    for row, column in active:
        mask[row, column] = 1.0
    layer.weight *= mask.reshape(5, 6, *[1] * (layer.weight.ndim - 2))
    is_linear = isinstance(layer, nn.Linear)
    assert set(candidates(layer, True)) == {"dense", "dropped"} | ({"csr"} if is_linear else set())
    for rows in (0, 1, 7):
        inputs = torch.randn(rows, 6, *[] if is_linear else [9, 8])
        batches = [inputs.t(), inputs.t().contiguous()] if is_linear else [inputs, *inputs]
        for batch in batches:
            expected = layer(batch.t()).t() if is_linear else layer(batch)
            for _, build in candidates(layer, True).values():
                torch.testing.assert_close(build()(batch), expected, rtol=1e-5, atol=1e-6)


def test_dead_ends_and_constants_are_dropped_and_folded():
    net = nn.Sequential(
        nn.Linear(12, 8),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(8, 6),
        nn.Sigmoid(),
        nn.Linear(6, 3, bias=False),
    )
    tree = sparse(net, 1.0)
    tree["0.weight"][[1, 4]] = 0.0  # constants
    tree["0.weight"][:, :7] = 0.0  # dead inputs
    tree["3.weight"][:, [0, 4]] = 0.0  # dead ends of the first layer, one of them a constant too
    tree["3.weight"][2] = 0.0  # a constant of the second
    tree["3.weight"][3] = torch.eye(8)[1]  # fed by a constant alone
    tree["5.weight"][:, 5] = 0.0  # a dead end of the second
    made = agrees(net, tree, torch.randn(9, 12))
    sizes = {name: text.split(",")[0].split(" ", 1)[1] for name, text in made.forms.items()}
    assert sizes == {"0": "5 x 12 of 8 x 12", "3": "3 x 5 of 6 x 8", "5": "3 x 3 of 3 x 6"}


@pytest.mark.parametrize("kind", ELEMENTWISE)
def test_constants_go_through_every_activation(kind):
    net = nn.Sequential(nn.Linear(5, 6), kind(), nn.Linear(6, 4), kind())
    tree = sparse(net, 1.0)
    tree["0.weight"][:3] = 0.0
    made = agrees(net, tree, torch.randn(4, 5))
    assert "3 x 5 of 6 x 5" in made.forms["0"]


def test_layers_without_any_weight_keep_one_unit_and_their_outputs():
    net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 4))
    for silent in (["0"], ["2"], ["4"], ["0", "2", "4"]):
        tree = sparse(net, 1.0)
        for name in silent:
            tree[f"{name}.weight"].zero_()
        agrees(net, tree, torch.randn(4, 5))


@pytest.mark.parametrize(
    ("padding", "mode", "bias", "size"),
    [
        (1, "zeros", 0.7, 8),
        (1, "zeros", -0.7, 5),
        (0, "zeros", 0.7, 5),
        (1, "circular", 0.7, 5),
        ("same", "zeros", 0.7, 8),
        ("valid", "zeros", 0.7, 5),
    ],
)
def test_a_constant_channel_is_folded_only_where_its_border_is_constant_too(
    padding, mode, bias, size
):
    net = nn.Sequential(
        nn.Conv2d(2, 8, 3),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(8, 4, 3, padding=padding, padding_mode=mode),
    )
    tree = sparse(net, 1.0)
    tree["0.weight"][2:5] = 0.0
    tree["0.bias"][2:5] = bias
    made = agrees(net, tree, torch.randn(3, 2, 14, 14))
    assert made.forms["0"].split()[1] == str(size)


@pytest.mark.parametrize(
    "pool",
    [
        nn.AvgPool2d(2),
        nn.AvgPool2d(3, 2, 1),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.AdaptiveAvgPool2d(3),
        nn.PReLU(6),
    ],
)
def test_channels_are_dropped_through_pools_and_a_flattening(pool):
    net = nn.Sequential(nn.Conv2d(1, 6, 3), nn.Tanh(), pool, nn.Flatten(), nn.LazyLinear(7))
    inputs = torch.randn(3, 1, 9, 9)
    net(inputs)
    tree = sparse(net, 1.0)
    tree["0.weight"][1] = 0.0
    tree["4.weight"].view(7, 6, -1)[:, 4] = 0.0
    made = agrees(net, tree, inputs)
    untouched = isinstance(pool, nn.PReLU) or getattr(pool, "padding", 0) == 1
    assert made.forms["0"].split()[1] == ("6" if untouched else "4")


@pytest.mark.parametrize("with_sample", [False, True])
@pytest.mark.parametrize("density", [0.03, 0.3])
def test_other_networks_agree(density, with_sample):
    nets = [
        (Branched(), torch.randn(6, 20)),
        (nn.Linear(20, 30), torch.randn(2, 3, 20)),
        (nn.Sequential(), torch.randn(2, 3)),
        (
            nn.Sequential(
                nn.Linear(8, 8),
                nn.LayerNorm(8),
                nn.Linear(8, 6, bias=False),
                nn.PReLU(),
                nn.Softmax(-1),
            ),
            torch.randn(4, 8),
        ),
        (
            nn.Sequential(
                nn.ReLU(inplace=True),
                nn.Sequential(nn.Linear(6, 9), nn.ReLU()),
                nn.Sequential(nn.Linear(9, 4)),
            ),
            torch.randn(4, 6),
        ),
        (nn.Sequential(shared := nn.Linear(7, 7), nn.ReLU(), shared), torch.randn(4, 7)),
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(2, 5, 8)),
        (
            nn.Sequential(
                nn.Conv2d(4, 8, 3, groups=2), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 4, 1)
            ),
            torch.randn(2, 4, 6, 6),
        ),
        (nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4)).double(), torch.randn(3, 6).double()),
    ]
    for net, inputs in nets:
        # What works in place on its inputs does so in the original too: each call gets its own.
        tree = sparse(net, density)
        expected = functional_call(copy.deepcopy(net).eval(), tree, (inputs.clone(),))
        made = compact(net, tree, inputs.clone() if with_sample else None)
        torch.testing.assert_close(made(inputs.clone()), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "shape", [(784,), (0, 784), (1, 784), (2, 3, 784), (0, 4, 784), (2, 0, 784)]
)
@pytest.mark.parametrize("density", [0.02, 0.6])
def test_batches_of_any_shape_agree(shape, density):
    net = bf.mlp([784, 30, 10], bf.Key(0, "net"))[1:]
    agrees(net, sparse(net, density), torch.randn(shape))


def test_few_inputs_are_gathered_and_dead_outputs_filled_in():
    """Half the pixels of a picture dead, as at the border of Fashion-MNIST; and classes that
    nothing reaches.
    """
    net = nn.Sequential(nn.Linear(400, 60), nn.ReLU(), nn.Linear(60, 200))
    tree = sparse(net, 1.0)
    tree["0.weight"][:, 90:] = 0.0
    tree["2.weight"][40:] = 0.0
    made = agrees(net, tree, torch.randn(30, 400))
    assert kinds(made) == {"0": "dropped", "2": "dropped"}
    tree["0.weight"] *= torch.rand(60, 400) < 0.05
    assert kinds(agrees(net, tree, torch.randn(30, 400)))["0"] == "csr"


def test_nothing_of_the_original_is_touched():
    net = bf.mlp([64, 16, 10], bf.Key(0, "net"))
    before, tree, inputs = parameters(net), sparse(net, 0.1), torch.randn(5, 64)
    given, state = copy.deepcopy(tree), torch.random.get_rng_state()
    made = compact(net, tree, inputs)
    made(inputs)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert net.training
    assert all(value.requires_grad for value in net.parameters())
    assert all(torch.equal(value, before[name]) for name, value in parameters(net).items())
    assert all(torch.equal(value, given[name]) for name, value in tree.items())
    for value in tree.values():
        value.zero_()
    torch.testing.assert_close(made(inputs), functional_call(net, given, (inputs,)))


def test_a_compact_network_can_be_copied_and_saved():
    net = bf.mlp([64, 16, 10], bf.Key(0, "net"))
    made, inputs, buffer = compact(net, sparse(net, 0.05)), torch.randn(5, 64), io.BytesIO()
    torch.save(made, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    assert torch.equal(copy.deepcopy(made)(inputs), made(inputs))
    assert torch.equal(loaded(inputs), made(inputs))
    assert loaded.forms == made.forms


def test_a_layer_with_hooks_stays_as_it_is():
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
    net[0].register_forward_hook(lambda module, given, output: output + 1)
    assert set(agrees(net, sparse(net, 0.2), torch.randn(3, 6)).forms) == {"2"}


@pytest.mark.parametrize("first", [nn.Hardtanh(), nn.Conv2d(1, 6, 3)])
@pytest.mark.parametrize("layout", ["as given", "channels last"])
def test_pictures_are_pooled_first_and_laid_out_without_a_change(monkeypatch, first, layout):
    monkeypatch.setattr(
        rewriting, "quickest", lambda built, batch: layout if layout in built else "dense"
    )
    channels = 6 if isinstance(first, nn.Conv2d) else 1
    pooled = [
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, 8, 3),
        nn.GELU(),
        nn.MaxPool2d(2, padding=1),
        nn.Conv2d(8, 4, 2),
        nn.ReLU6(),
        nn.MaxPool2d(2),
    ]
    net = nn.Sequential(first, *pooled, nn.Flatten(), nn.LazyLinear(5))
    inputs = torch.randn(30, 1, 20, 18)
    net(inputs)
    before = inputs.clone()
    made = agrees(net, sparse(net, 0.6), inputs, inputs)
    assert torch.equal(inputs, before)
    # A GELU falls before it rises, so that it must stay before its pooling.
    order = [
        "MaxPool2d",
        "ReLU",
        "Conv2d",
        "GELU",
        "MaxPool2d",
        "Conv2d",
        "MaxPool2d",
        "ReLU6",
        "Flatten",
        "Chain",
    ]
    assert [type(part).__name__ for part in made.net.parts] == [type(first).__name__, *order]
    assert all(
        text.endswith("channels last") == (layout == "channels last")
        for text in made.forms.values()
        if text.count(" x ") > 2
    )


def test_without_sparse_products_layers_stay_dense(monkeypatch):
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    net = nn.Sequential(nn.Linear(60, 50), nn.ReLU(), nn.Linear(50, 40))
    assert set(kinds(agrees(net, sparse(net, 0.05), torch.randn(3, 60))).values()) <= {
        "dense",
        "dropped",
    }
    assert not forms.has_sparse_products(torch.zeros(2, 2))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tree: tree.pop("1.bias"), "leaf '1.bias'"),
        (lambda tree: tree.update(more=torch.zeros(2)), "an extra leaf"),
        (
            lambda tree: tree.update({"1.weight": torch.zeros(16, 63)}),
            r"expected shape \(16, 64\), found \(16, 63\)",
        ),
        (lambda tree: tree["1.bias"].fill_(torch.nan), "16 NaN or Inf"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(change, words):
    net = bf.mlp([64, 16, 10], bf.Key(0, "net"))
    tree = parameters(net)
    change(tree)
    with pytest.raises(ArgumentError, match=f"compact, .*{words}"):
        compact(net, tree)


@pytest.mark.parametrize("density", [0.02, 0.6])
def test_inputs_of_another_width_are_refused(density):
    net = bf.mlp([64, 16, 10], bf.Key(0, "net"))
    with pytest.raises(ArgumentError, match=r"compact: expected 64 inputs, found \(3, 65\)"):
        compact(net, sparse(net, density))(torch.randn(3, 65))


class Named(nn.Module):
    """A network of named inputs, one of them in a dict."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, *, rows, scale):
        hidden = torch.relu(self.first(rows["age"]))
        # A class may read the sizes of its layers.
        return self.last(hidden / self.first.in_features) * scale


def test_a_network_is_called_by_names_and_reads_sizes():
    torch.manual_seed(0)
    net = Named()
    tree = sparse(net, 0.5)
    inputs = {"rows": {"age": torch.randn(5, 6)}, "scale": 2.0}
    with torch.no_grad():
        expected = functional_call(net, tree, (), inputs)
    assert torch.allclose(compact(net, tree)(**inputs), expected, atol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("density", [0.3, 1.0])
def test_a_compact_network_can_be_quantised(density):
    net = bf.mlp([64, 32, 10], bf.Key(0, "net"))
    tree = sparse(net, density)
    small = compact(net, tree)
    quantised = torch.ao.quantization.quantize_dynamic(small, {nn.Linear}, dtype=torch.qint8)
    _, test = bf.digits()
    assert (quantised(test.inputs).argmax(1) == small(test.inputs).argmax(1)).float().mean() > 0.97
