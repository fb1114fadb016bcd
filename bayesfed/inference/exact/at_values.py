"""What a model says at values of its sites, in their own space: its nodes, deterministic sites, and
what weights of points say of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pyro import poutine
from torch import Tensor
from torch.func import vmap

from bayesfed.errors import DataError, PosteriorError
from bayesfed.errors.checks import shown
from bayesfed.inference.exact import stages
from bayesfed.inference.exact.drawn import unconstrained
from bayesfed.inference.exact.form import Form
from bayesfed.inference.exact.refusals import Wide
from bayesfed.inference.exact.traced import Traced, doubled
from bayesfed.inference.variational.posterior import Drawn
from bayesfed.inference.variational.program import Runs
from bayesfed.inference.variational.terms import Given
from bayesfed.keys import Key, forked
from bayesfed.trees import Tree

STREAM = Key(0, "nodes")
# Draws for each value, of which mean and covariance are taken.
DRAWS = 40


def nodes(
    model: Runs, values: Mapping[str, Tensor], *leaves: Tensor, key: Key = STREAM
) -> Mapping[str, Any]:
    """Return the nodes of a run on inputs, and targets if they are given, in 64 bits.

    Parameters
    ----------
    model
        ``model(inputs, targets=None)``.
    values
        Values of sites; others are drawn.
    leaves
        Inputs, or inputs and targets.
    key
        Names what is drawn.

    Raises
    ------
    DataError
        If the model does not take the inputs.
    """
    wide = [leaf.double() if leaf.is_floating_point() else leaf for leaf in leaves]
    given = {name: leaf.double().to(wide[0].device) for name, leaf in values.items()}
    try:
        tracer, at = poutine.trace(), Given(given)
        with doubled(), Wide(), forked(key), torch.no_grad(), tracer, at:
            model(*wide)
    except (RuntimeError, ZeroDivisionError) as problem:
        actual = f"{shown(leaves[0])}: {str(problem).splitlines()[0]}"
        hint = "rows of the width and type that were fitted, at least one"
        raise DataError("predictions", "inputs that the model takes", actual, hint) from problem
    found: Mapping[str, Any] = tracer.get_trace().nodes
    return found


def everywhere(made: Traced, points: Tensor) -> Tree:
    """Return the values of all shared sites at points ``(n, d)``, one by one where a model cannot
    be vectorised.
    """
    with doubled():
        try:
            found: Tree = vmap(made.values, chunk_size=1024)(points)
        except (RuntimeError, ValueError):
            found = stages.stacked([made.values(point) for point in points])
    return found


def beside(made: Traced, points: Tensor) -> Tensor:
    """Return points and the values of all shared sites there, side by side, ``(n, m)``."""
    leaves = everywhere(made, points).values()
    return torch.cat([points, *(leaf.reshape(len(points), -1) for leaf in leaves)], 1)


def moments(weights: Tensor, leaf: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and sd of weighted values ``(n, ...)``."""
    mean = torch.tensordot(weights, leaf, 1)
    return mean, torch.tensordot(weights, (leaf - mean).square(), 1).sqrt()


def constant(model: Runs, values: Mapping[str, Tensor], form: Form) -> list[str]:
    """Return the names of the deterministic sites that no rows enter: the same for other rows."""
    one, two = (
        {
            name: node["value"]
            for name, node in nodes(model, values, rows.inputs, rows.targets).items()
            if node["type"] == "sample" and node["infer"].get("_deterministic")
        }
        for rows in (form.rows(1), form.rows(2))
    )
    return [name for name, leaf in one.items() if name in two and torch.equal(leaf, two[name])]


def gaussian_of(posterior: Drawn, made: Traced, whole: int) -> tuple[Tensor, Tensor]:
    """Return the mean ``(d,)`` of a posterior's unconstrained values, and a root of their
    covariance, ``(d, d)``; their sds ``(d,)`` where there are more than `whole`.

    Raises
    ------
    PosteriorError
        If the posterior has not all sites of the model.
    """
    values, rows = list[Tensor](), made.rows
    for number in range(min(max(DRAWS * made.size, 400), 2000)):
        draw = posterior.draw(Key(0, "around", number))
        if missing := made.slots.keys() - draw.keys():
            hint = "the model that was fitted"
            raise PosteriorError("federated_svi, guide", "all sites", f"no {min(missing)!r}", hint)
        found = nodes(made.model, draw, rows.inputs, rows.targets)
        values.append(unconstrained(found[name] for name in made.slots))
    drawn = torch.stack(values)
    root = drawn.std(0) if made.size > whole else torch.linalg.cholesky(drawn.T.cov())
    return drawn.mean(0), root
