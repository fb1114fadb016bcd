"""Every recipe on networks with frozen layers, and on networks of other types than float32."""

import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.compress import codecs, coded
from bayesfed.errors import ArgumentError, ClientError, DataError
from bayesfed.federated import Model
from tests.support import recipes

NAMES = list(recipes.tiny_recipes())
# Methods without a network, over images of their own, or after training alone.
OTHERS = {
    *(name for name in NAMES if name.startswith(("federated_svi", "conjugate"))),
    "batch_statistics",
}


def noted(monkeypatch):
    """Note the names of all leaves that are sent either way."""
    names = set()
    for module in (codecs, coded):
        sealed = module.seal

        def seal(leaves, meta, sealed=sealed, **options):
            leaves = list(leaves)
            names.update(leaf.name for leaf in leaves)
            return sealed(leaves, meta, **options)

        monkeypatch.setattr(module, "seal", seal)
    return names


def changed(monkeypatch, change):
    """Let the tiny recipes be made of changed networks."""
    for name in ("net", "dropping"):
        make = getattr(recipes, name)
        monkeypatch.setattr(recipes, name, lambda make=make: change(make()))
    make_mlp = recipes.mlp
    monkeypatch.setattr(recipes, "mlp", lambda *given, **named: change(make_mlp(*given, **named)))


def frozen(net):
    """Freeze the first layer."""
    net[1].requires_grad_(False)
    return net


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OTHERS])
def test_frozen_parameters_are_constants(name, monkeypatch):
    before = {leaf: value.clone() for leaf, value in frozen(recipes.net()).named_parameters()}
    first = {leaf: before[leaf] for leaf in ("1.weight", "1.bias")}
    changed(monkeypatch, frozen)
    if name == "anycost_fl":
        with pytest.raises(ArgumentError, match=r"all trained.*found frozen \['1.weight', '1.bias"):
            recipes.tiny_recipes()[name]()
        return
    tiny = recipes.tiny_recipes()[name]()
    names = noted(monkeypatch)
    result = bf.run(tiny.algorithm, tiny.pool(), rounds=2, progress=False)
    assert names
    kept = {leaf for memory in result.snapshot.memories.values() for leaf in memory}
    for leaf in {*names, *result.snapshot.state, *kept}:
        parameter = leaf.rpartition("/")[2]
        assert not parameter.startswith("1.") or "lora_" in parameter, leaf
    inputs = tiny.data["client-0"].inputs
    if isinstance(result.model, Model):
        network = result.network()
        assert torch.equal(network(inputs), result.model(inputs))
        own = {leaf.replace("base.", ""): value for leaf, value in network.named_parameters()}
        # Adapters are merged into their base; the network with dropout is another one.
        if name not in ("fed_stack_lora", "mc_dropout"):
            assert all(torch.equal(own[leaf], value) for leaf, value in first.items())
        assert not own["1.weight"].requires_grad


def in_type(dtype):
    return lambda net: net.to(dtype)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in OTHERS])
def test_double_networks_run_in_every_recipe(name, monkeypatch):
    """The state is of the network's type, and so are the outputs."""
    changed(monkeypatch, in_type(torch.float64))
    make_rows, zeros = recipes.rows, torch.zeros
    monkeypatch.setattr(recipes, "rows", lambda *given: doubled(make_rows(*given)))
    monkeypatch.setattr(recipes.torch, "zeros", lambda *size, **kind: zeros(*size, **kind).double())
    tiny = recipes.tiny_recipes()[name]()
    monkeypatch.undo()
    result = bf.run(tiny.algorithm, tiny.pool(), rounds=2, progress=False)
    before, after = tiny.algorithm.initial, result.snapshot.state
    assert {leaf: value.dtype for leaf, value in after.items() if leaf in before} == {
        leaf: value.dtype for leaf, value in before.items() if leaf in after
    }
    outputs = result.model(tiny.data["client-0"].inputs)
    assert outputs.dtype is torch.float64
    assert torch.isfinite(outputs).all()


def doubled(data):
    return {client: bf.Dataset(rows.inputs.double(), rows.targets) for client, rows in data.items()}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_messages_are_as_wide_as_the_network(dtype):
    """And narrower where a codec is asked for."""
    data = {
        client: bf.Dataset(rows.inputs.to(dtype), rows.targets)
        for client, rows in recipes.rows().items()
    }
    numbers, bits = sum(leaf.numel() for leaf in recipes.net().parameters()), {}
    for codec in (None, bf.Cast(32), bf.Cast(16)):
        algorithm = bf.fed_avg(
            recipes.net().to(dtype), codec=codec, training=bf.Training(steps=1, batch_size=4)
        )
        result = bf.run(algorithm, data, rounds=1, progress=False)
        assert {leaf.dtype for leaf in result.snapshot.state.values()} == {dtype}
        bits[codec.bits if codec else None] = result.bits("up") / len(data) / 8
    width, header = dtype.itemsize, bits[None] - dtype.itemsize * numbers
    assert 0 < header < 600
    # The header has the lengths of sections.
    assert abs(bits[32] - min(4, width) * numbers - header) < 8
    assert abs(bits[16] - 2 * numbers - header) < 8


@pytest.mark.parametrize("name", [name for name in NAMES if "lora" in name])
def test_adapters_are_float32_over_a_narrower_base(name, monkeypatch):
    changed(monkeypatch, in_type(torch.bfloat16))
    make_rows = recipes.rows
    monkeypatch.setattr(
        recipes,
        "rows",
        lambda *given: {
            client: bf.Dataset(rows.inputs.bfloat16(), rows.targets)
            for client, rows in make_rows(*given).items()
        },
    )
    tiny = recipes.tiny_recipes()[name]()
    result = bf.run(tiny.algorithm, tiny.pool(), rounds=2, progress=False)
    floats = {leaf.dtype for leaf in result.snapshot.state.values() if leaf.is_floating_point()}
    assert floats == {torch.float32}
    assert result.model(tiny.data["client-0"].inputs).dtype is torch.bfloat16


def test_a_constant_half_of_a_network_may_have_another_type():
    body = nn.Linear(recipes.FEATURES, 4).bfloat16().requires_grad_(False)

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = body, nn.Linear(4, recipes.CLASSES)

        def forward(self, inputs):
            return self.head(self.body(inputs.bfloat16()).float())

    result = bf.run(bf.fed_avg(Mixed()), recipes.rows(), rounds=1, progress=False)
    assert {leaf.dtype for leaf in result.snapshot.state.values()} == {torch.float32}
    assert result.network().body.weight.dtype is torch.bfloat16


WORK = bf.Training(steps=1, batch_size=8)


def ran(algorithm, data=None, **options):
    return bf.run(algorithm, data or recipes.rows(), rounds=1, progress=False, **options)


def test_a_network_without_shapes_yet_is_refused_and_taken_after_a_call():
    net, words = nn.Sequential(nn.LazyLinear(recipes.CLASSES)), "parameter '0.weight': expected a"
    for entry in (bf.fed_avg, bf.declare, bf.bayesian, lambda net: bf.fed_rlr(net, 2)):
        with pytest.raises(ArgumentError, match=f"network, {words} shape, found one that the"):
            entry(net)
    net(recipes.rows()["client-0"].inputs[:2])
    ran(bf.fed_avg(net, training=WORK))


def test_a_network_with_nan_is_refused_by_the_parameter():
    net = recipes.net()
    nn.init.constant_(net[3].weight, float("nan"))
    for entry in (bf.fed_avg, bf.declare, bf.laplace, bf.scaffold):
        with pytest.raises(
            ArgumentError, match=r"parameter '3.weight': .*found NaN or Inf"
        ) as told:
            entry(net)
    eval(str(told.value).partition("; try ")[2].partition(",")[0], {"net": net})
    ran(bf.fed_avg(net, training=WORK))


def test_a_network_over_several_devices_is_refused():
    net = nn.DataParallel(recipes.net())
    with pytest.raises(ArgumentError, match=r"found nn.DataParallel; try net.module, and data.to"):
        bf.fed_avg(net)
    ran(bf.fed_avg(net.module, training=WORK), test=recipes.rows()["client-0"])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", ["fed_avg", "fed_rlr", "d_turbo_vbi", "federated_svi pvi"])
def test_a_run_trains_where_torch_takes_no_gradients(mode, name):
    first = recipes.tiny_recipes()[name]()
    one = ran(first.algorithm, first.data).snapshot.state
    second = recipes.tiny_recipes()[name]()
    with mode():
        two = ran(second.algorithm, second.data).snapshot.state
    assert all(torch.equal(one[leaf], two[leaf]) for leaf in one)


@pytest.mark.parametrize("buffers", ["mean", "local"])
def test_one_row_for_batch_norm_is_named(buffers):
    net = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    words = "network: expected two rows or more at once, .* found one row; try clients and batches"
    data = recipes.rows()
    lonely = data | {"client-2": data["client-2"][:1]}
    with pytest.raises(ClientError, match=f"client-2.*{words}"):
        ran(bf.fed_avg(net, training=WORK, buffers=buffers), lonely)
    narrow = bf.Training(steps=1, batch_size=1)
    with pytest.raises(ClientError, match=f"client-0.*{words}"):
        ran(bf.fed_avg(net, training=narrow, buffers=buffers))
    result = ran(bf.fed_avg(net, training=WORK, buffers=buffers))
    if buffers == "local":
        with pytest.raises(DataError, match=words):
            result.model(data["client-0"].inputs[:1])
    assert result.model(data["client-0"].inputs[: 1 + (buffers == "local")]).isfinite().all()


class Positioned(nn.Module):
    """A network most of whose weights are no layer's of torch."""

    def __init__(self):
        super().__init__()
        self.own = nn.Parameter(
            torch.randn(recipes.FEATURES, 40, generator=recipes.KEY.generator())
        )
        self.last = nn.Linear(40, recipes.CLASSES)

    def forward(self, inputs):
        return self.last(torch.relu(inputs @ self.own))


@pytest.mark.parametrize("name", ["d_turbo_vbi", "fed_l1"])
def test_density_is_of_all_matrices_that_are_sent(name):
    net = Positioned()
    algorithm = (
        bf.d_turbo_vbi(bf.declare(net), observations=48, training=WORK, density=recipes.SOON)
        if name == "d_turbo_vbi"
        else bf.fed_l1(net, strength=5.0, training=WORK)
    )
    result = bf.run(algorithm, recipes.rows(), rounds=3, progress=False)
    matrices = [leaf for leaf in result.model.parameters.values() if leaf.ndim > 1]
    nonzero, entries = (
        sum(int(count(leaf)) for leaf in matrices) for count in (torch.count_nonzero, torch.numel)
    )
    back = result.final("reactivated") if name == "d_turbo_vbi" else 0.0
    assert entries == 40 * (recipes.FEATURES + recipes.CLASSES)
    assert result.final("density") == pytest.approx((nonzero + back) / entries)
    assert 0.66 < result.final("density") < 1
