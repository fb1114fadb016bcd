"""Layers of fixed rank: the dense layer of the product, thin gradients without a dense one, networks there and back, refusals."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule, PyroSample
from pyro.nn.module import to_pyro_module_
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bayesfed import geometry as g
from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.keys import Key
from bayesfed.models import (
    FixedRankConv1d,
    FixedRankConv2d,
    FixedRankConv3d,
    FixedRankLinear,
    Gaussian,
    alexnet,
    bayesian,
    dense,
    fixed_rank,
    layer_matrices,
    mlp,
    mobilenet,
    points,
    probes,
    tangents,
    with_points,
)
from bayesfed.trees import parameters, running_statistics, size
from tests.conftest import tree_equal

DOUBLE = torch.float64


def randn(*shape, name="x", dtype=torch.float32):
    return torch.randn(*shape, generator=Key(0, name).generator(), dtype=dtype)


def close(left, right, tolerance=1e-5):
    torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance * float(right.detach().abs().max()))


def net(dtype=torch.float32):
    return mlp([12, 9, 4], Key(0, "net")).to(dtype)


def images(dtype=DOUBLE):
    """Convolve twice, then one linear layer: every kind the package's networks have."""
    layers = [nn.Conv2d(2, 6, 3, padding=1), nn.Tanh(), nn.Conv2d(6, 8, 3, stride=2, padding=1, padding_mode="circular"), nn.Tanh()]
    whole = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 9, 3)).to(dtype)
    with torch.no_grad():
        for name, value in whole.named_parameters():
            value.copy_(randn(*value.shape, name=name, dtype=dtype) * value[0].numel() ** -0.5)
    return whole


class Largest(TorchDispatchMode):
    """Note the entries of the largest tensor that any operation gives back."""

    entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.entries = max(self.entries, *(leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)), 0)
        return result


# ------------------------------------------------------------------------------------------------------------- layers


@pytest.mark.parametrize("shape", [(3, 12), (12,), (2, 5, 12)], ids=str)
def test_linear_is_the_dense_layer_of_the_product(shape):
    point, bias, x = g.random_point(7, 12, 3, Key(0)), randn(7, name="b"), randn(*shape)
    close(FixedRankLinear(point, bias)(x), functional.linear(x, g.to_dense(point), bias))
    close(FixedRankLinear(point)(x), g.apply(point, x))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"stride": 2, "padding": 1},
        {"stride": (1, 2), "padding": (2, 1), "dilation": (1, 2)},
        {"padding": "same", "dilation": (2, 1)},
        {"padding": "valid", "stride": 2},
    ],
    ids=str,
)
def test_convolution_is_the_dense_layer_of_the_product(settings, mode):
    layer = nn.Conv2d(3, 8, (3, 2), padding_mode=mode, **settings)
    point = g.random_point(8, 18, 4, Key(0))
    thin = FixedRankConv2d(point, (3, 2), layer.bias, padding_mode=mode, **settings)
    whole = dense(thin)
    layer.weight.data = g.to_dense(point).reshape(8, 3, 3, 2)
    x = randn(2, 3, 9, 8)
    close(thin(x), layer(x))
    close(whole(x), layer(x))
    close(thin(x[0]), layer(x[0]))
    assert {name: getattr(whole, name) for name in layer.__constants__} == {name: getattr(layer, name) for name in layer.__constants__}
    close(fixed_rank(layer, 8)(x), layer(x))


@pytest.mark.parametrize(("kind", "thin", "dimensions"), [(nn.Conv1d, FixedRankConv1d, 1), (nn.Conv3d, FixedRankConv3d, 3)])
def test_convolutions_of_other_dimensions(kind, thin, dimensions):
    layer, x = kind(2, 5, 3, padding="same", padding_mode="circular"), randn(2, 2, *(6, 5, 4)[:dimensions])
    made = fixed_rank(layer, 5)
    assert type(made) is thin
    close(made(x), layer(x))
    close(dense(made)(x), layer(x))


def test_a_layer_holds_its_factors_and_nothing_else():
    layer = FixedRankLinear(g.random_point(7, 12, 3, Key(0)), torch.zeros(7))
    assert list(layer.state_dict()) == ["u", "s", "v", "bias"]
    assert size(parameters(layer)) == 3 * (7 + 12) + 3**2 + 7
    assert not running_statistics(layer)
    assert layer.up is None
    assert layer.vp is None
    assert list(FixedRankLinear(g.random_point(7, 12, 3, Key(0))).state_dict()) == ["u", "s", "v"]
    assert "in_features=12, out_features=7, rank=3" in repr(layer)
    assert "2, 5, kernel_size=(3,), rank=4" in repr(FixedRankConv1d(g.random_point(5, 6, 4, Key(0)), 3))


def test_a_layer_shares_no_memory_with_its_point():
    point, bias = g.random_point(7, 12, 3, Key(0)), torch.zeros(7)
    layer = FixedRankLinear(point, bias)
    with torch.no_grad():
        for value in layer.parameters():
            value.add_(1)
    assert tree_equal(vars(point), vars(g.random_point(7, 12, 3, Key(0))))
    assert not bias.any()
    kept = fixed_rank(nn.Linear(50, 40), 2)
    assert all(value.untyped_storage().nbytes() == 4 * value.numel() for value in kept.parameters())


# -------------------------------------------------------------------------------------------------------------- probes


def dense_gradients(thin, tree, loss):
    """Return autograd's gradients of the dense weights, as matrices, by layer."""
    whole = dense(thin, tree)
    loss(whole).backward()
    return {name: whole.get_submodule(name).weight.grad.flatten(1) for name in points(tree)}


def test_probes_get_the_thin_products_of_the_dense_gradient():
    thin = fixed_rank(images(), {"0": 3, "2": 4, "5": 2})
    tree, x, y = parameters(thin), randn(5, 2, 6, 6, dtype=DOUBLE), torch.tensor([0, 1, 2, 0, 1])
    at = points(tree)
    assert list(at) == ["0", "2", "5"]
    probe = probes(at)
    functional.cross_entropy(functional_call(thin, {**tree, **probe}, (x,)), y).backward()
    gradients = dense_gradients(thin, tree, lambda whole: functional.cross_entropy(whole(x), y))
    for name, tangent in tangents(at, probe).items():
        full = gradients[name]
        close(probe[f"{name}.up"].grad, full @ at[name].v, 1e-10)
        close(probe[f"{name}.vp"].grad, full.mT @ at[name].u, 1e-10)
        expected = g.project(at[name], full @ at[name].v, full.mT @ at[name].u)
        close(g.tangent_to_dense(at[name], tangent), g.tangent_to_dense(at[name], expected), 1e-10)
        g.check_tangent("gradient", at[name], tangent, tolerance=1e-10)
        assert not tangent.core.requires_grad


def test_a_probe_changes_no_output_and_leaves_no_trace():
    thin = fixed_rank(net(), 3)
    tree, x = dict(thin.named_parameters()), randn(5, 12)
    plain, probed = thin(x), functional_call(thin, {**tree, **probes(points(tree))}, (x,))
    close(plain, probed)
    assert thin[1].up is None
    assert list(thin.state_dict()) == list(tree)


def test_half_a_probe_and_a_tangent_for_a_probe():
    point, x = g.random_point(7, 12, 3, Key(0), dtype=DOUBLE), randn(4, 12, dtype=DOUBLE)
    layer, z = FixedRankLinear(point), g.random_tangent(point, Key(1)) * 0.3
    moved = functional_call(layer, {"up": z.up, "vp": z.vp}, (x,))
    close(moved, g.apply(point, x) + g.apply_tangent(point, g.Tangent(0 * z.core, z.up, z.vp), x), 1e-12)
    close(functional_call(layer, {"vp": z.vp}, (x,)), layer(x) + x @ z.vp @ point.u.mT, 1e-12)
    close(functional_call(layer, {"up": z.up}, (x,)), layer(x) + x @ point.v @ z.up.mT, 1e-12)


def test_backward_of_detached_leaves_is_for_the_probes_alone():
    thin = fixed_rank(net(), 3)
    tree = parameters(thin)
    probe = probes(points(tree))
    functional_call(thin, {**tree, **probe}, (randn(5, 12),)).sum().backward()
    assert all(value.grad is None for value in (*tree.values(), *thin.parameters()))
    assert all(value.grad is not None for value in probe.values())


def test_gradients_of_every_row_by_vmap():
    thin, x = fixed_rank(net(DOUBLE), 3), randn(5, 12, dtype=DOUBLE)
    tree = parameters(thin)
    probe = probes(points(tree))

    def loss(leaves, row):
        return functional_call(thin, {**tree, **leaves}, (row[None],)).square().sum()

    rows = vmap(grad(loss), (None, 0))(probe, x)
    functional_call(thin, {**tree, **probe}, (x,)).square().sum().backward()
    for name, value in probe.items():
        close(rows[name].sum(0), value.grad, 1e-10)


def test_gradients_agree_with_finite_differences_along_a_retraction():
    thin = fixed_rank(images(), 2)
    tree, x, y = parameters(thin), randn(5, 2, 6, 6, dtype=DOUBLE), torch.tensor([0, 1, 2, 0, 1])
    at = points(tree)
    probe = probes(at)

    def loss(leaves):
        return functional.cross_entropy(functional_call(thin, leaves, (x,)), y)

    loss({**tree, **probe}).backward()
    gradient = tangents(at, probe)
    along = {name: g.random_tangent(point, Key(0, name)) for name, point in at.items()}
    slope = sum(float(g.inner(gradient[name], along[name])) for name in at)
    for retract in (g.metric_retraction, g.orthographic_retraction):
        ends = [float(loss(with_points(tree, {name: retract(at[name], t * along[name]) for name in at}))) for t in (1e-5, -1e-5)]
        assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(slope, rel=1e-6)


def test_descent_learns_what_a_matrix_of_the_rank_can():
    target, x = g.random_point(8, 12, 2, Key(0, "target"), dtype=DOUBLE), randn(64, 12, dtype=DOUBLE)
    layer = FixedRankLinear(g.random_point(8, 12, 2, Key(0, "start"), dtype=DOUBLE))
    tree = parameters(layer)
    for _ in range(100):
        at = points(tree)
        probe = probes(at)
        functional.mse_loss(functional_call(layer, {**tree, **probe}, (x,)), g.apply(target, x)).backward()
        step = {name: -1.0 * gradient for name, gradient in tangents(at, probe).items()}
        tree = with_points(tree, {name: g.metric_retraction(point, step[name]) for name, point in at.items()})
    assert float(g.distance(points(tree)[""], target)) < 1e-3 * float(g.singular_values(target)[0])


def test_no_dense_array_is_formed():
    thin = fixed_rank(nn.Sequential(nn.Conv2d(64, 96, 3), nn.Flatten(), nn.Linear(96 * 4, 300)), 2)
    tree = parameters(thin)
    at = points(tree)
    probe, x = probes(at), randn(1, 64, 4, 4)
    thinnest = min(math.prod(point.shape) for point in at.values())
    with Largest() as largest:
        functional_call(thin, {**tree, **probe}, (x,)).sum().backward()
        moved = {name: g.metric_retraction(at[name], -0.1 * gradient) for name, gradient in tangents(at, probe).items()}
        with_points(tree, moved)
        thin(x).sum().backward()
    assert 0 < largest.entries < thinnest / 8


def test_a_layer_of_thirty_billion_weights_runs_and_steps():
    layer = FixedRankLinear(g.random_point(200_000, 150_000, 4, Key(0)))
    tree = parameters(layer)
    at = points(tree)
    probe, x = probes(at), randn(2, 150_000)
    functional_call(layer, {**tree, **probe}, (x,)).square().mean().backward()
    assert probe["up"].grad.shape == (200_000, 4)
    assert probe["vp"].grad.shape == (150_000, 4)
    moved = g.metric_retraction(at[""], -1.0 * tangents(at, probe)[""])
    before, after = (functional_call(layer, leaves, (x,)).square().mean() for leaves in (tree, with_points(tree, {"": moved})))
    assert float(after) < float(before)
    layer(x).sum().backward()
    assert layer.v.grad.shape == (150_000, 4)


# ------------------------------------------------------------------------------------------------------------ networks


def test_full_rank_is_the_network_itself():
    whole, x = net(), randn(5, 12)
    close(fixed_rank(whole, {"1": 9, "3": 4})(x), whole(x))
    deep = alexnet((1, 16, 16), 10, Key(0), width=2, hidden=10)
    ranks = {name: min(matrix.shape) for name, matrix in layer_matrices(deep).items()}
    assert len(ranks) == 8
    close(fixed_rank(deep, ranks)(randn(3, 16, 16)), deep(randn(3, 16, 16)))


def test_spectral_is_the_best_approximation():
    whole = net()
    thin = fixed_rank(whole, 2)
    for name, matrix in layer_matrices(whole).items():
        u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
        close(g.to_dense(thin.get_submodule(name).point), (u[:, :2] * s[:2]) @ vh[:2])
    assert thin[3].bias is not whole[3].bias
    assert torch.equal(thin[3].bias, whole[3].bias)


def test_random_has_the_scale_of_the_layer_and_the_keys_numbers():
    whole = nn.Sequential(nn.Linear(60, 50), nn.ReLU(), nn.Linear(50, 40)).double()
    with torch.no_grad():
        whole[0].weight.normal_(0, 0.3)
        whole[2].weight.normal_(0, 3)
    thin, again, other = (fixed_rank(whole, 8, initial="random", key=Key(seed)) for seed in (0, 0, 1))
    assert tree_equal(parameters(thin), parameters(again))
    assert not torch.equal(thin[0].u, other[0].u)
    for index, scale in ((0, 0.3), (2, 3)):
        assert float(g.to_dense(thin[index].point).detach().square().mean().sqrt()) == pytest.approx(scale, rel=0.25)
        with torch.no_grad():
            g.check_point(thin[index].point, "random")
        assert thin[index].u.dtype == DOUBLE


def test_the_original_is_untouched_and_no_global_number_is_drawn():
    whole = net()
    before, kinds, state = parameters(whole), [type(module) for module in whole], torch.get_rng_state()
    thin = fixed_rank(whole, 2)
    dense(thin)
    fixed_rank(whole, 2, initial="random", key=Key(0))
    with torch.no_grad():
        for value in thin.parameters():
            value.zero_()
    assert tree_equal(parameters(whole), before)
    assert [type(module) for module in whole] == kinds
    assert torch.equal(torch.get_rng_state(), state)


def test_counts_of_parameters():
    papers = mlp([784, 256, 256, 10], Key(0))
    shapes = [(256, 784), (256, 256), (10, 256)]
    thin = fixed_rank(papers, 4, initial="random", key=Key(0))
    assert size(parameters(thin)) == sum(4 * (rows + columns) + 16 for rows, columns in shapes) + 522
    ratio = fixed_rank(papers, 1 / 16, initial="random", key=Key(0))
    assert {name: point.rank for name, point in points(parameters(ratio)).items()} == g.uniform_ranks(
        {"1": shapes[0], "3": shapes[1], "5": shapes[2]}, 1 / 16
    )
    for point in points(parameters(ratio)).values():
        assert point.rank == 1 or g.numbers(point.shape, point.rank) <= math.prod(point.shape) / 16


def test_ranks_by_name_leave_the_others_dense():
    weights = layer_matrices(net())
    ranks = g.greedy_ranks({name: tuple(w.shape) for name, w in weights.items()}, {name: torch.linalg.svdvals(w) for name, w in weights.items()}, 0.5)
    assert {name: layer.rank for name, layer in fixed_rank(net(), ranks).named_modules() if isinstance(layer, FixedRankLinear)} == ranks
    mixed = fixed_rank(net(), {"1": 2})
    assert type(mixed[1]) is FixedRankLinear
    assert type(mixed[3]) is nn.Linear
    chosen = fixed_rank(net(), 2, where=lambda name, _: name == "3.weight")
    assert [type(layer) for layer in (chosen[1], chosen[3])] == [nn.Linear, FixedRankLinear]


def test_modes_and_frozen_weights_stay():
    whole = net().eval()
    whole[1].weight.requires_grad_(False)
    whole[3].bias.requires_grad_(False)
    thin = fixed_rank(whole, 2)
    assert not any(module.training for module in thin.modules())
    assert [name for name, value in thin.named_parameters() if value.requires_grad] == ["1.bias", "3.u", "3.s", "3.v"]
    back = dense(thin)
    assert [name for name, value in back.named_parameters() if value.requires_grad] == ["1.bias", "3.weight"]
    assert not back[1].training


def test_a_layer_in_two_places_stays_one():
    shared = nn.Linear(6, 6)
    thin = fixed_rank(nn.Sequential(shared, nn.ReLU(), shared), 3)
    assert thin[0] is thin[2]
    assert list(points(parameters(thin))) == ["0"]
    back = dense(thin)
    assert back[0] is back[2]


def test_dense_there_and_back():
    whole, x = images(), randn(5, 2, 6, 6, dtype=DOUBLE)
    thin = fixed_rank(whole, 3)
    back = dense(thin)
    assert [type(module) for module in back] == [type(module) for module in whole]
    assert list(back.state_dict()) == list(whole.state_dict())
    close(back(x), thin(x), 1e-12)
    tree = {name: value * 1.5 for name, value in parameters(thin).items()}
    close(dense(thin, tree)(x), functional_call(thin, tree, (x,)), 1e-12)
    assert tree_equal(parameters(dense(whole)), parameters(whole))


def test_points_of_other_ranks_run_and_become_dense():
    thin, x = fixed_rank(net(DOUBLE), 3), randn(5, 12, dtype=DOUBLE)
    tree = parameters(thin)
    changed = with_points(tree, {name: g.truncate(point, 0.3) for name, point in points(tree).items()})
    assert any(changed[name].shape != tree[name].shape for name in tree)
    close(dense(thin, changed)(x), functional_call(thin, changed, (x,)), 1e-12)
    thin.load_state_dict(with_points(tree, points(tree)))


def test_trees():
    tree = parameters(fixed_rank(net(), 2))
    assert points(tree).keys() == {"1", "3"}
    assert points({"a.u": randn(3, 2), "a.v": randn(4, 2), "b.su": randn(2), "u": randn(1)}) == {}
    point = g.random_point(9, 12, 5, Key(0))
    changed = with_points(tree, {"1": point})
    assert changed["1.u"] is point.u
    assert changed["3.u"] is tree["3.u"]
    assert tree["1.u"].shape == (9, 2)
    assert list(changed) == list(tree)
    assert {name: tuple(value.shape) for name, value in probes(points(tree)).items()} == {
        "1.up": (9, 2),
        "1.vp": (12, 2),
        "3.up": (4, 2),
        "3.vp": (9, 2),
    }


# ---------------------------------------------------------------------------------------------------------------- Pyro


def test_no_sample_site_and_nothing_in_the_store():
    thin = fixed_rank(net(), 2)
    with pyro.get_param_store().scope() as state:
        trace = pyro.poutine.trace(thin).get_trace(randn(5, 12))
        assert not [site for site in trace.nodes.values() if site["type"] in ("sample", "param")]
        assert not list(pyro.get_param_store())
    assert not state["params"]
    assert isinstance(thin[1], PyroModule)


def test_in_a_pyro_module_the_layers_have_names_of_their_own():
    thin = fixed_rank(net(), 2)
    thin(randn(5, 12))
    to_pyro_module_(thin)
    leaves = {f"{layer}.{leaf}" for layer in (1, 3) for leaf in ("u", "s", "v", "bias")}
    with pyro.get_param_store().scope():
        trace = pyro.poutine.trace(thin).get_trace(randn(5, 12))
        assert {name for name, site in trace.nodes.items() if site["type"] == "param"} == leaves
    mixed = fixed_rank(PyroModule[nn.Sequential](nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 4)), 2)
    assert [type(module).__name__ for module in mixed] == ["FixedRankLinear", "ReLU", "FixedRankLinear"]
    with pyro.get_param_store().scope():
        trace = pyro.poutine.trace(mixed).get_trace(randn(5, 12))
        assert {"0.u", "2.u"} < set(trace.nodes)


def test_factors_take_priors():
    thin = fixed_rank(net(), 2)
    to_pyro_module_(thin)
    thin[1].s = PyroSample(dist.Normal(0.0, 1.0).expand([2, 2]).to_event(2))
    with pyro.get_param_store().scope():
        trace = pyro.poutine.trace(thin).get_trace(randn(5, 12))
    assert [name for name, site in trace.nodes.items() if site["type"] == "sample"] == ["1.s"]
    model = bayesian(fixed_rank(net(), 2), Gaussian(1.0))
    trace = pyro.poutine.trace(model).get_trace(randn(5, 12))
    assert {"1.u", "1.s", "1.v", "1.bias"} < set(trace.nodes)


# ------------------------------------------------------------------------------------------------------------ refusals


def shared_weight():
    whole = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5))
    whole[1].weight = whole[0].weight
    return whole


def hooked():
    layer = nn.Linear(5, 5)
    layer.register_forward_hook(lambda *_: None)
    return layer


def broken():
    layer = nn.Linear(5, 5)
    nn.init.constant_(layer.weight, math.nan)
    return layer


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fixed_rank(net(), 5), r"layer '3': expected a rank from 1 to 4, found 5"),
        (lambda: fixed_rank(net(), 0), r"layer '1': expected a rank from 1 to 9, found 0"),
        (lambda: fixed_rank(net(), {"3": 5}), r"layer '3': expected a rank from 1 to 4, found 5"),
        (lambda: fixed_rank(net(), {"1": 2.0}), r"layer '1': expected a rank from 1 to 9, found 2.0"),
        (lambda: fixed_rank(net(), True), r"found True"),
        (lambda: fixed_rank(net(), 1.5), r"a ratio in \(0, 1\], found 1.5"),
        (lambda: fixed_rank(net(), {"first": 2}), r"layers among \['1', '3'\], found \['first'\]"),
        (lambda: fixed_rank(net(), {}), r"a layer to replace"),
        (lambda: fixed_rank(nn.ReLU(), 2), r"a layer to replace, found none of \[\]"),
        (lambda: fixed_rank(net(), 2, where=lambda name, _: name.endswith("bias")), r"layer '1'.*found bias of Linear"),
        (lambda: fixed_rank(nn.Embedding(5, 4), 2, where=lambda *_: True), r"found weight of Embedding"),
        (lambda: fixed_rank(nn.MultiheadAttention(4, 1), 2), r"layer 'out_proj'.*NonDynamicallyQuantizableLinear"),
        (lambda: fixed_rank(hooked(), 2), r"without hooks"),
        (lambda: fixed_rank(mobilenet((1, 8, 8), 10, Key(0), width=0.25), 1), r"layer '4': expected a convolution of one group, found 8 groups"),
        (lambda: fixed_rank(shared_weight(), 2), r"layer '0': expected a weight of its own"),
        (lambda: fixed_rank(broken(), 2), r"fixed_rank, layer '': from_dense, matrix: expected finite values"),
        (lambda: fixed_rank(net(torch.bfloat16), 2), r"layer '1': .*float32 or float64"),
        (lambda: fixed_rank(net(), 2, initial="zeros"), r"'spectral' or 'random', found 'zeros'"),
        (lambda: fixed_rank(net(), 2, initial="random"), r"key: expected a Key"),
        (lambda: layer_matrices(nn.ReLU()), r"a layer to replace"),
        (lambda: FixedRankLinear(g.random_point(4, 5, 2, Key(0)), torch.zeros(5)), r"FixedRankLinear, bias: expected shape \(4,\)"),
        (lambda: FixedRankLinear(g.random_point(4, 5, 2, Key(0)), torch.zeros(4, dtype=DOUBLE)), r"found shape \(4,\) of torch.float64"),
        (lambda: FixedRankConv2d(g.random_point(4, 10, 2, Key(0)), 3), r"kernel_size: expected entries that divide 10 columns"),
        (lambda: FixedRankConv2d(g.random_point(4, 9, 2, Key(0)), (3,)), r"kernel_size: expected 2 whole numbers, 1 or more"),
        (lambda: FixedRankConv2d(g.random_point(4, 9, 2, Key(0)), 3, stride=0), r"stride: expected 2 whole numbers, 1 or more"),
        (lambda: FixedRankConv2d(g.random_point(4, 9, 2, Key(0)), 3, padding=-1), r"padding: expected 2 whole numbers, 0 or more"),
        (lambda: FixedRankConv2d(g.random_point(4, 9, 2, Key(0)), 3, padding="full"), r"padding: expected 2 whole numbers.*'full'"),
        (lambda: FixedRankConv2d(g.random_point(4, 9, 2, Key(0)), 3, padding="same", stride=2), r"a stride of 1 for 'same'"),
        (lambda: FixedRankConv2d(g.random_point(4, 9, 2, Key(0)), 3, padding_mode="mirror"), r"padding_mode: expected 'zeros'"),
        (lambda: points({"a.u": randn(3, 2), "a.s": randn(3, 3), "a.v": randn(4, 2)}), r"points, layer 'a': FixedRank, s"),
        (lambda: with_points({}, {"a": g.random_point(4, 5, 2, Key(0))}), r"layer 'a': expected leaf 'a.u'"),
        (lambda: with_points(parameters(fixed_rank(net(), 2)), {"1": g.random_point(4, 5, 2, Key(0))}), r"shape \(9, 12\), found \(4, 5\)"),
        (lambda: tangents({"a": g.random_point(4, 5, 2, Key(0))}, {}), r"'a.up': expected a gradient, found no such probe"),
        (lambda: tangents(one := {"a": g.random_point(4, 5, 2, Key(0))}, probes(one)), r"'a.up': expected a gradient, found none"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


def test_dense_refuses_a_tree_that_does_not_fit():
    thin = fixed_rank(net(), 2)
    tree = parameters(thin)
    for wrong, message in (
        ({name: value for name, value in tree.items() if name != "1.s"}, "'1.u': .*an extra leaf|'1.v': .*an extra leaf"),
        ({name: value for name, value in tree.items() if name != "1.bias"}, "'1.bias'.*no such leaf"),
        ({**tree, "1.bias": torch.zeros(1)}, r"'1.bias': expected shape \(9,\)"),
        ({**tree, "1.u": randn(8, 2)}, r"'1.weight': expected shape \(9, 12\), found \(8, 12\)"),
    ):
        with pytest.raises(UpdateError, match=message):
            dense(thin, wrong)
