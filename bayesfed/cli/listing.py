"""What can be named in an experiment file, read off the package itself: one line each, or one name with its keys."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from bayesfed.cli import names
from bayesfed.cli.experiment import Settings, Split
from bayesfed.cli.hints import keys, options, required, words
from bayesfed.compress.codecs import Codec
from bayesfed.compress.leaf import LeafCodec
from bayesfed.data.dataset import Dataset
from bayesfed.data.partition import Homes, Partition
from bayesfed.errors import ArgumentError, complain
from bayesfed.federated.aggregation.robust import Rule
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.federated.core.protocols import Link
from bayesfed.federated.engine.samplers import Sampler
from bayesfed.federated.training.model_sizes import Capacity
from bayesfed.federated.training.optimisers import Optimiser
from bayesfed.inference.variational.fusion import Fusion
from bayesfed.inspect.tables import table
from bayesfed.models.priors.likelihoods import Likelihood
from bayesfed.models.priors.weights import WeightPrior
from bayesfed.models.random_fields.support_priors import Support
from bayesfed.wireless.devices import Device

KINDS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "recipes": ("recipe", (Algorithm,)),
    "data": ("data", (Split, Dataset)),
    "partitions": ("partition", (Partition, Homes)),
    "nets": ("net", (nn.Module,)),
    "links": ("link", (Link,)),
    "codecs": ("codec, up", (Codec,)),
    "codecs of tensors": ("floats in Coded", (LeafCodec,)),
    "priors of weights": ("prior in model", (WeightPrior,)),
    "priors of supports": ("support in prior", (Support,)),
    "likelihoods": ("likelihood", (Likelihood,)),
    "fusion rules": ("fusion", (Fusion,)),
    "optimisers": ("optimiser", (Optimiser,)),
    "capacities": ("capacity", (Capacity,)),
    "samplers": ("sampler", (Sampler,)),
    "devices": ("devices", (dict[str, Device],)),
    "robust rules": ("rule in robust", (Rule,)),
}


def everything() -> str:
    """Return all kinds with their names, one line each."""
    parts = []
    for kind, (where, hints) in KINDS.items():
        found = {name: made_by for hint in hints for name, made_by in options(hint).items()}
        lines = "\n".join(f"  {name:<22} {first_line(made_by)}" for name, made_by in found.items())
        parts.append(f"{kind} ({where})\n{lines}")
    python_only = {
        name: made_by for name, made_by in names.makers(Algorithm).items() if name not in options(Algorithm) and inspect.isfunction(made_by)
    }
    lines = "\n".join(f"  {name:<22} needs {', '.join(_beyond(made_by))}" for name, made_by in python_only.items())
    parts.append(f"recipes for Python alone (their arguments are functions or tensors)\n{lines}")
    return "\n\n".join(parts) + "\n\n`bayesfed list NAME` says which keys a name takes, `bayesfed list experiment` those at the top of a file."


def one(name: str) -> str:
    """Return a name's first line and its keys, with what stands behind each and its default.

    Raises
    ------
    ArgumentError
        If a file cannot name it; the message has the nearest name.
    """
    found: Any = Settings if name == "experiment" else names.public().get(name)
    if found is None or not callable(found):
        from difflib import get_close_matches

        near = get_close_matches(name, names.public(), n=1)
        raise ArgumentError(complain("list", expected="a name that a file may use", actual=repr(name), hint=near[0] if near else "bayesfed list"))
    needed = required(found)
    rows = []
    for key in keys(found):
        hint, default = names.hint_of(found, key), names.parameters(found)[key].default
        known = (
            "from the run" if key in needed and found is not Settings and _is_given(key, hint) else "required" if key in needed else _default(default)
        )
        rows.append([key, known, words(hint, name=key, short=True)])
    listed = table(["key", "default", "what"], rows) if rows else "no keys"
    return f"{name}: {first_line(found)}\n\n{listed}"


def first_line(made_by: Any) -> str:
    """Return the first line of a docstring."""
    return (inspect.getdoc(made_by) or "").partition("\n")[0]


def _is_given(name: str, hint: Any) -> bool:
    from bayesfed.cli.adapters import is_given

    return is_given(name, hint)


def _beyond(made_by: Any) -> list[str]:
    from bayesfed.cli.hints import writable

    return [
        name for name in required(made_by) if not _is_given(name, names.hint_of(made_by, name)) and not writable(name, names.hint_of(made_by, name))
    ]


def _default(value: Any) -> str:
    text = value.__name__ if inspect.isfunction(value) or inspect.isclass(value) else "..." if repr(value) == "<factory>" else str(value)
    return text if len(text) <= 24 else text[:21] + "..."
