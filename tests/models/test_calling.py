"""What a network may return, and of which type its inputs are; weights that are no parameters."""

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune, weight_norm

import bayesfed as bf
from bayesfed.errors import ArgumentError, BayesfedError, ClientError
from bayesfed.models import compact, returning
from bayesfed.models.calling import taken
from tests.support import recipes

WORK = bf.Training(steps=1, batch_size=8)
Pair = namedtuple("Pair", "logits hidden")


@dataclass
class Output:
    """Outputs as transformers has them."""

    logits: Tensor
    hidden: Tensor


class Returning(nn.Module):
    """A network that makes something of its outputs."""

    def __init__(self, make):
        super().__init__()
        self.last, self.make = nn.Linear(recipes.FEATURES, recipes.CLASSES), make

    def forward(self, inputs):
        return self.make(self.last(inputs))


def run(algorithm, data=None, **options):
    return bf.run(algorithm, data or recipes.rows(), rounds=1, progress=False, **options)


@pytest.mark.parametrize(
    ("make", "name", "output"),
    [
        (lambda out: Output(out, out), "Output", "logits"),
        (lambda out: {"loss": out.sum(), "scores": out, "more": out}, "dict", "scores"),
        (lambda out: (out, out), "tuple", 0),
        (lambda out: Pair(out, out), "Pair", 0),
        (lambda out: None, "NoneType", None),
        (lambda out: out.sum(), "Tensor", None),
    ],
)
def test_other_outputs_than_one_tensor_are_refused(make, name, output):
    net, test = Returning(make), recipes.rows()["client-0"]
    way = "a module that returns outputs"
    if output is not None:
        way = rf"bayesfed.models.returning\(net, {output!r}\)"
    words = rf"network: expected one tensor of outputs \(B, ...\), found {name}; try {way}"
    for algorithm in (
        bf.fed_avg(net, training=WORK),
        bf.d_turbo_vbi(bf.declare(net), observations=48, training=WORK),
        bf.fed_rlr(net, 2, training=WORK),
        bf.laplace(net),
    ):
        with pytest.raises(ClientError, match=f"client-0.*{words}"):
            run(algorithm)
    for at_once in (
        lambda: run(bf.fed_avg(net, training=WORK), test=test),
        lambda: bf.federated_svi(bf.bayesian(net), observations=48, example=test),
    ):
        with pytest.raises(ArgumentError, match=f"^{words}"):
            at_once()
    if output is not None:
        run(bf.fed_avg(returning(net, output), training=WORK), test=test)
    assert not net._forward_hooks


def two_heads(out):
    return {"scores": out, "more": 2 * out}


def one_head(out):
    return {"scores": out}


@pytest.mark.parametrize("way", ["named", "alone", "workers"])
def test_a_network_that_returns_its_outputs_by_name_trains_as_one_that_returns_them(way):
    torch.manual_seed(0)
    plain = Returning(torch.Tensor.contiguous)
    torch.manual_seed(0)
    net = Returning(one_head if way == "alone" else two_heads)
    net = net if way == "alone" else returning(net, "scores")
    found = []
    for one in (plain, net):
        with bf.InProcess(recipes.rows(), workers=2 * (way == "workers")) as pool:
            found.append(run(bf.fed_avg(one, training=WORK), pool))
    inputs = recipes.rows()["client-0"].inputs
    assert torch.equal(found[0].model(inputs), found[1].model(inputs))
    made = found[1].network()
    assert torch.equal(taken(made(inputs)), found[0].model(inputs))


def test_an_entry_that_is_not_there_is_named_with_those_that_are():
    net = returning(Returning(two_heads), "score")
    with pytest.raises(
        ClientError, match=r"one of \['scores', 'more'\], found 'score'; try 'scores'"
    ):
        run(bf.fed_avg(net, training=WORK))


@pytest.mark.parametrize(
    ("net", "rows"), [(torch.float64, torch.float32), (torch.float32, torch.float64)]
)
def test_inputs_of_another_type_are_named_with_both_types(net, rows):
    made, words = recipes.net().to(net), [str(kind).removeprefix("torch.") for kind in (net, rows)]
    data = {
        name: bf.Dataset(part.inputs.to(rows), part.targets)
        for name, part in recipes.rows().items()
    }
    expected = (
        f"network: expected inputs of {words[0]}, as its parameters are, found a tensor .* of "
        rf"{words[1]}; try inputs.to\(torch.{words[0]}\), or net.to\(torch.{words[1]}\)"
    )
    for algorithm in (
        bf.fed_avg(made, training=WORK),
        bf.d_turbo_vbi(bf.declare(made), observations=48, training=WORK),
    ):
        for options in ({}, {"test": data["client-1"]}):
            with pytest.raises(BayesfedError, match=expected):
                run(algorithm, data, **options)
    run(bf.fed_avg(made.to(rows), training=WORK), data, test=data["client-1"])


def computed(kind):
    net = recipes.net()
    if kind == "parametrised":
        parametrizations.weight_norm(net[3])
    elif kind == "spectral":
        nn.utils.spectral_norm(net[3])
    elif kind == "older":
        weight_norm(net[3])
    else:
        prune.l1_unstructured(net[3], "weight", 0.5)
    return net


ENTRIES = {
    "declare": bf.declare,
    "bayesian": bf.bayesian,
    "fed_hm": lambda net: bf.fed_hm(net, [1.0, 0.5], recipes.fixed(["client-0"], 2)),
    "fed_rlr": lambda net: bf.fed_rlr(net, 2),
    "hetero_fl": lambda net: bf.hetero_fl([net], recipes.fixed(["client-0"], 1)),
    "anycost_fl": lambda net: bf.anycost_fl(net, torch.zeros(1, 6), deadline_s=1.0),
    "lora": lambda net: bf.lora(net, 2, bf.Key(0)),
    "fed_l1": bf.fed_l1,
    "fed_mid": bf.fed_mid,
    "fed_prune": bf.fed_prune,
    "pooled": lambda net: bf.pooled(net, local="factors"),
    # Of its last layer alone.
    "laplace": lambda net: bf.laplace(net[:4]),
    "compact": lambda net: compact(net, dict(net.named_parameters())),
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("kind", ["parametrised", "older", "pruned", "spectral"])
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
def test_weights_that_are_computed_are_refused_where_weights_are_read(kind, entry):
    net = computed(kind)
    with pytest.raises(
        ArgumentError, match="weights that are parameters, found 3.weight, which is computed"
    ) as told:
        ENTRIES[entry](net)
    # What the hint says to try works.
    hint = str(told.value).partition("; try ")[2]
    eval(hint, {"torch": torch, "net": net})
    ENTRIES[entry](net)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
def test_other_methods_train_what_the_weights_are_computed_from():
    net = recipes.net()
    parametrizations.weight_norm(net[3])
    result = run(bf.fed_avg(net, training=WORK), test=recipes.rows()["client-0"])
    made, inputs = result.network(), recipes.rows()["client-0"].inputs
    outputs = result.model(inputs)
    assert torch.equal(made(inputs), outputs)
    parametrize.remove_parametrizations(made[3], "weight")
    torch.testing.assert_close(made(inputs), outputs)


def test_a_frozen_computed_weight_is_a_constant():
    net = recipes.net()
    parametrizations.weight_norm(net[3])
    net[3].requires_grad_(False)
    assert [*bf.declare(net).sites] == ["1.weight", "5.weight"]
