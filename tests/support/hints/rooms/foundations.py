"""Messages of the lowest floor, `errors`, `keys` and `trees`, and of `testing`: a law says what is
broken, and its repair is the author's. Those of roles are in `tests.support.hints.roles`.
"""

import math

import torch
from torch import nn

import bayesfed as bf
from bayesfed.errors import ArgumentError, needs
from bayesfed.errors.names import Named
from bayesfed.testing.law import refuses, same
from bayesfed.trees import check, shapes
from tests.house.wrong_calls.given import avg, net

COMPLETE = ("bayesfed/errors", "bayesfed/keys.py", "bayesfed/trees.py", "bayesfed/testing")
LEAF = {"w": torch.ones(2)}
TURNED = {"w": torch.ones(2, dtype=torch.complex64)}


def checked(tree):
    """Check a tree against the one published."""
    check(tree, shapes(LEAF), where="payload")


def raised():
    """Raise an error of another class."""
    raise KeyError("w")


def spoilt():
    """Return a network with a number that is none."""
    made = net()
    torch.nn.init.constant_(made[1].weight, math.nan)
    return made


def renewed():
    """Return it with its layer begun anew."""
    made = spoilt()
    made[1].reset_parameters()
    return made


def lazy(called=False):
    """Return a network whose width the first rows decide."""
    made = torch.nn.Sequential(torch.nn.LazyLinear(2))
    if called:
        made(torch.zeros(2, 3))
    return made


CASES = [
    (
        lambda: bf.fed_avg(nn.Linear(4, 2, dtype=torch.complex64)),
        "torch.view_as_complex of a real parameter",
        lambda: torch.view_as_complex(nn.Linear(4, 2).weight.reshape(2, 2, 2)),
    ),
    (lambda name: Named({"beta.mean": 1.0})[name], "beta.maen"),
    (
        lambda: Named()["beta.mean"],
        "a run that is finished",
        lambda: Named({"beta.mean": 1.0})["beta.mean"],
    ),
    (
        lambda: bf.fed_avg(nn.Linear(2, 2, device="meta")),
        "without torch.device('meta')",
        lambda: bf.fed_avg(nn.Linear(2, 2)),
    ),
    (lambda: bf.fed_avg(lazy()), "net(train.inputs[:2])", lambda: bf.fed_avg(lazy(called=True))),
    (lambda: bf.fed_avg(spoilt()), "reset_parameters()", lambda: bf.fed_avg(renewed())),
    (
        lambda: bf.fed_avg(torch.nn.DataParallel(net())),
        "net.module",
        lambda: bf.fed_avg(torch.nn.DataParallel(net()).module),
    ),
    (
        lambda: needs("no_such_package", "watch"),
        "pip install 'bayesfed[watch]'",
        # One that is installed.
        lambda: needs("torch", "watch"),
    ),
    (
        lambda: bf.Training(1, 2, None, None, None, 3),
        "each argument by its name",
        lambda: bf.Training(steps=1, batch_size=2),
    ),
    (
        lambda: bf.fed_avg(net(), lr=0.1),
        "training=Training(optimiser=Sgd(0.1))",
        lambda: bf.fed_avg(net(), training=bf.Training(optimiser=bf.Sgd(0.1))),
    ),
    (lambda: avg(strenght=0.1), "training", avg),
    (lambda value: bf.fed_prox(net(), strength=value), -1.0),
    (lambda: bf.Key(0.5), "Key(0, 'fit', 3)", lambda: bf.Key(0, "fit", 3)),
    (lambda: checked(TURNED), "its real part", lambda: checked({"w": TURNED["w"].real})),
    (
        lambda: checked({"w": torch.ones(2) * math.inf}),
        "a smaller learning rate",
        lambda: checked({"w": torch.ones(2) * 0.1}),
    ),
    (lambda: checked({"v": torch.ones(2)}), "leaves of these names", lambda: checked(LEAF)),
    (lambda: checked({"w": torch.ones(3)}), "a leaf of this shape", lambda: checked(LEAF)),
    (
        lambda: same({"w": torch.ones(2)}, {"w": torch.zeros(2)}, "codec"),
        "leaf 'w' differs by up to 1",
        None,
    ),
    (
        lambda: refuses(raised, ArgumentError, "a wrong name"),
        "raised KeyError in place of ArgumentError",
        None,
    ),
    (lambda: refuses(dict, ArgumentError, "a wrong name"), "was accepted", None),
]
