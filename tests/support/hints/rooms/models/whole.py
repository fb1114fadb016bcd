"""Messages of `bayesfed.models` about networks: calls, costs, compaction, elastic width."""

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

import bayesfed as bf
from bayesfed.models import channel_graph, compact, costs, returning, shrunk, shrunk_widths
from bayesfed.models.calling import called
from bayesfed.models.modules import check_last, outputs
from bayesfed.trees import parameters
from tests.house.wrong_calls.given import CLIENTS, DATA, KEY, go, net, rows
from tests.models.test_calling import Returning, two_heads
from tests.models.test_elastic import group_norm_net
from tests.models.test_elastic_refusals import REFUSED, Functional
from tests.models.test_modules import Backwards, X
from tests.support import recipes

COMPLETE = (
    "bayesfed/models/calling.py",
    "bayesfed/models/compaction",
    "bayesfed/models/costs.py",
    "bayesfed/models/elastic",
    "bayesfed/models/misfits.py",
    "bayesfed/models/modules.py",
)
PICTURE = torch.zeros(1, 2, 8, 8)


def normed(norm, data=CLIENTS):
    """Train a network with a norm."""
    layers = nn.Sequential(nn.Linear(4, 6), norm, nn.Linear(6, 3))
    training = bf.Training(steps=1, batch_size=1)
    go(bf.fed_avg(layers, training=training, buffers="mean"), data)


def computed(*, mend=False):
    """Declare a network whose weight is computed."""
    made = recipes.net()
    parametrizations.weight_norm(made[3])
    if mend:
        nn.utils.parametrize.remove_parametrizations(made.get_submodule("3"), "weight")
    bf.declare(made)


def typed(inputs, network=None):
    """Call a network with inputs of a type."""
    made = net() if network is None else network
    called(made, parameters(made), inputs)


class Failing(nn.Module):
    """A network that says something of its own."""

    def forward(self, inputs):
        raise RuntimeError("not today")


def followed(function, last=4, **layers):
    """Find the channels of a network."""
    return channel_graph(Functional(function, last, **layers), PICTURE)


def refused(name):
    """Find the channels of a network where this is impossible."""
    return lambda: channel_graph(REFUSED[name][0], PICTURE)


def pooled():
    """Find the channels of a network that has all that can be followed."""
    return followed(lambda net, x: x.mean((2, 3)))


GRAPH = channel_graph(bf.mlp([4, 8, 2], KEY), torch.zeros(1, 4))
SPARSE = {name: leaf * (leaf > leaf.quantile(0.9)) for name, leaf in parameters(net()).items()}
CASES = [
    # Calls.
    (
        lambda: typed(DATA.inputs.double()),
        "inputs.to(torch.float32)",
        lambda: typed(DATA.inputs.double().to(torch.float32)),
    ),
    (
        lambda: typed(DATA.inputs.double()),
        "net.to(torch.float64)",
        lambda: typed(DATA.inputs.double(), net().to(torch.float64)),
    ),
    (
        lambda: go(bf.fed_avg(Returning(two_heads)), recipes.rows()),
        "bayesfed.models.returning(net, 'scores')",
        lambda: go(bf.fed_avg(returning(Returning(two_heads), "scores")), recipes.rows()),
    ),
    (
        lambda: go(bf.fed_avg(Returning(lambda out: out.sum())), recipes.rows()),
        "a module that returns outputs",
        lambda: go(bf.fed_avg(Returning(lambda out: out + 1)), recipes.rows()),
    ),
    (
        lambda: go(bf.fed_avg(returning(Returning(two_heads), "out")), recipes.rows()),
        "'scores'",
        lambda: go(bf.fed_avg(returning(Returning(two_heads), "scores")), recipes.rows()),
    ),
    (lambda: normed(nn.BatchNorm1d(6)), "nn.GroupNorm", lambda: normed(nn.GroupNorm(1, 6))),
    (
        lambda: go(bf.fed_avg(nn.BatchNorm1d(4), buffers="mean"), {"a": rows(1)}),
        "clients and batches of two rows or more",
        lambda: go(bf.fed_avg(nn.BatchNorm1d(4), buffers="mean"), {"a": rows(4)}),
    ),
    (
        computed,
        "torch.nn.utils.parametrize.remove_parametrizations(net.get_submodule('3'), 'weight')",
        lambda: computed(mend=True),
    ),
    (lambda inputs: outputs(net(), {}, inputs), DATA),
    (lambda: outputs(Failing(), {}, DATA.inputs), "not today", None),
    (
        lambda: outputs(net(), {}, torch.zeros(2, 5)),
        "rows of the width and type that were trained on",
        lambda: outputs(net(), {}, torch.zeros(2, 4)),
    ),
    (
        lambda: check_last(Backwards(), {}, "hidden", X, where="here"),
        "a network that registers its output layer last",
        lambda: check_last(net(), {}, "1", DATA.inputs, where="here"),
    ),
    (lambda example: costs(net(), example), torch.zeros(())),
    # Compaction.
    (
        lambda: compact(net(), {**SPARSE, "extra": X}),
        "leaves of these names",
        lambda: compact(net(), SPARSE),
    ),
    (
        lambda: compact(net(), SPARSE)(torch.zeros(2, 5)),
        "inputs as in training",
        lambda: compact(net(), SPARSE)(torch.zeros(2, 4)),
    ),
    # Elastic width.
    (
        lambda: shrunk(bf.mlp([4, 6, 2], KEY), GRAPH, 0.5),
        "a leaf of this shape",
        lambda: shrunk(bf.mlp([4, 8, 2], KEY), GRAPH, 0.5),
    ),
    (lambda alpha: shrunk_widths(GRAPH, alpha), 0),
    (lambda sample: channel_graph(net(), sample), torch.zeros(0, 4)),
    (refused("branch"), "modules without branches", pooled),
    (refused("sample"), "inputs as in training", pooled),
    (
        refused("softmax"),
        "layers, norms, activations, pooling, flattening and sums",
        pooled,
    ),
    (
        refused("paces"),
        "one layout for both",
        lambda: followed(
            lambda net, x: x.flatten(1) + net.other(x).flatten(1), 144, other=nn.Conv2d(4, 4, 1)
        ),
    ),
    (
        lambda: channel_graph(group_norm_net(4, 2), torch.zeros(1, 2, 8, 8).double()),
        "one number of groups",
        lambda: channel_graph(group_norm_net(4, 4), torch.zeros(1, 2, 8, 8).double()),
    ),
    (refused("mean"), "one over H and W of (B, C, H, W)", pooled),
    (
        refused("pool"),
        "one over H and W of (B, C, H, W)",
        lambda: followed(lambda net, x: functional.avg_pool2d(x, 6).flatten(1)),
    ),
    (
        refused("grouped"),
        "groups=1",
        lambda: followed(
            lambda net, x: net.grouped(x).mean((2, 3)), grouped=nn.Conv2d(4, 4, 3, groups=1)
        ),
    ),
    (
        refused("order"),
        "flattening of (B, C, H, W) from C on",
        lambda: followed(lambda net, x: x.flatten(1), 144),
    ),
    (refused("constant"), "-1", lambda: followed(lambda net, x: x.view(x.shape[0], -1), 144)),
    (
        refused("constant"),
        "nn.Flatten",
        lambda: followed(lambda net, x: net.flat(x), 144, flat=nn.Flatten()),
    ),
    (
        refused("weight"),
        "an nn.Linear or nn.Conv2d",
        lambda: followed(lambda net, x: net.other(x.mean((2, 3))), other=nn.Linear(4, 4)),
    ),
]
