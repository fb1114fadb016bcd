"""Messages of methods that begin at a trained network, and of `one_round`."""

import functools

import torch
from torch import nn

import bayesfed as bf
from bayesfed.models import resnet18, untracked
from bayesfed.trees import parameters
from tests.house.wrong_calls.given import DATA, KEY, done, go
from tests.house.wrong_calls.given import net as small

COMPLETE = ("bayesfed/algorithms/after_training",)
X = DATA.inputs
MODEL = "the model of a round of bf.batch_statistics(net, parameters, inputs[:1])"
FLAT = torch.eye(3)
ROWS = bf.Dataset(FLAT, torch.arange(3))
UNLIKE = bf.Dataset(torch.cat([FLAT, FLAT]), torch.tensor([0, 1, 2, 0, 1, 0]))


def static(norm=True):
    """Return a network with a norm without statistics, or the same with one that has them."""
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=not norm), small())


@functools.cache
def asked():
    """Return its model after a round of `batch_statistics`."""
    made = static()
    return go(bf.batch_statistics(made, parameters(made), X[:1])).model


def statistics(made, own=None):
    """Ask for the statistics of a network."""
    return bf.batch_statistics(made, parameters(made) if own is None else own, X[:1])


def half(trained=False):
    """Return a network of which a part is frozen, and its parameters, one of them changed."""
    made = static()
    made[0].requires_grad_(trained)
    return made, parameters(made) | {"0.bias": torch.ones(4), "0.weight": made[0].weight.detach()}


class Turns(nn.Module):
    """Uses its norms so many times each, or not at all where a row is no zero."""

    def __init__(self, times=1, norms=1, skips=False):
        super().__init__()
        self.norms = nn.ModuleList(
            nn.BatchNorm1d(4, track_running_stats=False) for _ in range(norms)
        )
        self.times, self.skips = times, skips

    def forward(self, inputs):
        for norm in self.norms:
            for _ in range(0 if self.skips and inputs.any() else self.times):
                inputs = norm(inputs)
        return inputs


def queried(skips):
    """Ask for the statistics of a network that skips its norm for some rows."""
    made = Turns(skips=skips)
    go(bf.batch_statistics(made, parameters(made), torch.zeros(1, 4)))


def convolution():
    """Return a network without a linear layer."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


def scaled(factor):
    """Return a network whose rows are its weights: right, and the more certain, the larger."""
    made = nn.Linear(3, 3, bias=False)
    made.weight.data.copy_(factor * (FLAT - 0.5))
    return made


def calibrated(**options):
    """Calibrate a network on rows of which it gets one wrong."""
    return go(bf.calibrated(scaled(1.0), **options), {"a": UNLIKE}).model


@functools.cache
def calibrated_once():
    """Return a model with sets."""
    return calibrated(classes=3, temperatures=[1.0])


def density(made=None, **options):
    """Return distances from the classes in the features of a network."""
    return go(bf.feature_density(made or small(), **options), {"a": DATA[:5]}).model.distance(X)


class Twice(nn.Module):
    """Uses its last layer so many times."""

    def __init__(self, times):
        super().__init__()
        self.layer, self.times = nn.Linear(4, 4), times

    def forward(self, inputs):
        for _ in range(self.times):
            inputs = self.layer(inputs)
        return inputs


def wide(inputs=4, outputs=3):
    """Return a network with a last layer of so many inputs."""
    return nn.Sequential(nn.Linear(4, inputs), nn.Linear(inputs, outputs))


def tied():
    """Return a network whose last layer shares its weight."""
    made = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    made[2].weight = made[0].weight
    return made


def curved(factor, **options):
    """Put a Gaussian around a network that fits its rows, the more exactly, the larger."""
    go(bf.laplace(scaled(factor), **options), {"a": ROWS})


def frozen(number=-1):
    """Return a network of which a layer is frozen."""
    made = wide()
    made[number].requires_grad_(False)
    return made


def images(norm):
    """Fuse networks for images."""
    bf.one_round(resnet18((1, 8, 8), 3, KEY, width=1 / 64, norm=norm))


def one_round(made=None, **options):
    """Fuse networks of one round."""
    return bf.one_round(made or wide(), **options)


def normed(layer):
    """Return a network with a layer between two others."""
    return nn.Sequential(nn.Linear(4, 4), layer, nn.Linear(4, 3))


CASES = [
    (lambda: statistics(small()), "the network as it is", lambda: small()(X)),
    (
        lambda: statistics(static(False)),
        "bayesfed.models.untracked(net)",
        lambda: statistics(untracked(static(False))),
    ),
    (
        lambda: statistics(static(), {"0.wieght": torch.ones(4, 4)}),
        "leaves of these names",
        lambda: statistics(static(), dict(static().named_parameters())),
    ),
    (lambda: statistics(*half()), "net.requires_grad_()", lambda: statistics(*half(True))),
    (
        lambda: statistics(*half()),
        "the values that the network has",
        lambda: statistics(half()[0]),
    ),
    (
        lambda: statistics(Turns(2)),
        "a norm for each use",
        lambda: statistics(Turns(norms=2)),
    ),
    (
        lambda: queried(skips=True),
        "a forward pass that always uses it",
        lambda: queried(skips=False),
    ),
    (
        lambda: calibrated_once().sets(FLAT, shares=[0.5, 0.2, 0.3], by_class=True),
        "leave out shares=",
        lambda: calibrated_once().sets(FLAT, by_class=True),
    ),
    (lambda shares: calibrated_once().thresholds(shares=shares), "even"),
    (lambda: bf.calibrated(static()), MODEL, lambda: bf.calibrated(asked())),
    (lambda values: bf.calibrated(small(), temperatures=values), [-1.0, 1.0]),
    (
        lambda: bf.calibrated(convolution()),
        "classes=10",
        lambda: bf.calibrated(convolution(), classes=3),
    ),
    (
        lambda: calibrated(temperatures=[1.0, 2.0, 3.0]),
        "temperatures= as far as 0.25",
        lambda: calibrated(temperatures=[0.25, 0.4, 1.0, 2.0, 3.0]),
    ),
    (lambda: calibrated(classes=10), "classes=3", lambda: calibrated(classes=3)),
    (
        lambda: density(shrinkage=0.0),
        "a larger shrinkage",
        lambda: density(shrinkage=0.1),
    ),
    (
        lambda: bf.feature_density(convolution()),
        "mlp([64, 64, 10], key)",
        lambda: bf.feature_density(bf.mlp([64, 64, 10], KEY)),
    ),
    (lambda: bf.feature_density(static()), MODEL, lambda: bf.feature_density(asked())),
    (lambda: density(Twice(2)), "mlp", density),
    (lambda: bf.laplace(static()), MODEL, lambda: bf.laplace(asked())),
    (
        lambda: bf.laplace(bf.fed_avg(small()), parameters(small())),
        "laplace(result.model) after the run",
        lambda: bf.laplace(done().model),
    ),
    (
        lambda: bf.laplace(bf.p_fed_bayes(small())),
        "laplace(result.model) after the run",
        lambda: bf.laplace(done().model),
    ),
    (
        lambda: bf.laplace(tied()),
        "subset='all', structure='full'",
        lambda: bf.laplace(tied(), subset="all", structure="full"),
    ),
    (
        lambda: bf.laplace(small().requires_grad_(False), subset="all"),
        "subset='last'",
        lambda: bf.laplace(small().requires_grad_(False), subset="last"),
    ),
    *(
        (
            lambda: bf.laplace(normed(nn.LayerNorm(4)), subset="all"),
            tried,
            functools.partial(bf.laplace, normed(nn.LayerNorm(4)), **right),
        )
        for tried, right in [
            ("structure='full'", {"subset": "all", "structure": "full"}),
            ("'diagonal'", {"subset": "all", "structure": "diagonal"}),
            ("subset='last'", {"subset": "last"}),
        ]
    ),
    *(
        (
            lambda: bf.laplace(wide(2600), subset="all", structure="full"),
            tried,
            functools.partial(bf.laplace, wide(2600), subset="all", structure=structure),
        )
        for tried, structure in [
            ("structure='kronecker'", "kronecker"),
            ("'diagonal'", "diagonal"),
        ]
    ),
    *(
        (
            functools.partial(curved, factor),
            "a larger prior_precision= here",
            functools.partial(curved, factor, prior_precision=30.0),
        )
        for factor in (4.0, 20.0)
    ),
    (lambda: images("static"), 'norm="group"', lambda: images("group")),
    (
        lambda: one_round(training=bf.Training(prior_precision=1.0, observations=6)),
        "one_round(net, prior_precision=1.0), Training without one",
        lambda: one_round(prior_precision=1.0, training=bf.Training()),
    ),
    (
        lambda: one_round(frozen()),
        "requires_grad_()",
        lambda: one_round(frozen().requires_grad_()),
    ),
    *(
        (lambda made=made: one_round(made), "fusion='fisher'", functools.partial(right, made))
        for made in (wide(300), tied(), wide(7000))
        for right in [functools.partial(one_round, fusion="fisher")]
    ),
    (lambda: one_round(wide(300)), "a narrower last layer", lambda: one_round(wide(30))),
    (
        lambda: bf.calibrated(calibrated_once()),
        "result.model of fed_avg",
        lambda: bf.calibrated(done().model),
    ),
    (
        lambda: bf.calibrated(small(), {"1.wieght": torch.ones(3, 4)}),
        "1.weight",
        lambda: bf.calibrated(small(), {"1.weight": torch.ones(3, 4)}),
    ),
    (lambda given: bf.calibrated(small(), given), {1: torch.ones(3)}),
    (
        lambda: bf.calibrated(small(), {"1.bias": torch.ones(4)}),
        "a leaf of this shape",
        lambda: bf.calibrated(small(), {"1.bias": torch.ones(3)}),
    ),
]
