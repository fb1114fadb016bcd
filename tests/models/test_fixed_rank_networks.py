"""Networks of fixed rank: what they keep of the dense network, counts, ranks, trees, priors in
Pyro, refusals.
"""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule, PyroSample
from pyro.nn.module import to_pyro_module_
from torch import nn
from torch.func import functional_call

from bayesfed import geometry as g
from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.keys import Key
from bayesfed.models import (
    FixedRankLayer,
    Gaussian,
    alexnet,
    bayesian,
    dense,
    fixed_rank,
    mlp,
    mobilenet,
    points,
    probes,
    tangents,
    with_points,
)
from bayesfed.trees import parameters, size
from tests.conftest import tree_equal
from tests.models.thin_nets import DOUBLE, close, images, matrices, net, point_of, randn


# -------------------------------------------------------------------------------------------------
# networks
def test_full_rank_is_the_network_itself():
    whole, x = net(), randn(5, 12)
    close(fixed_rank(whole, {"1": 9, "3": 4})(x), whole(x))
    deep = alexnet((1, 16, 16), 10, Key(0), width=2, hidden=10)
    ranks = {name: min(matrix.shape) for name, matrix in matrices(deep).items()}
    assert len(ranks) == 8
    close(fixed_rank(deep, ranks)(randn(3, 16, 16)), deep(randn(3, 16, 16)))


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (6, 6), (12, 5), (78, 25)], ids=str)
def test_the_rank_of_a_share_is_that_of_brute_force(shape):
    layer = nn.Linear(shape[1], shape[0])
    for ratio in (1e-9, 0.1, 0.3, 0.5, 0.77, 1 / 8, 1 / 32, 1.0):
        fitting = [
            rank
            for rank in range(1, min(shape) + 1)
            if rank * sum(shape) <= ratio * shape[0] * shape[1]
        ]
        assert fixed_rank(layer, ratio).rank == max(fitting, default=1)


def test_the_ranks_of_the_papers_network():
    thin = fixed_rank(mlp([784, 256, 256, 10], Key(0)), 1 / 32)
    assert [thin[number].rank for number in (1, 3, 5)] == [6, 4, 1]


def test_spectral_is_the_best_approximation():
    whole = net()
    thin = fixed_rank(whole, 2)
    for name, matrix in matrices(whole).items():
        u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
        close(g.to_dense(point_of(thin.get_submodule(name))), (u[:, :2] * s[:2]) @ vh[:2])
    assert thin[3].bias is not whole[3].bias
    assert torch.equal(thin[3].bias, whole[3].bias)


def test_random_has_the_scale_of_the_layer_and_the_keys_numbers():
    whole = nn.Sequential(nn.Linear(60, 50), nn.ReLU(), nn.Linear(50, 40)).double()
    with torch.no_grad():
        whole[0].weight.normal_(0, 0.3)
        whole[2].weight.normal_(0, 3)
    thin, again, other = (
        fixed_rank(whole, 8, initial="random", key=Key(seed)) for seed in (0, 0, 1)
    )
    assert tree_equal(parameters(thin), parameters(again))
    assert not torch.equal(thin[0].u, other[0].u)
    for index, scale in ((0, 0.3), (2, 3)):
        assert float(
            g.to_dense(point_of(thin[index])).detach().square().mean().sqrt()
        ) == pytest.approx(scale, rel=0.25)
        with torch.no_grad():
            g.check_point(point_of(thin[index]), "random")
        assert thin[index].u.dtype == DOUBLE


def test_the_original_is_untouched_and_no_global_number_is_drawn():
    whole = net()
    before, kinds, state = (
        parameters(whole),
        [type(module) for module in whole],
        torch.get_rng_state(),
    )
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
    assert (
        size(parameters(thin)) == sum(4 * (rows + columns) + 16 for rows, columns in shapes) + 522
    )
    ratio = fixed_rank(papers, 1 / 16, initial="random", key=Key(0))
    for point in points(parameters(ratio)).values():
        assert point.rank == 1 or point.rank * sum(point.shape) <= math.prod(point.shape) / 16


def test_ranks_by_name_leave_the_others_dense():
    ranks = {name: min(2, *matrix.shape) for name, matrix in matrices(net()).items()}
    assert {
        name: layer.rank
        for name, layer in fixed_rank(net(), ranks).named_modules()
        if isinstance(layer, FixedRankLayer)
    } == ranks
    mixed = fixed_rank(net(), {"1": 2})
    assert type(mixed[1]) is FixedRankLayer
    assert type(mixed[3]) is nn.Linear
    chosen = fixed_rank(net(), 2, where=lambda name, _: name == "3.weight")
    assert [type(layer) for layer in (chosen[1], chosen[3])] == [nn.Linear, FixedRankLayer]


def test_modes_and_frozen_weights_stay():
    whole = net().eval()
    whole[1].weight.requires_grad_(False)
    whole[3].bias.requires_grad_(False)
    thin = fixed_rank(whole, 2)
    assert not any(module.training for module in thin.modules())
    assert [name for name, value in thin.named_parameters() if value.requires_grad] == [
        "1.bias",
        "3.u",
        "3.s",
        "3.v",
    ]
    back = dense(thin)
    assert [name for name, value in back.named_parameters() if value.requires_grad] == [
        "1.bias",
        "3.weight",
    ]
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
    changed = with_points(
        tree,
        {
            name: g.FixedRank(point.u[:, :1], point.s[:1, :1], point.v[:, :1])
            for name, point in points(tree).items()
        },
    )
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


# -------------------------------------------------------------------------------------------------
# Pyro
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
    assert [type(module).__name__ for module in mixed] == [
        "FixedRankLayer",
        "ReLU",
        "FixedRankLayer",
    ]
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


# -------------------------------------------------------------------------------------------------
# refusals
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
        (
            lambda: fixed_rank(net(), {"1": 2.0}),
            r"layer '1': expected a rank from 1 to 9, found 2.0",
        ),
        (lambda: fixed_rank(net(), True), r"found True"),
        (lambda: fixed_rank(net(), 1.5), r"a number in \(0, 1\], found 1.5"),
        (lambda: fixed_rank(net(), {"first": 2}), r"layers among \['1', '3'\], found \['first'\]"),
        (lambda: fixed_rank(net(), {}), r"a layer to replace"),
        (lambda: fixed_rank(nn.ReLU(), 2), r"a layer to replace, found none of \[\]"),
        (
            lambda: fixed_rank(net(), 2, where=lambda name, _: name.endswith("bias")),
            r"layer '1'.*found bias of Linear",
        ),
        (
            lambda: fixed_rank(nn.Embedding(5, 4), 2, where=lambda *_: True),
            r"found weight of Embedding",
        ),
        (
            lambda: fixed_rank(nn.MultiheadAttention(4, 1), 2),
            r"layer 'out_proj'.*NonDynamicallyQuantizableLinear",
        ),
        (lambda: fixed_rank(hooked(), 2), r"without hooks"),
        (
            lambda: fixed_rank(mobilenet((1, 8, 8), 10, Key(0), width=0.25), 1),
            r"layer '4': expected a convolution of one group, found 8 groups",
        ),
        (lambda: fixed_rank(shared_weight(), 2), r"layer '0': expected a weight of its own"),
        (
            lambda: fixed_rank(broken(), 2),
            r"network, parameter 'weight': expected finite numbers, found NaN",
        ),
        (lambda: fixed_rank(net(torch.bfloat16), 2), r"layer '1': .*float32 or float64"),
        (lambda: fixed_rank(net(), 2, initial="zeros"), r"'spectral', 'random', found 'zeros'"),
        (lambda: fixed_rank(net(), 2, initial="random"), r"key: expected a Key, found None"),
        (
            lambda: FixedRankLayer(nn.Linear(5, 4), g.random_point(5, 4, 2, Key(0))),
            r"FixedRankLayer: expected shapes {'u': \(4, 2\), 's': \(2, 2\), 'v': \(5, 2\)}",
        ),
        (
            lambda: points({"a.u": randn(3, 2), "a.s": randn(3, 3), "a.v": randn(4, 2)}),
            r"points, layer 'a': FixedRank, s",
        ),
        (
            lambda: with_points({}, {"a": g.random_point(4, 5, 2, Key(0))}),
            r"layer 'a': expected a layer of the tree",
        ),
        (
            lambda: with_points(
                parameters(fixed_rank(net(), 2)), {"1": g.random_point(4, 5, 2, Key(0))}
            ),
            r"shape \(9, 12\), of any rank, found \(4, 5\)",
        ),
        (
            lambda: tangents({"a": g.random_point(4, 5, 2, Key(0))}, {}),
            r"tangents, layer 'a': expected gradients of probes, found none",
        ),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


def test_dense_refuses_a_tree_that_does_not_fit():
    thin = fixed_rank(net(), 2)
    tree = parameters(thin)
    for wrong, message in (
        (
            {name: value for name, value in tree.items() if name != "1.s"},
            "'1.s': .*no such leaf",
        ),
        (
            {name: value for name, value in tree.items() if name != "1.bias"},
            "'1.bias'.*no such leaf",
        ),
        ({**tree, "1.bias": torch.zeros(1)}, r"'1.bias': expected shape \(9,\)"),
        ({**tree, "1.u": randn(8, 2)}, r"'1.u': expected shape \(9, 2\), found \(8, 2\)"),
    ):
        with pytest.raises(UpdateError, match=message):
            dense(thin, wrong)
