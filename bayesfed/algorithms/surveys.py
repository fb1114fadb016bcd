"""Phases that ask what clients' rows say of a model and do not train it: `survey`, `Asked`, the
base of their local steps, the sums that these take, `over_rows` and `curvature`, and what such sums
can be, `Bounded`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesfed.compress import Codec
from bayesfed.compress.codecs import exact
from bayesfed.data import Dataset
from bayesfed.errors import UpdateError
from bayesfed.federated import (
    Assignment,
    Digital,
    Kind,
    Link,
    Local,
    Phase,
    Profile,
    Server,
    Update,
    Whole,
)
from bayesfed.federated.core.settings import with_settings
from bayesfed.inference.laplace.roots import roots, sharpest
from bayesfed.inference.laplace.structures import Structure
from bayesfed.keys import Key
from bayesfed.models import Categorical, Likelihood
from bayesfed.trees import Shapes, Tree

# Largest magnitude of what a row makes of a model: an input of a layer, an output, a slope.
LARGEST = 1e5
Limit = tuple[str, Tensor, Tensor | float, Tensor | float]
"""``(what, values, least, most)``, entry by entry."""
Limits = Callable[[Tree, float], Iterator[Limit]]
"""``(payload, rows) -> limits``: what answers about so many rows can be."""


@dataclass(frozen=True)
class Bounded(Whole):
    """Every leaf from every client, within limits.

    Parameters
    ----------
    rows
        Number of the client's rows.
    limits
        What can be.
    """

    rows: float
    limits: Limits

    def lift(self, payload: Tree, weight: float, kind: Kind) -> Update:
        """Return the payload times its weight.

        Raises
        ------
        UpdateError
            As `Whole`, and if a client with a weight is outside of the limits.
        """
        update = super().lift(payload, weight, kind)
        for what, values, *ends in self.limits(payload, self.rows) if weight else ():
            least, most = (torch.as_tensor(end, dtype=torch.float64) for end in ends)
            # Answers travel in single precision, and sums are rounded.
            least, most = least - 1e-3 * least.abs() - 1e-6, most + 1e-3 * most.abs() + 1e-6
            over = torch.maximum(least - values, values - most)
            if values.numel() and float(over.max()) > 0:
                odd = float(values.flatten()[over.flatten().argmax()])
                raise UpdateError(
                    f"payload, {what}",
                    f"what {self.rows:g} rows can make of features and outputs within {LARGEST:g}",
                    f"{odd:g}",
                    "inputs that are scaled to about 1",
                    field="values",
                )
        return update


class Asked:
    """A local step whose payload is a sum or a mean over rows, and that draws nothing: a base of
    such steps.
    """

    kind: ClassVar[Kind] = "moments"
    asks: ClassVar[bool] = True


def survey(
    name: str,
    local: Local,
    server: Server,
    answers: Shapes,
    limits: Limits,
    model: Mapping[str, Tensor],
    link: Link | None = None,
    *,
    up: Codec | None = None,
    by_rows: bool = False,
    owner: str = "",
) -> Phase:
    """Return a phase in which every client sends the same leaves.

    Parameters
    ----------
    name, local, server, owner
        As in `Phase`.
    answers
        Names and shapes of what clients send.
    limits
        What these can be.
    model
        The model, which is sent as it is.
    link
        How answers reach the server. Default: `Digital()` without a bound on norms, since sums over
        many rows are larger than the parameters of a model.
    up
        Codec of the answers. Default: that of the model.
    by_rows
        Whether clients weigh as many as they have rows. If not, each weighs 1.
    """
    down = exact(model)

    @with_settings(answers=answers, by_rows=by_rows, down=down, limits=limits, up=up)
    def assign(state: Tree, round: int, profile: Profile, key: Key) -> Assignment:
        rows = float(profile.samples)
        view = Bounded(answers, rows, limits)
        return Assignment(view, rows if by_rows else 1.0, down, up or down)

    return Phase(name, assign, local, server, link or Digital(max_norm=1e20), owner=owner)


def over_rows(data: Dataset, size: int, of_part: Callable[[Dataset], Tree], zeros: Tree) -> Tree:
    """Return the sums over parts of so many rows of what a function returns of a part, begun with
    zeros of their shapes.
    """
    sums = zeros
    for start in range(0, len(data), size):
        more = of_part(data[slice(start, start + size)])
        sums = {name: total + more[name] for name, total in sums.items()}
    return sums


def curvature(
    structure: Structure,
    net: nn.Module,
    parameters: Tree,
    data: Dataset,
    likelihood: Likelihood,
    size: int,
) -> Tree:
    """Return the sums of a form of the GGN over all rows, taken so many rows at a time."""
    columns, zeros = roots(likelihood), Tree()
    for name, shape in structure.shapes.items():
        zeros[name] = torch.zeros(shape, dtype=torch.float64, device=data.inputs.device)

    def of_part(part: Dataset) -> Tree:
        return structure.sums(net, parameters, part.inputs, columns)[1]

    return over_rows(data, size, of_part, zeros)


def curvature_limits(
    structure: Structure, likelihood: Likelihood, blocks: Tree, floor: float = 0.0
) -> Iterator[Limit]:
    """Yield what means of a form of the GGN over rows can be, with so much added to a diagonal."""
    most = max(1.0, sharpest(likelihood)) * LARGEST**2
    for name in structure.shapes:
        if structure.diagonal:
            yield name, blocks[name], floor, most + floor
        else:
            yield from product_limits(name, blocks[name], most)


def product_limits(what: str, entries: Tensor, most: Tensor | float) -> Iterator[Limit]:
    """Yield what the triangle of a sum of outer products can be: squares up to `most`, and products
    as Cauchy and Schwarz say.
    """
    size = int((8 * len(entries) + 1) ** 0.5 - 1) // 2
    rows, columns = torch.triu_indices(size, size)
    squares = entries[rows == columns].double()
    yield f"squares of {what}", squares, 0.0, most
    root = squares.clamp_min(0).sqrt()
    largest = root[rows] * root[columns]
    yield what, entries, -largest, largest


def nll_limits(nll: Tensor, likelihood: Likelihood, rows: float) -> Limit:
    """Return what the negative log likelihood of so many rows can be."""
    most = 2 * max(1.0, sharpest(likelihood)) * LARGEST**2 * rows
    return "nll", nll, 0.0 if isinstance(likelihood, Categorical) else -most, most


def sums_limits(payload: Tree, rows: float) -> Iterator[Limit]:
    """Yield what NLLs of rows can be, at any temperature from a thousandth on."""
    yield "nll", payload["nll"], 0.0, 2e3 * LARGEST * rows
