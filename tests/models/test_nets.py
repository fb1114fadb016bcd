"""AlexNet and MobileNet: sizes by hand, seeds, and the local ELBO through grouped convolutions."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.inference import MeanFieldElbo
from bayesfed.inference.objectives.sampled_outputs import sampled_outputs
from bayesfed.inference.turbo.elbo import encode_inclusion
from bayesfed.keys import Key
from bayesfed.trees import running_statistics

KEY = Key(0, "net")


@pytest.fixture(autouse=True)
def _one_thread():
    """Tensors this small only make threads wait for one another, most of all on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def count(net):
    return sum(leaf.numel() for leaf in net.parameters())


def message_of(declared, generator, *, active=1.0, spread="shared", sd=0.05):
    """What a server publishes: all entries active, or a random share of them."""
    message = {name: leaf for name, leaf in declared.initial.items() if name not in declared.sites}
    for name, site in declared.sites.items():
        mask = torch.rand(site.matrix, generator=generator) < active
        message |= {
            f"mean/{name}": declared.initial[name].reshape(site.matrix)[mask],
            f"inclusion/{name}": encode_inclusion(torch.ones(int(mask.sum()))),
            f"support/{name}": mask,
        }
        if spread == "weight":
            message[f"sd/{name}"] = sd * (0.5 + torch.rand(int(mask.sum()), generator=generator))
    return message if spread == "weight" else message | {"shared/sd": torch.tensor(sd)}


@pytest.mark.parametrize(
    ("image", "width", "hidden", "parameters"),
    [
        # Convolutions 1-16-48-96-64-64, then 64 * 3 * 3 inputs to 128-128-10.
        ((1, 28, 28), 16, 128, 160 + 6_960 + 41_568 + 55_360 + 36_928 + 73_856 + 16_512 + 1_290),
        # Three input channels, and 64 * 4 * 4 inputs to the hidden layers.
        ((3, 32, 32), 16, 128, 448 + 6_960 + 41_568 + 55_360 + 36_928 + 131_200 + 16_512 + 1_290),
        # 1-4-12-24-16-16, then 16 * 1 * 2 inputs to 20-20-10.
        ((1, 15, 16), 4, 20, 40 + 444 + 2_616 + 3_472 + 2_320 + 660 + 420 + 210),
    ],
)
def test_alexnet_has_the_size_worked_out_by_hand(image, width, hidden, parameters):
    net = bf.models.alexnet(image, 10, KEY, width=width, hidden=hidden)
    stated = 9 * (image[0] * width + 61 * width**2) + 18 * width
    stated += (
        (4 * width * (image[1] // 8) * (image[2] // 8) + 1) * hidden
        + (hidden + 1) * hidden
        + (hidden + 1) * 10
    )
    assert count(net) == parameters == stated
    assert net(torch.zeros(2, *image[image[0] == 1 :])).shape == (2, 10)
    assert sum(isinstance(module, nn.MaxPool2d) for module in net) == 3


def test_mobilenet_has_the_size_of_the_papers():
    """Layer by layer from table 1: depthwise 9 c, pointwise c c', two numbers a channel for each
    norm.
    """
    channels = [32, 64, 128, 128, 256, 256, *[512] * 6, 1024, 1024]
    for image, classes, width in (
        ((3, 32, 32), 10, 1.0),
        ((3, 32, 32), 10, 0.5),
        ((1, 28, 28), 7, 0.25),
    ):
        thin = [int(c * width) for c in channels]
        blocks = sum(9 * a + 2 * a + a * b + 2 * b for a, b in pairwise(thin))
        expected = 9 * image[0] * thin[0] + 2 * thin[0] + blocks + (thin[-1] + 1) * classes
        assert count(bf.models.mobilenet(image, classes, KEY, width=width)) == expected
    sizes = [
        count(bf.models.mobilenet((3, 32, 32), 10, KEY, width=width)) for width in (1.0, 0.5, 0.25)
    ]
    assert sizes == [3_217_226, 823_722, 215_642]
    # The published 4.2 million, all of whose other parameters are the thousand classes'.
    assert sizes[0] + 990 * 1025 == 4_231_976


def test_mobilenet_shrinks_images_as_it_should():
    net, sides = bf.models.mobilenet((3, 32, 32), 10, KEY, width=0.25), []
    depthwise = [module for module in net if isinstance(module, nn.Conv2d) and module.groups > 1]
    for module in depthwise:
        assert module.groups == module.in_channels == module.out_channels
        module.register_forward_hook(lambda layer, inputs, output: sides.append(output.shape[-1]))
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert sides == [32, 16, 16, 8, 8, *[4] * 6, 2, 2]
    assert not running_statistics(net)
    for norm in (module for module in net if isinstance(module, nn.GroupNorm)):
        assert norm.num_channels // norm.num_groups in (8, 16)
    assert bf.models.mobilenet((1, 28, 28), 10, KEY, width=0.25)(torch.zeros(2, 28, 28)).shape == (
        2,
        10,
    )
    assert bf.models.mobilenet((3, 32, 32), 10, KEY, width=0.01)[0].out_channels == 8


@pytest.mark.parametrize(
    "make",
    [
        lambda key: bf.models.alexnet((3, 16, 16), 5, key, width=4),
        lambda key: bf.models.mobilenet((3, 32, 32), 5, key, width=0.25),
    ],
)
def test_a_key_is_a_network_of_the_right_scale(make):
    first, again, other = make(Key(1, "a")), make(Key(1, "a")), make(Key(1, "b"))
    assert all(
        torch.equal(left, right)
        for left, right in zip(first.parameters(), again.parameters(), strict=True)
    )
    for module, stranger in zip(first, other, strict=True):
        if isinstance(module, nn.Linear | nn.Conv2d):
            assert not torch.equal(module.weight, stranger.weight)
            # Of a depthwise kernel the fan-in is its own 9 entries, not all channels'.
            scale = math.sqrt(2 / module.weight[0].numel())
            assert float(module.weight.detach().std()) == pytest.approx(
                scale, abs=6 * scale / math.sqrt(2 * module.weight.numel())
            )
            assert module.bias is None or not bool(module.bias.any())


def test_group_norms_take_the_place_of_batch_norms_and_train_by_fed_avg(digits):
    shared = torch.nn.BatchNorm1d(8, affine=False)
    net = torch.nn.Sequential(
        *(torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.BatchNorm1d(32)),
        *(torch.nn.Linear(32, 8), shared, torch.nn.Linear(8, 8), shared, torch.nn.Linear(8, 10)),
    ).double()
    torch.nn.init.normal_(net[2].weight)
    made = bf.models.group_norms(net)
    assert [type(made[at]).__name__ for at in (2, 4)] == ["GroupNorm"] * 2
    assert made[4] is made[6]
    assert torch.equal(made[2].weight, net[2].weight)
    assert isinstance(net[2], torch.nn.BatchNorm1d)
    train = digits[0][:40]
    rows = Dataset(train.inputs.double(), train.targets)
    one, two = made(rows.inputs), made(rows.inputs[:3])
    assert torch.allclose(one[:3], two)
    work = bf.Training(steps=2)
    bf.run(bf.fed_avg(made, training=work), {"a": rows}, rounds=1, progress=False)
    assert isinstance(bf.models.group_norms(torch.nn.BatchNorm2d(3)), torch.nn.GroupNorm)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: bf.models.alexnet((1, 28, 7), 10, KEY),
            r"alexnet, image: expected at least 8 x 8 pixels, found \(1, 28, 7\)",
        ),
        (
            lambda: bf.cnn((28, 28, 1), 10, KEY),
            r"cnn, image: expected \(channels, height, width\), at least 4 pixels each way",
        ),
        (
            lambda: bf.models.mobilenet((3, 32, 32), 10, KEY, width=0.0),
            "mobilenet, width: expected a positive finite number, found 0.0",
        ),
        (lambda: bf.models.mobilenet((3, 32, 32), 10, KEY, width=math.nan), "mobilenet, width"),
    ],
)
def test_bad_sizes_are_refused(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()


@pytest.mark.parametrize("active", [1.0, 0.6])
@pytest.mark.parametrize("spread", ["shared", "weight"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: bf.models.alexnet((1, 16, 16), 3, KEY, width=4, hidden=8),
        lambda: bf.models.mobilenet((3, 16, 16), 3, KEY, width=0.25),
    ],
    ids=["alexnet", "mobilenet"],
)
def test_a_step_on_the_local_elbo_lowers_it(make, spread, active):
    net = make()
    declared = bf.declare(net, bf.Prior(support=bf.models.MarkovGrid(0.6, 0.55)))
    assert len(declared.sites) == sum(isinstance(module, nn.Linear | nn.Conv2d) for module in net)
    generator = KEY.child("step").generator()
    shape = (16, 16, 16) if isinstance(net[0], nn.Unflatten) else (16, 3, 16, 16)
    batch = Dataset(torch.rand(shape, generator=generator), torch.arange(16) % 3)
    objective = MeanFieldElbo(declared, spread)
    trained, fixed = objective.start(message_of(declared, generator, active=active, spread=spread))
    objective.check(trained, fixed, batch)
    leaves = [leaf.requires_grad_() for leaf in trained.values()]

    def loss():
        return objective.loss(trained, fixed, batch, 1e5, KEY.child("noise").generator()).loss

    before = loss()
    before.backward()
    assert all(bool(torch.isfinite(leaf.grad).all()) for leaf in leaves)
    assert all(bool(trained[f"mean/{name}"].grad.any()) for name in declared.sites)
    # The same noise again: a step as short as this along the gradient can only lower the loss.
    norm = math.sqrt(sum(float(leaf.grad.square().sum()) for leaf in leaves))
    torch.optim.SGD(leaves, 1e-2 / norm).step()
    assert float(loss().detach()) < float(before.detach())


@pytest.mark.parametrize(("spread", "active"), [("shared", 1.0), ("shared", 0.6), ("weight", 0.6)])
@pytest.mark.parametrize(
    ("channels", "groups"),
    [((6, 6), 6), ((4, 8), 4), ((6, 4), 2)],
    ids=["depthwise", "multiplied", "grouped"],
)
def test_sampled_outputs_of_grouped_convolutions_have_the_variance_of_sampled_weights(
    channels, groups, spread, active
):
    """Against the exact variance, a sum over weights of squared derivatives, and both ways of
    drawing against that.
    """
    layer = nn.Conv2d(*channels, 3, stride=2, padding=1, groups=groups, bias=False)
    declared = bf.declare(nn.Sequential(layer))
    name, site = "0.weight", declared.sites["0.weight"]
    assert site.matrix == (channels[1], 9 * channels[0] // groups)
    generator = KEY.child("moments").generator()
    inputs = torch.randn(1, channels[0], 5, 5, generator=generator)
    objective = MeanFieldElbo(declared, spread)
    trained, fixed = objective.start(
        message_of(declared, generator, active=active, spread=spread, sd=0.2)
    )
    weights, noises = objective._weights(trained, fixed)
    sd = trained["shared/sd" if spread == "shared" else f"sd/{name}"].exp().expand(site.matrix)
    sd = (sd * fixed.get(f"mask/{name}", torch.ones(site.matrix))).reshape(site.shape)

    def run(weight):
        return torch.nn.functional.conv2d(inputs, weight, stride=2, padding=1, groups=groups)

    slopes = torch.autograd.functional.jacobian(run, weights[name])
    exact = (slopes * sd).square().sum(dim=(-4, -3, -2, -1))
    assert torch.allclose(noises[name].variance_of(layer, inputs.square()), exact, rtol=1e-5)

    # One product draws all the weights' outputs: they are linear in the weights.
    draws = 4000
    drawn = weights[name] + sd * torch.randn(draws, *site.shape, generator=generator)
    by_weight = torch.tensordot(drawn, slopes[0], dims=([1, 2, 3, 4], [3, 4, 5, 6]))
    assert torch.allclose(by_weight[0], run(drawn[0])[0], atol=1e-5)
    with torch.no_grad(), sampled_outputs(declared.net, {"0": noises[name].variance_of}, generator):
        by_output = torch.func.functional_call(
            declared.net, weights, (inputs.expand(draws, -1, -1, -1),)
        )
    for sample in (by_weight, by_output):
        # An output all of whose weights are off has variance 0, or the floor under its square root.
        assert bool(
            (
                (sample.var(dim=0) - exact[0]).abs() <= 6 * math.sqrt(2 / draws) * exact[0] + 1e-11
            ).all()
        )
        assert bool(
            (
                (sample.mean(dim=0) - run(weights[name])[0]).abs()
                <= 6 * (exact[0] / draws).sqrt() + 1e-6
            ).all()
        )
