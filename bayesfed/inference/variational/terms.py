"""The log density of a model at given latents as a sum over its sites: what belongs to the rows,
and what to the prior.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from traceback import extract_tb
from typing import Any, NamedTuple

import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from pyro.poutine.messenger import Messenger
from torch import Tensor

from bayesfed.data import Dataset
from bayesfed.trees import Tree

Node = Mapping[str, Any]


class Terms(NamedTuple):
    """Log densities in nats by site, scales included: of what no rows enter, and of the rows."""

    prior: Tree
    rows: Tree


@dataclass(frozen=True)
class Split:
    """Sites of a model by whose their log density is.

    Parameters
    ----------
    rows
        Observed sites and factors that rows enter.
    prior
        Observed sites and factors that no rows enter.
    by_row
        Latent sites with a value for each row.
    derived
        Deterministic sites that no rows enter.
    """

    rows: tuple[str, ...]
    prior: tuple[str, ...]
    by_row: tuple[str, ...]
    derived: tuple[str, ...] = ()


def terms(
    model: Callable[..., Any], values: Mapping[str, Tensor], data: Dataset, split: Split
) -> Terms:
    """Return the log density of each site at given values of the latents.

    Parameters
    ----------
    model
        The model; parameters that it reads must be held (`Pair.held`).
    values
        Values of latent sites by name; others are drawn. Gradients flow through them.
    data
        The rows.
    split
        Whose the sites are, as `split_terms` found.
    """
    found, of_rows = Terms({}, {}), {*split.rows, *split.by_row}
    for name, node in samples(traced(model, values, data)):
        (found.rows if name in of_rows else found.prior)[name] = total_of(node)
    return found


def traced(model: Callable[..., Any], values: Mapping[str, Tensor], data: Dataset) -> Any:
    """Return the trace of a model on rows with latent sites at given values. Those with a value for
    each row are repeated or cut where there are more or fewer rows.
    """
    # As blocks, since Pyro's decorators write an error of the user's anew.
    with poutine.trace() as tracer, Given(values):
        model(data.inputs, data.targets)
    return tracer.get_trace()


def samples(trace: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the sites of a trace that have a density: no plates and no deterministic sites."""
    for name, node in trace.nodes.items():
        # `pyro.deterministic` is recorded as an observation, which it is not.
        if (
            node["type"] == "sample"
            and type(node["fn"]).__name__ != "_Subsample"
            and not node["infer"].get("_deterministic")
        ):
            yield name, node


@contextmanager
def as_raised() -> Iterator[None]:
    """Raise an error of a model or guide as it was raised, with the site before it: Pyro's tracing
    makes another one of its text and of shapes.
    """
    last = _Last()
    try:
        with last:
            yield
    except Exception as problem:
        own = problem
        while isinstance(inner := own.__cause__ or own.__context__, Exception) and (
            (type(inner) is type(own) and str(own).startswith(f"{inner}\n"))
            or _where_raised(own).endswith("trace_messenger.py")
        ):
            own = inner
        if last.site:
            own.add_note(f"after site {last.site!r}")
        if own is problem:
            raise
        raise own from own.__cause__


def _where_raised(problem: Exception) -> str:
    return extract_tb(problem.__traceback__)[-1].filename


class _Last(Messenger):
    """The site that a model came to last."""

    site = ""

    def _pyro_post_sample(self, msg: Any) -> None:
        self.site = msg["name"]


def deterministic(trace: Any) -> Tree:
    """Return the values of `pyro.deterministic` sites."""
    return {
        name: node["value"]
        for name, node in trace.nodes.items()
        if node["type"] == "sample" and node["infer"].get("_deterministic")
    }


def axes_of(name: str, node: Node) -> tuple[str, ...]:
    """Return a name for each axis of a site's value: of its plate, or the site's and a number."""
    value = node["value"]
    event = 0 if node["infer"].get("_deterministic") else node["fn"].event_dim
    plates = {
        value.ndim - event + frame.dim: frame.name
        for frame in node["cond_indep_stack"]
        if frame.vectorized and value.shape[frame.dim - event] == frame.size
    }
    return tuple(plates.get(axis, f"{name}_{axis}") for axis in range(value.ndim))


class Given(Messenger):
    """Latent sites at given values, of as many rows as the site has."""

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.values = values

    def _pyro_sample(self, msg: Any) -> None:
        if not msg["is_observed"] and msg["name"] in self.values:
            value, shape = self.values[msg["name"]], tuple(msg["fn"].shape())
            for dim, (has, wants) in enumerate(zip(value.shape, shape, strict=False)):
                if value.ndim == len(shape) and has != wants:
                    places = torch.arange(wants, device=value.device) % has
                    value = value.index_select(dim, places)
            msg["value"], msg["done"] = value, True


def total_of(node: Node) -> Tensor:
    """Return the sum of a site's log density, with its scale and mask."""
    log_prob = node["fn"].log_prob(node["value"])
    total: Tensor = scale_and_mask(log_prob, node["scale"], node["mask"]).sum()
    return total
