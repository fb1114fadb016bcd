"""Names that an experiment file may use, read off the package itself: one line each, or one name
with its keys.
"""

from __future__ import annotations

import inspect
import re
from textwrap import shorten
from typing import Any

from torch import nn

from bayesfed.compress import Codec, LeafCodec
from bayesfed.data import Dataset
from bayesfed.data.partition import Homes, Partition
from bayesfed.errors import ArgumentError
from bayesfed.errors.nearness import nearest
from bayesfed.federated import Algorithm, Capacity, Link, Optimiser, Rule, Sampler
from bayesfed.inference.variational.fusion import Fusion
from bayesfed.inspect import table
from bayesfed.models import Likelihood, Support, WeightPrior
from bayesfed.running.experiments import names
from bayesfed.running.experiments.experiment import Settings, Split
from bayesfed.running.experiments.kinds import keys, kinds_of
from bayesfed.running.experiments.scope import is_given
from bayesfed.running.experiments.words import words
from bayesfed.wireless import Device

# Heading, with the keys that take such a name; type.
KINDS: dict[str, Any] = {
    "recipes (recipe)": Algorithm,
    "data (data)": Split | Dataset,
    "partitions (partition)": Partition | Homes,
    "nets (net)": nn.Module,
    "links (link)": Link,
    "codecs (codec, up)": Codec,
    "codecs of tensors (floats in Coded)": LeafCodec,
    "priors of weights (prior in model)": WeightPrior,
    "priors of supports (support in prior)": Support,
    "likelihoods (likelihood)": Likelihood,
    "fusion rules (fusion)": Fusion,
    "optimisers (optimiser)": Optimiser,
    "capacities (capacity)": Capacity,
    "samplers (sampler)": Sampler,
    "devices (devices)": dict[str, Device],
    "robust rules (rule in robust)": Rule,
}
_END = """\
A recipe, a network or data may also be a function of your own file: kind = "my_method.py:recipe",\
 a path that begins at the experiment's folder.
`bayesfed list NAME` says which keys a name takes, `bayesfed list experiment` those at the top of\
 a file."""


def everything() -> str:
    """Return all kinds with their names, one line each."""
    parts = [
        "\n".join(
            [kind]
            + [
                f"  {name:<22} {shorten(first_line(made_by), 100, placeholder=' ...')}"
                for name, (made_by, _) in kinds_of(hint).items()
            ]
        )
        for kind, hint in KINDS.items()
    ]
    return "\n\n".join([*parts, _END])


def one(name: str) -> str:
    """Return a name's first line and its keys, with the values that each takes and its default.

    Raises
    ------
    ArgumentError
        If a file cannot name it; the message has the nearest name.
    """
    chosen: Any = Settings if name == "experiment" else names.public().get(name)
    if chosen is None or not callable(chosen):
        raise ArgumentError(
            "list",
            "a name that a file may use",
            repr(name),
            nearest(name, names.public()) or "bayesfed list",
        )
    rows = [[key, _default(key, chosen), words(hint)] for key, hint in keys(chosen).items()]
    return (
        f"{name}: "
        f"{first_line(chosen)}\n\n{table(['key', 'default', 'what'], rows) if rows else 'no keys'}"
    )


def first_line(made_by: Any) -> str:
    """Return the first sentence of a docstring, in a line."""
    first = " ".join((inspect.getdoc(made_by) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", first)[0]


def _default(key: str, made_by: Any) -> str:
    one = names.parameters(made_by)[key]
    if one.default is one.empty:
        return (
            "from the run"
            if made_by is not Settings and is_given(key, one.annotation)
            else "required"
        )
    if repr(one.default) == "<factory>":
        return "..."
    text = str(getattr(one.default, "__name__", one.default))
    return text if len(text) <= 24 else text[:21] + "..."
