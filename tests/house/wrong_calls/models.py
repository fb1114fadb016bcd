"""Wrong calls of networks and priors."""

from torch import nn

import bayesfed as bf
from bayesfed.errors import (
    ArgumentError,
)
from tests.house.wrong_calls.given import KEY, net

WRONG = {
    "mlp key": (lambda: bf.mlp([4, 3], 0), ArgumentError, "; try Key(0, 'purpose')"),
    "mlp int": (lambda: bf.mlp(4, KEY), ArgumentError, "; try [64, 32, 10]"),
    "mlp widths str": (lambda: bf.mlp("64", KEY), ArgumentError, "; try [64, 32, 10]"),
    "mlp one width": (lambda: bf.mlp([4], KEY), ArgumentError, "; try [64, 32, 10]"),
    "mlp zero": (lambda: bf.mlp([4, 0], KEY), ArgumentError, "; try [64, 32, 10]"),
    "mlp float": (lambda: bf.mlp([4, 2.5], KEY), ArgumentError, "; try [64, 32, 10]"),
    "declare class": (
        lambda: bf.declare(nn.Linear),
        ArgumentError,
        "; try mlp([64, 32, 10], Key(0))",
    ),
    "declare likelihood str": (
        lambda: bf.declare(net(), likelihood="categorical"),
        ArgumentError,
        "; try Categorical(), or Normal(sd=1.0) fo",
    ),
    "declare likelihood class": (
        lambda: bf.declare(net(), likelihood=bf.Categorical),
        ArgumentError,
        "; try Categorical(), or Normal(sd=1.0)",
    ),
    "declare prior class": (
        lambda: bf.declare(net(), bf.Prior),
        ArgumentError,
        "; try Prior(), or {'name': Prior()}.get",
    ),
    "declare prior str": (
        lambda: bf.declare(net(), "horseshoe"),
        ArgumentError,
        "; try Prior(), or {'name': Prior()}.get",
    ),
    "Categorical temperature": (
        lambda: bf.Categorical(temperature=0),
        ArgumentError,
        "expected a number in (0, inf), found 0; try 1.0",
    ),
    "Normal sd": (
        lambda: bf.Normal(sd=-1),
        ArgumentError,
        "expected a number in (0, inf), found -1; try 1.0",
    ),
    "Laplace": (
        lambda: bf.Laplace(0),
        ArgumentError,
        "expected a number in (0, inf), found 0; try 1.0",
    ),
    "bayesian prior": (
        lambda: bf.bayesian(net(), "laplace"),
        ArgumentError,
        "; try Gaussian(1.0), or declare for a Prior",
    ),
    "bayesian prior class": (
        lambda: bf.bayesian(net(), bf.Laplace),
        ArgumentError,
        "; try Gaussian(1.0), or declare for a Prior",
    ),
    "bayesian prior number": (
        lambda: bf.bayesian(net(), 0.2),
        ArgumentError,
        "; try Gaussian(1.0), or declare for a Prior",
    ),
}
