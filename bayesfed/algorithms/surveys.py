"""Phases that ask what clients' rows say of a model and do not train it: `survey`, `Asked`, the
base of their local steps, and the sums that these take, `over_rows` and `curvature`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesfed.compress import Codec
from bayesfed.compress.codecs import exact
from bayesfed.data import Dataset
from bayesfed.federated import Assignment, Digital, Kind, Link, Local, Phase, Profile, Server, Whole
from bayesfed.inference.laplace.roots import roots
from bayesfed.inference.laplace.structures import Structure
from bayesfed.keys import Key
from bayesfed.models import Likelihood
from bayesfed.trees import Shapes, Tree


class Asked:
    """A local step whose payload is a sum or a mean over rows, and that draws nothing: a base of
    such steps.
    """

    kind: ClassVar[Kind] = "moments"


def survey(
    name: str,
    local: Local,
    server: Server,
    answers: Shapes,
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
    view, down = Whole(answers), exact(model)

    def assign(state: Tree, round: int, profile: Profile, key: Key) -> Assignment:
        return Assignment(view, float(profile.samples) if by_rows else 1.0, down, up or down)

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
