"""Factored layers and networks: the dense layer of the product, initialisation, conventions,
counts, refusals.
"""

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.keys import Key
from bayesfed.models import (
    FactoredLayer,
    Unrolling,
    align,
    costs,
    dense_or_thin,
    factorise,
    frobenius_decay,
    hybrid,
    hybrid_ranks,
    mlp,
    mobilenet,
    resnet18,
    resnet34,
    spectra,
    spectrum,
    unrollings,
    weight_matrices,
    whole_first,
)
from bayesfed.trees import parameters, running_statistics, size
from tests.conftest import tree_equal
from tests.models.thin_nets import DOUBLE, SPLITS, close, randn, residual

SETTINGS = [
    {},
    {"stride": 2, "padding": 1},
    {"stride": (1, 2), "padding": (2, 1), "dilation": (1, 2)},
    {"stride": (3, 2), "padding": (0, 2), "dilation": (2, 1)},
    {"padding": "same", "dilation": (2, 1)},
    {"padding": "valid", "stride": 2},
]


def full_ranks(net, split="spatial", names=("0", "2.conv1", "2.conv2", "4")):
    return {
        name: Unrolling(tuple(net.get_submodule(name).weight.shape), split).full for name in names
    }


# -------------------------------------------------------------------------------------------------
# layers
@pytest.mark.parametrize("shape", [(3, 12), (12,), (2, 5, 12)], ids=str)
def test_linear_is_the_dense_layer_of_the_product(shape):
    u, v, x = randn(7, 3, name="u"), randn(12, 3, name="v"), randn(*shape)
    for layer in (nn.Linear(12, 7), nn.Linear(12, 7, bias=False)):
        close(FactoredLayer(layer, u, v)(x), functional.linear(x, u @ v.mT, layer.bias))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("split", SPLITS)
def test_convolution_is_the_dense_layer_of_the_product(split, settings, mode):
    layer, x = nn.Conv2d(3, 8, (3, 2), padding_mode=mode, **settings), randn(2, 3, 9, 8)
    layout = Unrolling((8, 3, 3, 2), split)
    u, v = randn(layout.size[0], 4, name="u"), randn(layout.size[1], 4, name="v")
    thin = FactoredLayer(layer, u, v, split)
    layer.weight.data = layout.weight(u @ v.mT)
    close(thin(x), layer(x))
    close(thin(x[0]), layer(x[0]))
    assert thin.unrolling == layout
    for form in ("thin", "dense"):
        close(dense_or_thin(thin, form=form)(x), layer(x))
    close(hybrid(layer, {"": layout.full}, split=split)(x), layer(x))


def test_kernels_are_the_papers():
    # 2.2: the unrolled kernel is an (r, in, k, 1) convolution, then an (out, r, 1, k) one.
    thin = dense_or_thin(hybrid(nn.Conv2d(3, 8, 5), 1 / 4), form="thin")
    assert [tuple(layer.weight.shape) for layer in thin] == [(2, 3, 5, 1), (8, 2, 1, 5)]
    thin = dense_or_thin(hybrid(nn.Conv2d(3, 8, 5), 1 / 4, split="pufferfish"), form="thin")
    assert [tuple(layer.weight.shape) for layer in thin] == [(2, 3, 5, 5), (8, 2, 1, 1)]


@pytest.mark.parametrize("split", SPLITS)
def test_the_layout_is_one_to_one(split):
    for shape in [(5, 4), (5, 4, 3, 2)]:
        layout, weight = Unrolling(shape, split), randn(*shape)
        assert layout.matrix(weight).shape == layout.size
        assert torch.equal(layout.weight(layout.matrix(weight)), weight)


@pytest.mark.parametrize("split", SPLITS)
def test_a_layer_runs_at_any_rank(split):
    layer = hybrid(nn.Conv2d(3, 8, 3), 1 / 4, split=split)
    x, (rows, columns) = randn(2, 3, 6, 6), layer.unrolling.size
    for rank in (1, 5, 40):
        factors = {"u": randn(rows, rank, name="u"), "v": randn(columns, rank, name="v")}
        dense = layer.unrolling.weight(factors["u"] @ factors["v"].mT)
        close(functional_call(layer, factors, (x,)), functional.conv2d(x, dense, layer.bias))
        close(
            dense_or_thin(layer, {**parameters(layer), **factors}, form="thin")(x),
            functional.conv2d(x, dense, layer.bias),
        )
    assert layer.rank == 2


def test_layers_show_what_they_are():
    net = hybrid(residual(), 1 / 2)
    assert "rank=6" in repr(net[4])
    assert "stride=(2, 2)" in repr(net[2].conv1)


# -------------------------------------------------------------------------------------------------
# networks
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (DOUBLE, 1e-12)], ids=str)
@pytest.mark.parametrize("split", SPLITS)
def test_full_rank_is_the_dense_network_and_aligning_undoes_it(split, dtype, tolerance):
    net, x = residual(dtype).eval(), randn(2, 2, 6, 6, dtype=dtype)
    ranks = full_ranks(net, split)
    factored = hybrid(net, ranks, split=split)
    close(factored(x), net(x), max(tolerance, 1e-11) * 10)
    layers, tree = unrollings(factored), parameters(net)
    thin = factorise(tree, layers, ranks)
    assert list(thin) == [name for name, _ in factored.named_parameters()]
    assert all(torch.equal(thin[name], value) for name, value in factored.named_parameters())
    back = align(thin, layers)
    assert list(back) == list(tree)
    for name, value in tree.items():
        torch.testing.assert_close(back[name], value, rtol=0, atol=tolerance)


@pytest.mark.parametrize("split", SPLITS)
def test_spectral_initialisation_is_optimal(split):
    # Eckart and Young: the squared error is the energy of the singular values left out. Both
    # factors share them.
    net = residual()
    factored = hybrid(net, 1 / 4, split=split)
    assert len(unrollings(factored)) == 6
    for name, layout in unrollings(factored).items():
        layer, matrix = (
            factored.get_submodule(name),
            layout.matrix(net.get_submodule(name).weight.detach()),
        )
        values = torch.linalg.svdvals(matrix)
        error = (matrix - layer.u @ layer.v.mT).norm()
        close(error, values[layer.rank :].norm(), 1e-12)
        close(layer.u.mT @ layer.u, values[: layer.rank].diag(), 1e-12)
        close(layer.v.mT @ layer.v, values[: layer.rank].diag(), 1e-12)


def test_random_initialisation_has_the_layers_spread_and_its_own_stream():
    net = nn.Sequential(nn.Linear(300, 200), nn.Conv2d(20, 40, 3)).requires_grad_(False)
    one, two, other = (
        hybrid(net, 1 / 4, initial="random", key=key) for key in (Key(0), Key(0), Key(1))
    )
    assert tree_equal(parameters(one), parameters(two))
    assert not torch.equal(one[0].u, other[0].u)
    for before, after in zip(net, one, strict=True):
        assert math.isclose((after.u @ after.v.mT).std(), before.weight.std(), rel_tol=0.1)
        assert torch.equal(after.bias, before.bias)
        assert not after.u.requires_grad


def test_what_a_network_is_otherwise_is_kept():
    net = residual().eval()
    before = parameters(net)
    net[2].conv1.weight.requires_grad_(False)
    made = hybrid(net, 1 / 2)
    assert tree_equal(parameters(net), before)
    assert not made.training
    assert not made[2].conv1.u.requires_grad
    assert made[2].conv2.u.requires_grad
    assert running_statistics(made) == running_statistics(net)
    assert made[1].running_var is not net[1].running_var
    assert torch.equal(made[2].conv2.bias, net[2].conv2.bias)


@pytest.mark.parametrize("convention", ["output", "matrix"])
def test_ratio_one_is_the_whole_network(convention):
    net = residual()
    assert hybrid_ranks(net, 1, convention=convention) == {}
    whole = hybrid(net, 1.0, convention=convention)
    assert whole is not net
    assert tree_equal(parameters(whole), parameters(net))
    assert tree_equal(factorise(parameters(net), {}, {}), parameters(net))


def test_conventions():
    net = nn.Sequential(
        nn.Conv2d(16, 32, 3), nn.Conv2d(8, 32, 3), nn.Linear(10, 40), nn.Linear(40, 10)
    )
    assert hybrid_ranks(net, 1 / 2) == {
        "0": 16,
        "1": 16,
        "3": 5,
    }  # "2" would have rank 20 of 10: whole
    assert hybrid_ranks(net, 1 / 2, convention="matrix") == {"0": 24, "1": 12, "2": 5, "3": 5}
    assert hybrid_ranks(net, 1 / 2, convention="matrix", split="pufferfish") == {
        "0": 16,
        "1": 16,
        "2": 5,
        "3": 5,
    }
    assert set(hybrid_ranks(net, 1e-6).values()) == {1}


@pytest.mark.parametrize(
    "whole",
    [
        ["0", "2.shortcut"],
        "0",
        lambda name, module: name[0] == "0" or getattr(module, "kernel_size", 0) == (1, 1),
    ],
)
def test_whole_is_names_or_a_predicate(whole):
    ranks = hybrid_ranks(residual(), 1 / 4, whole=whole)
    assert "0" not in ranks
    assert ("2.shortcut" in ranks) == (whole == "0")
    assert hybrid_ranks(residual(), 1 / 2, whole=["2", "0"]).keys() == {"4", "5"}


def test_whole_first_counts_no_shortcuts():
    net = residual()
    chosen = [hybrid_ranks(net, 1 / 2, whole=whole_first(net, count)).keys() for count in range(4)]
    assert chosen == [
        {"0", "2.conv1", "2.conv2", "4"},
        {"2.conv1", "2.conv2", "4"},
        {"2.conv2", "4"},
        {"4"},
    ]


def counted(net, first, ratio, split="spatial"):
    """Count without an SVD: what the ranks say, with every layer's two factors in the place of its
    weight.
    """
    total = size(parameters(net))
    for name, rank in hybrid_ranks(net, ratio, whole=whole_first(net, first), split=split).items():
        shape = tuple(net.get_submodule(name).weight.shape)
        total += rank * sum(Unrolling(shape, split).size) - math.prod(shape)
    return total


@pytest.fixture(scope="module")
def resnets():
    return {
        10: resnet18((3, 32, 32), 10, Key(0)),
        100: resnet34((3, 32, 32), 100, Key(0)),
        200: resnet34((3, 64, 64), 200, Key(0)),
    }


@pytest.mark.parametrize(
    ("classes", "first", "printed"),
    [
        (10, 3, (11.17, 4.16, 2.21, 1.24)),
        (100, 15, (21.33, 8.40, 4.99, 3.28)),
        (200, 15, (21.38, 8.45, 5.04, 3.33)),
    ],
)
def test_counts_of_tables_2_and_3(resnets, classes, first, printed):
    # The table prints 3.27 for the last of 100 classes, whose count is 3.277: cut where others are
    # rounded.
    net = resnets[classes]
    counts = [counted(net, first, ratio) for ratio in (1, 1 / 2, 1 / 4, 1 / 8)]
    assert [round(count / 1e6, 2) for count in counts] == list(printed)


def test_exact_counts(resnets):
    assert [round(counted(resnets[10], 3, ratio) / 1e6, 3) for ratio in (1 / 2, 1 / 4, 1 / 8)] == [
        4.158,
        2.210,
        1.236,
    ]
    assert math.floor(counted(resnets[100], 15, 1 / 8) / 1e4) == 327


def test_counts_are_those_of_the_network(resnets):
    net = resnets[10]
    made = hybrid(net, 1 / 8, whole=whole_first(net, 3), initial="random", key=Key(0))
    assert size(parameters(made)) == counted(net, 3, 1 / 8)
    assert sorted({name.split(".")[0] for name in unrollings(made)}) == [
        "layer1",
        "layer2",
        "layer3",
        "layer4",
    ]
    assert not any(name.startswith("layer1.0") or "shortcut" in name for name in unrollings(made))
    assert made.eval()(randn(1, 3, 32, 32)).shape == (1, 10)


def test_layers_3_and_4_have_most_parameters_as_in_figure_7(resnets):
    deep = {}
    for classes in (10, 100):
        rows = costs(resnets[classes], torch.zeros(1, 3, 32, 32))
        for kind in ("parameters", "macs"):
            values = {row.layer: getattr(row, kind) for row in rows}
            chosen = sum(values[name] for name in values if name[:6] in ("layer3", "layer4"))
            deep[kind, classes] = round(100 * chosen / sum(values.values()), 1)
    # The paper: more than 93 % of parameters, 55.6 % of ResNet-34's multiplications.
    assert deep == {
        **{("parameters", 10): 93.9, ("parameters", 100): 93.5},
        **{("macs", 10): 48.3, ("macs", 100): 55.7},
    }


def test_counts_of_table_1():
    # r k (m + n) against Pufferfish's r (m k^2 + n), and r (m + n) for a linear layer, biases
    # beside.
    for (m, n, k), rank in [((16, 32, 3), 8), ((32, 16, 5), 4)]:
        layer = nn.Conv2d(m, n, k, bias=False)
        assert size(parameters(hybrid(layer, {"": rank}))) == rank * k * (m + n)
        assert size(parameters(hybrid(layer, {"": rank}, split="pufferfish"))) == rank * (
            m * k * k + n
        )
        assert size(parameters(hybrid(nn.Linear(m, n), {"": rank}))) == rank * (m + n) + n


# -------------------------------------------------------------------------------------------------
# refusals
@pytest.mark.parametrize("ratio", [0, -0.1, 1.01, float("nan"), 2, True])
def test_a_ratio_is_above_0_and_at_most_1(ratio):
    with pytest.raises(
        ArgumentError, match=r"hybrid_ranks, rank_ratio: expected a number in \(0, 1\]"
    ):
        hybrid(residual(), ratio)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"convention": "rows"}, "hybrid, convention: expected one of 'output', 'matrix'"),
        ({"split": "tucker"}, "split: expected one of 'spatial', 'pufferfish'"),
        ({"initial": "zeros"}, "hybrid, initial: expected one of 'spectral', 'random'"),
        ({"initial": "random"}, "hybrid, key: expected a Key, found None"),
        (
            {"whole": ["layer9"]},
            "hybrid, whole: expected layers among .* found none for \\['layer9'\\]",
        ),
        (
            {"whole": lambda name, module: False},
            "hybrid, whole: .* found none for \\['the predicate'\\]",
        ),
        ({"whole": weight_matrices}, "hybrid: expected a layer to replace"),
        ({"whole": ["0", "2", "4", "5"]}, "hybrid: expected a layer to replace"),
        ({"rank_ratio": {"4": 13}}, "hybrid, layer '4': expected a rank from 1 to 12"),
        ({"rank_ratio": {"4": 0}}, "hybrid, layer '4': expected a rank from 1 to 12"),
        ({"rank_ratio": {"fc": 1}}, "hybrid: expected layers among .* found \\['fc'\\]"),
    ],
)
def test_settings_of_a_hybrid_are_checked(settings, match):
    with pytest.raises(ArgumentError, match=match):
        hybrid(residual(), **{"rank_ratio": 1 / 2, **settings})


def test_layers_that_cannot_be_factored_are_named():
    with pytest.raises(
        ArgumentError,
        match=(
            r"hybrid, layer .*: expected a convolution of one group, found 32 groups, whose "
            r"matrix"
        ),
    ):
        hybrid(mobilenet((3, 32, 32), 10, Key(0)), {"3": 1})
    with pytest.raises(
        ArgumentError,
        match=(
            r"hybrid, layer '': expected the weight of an nn.Linear or .* nn.Conv3d itself, .* "
            r"found weight of NonDynamicallyQuantizableLinear"
        ),
    ):
        hybrid(nn.MultiheadAttention(4, 2).out_proj, {"": 1})
    hooked = nn.Linear(4, 3)
    hooked.register_forward_hook(lambda *_: None)
    with pytest.raises(ArgumentError, match="without hooks"):
        hybrid(hooked, {"": 1})
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    with pytest.raises(ArgumentError, match="hybrid, layer '0': expected a weight of its own"):
        hybrid(tied, {"0": 1})
    with pytest.raises(ArgumentError, match="hybrid, layer '': .*float32 or float64"):
        hybrid(nn.Linear(4, 3).half(), {"": 1})
    broken = nn.Linear(4, 3)
    nn.init.constant_(broken.weight, float("nan"))
    with pytest.raises(ArgumentError, match="parameter 'weight': expected finite numbers"):
        hybrid(broken, {"": 1})


@pytest.mark.parametrize("count", [-1, 5, True, 1.0])
def test_whole_first_is_at_most_the_layers(count):
    words = "whole_first, count: expected (an integer from 0 to 4|a whole number)"
    with pytest.raises(ArgumentError, match=words):
        whole_first(nn.Sequential(*(nn.Linear(2, 2) for _ in range(4))), count)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (
            lambda: FactoredLayer(nn.Linear(4, 3), randn(3, 2), randn(4, 3)),
            r"FactoredLayer: expected shapes {'u': \(3, 2\), 'v': \(4, 2\)}, found",
        ),
        (
            lambda: FactoredLayer(nn.Linear(4, 3), randn(3, 0), randn(4, 0)),
            r"FactoredLayer: expected shapes {'u': \(3, 1\), 'v': \(4, 1\)}, found",
        ),
        (
            lambda: FactoredLayer(nn.Linear(4, 3), randn(3), randn(4)),
            "FactoredLayer, u: expected a matrix of",
        ),
        (
            lambda: FactoredLayer(nn.Linear(4, 3), randn(3, 2), randn(4, 2, dtype=DOUBLE)),
            "FactoredLayer, v: expected a matrix of float32",
        ),
        (
            lambda: FactoredLayer(nn.Conv2d(1, 2, 3), randn(6, 2), randn(9, 2)),
            r"found {'u': \(6, 2\), 'v': \(9, 2\)}",
        ),
        (
            lambda: FactoredLayer(nn.Conv2d(1, 2, 3), randn(6, 2), randn(3, 2), split="cp"),
            "split: expected one of 'spatial', 'pufferfish'",
        ),
        (lambda: Unrolling((3,)), "Unrolling.shape: expected .* found \\(3,\\)"),
        (lambda: Unrolling((3, 0)), "Unrolling.shape"),
        (lambda: spectrum(randn(4, 3), 4), "spectrum: expected a rank from 1 to 3"),
        (
            lambda: spectrum(randn(4, 3), 2, key=Key(0), warm=spectrum(randn(4, 5), 2)),
            r"spectrum, v of warm: expected shape \(3, 2\)",
        ),
        (
            lambda: spectrum(randn(4, 3), 2).factors(3),
            "Spectrum.factors: expected a rank from 1 to 2",
        ),
        (
            lambda: frobenius_decay({}, -1.0),
            "frobenius_decay, coefficient: expected a finite number from 0",
        ),
        (lambda: frobenius_decay({}, float("nan")), "expected a number, found nan"),
        (
            lambda: dense_or_thin(residual(), form="sparse"),
            "dense_or_thin, form: expected one of 'smaller', 'thin', 'dense'",
        ),
    ],
)
def test_arguments_are_checked(make, match):
    with pytest.raises(ArgumentError, match=match):
        make()


def test_trees_are_checked():
    net = mlp([6, 5, 4], Key(0))
    made, tree = hybrid(net, 1 / 2), parameters(net)
    layers, ranks = unrollings(made), hybrid_ranks(net, 1 / 2)
    thin = factorise(tree, layers, ranks)
    lacking = {name: leaf for name, leaf in tree.items() if name != "1.weight"}
    for call in (
        lambda one: spectra(one, layers, ranks),
        lambda one: factorise(one, layers, ranks),
        lambda one: align(one, layers),
    ):
        with pytest.raises(
            UpdateError, match=r"leaf '1.weight': expected shape \(5, 6\), found no such leaf"
        ):
            call(lacking)
        with pytest.raises(
            UpdateError, match=r"leaf '1.weight': expected shape \(5, 6\), found \(6, 5\)"
        ):
            call({**tree, "1.weight": tree["1.weight"].mT})
    with pytest.raises(ArgumentError, match="spectra: expected ranks of layers among"):
        spectra(tree, layers, {"fc": 1})
    with pytest.raises(
        ArgumentError, match="spectra, layer '1': spectrum: expected a rank from 1 to 5"
    ):
        spectra(tree, layers, {"1": 6})
    with pytest.raises(ArgumentError, match="factorise: expected spectra of"):
        factorise(tree, layers, ranks, spectra(tree, layers, {"1": 2}))
    with pytest.raises(ArgumentError, match="Spectrum.factors: expected a rank from 1 to 1"):
        factorise(tree, layers, ranks, spectra(tree, layers, dict.fromkeys(ranks, 1)))
    for wrong in ({"1.u": thin["1.u"][:, :1]}, {"1.v": thin["1.v"].mT}, {"1.u": randn(5)}):
        with pytest.raises(
            UpdateError, match=r"align, layer '1': expected u and v of shapes \(5, R\) and \(6, R\)"
        ):
            align({**thin, **wrong}, layers)
    with pytest.raises(UpdateError, match="align, layer '1'"):
        align({name: leaf for name, leaf in thin.items() if name != "1.v"}, layers)
    for wrong in ({"1.u": thin["1.u"][:, :1]}, {"1.u": randn(7, 2)}, {"2.bias": randn(5)}):
        with pytest.raises(UpdateError, match="dense_or_thin, leaf"):
            dense_or_thin(made, {**thin, **wrong})
