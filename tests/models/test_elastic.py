"""Elastic width: channels found, sorted and cut in any network; the function kept by sorting, and
known after cutting.
"""

import copy
import math
from itertools import product

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

import bayesfed as bf
from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.federated.aggregation.views import Slice
from bayesfed.keys import Key
from bayesfed.models import (
    channel_graph,
    femnist_cnn,
    resnet18,
    resnet34,
    shrunk,
    shrunk_shapes,
    shrunk_shares,
    shrunk_widths,
    sort_channels,
    vgg9,
)
from bayesfed.models.elastic.graph import Place
from bayesfed.models.elastic.sorting import _order
from bayesfed.trees import parameters, shapes
from tests.conftest import tree_equal

KEY = Key(0, "elastic")
COLOUR, GREY = (3, 16, 16), (1, 28, 28)


@pytest.fixture(autouse=True)
def _one_thread():
    """Tensors this small only make threads wait for one another, most of all on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Odd(nn.Module):
    """What the reference networks lack: functions, raw and shared parameters, depthwise
    convolutions that multiply, sums across a flattening.
    """

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1)
        self.depth = nn.Conv2d(6, 12, 3, padding=1, groups=6)
        self.norm = nn.GroupNorm(6, 12)
        self.again = nn.Conv2d(12, 24, 3, padding=1, groups=12)
        self.batch = nn.BatchNorm2d(24)
        self.scale = nn.Parameter(torch.rand(24, 1, 1))
        self.point = nn.Conv2d(24, 5, 1)
        self.inner = nn.Linear(20, 20)
        self.tied = nn.Linear(20, 20, bias=False)
        self.tied.weight = self.inner.weight
        self.flat = nn.BatchNorm1d(20, affine=False)
        self.spare = nn.Linear(3, 2)
        self.out = nn.Parameter(torch.rand(7, 20))

    def forward(self, x):
        x = (x - x.mean(dim=(1, 2, 3), keepdim=True)).reshape(x.size(0), 3, 16, 16)
        x = functional.avg_pool2d(functional.relu(self.first(x)), 4)
        x = self.again(self.norm(self.depth(x)))
        x = torch.relu(self.batch(x)) * self.scale + 0.5
        x = functional.max_pool2d(self.point(x), 2).sigmoid()
        flat = x.view(x.size(0), -1)
        flat = flat + torch.tanh(self.inner(flat))
        flat += self.flat(functional.gelu(self.tied(flat)))
        return functional.linear(flat, self.out)


NETS = {
    "mlp": (lambda: bf.mlp([64, 16, 32, 5], KEY), (8, 8)),
    "cnn": (lambda: bf.cnn(GREY, 5, KEY, channels=(8, 12), hidden=10), (28, 28)),
    "femnist_cnn": (lambda: femnist_cnn(5, KEY, width=0.25), (28, 28)),
    "alexnet": (lambda: bf.models.alexnet(COLOUR, 5, KEY, width=4, hidden=12), COLOUR),
    "vgg9": (lambda: vgg9(COLOUR, 5, KEY, width=0.25), COLOUR),
    "odd": (Odd, COLOUR),
}
for _norm in ("group", "static", "batch"):
    NETS[f"vgg9-{_norm}"] = (lambda norm=_norm: vgg9(COLOUR, 5, KEY, width=0.5, norm=norm), COLOUR)
    NETS[f"mobilenet-{_norm}"] = (
        lambda norm=_norm: bf.models.mobilenet(COLOUR, 5, KEY, width=0.25, norm=norm),
        COLOUR,
    )
    NETS[f"resnet18-{_norm}"] = (
        lambda norm=_norm: resnet18(
            COLOUR, 5, KEY, width=0.25 if norm == "group" else 0.1, norm=norm
        ),
        COLOUR,
    )
    NETS[f"resnet34-{_norm}"] = (
        lambda norm=_norm: resnet34(
            COLOUR, 5, KEY, width=0.25 if norm == "group" else 0.1, norm=norm
        ),
        COLOUR,
    )


def made(name):
    """A network in double precision whose scales, shifts and statistics are no constants, its
    graph, and images.
    """
    make, image = NETS[name]
    net, generator = make().double().eval(), KEY.child("values", name).generator()
    with torch.no_grad():
        for leaf, value in net.state_dict().items():
            if value.ndim == 1:
                value.copy_(
                    0.5
                    + torch.rand(value.shape, generator=generator).double()
                    * (1 if "bias" not in leaf else -1)
                )
    images = torch.rand(3, *image, generator=generator).double()
    return net, channel_graph(net, images[:1]), images


def state(net):
    return {
        name: value.detach().clone()
        for name, value in [*net.named_parameters(), *net.named_buffers()]
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_sorting_keeps_the_function_and_cutting_is_silencing(name):
    net, graph, images = made(name)
    before = state(net)
    tree = sort_channels(graph, before)
    with torch.no_grad():
        expected = net(images)
        assert torch.allclose(functional_call(net, tree, (images,)), expected, rtol=1e-9, atol=1e-9)
        # Sorted: some channels did move.
        assert any(not torch.equal(leaf, before[leaf_name]) for leaf_name, leaf in tree.items())
        for group in graph.groups.values():
            makers = [
                tree[place.leaf].reshape(group.size, -1).square().sum(1)
                for place in group.places
                if place.makes
            ]
            norms = sum(makers).reshape(-1, group.atom)
            assert (norms.diff(dim=1) <= 1e-9).all()
            assert (norms.sum(1).diff() <= 1e-9).all()
        for alpha in (0.8, 0.3, 0.01, 1e-9):
            part, widths = shrunk(net, graph, alpha), shrunk_widths(graph, alpha)
            view = Slice(shapes(tree), shapes(state(part)))
            silent = copy.deepcopy(tree)
            for group in graph.groups.values():
                for place in group.places:
                    if place.axis == 1:
                        silent[place.leaf].narrow(
                            1,
                            widths[group.name] * place.inner,
                            (group.size - widths[group.name]) * place.inner,
                        ).zero_()
            found = functional_call(part, view.restrict(tree), (images,))
            assert torch.allclose(
                found, functional_call(net, silent, (images,)), rtol=1e-9, atol=1e-9
            )
            assert shapes(state(part)) == shrunk_shapes(graph, alpha)
            sizes(part)
    assert torch.equal(net(images), expected)
    assert tree_equal(state(net), before)


def sizes(net):
    """Layers say the sizes that they have."""
    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            assert layer.weight.shape == (layer.out_features, layer.in_features)
        elif isinstance(layer, nn.Conv2d):
            assert layer.weight.shape[:2] == (layer.out_channels, layer.in_channels // layer.groups)
        elif isinstance(layer, nn.GroupNorm):
            assert layer.weight.shape == (layer.num_channels,)
            assert layer.num_channels % layer.num_groups == 0
        elif isinstance(layer, nn.BatchNorm2d):
            assert layer.weight.shape == (layer.num_features,)


def order_of(graph, tree, name):
    """The order in which a group's channels are sorted."""
    return _order(graph.groups[name], tree).tolist()


@pytest.mark.parametrize("name", NETS)
def test_alpha_one_is_the_network_itself(name):
    net, graph, images = made(name)
    whole = shrunk(net, graph, 1)
    assert type(whole) is type(net)
    assert tree_equal(state(whole), state(net))
    assert torch.equal(whole(images), net(images))
    assert repr(whole) == repr(net)
    assert all(
        mine is not theirs
        for mine, theirs in zip(whole.parameters(), net.parameters(), strict=True)
    )


def test_sorting_is_what_loops_do():
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.ReLU(),
        nn.Conv2d(4, 5, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(5 * 16, 3),
    )
    with torch.no_grad():
        for value in net.parameters():
            value.copy_(torch.randn(value.shape, generator=KEY.child("loops").generator()))
    tree = parameters(net)
    first, second, last = tree["0.weight"], tree["2.weight"], tree["5.weight"]
    norm = {
        n: {c: math.sqrt(sum(float(x) ** 2 for x in w[c].flatten())) for c in range(len(w))}
        for n, w in (("0", first), ("2", second))
    }
    order = {
        name: sorted(norms, key=lambda c, norms=norms: -norms[c]) for name, norms in norm.items()
    }
    expected = {name: leaf.clone() for name, leaf in tree.items()}
    for new, old in enumerate(order["0"]):
        expected["0.weight"][new], expected["0.bias"][new] = first[old], tree["0.bias"][old]
    for new, old in enumerate(order["2"]):
        expected["2.bias"][new] = tree["2.bias"][old]
        for new_in, old_in in enumerate(order["0"]):
            expected["2.weight"][new, new_in] = second[old, old_in]
        for row, y, x in product(range(3), range(4), range(4)):
            expected["5.weight"][row, new * 16 + y * 4 + x] = last[row, old * 16 + y * 4 + x]
    graph = channel_graph(net, torch.zeros(1, 2, 8, 8))
    assert {name: order_of(graph, tree, name) for name in graph.groups} == order
    assert tree_equal(sort_channels(graph, tree), expected)


def test_the_papers_widths():
    net = bf.mlp([7, 16, 32, 64, 3], KEY)
    graph = channel_graph(net, torch.zeros(1, 7))
    assert list(shrunk_widths(graph, 1 / 4).values()) == [8, 16, 32]
    assert [
        layer.out_features for layer in shrunk(net, graph, 1 / 4) if isinstance(layer, nn.Linear)
    ] == [8, 16, 32, 3]
    assert list(shrunk_widths(graph, 1e-12).values()) == [1, 1, 1]
    # Its leaves are the leading entries of the network's own.
    part = parameters(shrunk(net, graph, 1 / 4))
    assert tree_equal(part, Slice(shapes(parameters(net)), shapes(part)).restrict(parameters(net)))


def test_equal_norms_keep_their_order():
    net = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2))
    graph = channel_graph(net, torch.zeros(1, 3))
    tree = parameters(net) | {
        "0.weight": torch.tensor([[1.0], [-2], [1], [2], [-1], [0]]).expand(6, 3)
    }
    assert order_of(graph, tree, "0") == [1, 3, 0, 2, 4, 5]
    wide = nn.Sequential(nn.Linear(1, 600), nn.ReLU(), nn.Linear(600, 2))
    tree_of_two = parameters(wide) | {
        "0.weight": torch.ones(600, 1).index_fill(0, torch.arange(0, 600, 2), 2.0)
    }
    assert order_of(channel_graph(wide, torch.zeros(1, 1)), tree_of_two, "0") == [
        *range(0, 600, 2),
        *range(1, 600, 2),
    ]
    again = sort_channels(graph, tree)
    # What is sorted stays, and is not copied.
    assert all(sort_channels(graph, again)[name] is leaf for name, leaf in again.items())


def test_residual_sums_share_their_channels():
    graph = channel_graph(resnet18(COLOUR, 5, KEY, width=0.1), torch.zeros(1, *COLOUR))
    assert len(graph.groups) == 1 + 2 + 3 * 3
    makers = [
        [place.leaf for place in group.places if place.makes] for group in graph.groups.values()
    ]
    assert makers[0] == ["conv1.weight", "layer1.0.conv2.weight", "layer1.1.conv2.weight"]
    assert [
        "layer2.0.conv2.weight",
        "layer2.0.shortcut.0.weight",
        "layer2.1.conv2.weight",
    ] in makers
    assert ["layer2.0.conv1.weight"] in makers
    stem = graph.groups["conv1"].places
    assert {
        Place("layer1.1.norm2.running_var", 0),
        Place("layer2.0.shortcut.0.weight", 1),
        Place("conv1.weight", 0, 1, True),
    } <= set(stem)
    # Classes and colours are never hidden.
    places = {(place.leaf, place.axis) for group in graph.groups.values() for place in group.places}
    assert not places & {("conv1.weight", 1), ("fc.weight", 0), ("fc.bias", 0)}
    assert ("fc.weight", 1) in places


def test_a_flattened_picture_is_channels_of_many_entries():
    graph = channel_graph(femnist_cnn(10, KEY), torch.zeros(1, 28, 28))
    assert {name: group.size for name, group in graph.groups.items()} == {
        "conv1": 32,
        "conv2": 64,
        "fc1": 512,
    }
    assert Place("fc1.weight", 1, 49) in graph.groups["conv2"].places
    odd = channel_graph(Odd(), torch.zeros(1, *COLOUR))
    assert {name: group.size for name, group in odd.groups.items()} == {"first": 6, "point": 5}
    assert {
        Place("depth.weight", 0, 2, True),
        Place("again.weight", 0, 4, True),
        Place("scale", 0, 4),
        Place("norm.bias", 0, 2),
    } <= set(odd.groups["first"].places)
    assert {
        Place("inner.weight", 0, 4, True),
        Place("inner.weight", 1, 4),
        Place("out", 1, 4),
    } <= set(odd.groups["point"].places)
    assert odd.norms == {"norm": ("first", 2), "batch": ("first", 4), "flat": ("point", 4)}


def group_norm_net(*groups):
    net = nn.Sequential(
        nn.Conv2d(2, 8, 3),
        *(nn.GroupNorm(number, 8) for number in groups),
        nn.ReLU(),
        nn.Conv2d(8, 3, 3),
    )
    with torch.no_grad():
        for value in net.parameters():
            value.copy_(torch.randn(value.shape, generator=KEY.child("norm").generator()))
    return net.double()


def test_norm_groups_move_and_go_as_wholes():
    net, images = group_norm_net(4), torch.rand(2, 2, 8, 8, generator=KEY.generator()).double()
    graph = channel_graph(net, images)
    assert graph.groups["0"].atom == 2
    assert [shrunk_widths(graph, alpha)["0"] for alpha in (1, 0.6, 0.3, 0.01)] == [8, 6, 4, 2]
    norm = shrunk(net, graph, 0.3)[1]
    assert (norm.num_groups, norm.num_channels) == (2, 4)
    order = torch.tensor(order_of(graph, parameters(net), "0"))
    assert order.reshape(4, 2).div(2, rounding_mode="floor").diff(dim=1).eq(0).all()
    assert order.tolist() != sorted(order.tolist())
    # Blocks are needed: sorted one by one, the channels compute another function.
    free = channel_graph(group_norm_net(8), images)
    assert free.groups["0"].atom == 1
    moved = sort_channels(free, parameters(net))
    assert not torch.allclose(functional_call(net, moved, (images,)), net(images), atol=1e-3)
    one = channel_graph(group_norm_net(1), images)
    assert shrunk_widths(one, 0.01) == {"0": 8}
    assert channel_graph(group_norm_net(8, 4, 8), images).groups["0"].atom == 2
    with pytest.raises(
        ArgumentError,
        match=r"'2' \(GroupNorm\): expected norms of the same channels with the same groups",
    ):
        channel_graph(group_norm_net(4, 2), images)


def test_running_statistics_are_sorted_too():
    net, graph, _ = made("vgg9-batch")
    whole = state(net)
    sorted_whole = sort_channels(graph, whole)
    counts = {name for name in whole if name.endswith("num_batches_tracked")}
    uncounted, expected = (
        {name: leaf for name, leaf in tree.items() if name not in counts}
        for tree in (whole, sorted_whole)
    )
    assert tree_equal(sort_channels(graph, uncounted), expected)
    with pytest.raises(UpdateError, match="norm1.running_mean.*no such leaf"):
        sort_channels(graph, parameters(net))


def test_a_submodel_trains():
    net, graph, images = made("resnet18-static")
    part = shrunk(net, graph, 0.25).train()
    part(images).square().sum().backward()
    assert all(value.grad is not None and value.is_contiguous() for value in part.parameters())
    assert all(value.grad is None for value in net.parameters())


@pytest.mark.parametrize(
    ("make", "image", "work", "size"),
    [
        (
            lambda: femnist_cnn(10, KEY),
            (28, 28),
            ("75.72", "51.53", "26.29", "10.89", "1.32"),
            ("74.43", "49.82", "25.10", "9.97", "0.97"),
        ),
        (
            lambda: vgg9((3, 32, 32), 10, KEY),
            (3, 32, 32),
            ("75.18", "50.40", "25.16", "10.00", "1.05"),
            ("75.09", "50.09", "25.06", "10.03", "1.03"),
        ),
    ],
    ids=["femnist_cnn", "vgg9"],
)
def test_submodels_cost_about_alpha(make, image, work, size):
    net, example = make(), torch.zeros(1, *image)
    graph = channel_graph(net, example)
    rows = shrunk_shares(net, graph, example, (1, 3 / 4, 1 / 2, 1 / 4, 1 / 10, 1 / 100))
    assert rows[0][3:] == (1, 1)
    assert rows[0].parameters in (1_663_370, 3_491_530)
    assert tuple(f"{100 * row.work:.2f}" for row in rows[1:]) == work
    assert tuple(f"{100 * row.size:.2f}" for row in rows[1:]) == size
    assert all(
        row.parameters
        == sum(math.prod(shrunk_shapes(graph, row.alpha)[name]) for name in graph.parameters)
        for row in rows
    )
    assert all(
        row.parameters == sum(leaf.numel() for leaf in shrunk(net, graph, row.alpha).parameters())
        for row in rows
    )


def test_bad_arguments_are_refused():
    net = bf.mlp([4, 8, 2], KEY)
    graph, tree = channel_graph(net, torch.zeros(1, 4)), parameters(net)
    for alpha in (0, -0.5, 1.01, math.nan, math.inf, True):
        for call in (
            lambda alpha: shrunk(net, graph, alpha),
            lambda alpha: shrunk_widths(graph, alpha),
            lambda alpha: shrunk_shapes(graph, alpha),
        ):
            words = r"shrunk\w*, alpha: expected a (factor in \(0, 1\]|number), found"
            with pytest.raises(ArgumentError, match=words):
                call(alpha)
    with pytest.raises(ArgumentError, match="shrunk, leaf '1.weight': expected shape"):
        shrunk(bf.mlp([4, 6, 2], KEY), graph, 0.5)
    with pytest.raises(UpdateError, match="sort_channels, leaf '3.weight': .* no such leaf"):
        sort_channels(graph, {name: leaf for name, leaf in tree.items() if name != "3.weight"})
    with pytest.raises(UpdateError, match="sort_channels, leaf '1.bias': expected shape"):
        sort_channels(graph, tree | {"1.bias": torch.zeros(3)})
    with pytest.raises(UpdateError, match="sort_channels, leaf 'other': .* an extra leaf"):
        sort_channels(graph, tree | {"other": torch.zeros(3)})
