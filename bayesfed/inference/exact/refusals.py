"""Why a model cannot be used: its prior depends on rows, it does not run in 64 bits, what is
observed cannot be, a term is no sum over rows, or it has no density where the search begins; and
what a posterior is asked with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributions.constraints import Constraint
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from bayesfed.data import Dataset
from bayesfed.errors import PosteriorError
from bayesfed.errors.roles import Role, role_of
from bayesfed.inference.exact.asking import LOWEST

Nodes = Mapping[str, Mapping[str, Any]]
Kept = Mapping[str, Tensor]
MEMORY = Role(role_of(Kept).fits, "what a site keeps", "result.snapshot.memories['name']")
EVERY = role_of(Mapping[str, Kept]).fits
MEMORIES = Role(EVERY, "what sites keep, by name", "result.snapshot.memories")
NO_SUM = (
    "sums, not means, figures of all rows as constants, or a term of the prior that is finite at "
    "values of order one"
)


def depends(name: str, plate: str) -> PosteriorError:
    """Return the error of a prior that depends on rows."""
    expected = "a prior that is the same for all rows"
    hint = f"constants in place of figures of rows; pyro.plate({plate!r}, ...) around own latents"
    return PosteriorError(f"site {name!r}", expected, "another", hint)


def no_sum(name: str, drawn: bool) -> PosteriorError:
    """Return the error of a term that is no sum over rows, or that draws something."""
    if drawn:
        expected, hint = "the same density at the same values", "pyro.sample, or a constant"
        return PosteriorError(f"site {name!r}", expected, "another each time", hint)
    expected, actual = "a log density that is the sum over rows", "another sum for parts of them"
    return PosteriorError(f"site {name!r}", expected, actual, NO_SUM)


def not_kept(leaf: str, memory: Kept) -> PosteriorError:
    """Return the error of a site that does not keep a leaf of the importance rounds."""
    expected = "what a site keeps of the importance rounds"
    hint = "snapshot.memories[name] of a run in this process, without secure sums"
    return PosteriorError(f"posterior, {leaf}", expected, sorted(memory), hint)


def is_left_out() -> PosteriorError:
    """Return the error of a site whose rows this posterior does not have any more."""
    expected, actual = "a site whose rows are in the posterior", "one that is left out"
    hint = "the memory of another site, or result.posterior, which has all rows"
    return PosteriorError("posterior, memory", expected, actual, hint)


def is_its_own() -> PosteriorError:
    """Return the error of the client whose own latents were drawn given the rows to leave out."""
    expected, actual = "a site other than that of at_client", "the same one"
    hint = "result.posterior.without(memory), which draws no own latents"
    return PosteriorError("posterior, memory", expected, actual, hint)


class Wide(TorchFunctionMode):
    """Make doubles of what a model casts to 32 bits, as labels often are, and of tensors of 32 bits
    where they do not go with doubles, as constants, buffers and frozen weights.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch."""
        wide = (torch.float64 if one is torch.float32 else one for one in args)
        more = kwargs or {}
        if "dtype" in more and more["dtype"] is torch.float32:
            more = {**more, "dtype": torch.float64}
        called: Callable[..., Any] = Tensor.double if func is Tensor.float else func
        given = tuple(wide)
        try:
            return called(*given, **more)
        except RuntimeError as problem:
            if "double" not in str(problem).lower():
                raise
            wider: Any = tree_map(_wider, (given, more))
            return called(*wider[0], **wider[1])


def _wider(one: Any) -> Any:
    return one.double() if isinstance(one, Tensor) and one.dtype is torch.float32 else one


@contextmanager
def in_64_bits() -> Iterator[None]:
    """Work in 64 bits, and say what to try where a model mixes them with others."""
    try:
        with Wide():
            yield
    except RuntimeError as problem:
        if "double" not in str(problem).lower():
            raise
        expected, hint = "a model that runs in 64 bits", "targets.float()"
        raise PosteriorError("federated_svi, model", expected, problem, hint) from problem


def check_observed(nodes: Nodes, others: Nodes) -> None:
    """Check that what is observed can be, wherever that is the same for all latents.

    Parameters
    ----------
    nodes, others
        Nodes of runs on the same rows at different latents.

    Raises
    ------
    PosteriorError
        If a value is outside of the support of its distribution.
    """
    for name, node in nodes.items():
        if not (node["type"] == "sample" and node["is_observed"]):
            continue
        try:
            supports = [one[name]["fn"].support for one in (nodes, others)]
        except NotImplementedError:
            continue
        inside = supports[0].check(node["value"])
        if bool(inside.all()) or not _same(*map(_bounds, supports)):
            continue
        # What a mask leaves out counts for nothing.
        if outside := int((~inside & (node["log_prob"] != 0)).sum()):
            # The bounds of a support may be cells, as trials are, and stay at the site.
            expected, hint = "values in its support", "such values, or another distribution"
            actual = f"{outside} of {inside.numel()} outside of {supports[0]}"
            raise PosteriorError(f"site {name!r}, observed", expected, actual, hint)


def check_started(
    levels: Tensor, runs: Iterable[Nodes], names: Iterable[str], rows: Dataset | None = None
) -> None:
    """Check that a log density is finite at a starting point.

    Parameters
    ----------
    levels
        The log density at each, in two parts, ``(B, 2)``.
    runs
        Nodes of a run at each.
    names
        The sites that the log density is of.
    rows
        The site's rows, whose range is told.

    Raises
    ------
    PosteriorError
        If it is finite at none, with the site of the fewest terms that are not; or so low that a
        message cannot say it.
    """
    if bool((levels.sum(1) > LOWEST / 2).any()):
        return
    expected = f"a finite log density at one of {len(levels)} starting points"
    hint = "a prior of values where it is, softplus(...) in a log or root, or rows in other units"
    terms = [(~nodes[name]["log_prob"].isfinite(), name) for nodes in runs for name in names]
    bad = [(int(out.sum()), out.numel(), f"site {name!r}") for out, name in terms if out.any()]
    number, count, where = min(bad, default=(0, 0, "federated_svi, model"))
    actual = f"at best {number} of {count} terms without one" if bad else f"a sum below {LOWEST:g}"
    for word, leaf in (("inputs", rows.inputs), ("targets", rows.targets)) if rows else ():
        if leaf.numel():
            actual += f", {word} from {float(leaf.min()):.3g} to {float(leaf.max()):.3g}"
    raise PosteriorError(where, expected, actual, hint)


def _bounds(support: Constraint) -> list[Tensor]:
    """Return the numbers in a constraint."""
    found = list[Tensor]()
    for part in vars(support).values():
        found += _bounds(part) if isinstance(part, Constraint) else [torch.as_tensor(part)]
    return found


def _same(one: list[Tensor], two: list[Tensor]) -> bool:
    return len(one) == len(two) and all(map(torch.equal, one, two))
