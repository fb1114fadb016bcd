"""Layers of fixed rank: the dense layer of the product, and gradients on the tangent space by
probes.
"""

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bayesfed import geometry as g
from bayesfed.keys import Key
from bayesfed.models import (
    FixedRankLayer,
    dense,
    fixed_rank,
    points,
    probes,
    tangents,
    with_points,
)
from bayesfed.trees import parameters, running_statistics, size
from tests.conftest import tree_equal
from tests.models.thin_nets import DOUBLE, close, grads, images, net, randn
from tests.support.manifold import check_tangency, inner, tangent_to_dense


class Largest(TorchDispatchMode):
    """Note the entries of the largest tensor that any operation gives back."""

    entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.entries = max(
            self.entries,
            *(leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)),
            0,
        )
        return result


def linear(point):
    """A layer of this matrix, without a bias."""
    rows, columns = point.shape
    return FixedRankLayer(nn.Linear(columns, rows, bias=False, device="meta"), point)


# -------------------------------------------------------------------------------------------------
# layers
@pytest.mark.parametrize("shape", [(3, 12), (12,), (2, 5, 12)], ids=str)
def test_linear_is_the_dense_layer_of_the_product(shape):
    point, layer, x = g.random_point(7, 12, 3, Key(0)), nn.Linear(12, 7), randn(*shape)
    close(FixedRankLayer(layer, point)(x), functional.linear(x, g.to_dense(point), layer.bias))


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
    thin = FixedRankLayer(layer, point)
    whole = dense(thin)
    layer.weight.data = g.to_dense(point).reshape(8, 3, 3, 2)
    x = randn(2, 3, 9, 8)
    close(thin(x), layer(x))
    close(whole(x), layer(x))
    close(thin(x[0]), layer(x[0]))
    assert {name: getattr(whole, name) for name in layer.__constants__} == {
        name: getattr(layer, name) for name in layer.__constants__
    }
    close(fixed_rank(layer, 8)(x), layer(x))


@pytest.mark.parametrize(("kind", "dimensions"), [(nn.Conv1d, 1), (nn.Conv3d, 3)])
def test_convolutions_of_other_dimensions(kind, dimensions):
    layer, x = (
        kind(2, 5, 3, padding="same", padding_mode="circular"),
        randn(2, 2, *(6, 5, 4)[:dimensions]),
    )
    made = fixed_rank(layer, 5)
    assert type(made) is FixedRankLayer
    close(made(x), layer(x))
    close(dense(made)(x), layer(x))


def test_a_layer_holds_its_factors_and_nothing_else():
    layer = FixedRankLayer(nn.Linear(12, 7), g.random_point(7, 12, 3, Key(0)))
    assert list(layer.state_dict()) == ["u", "s", "v", "bias"]
    assert size(parameters(layer)) == 3 * (7 + 12) + 3**2 + 7
    assert not running_statistics(layer)
    assert layer.up is None
    assert layer.vp is None
    assert list(linear(g.random_point(7, 12, 3, Key(0))).state_dict()) == ["u", "s", "v"]
    assert "in_features=12, out_features=7, rank=3" in repr(layer)
    assert "kernel_size=(3,)" in repr(fixed_rank(nn.Conv1d(2, 5, 3), 4))


def test_a_layer_shares_no_memory_with_its_point():
    point, whole = g.random_point(7, 12, 3, Key(0)), nn.Linear(12, 7)
    bias = whole.bias.detach().clone()
    layer = FixedRankLayer(whole, point)
    with torch.no_grad():
        for value in layer.parameters():
            value.add_(1)
    assert tree_equal(vars(point), vars(g.random_point(7, 12, 3, Key(0))))
    assert torch.equal(whole.bias, bias)
    kept = fixed_rank(nn.Linear(50, 40), 2)
    assert all(value.untyped_storage().nbytes() == 4 * value.numel() for value in kept.parameters())


# -------------------------------------------------------------------------------------------------
# probes
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
    for name, tangent in tangents(at, grads(probe)).items():
        full = gradients[name]
        close(probe[f"{name}.up"].grad, full @ at[name].v, 1e-10)
        close(probe[f"{name}.vp"].grad, full.mT @ at[name].u, 1e-10)
        expected = g.project(at[name], full @ at[name].v, full.mT @ at[name].u)
        close(tangent_to_dense(at[name], tangent), tangent_to_dense(at[name], expected), 1e-10)
        check_tangency("gradient", at[name], tangent, 1e-10)
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
    layer, z = linear(point), g.random_tangent(point, Key(1)) * 0.3
    moved = functional_call(layer, {"up": z.up, "vp": z.vp}, (x,))
    within = tangent_to_dense(point, g.Tangent(0 * z.core, z.up, z.vp))
    close(moved, x @ (g.to_dense(point) + within).mT, 1e-12)
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
    gradient = tangents(at, grads(probe))
    along = {name: g.random_tangent(point, Key(0, name)) for name, point in at.items()}
    slope = sum(float(inner(gradient[name], along[name])) for name in at)
    for retract in (g.metric_retraction, g.orthographic_retraction):
        ends = [
            float(
                loss(with_points(tree, {name: retract(at[name], t * along[name]) for name in at}))
            )
            for t in (1e-5, -1e-5)
        ]
        assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(slope, rel=1e-6)


def test_descent_learns_what_a_matrix_of_the_rank_can():
    target, x = (
        g.random_point(8, 12, 2, Key(0, "target"), dtype=DOUBLE),
        randn(64, 12, dtype=DOUBLE),
    )
    layer = linear(g.random_point(8, 12, 2, Key(0, "start"), dtype=DOUBLE))
    tree = parameters(layer)
    for _ in range(100):
        at = points(tree)
        probe = probes(at)
        functional.mse_loss(
            functional_call(layer, {**tree, **probe}, (x,)), x @ g.to_dense(target).mT
        ).backward()
        step = {name: -1.0 * gradient for name, gradient in tangents(at, grads(probe)).items()}
        tree = with_points(
            tree, {name: g.metric_retraction(point, step[name]) for name, point in at.items()}
        )
    assert float(g.distance(points(tree)[""], target)) < 1e-3 * float(g.singular_values(target)[0])


def test_no_dense_array_is_formed():
    thin = fixed_rank(nn.Sequential(nn.Conv2d(64, 96, 3), nn.Flatten(), nn.Linear(96 * 4, 300)), 2)
    tree = parameters(thin)
    at = points(tree)
    probe, x = probes(at), randn(1, 64, 4, 4)
    thinnest = min(math.prod(point.shape) for point in at.values())
    with Largest() as largest:
        functional_call(thin, {**tree, **probe}, (x,)).sum().backward()
        moved = {
            name: g.metric_retraction(at[name], -0.1 * gradient)
            for name, gradient in tangents(at, grads(probe)).items()
        }
        with_points(tree, moved)
        thin(x).sum().backward()
    assert 0 < largest.entries < thinnest / 8


def test_a_layer_of_thirty_billion_weights_runs_and_steps():
    layer = linear(g.random_point(200_000, 150_000, 4, Key(0)))
    tree = parameters(layer)
    at = points(tree)
    probe, x = probes(at), randn(2, 150_000)
    functional_call(layer, {**tree, **probe}, (x,)).square().mean().backward()
    assert probe["up"].grad.shape == (200_000, 4)
    assert probe["vp"].grad.shape == (150_000, 4)
    moved = g.metric_retraction(at[""], -1.0 * tangents(at, grads(probe))[""])
    before, after = (
        functional_call(layer, leaves, (x,)).square().mean()
        for leaves in (tree, with_points(tree, {"": moved}))
    )
    assert float(after) < float(before)
    layer(x).sum().backward()
    assert layer.v.grad.shape == (150_000, 4)
