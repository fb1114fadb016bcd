"""ResNets, VGG-9 and McMahan's CNN: published sizes, He's network by hand, norms, seeds, and the
ways their images arrive.
"""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import bayesfed as bf
from bayesfed.errors import ArgumentError, PriorError
from bayesfed.keys import Key
from bayesfed.models import femnist_cnn, resnet18, resnet34, vgg9
from bayesfed.models.nets.building_blocks import slimmed
from bayesfed.models.nets.norms import norm_layer
from bayesfed.trees import running_statistics

KEY = Key(0, "net")
COLOUR, GREY = (3, 32, 32), (1, 28, 28)


@pytest.fixture(autouse=True)
def _one_thread():
    """Tensors this small only make threads wait for one another, most of all on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def count(net):
    return sum(leaf.numel() for leaf in net.parameters())


def by_hand(blocks, channels, image, classes):
    """Stem, blocks of 9 a b + 9 b b and two norms, shortcuts of a b and a norm, and the
    last layer.
    """
    before, total = channels[0], 9 * image[0] * channels[0] + 2 * channels[0]
    for group, (number, after) in enumerate(zip(blocks, channels, strict=True)):
        total += (before * after + 2 * after) * (group > 0)
        for _ in range(number):
            total += 9 * before * after + 9 * after * after + 4 * after
            before = after
    return total + (before + 1) * classes


EIGHTEEN, THIRTY_FOUR = (resnet18, (2, 2, 2, 2)), (resnet34, (3, 4, 6, 3))
TABLES = [
    (EIGHTEEN, 10, 1.0, (64, 128, 256, 512), 11_173_962, "11.17"),
    (EIGHTEEN, 10, 0.62, (40, 79, 159, 317), 4_293_347, "4.29"),
    (EIGHTEEN, 10, 0.50, (32, 64, 128, 256), 2_797_610, "2.80"),
    (EIGHTEEN, 10, 0.35, (22, 45, 90, 179), 1_373_160, "1.37"),
    (THIRTY_FOUR, 100, 1.0, (64, 128, 256, 512), 21_328_292, "21.33"),
    (THIRTY_FOUR, 100, 0.64, (41, 82, 164, 328), 8_769_303, "8.77"),
    (THIRTY_FOUR, 100, 0.50, (32, 64, 128, 256), 5_349_636, "5.35"),
    (THIRTY_FOUR, 100, 0.40, (26, 51, 102, 205), 3_423_974, "3.42"),
    (THIRTY_FOUR, 200, 1.0, (64, 128, 256, 512), 21_379_592, "21.38"),
    (THIRTY_FOUR, 200, 0.64, (41, 82, 164, 328), 8_802_203, "8.80"),
    (THIRTY_FOUR, 200, 0.50, (32, 64, 128, 256), 5_375_336, "5.38"),
    (THIRTY_FOUR, 200, 0.40, (26, 51, 102, 205), 3_444_574, "3.44"),
]


@pytest.mark.parametrize(
    ("made", "classes", "width", "channels", "exact", "printed"),
    TABLES,
    ids=[f"{row[0][0].__name__}-{row[5]}M" for row in TABLES],
)
def test_resnets_have_the_sizes_of_fedhms_tables(made, classes, width, channels, exact, printed):
    make, blocks = made
    with torch.device("meta"):
        sizes = {
            norm: count(_meta(make, classes, width, norm)) for norm in ("batch", "static", "group")
        }
    assert set(sizes.values()) == {exact} == {by_hand(blocks, channels, COLOUR, classes)}
    assert f"{exact / 1e6:.2f}" == printed
    assert tuple(slimmed(size, width, where="test") for size in (64, 128, 256, 512)) == channels


def _meta(make, classes, width, norm):
    """Only sizes: no weight is drawn, since a key's generator is not on the meta device."""
    return make(COLOUR, classes, NoKey(), width=width, norm=norm)


class NoKey(Key):
    def __init__(self):
        super().__init__(0)

    def generator(self, device="cpu"):
        return None


def test_rounding_up_or_down_does_not_give_the_tables():
    for rounded in (math.ceil, math.floor):
        channels = [rounded(0.62 * size) for size in (64, 128, 256, 512)]
        assert f"{by_hand((2, 2, 2, 2), channels, COLOUR, 10) / 1e6:.2f}" != "4.29"
    assert [
        slimmed(size, width, where="test")
        for size, width in ((64, 0.001), (5, 0.5), (7, 0.5), (64, 2.0))
    ] == [1, 2, 4, 128]


def test_the_small_networks_have_their_published_sizes():
    cnn, vgg = femnist_cnn(10, KEY), vgg9(COLOUR, 10, KEY)
    assert count(cnn) == 832 + 51_264 + 1_606_144 + 5_130 == 1_663_370
    assert count(femnist_cnn(62, KEY)) == 1_690_046
    assert (
        count(vgg)
        == 896 + 18_496 + 73_856 + 147_584 + 295_168 + 590_080 + 2_097_664 + 262_656 + 5_130
        == 3_491_530
    )
    # AnycostFL, V-A: the size of one update in megabits.
    assert (f"{count(cnn) * 32e-6:.1f}", f"{count(vgg) * 32e-6:.1f}") == ("53.2", "111.7")
    for norm in ("batch", "static", "group"):
        assert (
            count(vgg9(COLOUR, 10, KEY, norm=norm)) == 3_491_530 + 32 + 64 + 128 + 128 + 256 + 256
        )
    assert count(femnist_cnn(10, KEY, width=0.5)) == 26 * 16 + 401 * 32 + 1569 * 256 + 2570
    assert (
        count(vgg9(GREY, 10, KEY, width=0.25))
        == 80 + 1_168 + 4_640 + 9_248 + 18_496 + 36_928 + 577 * 128 + 129 * 128 + 1_290
    )


MAKERS = {
    "resnet18": lambda image, key, **rest: resnet18(image, 7, key, width=0.125, **rest),
    "resnet34": lambda image, key, **rest: resnet34(image, 7, key, width=0.125, **rest),
    "vgg9": lambda image, key, **rest: vgg9(image, 7, key, width=0.125, **rest),
    "femnist_cnn": lambda image, key: femnist_cnn(7, key, width=0.25),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_grey_images_arrive_either_way_and_names_do_not_depend_on_it(make):
    net = make(GREY, KEY).eval()
    images = torch.rand(2, 28, 28, generator=KEY.child("images").generator())
    assert net(images).shape == (2, 7)
    assert torch.equal(net(images), net(images[:, None]))
    if make is not MAKERS["femnist_cnn"]:
        colour = make(COLOUR, KEY)
        assert colour(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
        assert list(colour.state_dict()) == list(net.state_dict())


def test_names_are_the_same_for_every_norm():
    named = {
        norm: [
            name for name, _ in resnet18(COLOUR, 7, KEY, width=0.1, norm=norm).named_parameters()
        ]
        for norm in ("batch", "static", "group")
    }
    assert named["batch"] == named["static"] == named["group"]
    assert named["batch"][:4] == [
        "conv1.weight",
        "norm1.weight",
        "norm1.bias",
        "layer1.0.conv1.weight",
    ]
    assert {
        "layer2.0.shortcut.0.weight",
        "layer2.0.shortcut.1.bias",
        "layer4.1.norm2.weight",
        "fc.bias",
    } <= set(named["batch"])
    assert not any(
        (name.startswith("layer1") and "shortcut" in name) or name.endswith("conv1.bias")
        for name in named["batch"]
    )
    assert [name for name, _ in vgg9(COLOUR, 7, KEY, width=0.1, norm="group").named_parameters()][
        :4
    ] == [
        "conv1.weight",
        "norm1.weight",
        "norm1.bias",
        "conv2.weight",
    ]


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_key_is_a_network_of_the_right_scale(make):
    first, again, other = make(GREY, Key(1, "a")), make(GREY, Key(1, "a")), make(GREY, Key(1, "b"))
    assert all(
        torch.equal(left, right)
        for left, right in zip(first.parameters(), again.parameters(), strict=True)
    )
    for module, stranger in zip(first.modules(), other.modules(), strict=True):
        if isinstance(module, nn.Linear | nn.Conv2d):
            assert not torch.equal(module.weight, stranger.weight)
            scale = math.sqrt(2 / module.weight[0].numel())
            assert float(module.weight.detach().std()) == pytest.approx(
                scale, abs=6 * scale / math.sqrt(2 * module.weight.numel())
            )


def he(state, images, blocks, training):
    """ResNet of He et al. with the CIFAR head, written out on a dictionary; changes the running
    statistics in it when training.
    """

    def normed(name, inputs):
        mean, variance, weight, bias = (
            state[f"{name}.{leaf}"] for leaf in ("running_mean", "running_var", "weight", "bias")
        )
        return functional.batch_norm(inputs, mean, variance, weight, bias, training)

    x = normed("norm1", functional.conv2d(images, state["conv1.weight"], padding=1)).relu()
    for group, number in enumerate(blocks, start=1):
        for place in range(number):
            name, stride = f"layer{group}.{place}", 2 if group > 1 and place == 0 else 1
            y = normed(
                f"{name}.norm1",
                functional.conv2d(x, state[f"{name}.conv1.weight"], stride=stride, padding=1),
            ).relu()
            y = normed(
                f"{name}.norm2", functional.conv2d(y, state[f"{name}.conv2.weight"], padding=1)
            )
            if stride == 2:
                x = normed(
                    f"{name}.shortcut.1",
                    functional.conv2d(x, state[f"{name}.shortcut.0.weight"], stride=2),
                )
            x = (y + x).relu()
    return functional.linear(x.mean(dim=(2, 3)), state["fc.weight"], state["fc.bias"])


@pytest.mark.parametrize(("make", "blocks"), [EIGHTEEN, THIRTY_FOUR], ids=["resnet18", "resnet34"])
def test_resnets_are_he_s(make, blocks):
    net, generator = make((3, 16, 16), 7, KEY, width=0.25), KEY.child("check").generator()
    with torch.no_grad():
        for name, value in net.state_dict().items():
            if "norm" in name or "shortcut.1" in name:
                value.copy_(0.5 + torch.rand(value.shape, generator=generator))
        state = {name: value.clone() for name, value in net.state_dict().items()}
        images = torch.rand(4, 3, 16, 16, generator=generator)
        assert torch.allclose(net(images), he(state, images, blocks, True), rtol=1e-5, atol=1e-4)
        assert all(
            torch.allclose(value, state[name])
            for name, value in net.state_dict().items()
            if "running" in name
        )
        net.eval()
        assert torch.allclose(net(images), he(state, images, blocks, False), rtol=1e-5, atol=1e-4)
    sides = []
    for module in (net.conv1, net.layer1, net.layer2, net.layer3, net.layer4):
        module.register_forward_hook(lambda layer, inputs, output: sides.append(output.shape[-1]))
    net(torch.zeros(1, 3, 32, 32))
    assert sides == [32, 32, 16, 8, 4]


def test_each_norm_is_what_it_says():
    batch, static, group = (
        resnet18(COLOUR, 7, KEY, width=0.125, norm=norm) for norm in ("batch", "static", "group")
    )
    assert len(running_statistics(batch)) == 2 * 20
    assert not list(static.buffers())
    assert not list(group.buffers())
    images = torch.rand(4, 3, 32, 32, generator=KEY.child("images").generator())
    # In training static batch norm is batch norm; in evaluation it goes on as in training.
    assert torch.equal(batch(images), static(images))
    assert torch.equal(static(images), static.eval()(images))
    # Group norm treats every image by itself.
    assert torch.allclose(group(images)[:1], group(images[:1]), atol=1e-5)
    assert not torch.allclose(static(images)[:1], static(images[:1]), atol=1e-2)
    bf.declare(static)
    bf.declare(group)
    with pytest.raises(PriorError, match="running statistics"):
        bf.declare(batch)


def test_group_norm_has_the_stated_groups():
    groups = {
        size: norm_layer(size, "group", where="test").num_groups
        for size in (64, 128, 256, 512, 40, 24, 22, 45, 179, 8, 6, 1)
    }
    assert groups == {
        64: 4,
        128: 8,
        256: 16,
        512: 32,
        40: 5,
        24: 3,
        22: 2,
        45: 5,
        179: 1,
        8: 1,
        6: 1,
        1: 1,
    }
    for net in (
        resnet18(COLOUR, 7, KEY, width=0.35, norm="group"),
        vgg9(COLOUR, 7, KEY, width=0.62, norm="group"),
    ):
        sizes = [
            norm.num_channels // norm.num_groups
            for norm in net.modules()
            if isinstance(norm, nn.GroupNorm)
        ]
        assert len(sizes) in (20, 6)
        assert min(sizes) >= 8


def test_mobilenet_takes_the_same_norms():
    group, static, batch = (
        bf.models.mobilenet((3, 16, 16), 5, KEY, width=0.25, norm=norm)
        for norm in ("group", "static", "batch")
    )
    assert (
        count(group)
        == count(static)
        == count(batch)
        == count(bf.models.mobilenet((3, 16, 16), 5, KEY, width=0.25))
    )
    assert not list(static.buffers())
    assert len(running_statistics(batch)) == 2 * 27
    images = torch.rand(4, 3, 16, 16, generator=KEY.child("images").generator())
    assert torch.equal(static(images), batch(images))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_compact_runs_them(make):
    net = make(GREY, KEY).eval()
    images = torch.rand(2, 28, 28, generator=KEY.child("images").generator())
    sparse = {
        name: value.detach() * (value.detach().abs() > 0.05) if value.ndim > 1 else value.detach()
        for name, value in net.named_parameters()
    }
    with torch.no_grad():
        expected = torch.func.functional_call(net, sparse, (images,))
    assert torch.allclose(bf.models.compact(net, sparse)(images), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: resnet18(COLOUR, 10, KEY, width=0.0),
            "resnet, width: expected a positive finite number, found 0.0",
        ),
        (lambda: resnet34(COLOUR, 10, KEY, width=math.inf), "resnet, width"),
        (
            lambda: resnet18(COLOUR, 10, KEY, norm="layer"),
            "resnet18, norm: expected one of 'batch', 'static', 'group', found 'layer'",
        ),
        (lambda: resnet18(COLOUR, 10, KEY, norm=None), "resnet18, norm: .* found None"),
        (
            lambda: vgg9((3, 7, 32), 10, KEY),
            r"vgg9, image: expected at least 8 x 8 pixels, found \(3, 7, 32\)",
        ),
        (lambda: vgg9(COLOUR, 10, KEY, width=-1.0), "vgg9, width"),
        (lambda: vgg9(COLOUR, 10, KEY, norm=""), "vgg9, norm"),
        (lambda: femnist_cnn(10, KEY, width=math.nan), "femnist_cnn, width"),
        (lambda: bf.models.mobilenet(COLOUR, 10, KEY, norm="none"), "mobilenet, norm"),
    ],
)
def test_bad_arguments_are_refused(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
