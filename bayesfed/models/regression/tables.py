"""The matrices of a formula: formulae's, of terms that share nothing with each other."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from bayesfed.errors import ArgumentError, DataError, needs
from bayesfed.errors.checks import a
from bayesfed.models.regression.frames import Frame

# Name of the intercept in a formula.
INTERCEPT = "Intercept"
FORMULA = a(str, "a formula with a response", "'y ~ x1 + x2 + (1 | hospital)'")
# Functions of formulae whose first argument becomes categories.
CATEGORY_FUNCTIONS = frozenset({"C", "S", "T"})
# Words in a call of these that are no columns.
CONTRASTS = frozenset({"Treatment", "Sum"})


def censored(time: Any, event: Any) -> Any:
    """Return times ``(N,)`` beside 1 where the event was seen and 0 where it was not until then,
    ``(N, 2)``: what a formula calls.

    Raises
    ------
    DataError
        If events are other than 0 and 1.
    """
    made = np.column_stack([np.asarray(time, np.float64), np.asarray(event, np.float64)])
    if not np.isin(made[:, 1], (0, 1)).all():
        hint = "censored(time, event), event 0 where the time is censored"
        raise DataError("censored", "events 0 and 1", np.unique(made[:, 1])[:4], hint)
    return made


NAMES = {"np": np, "log": np.log, "exp": np.exp, "sqrt": np.sqrt, "censored": censored}


def describe_terms(formula: str) -> Any:
    """Return formulae's description of a formula, whose terms have no component in common.

    ``ward / age`` gives ``ward`` and ``ward:age`` the same object otherwise, and coding the second
    changes the first.
    """
    description = needs("formulae", "formulas").model_description(formula)
    for term in description.common_terms:
        if term.kind != "intercept":
            term.components = deepcopy(term.components)
    for term in description.group_terms:
        term.expr = deepcopy(term.expr)
        term.factor = deepcopy(term.factor)
    return description


def read_components(description: Any) -> Iterator[Any]:
    """Yield the components of all terms but the response: columns and calls."""
    for term in description.common_terms:
        if term.kind != "intercept":
            yield from term.components
    for term in description.group_terms:
        if term.expr.kind != "intercept":
            yield from term.expr.components
        yield from term.factor.components


def evaluated(formula: str, frame: Frame) -> Any:
    """Return the matrices of a formula for a frame without missing values.

    Raises
    ------
    DataError
        If they cannot be made.
    """
    matrices = needs("formulae.matrices", "formulas").DesignMatrices
    environment = needs("formulae.environment", "formulas").Environment([NAMES])
    try:
        with np.errstate(all="ignore"):
            return matrices(describe_terms(formula), frame, environment)
    except DataError:
        raise
    except Exception as problem:
        raise _refuse_formula(formula, problem) from problem


class Kinds(NamedTuple):
    """What columns of a formula are.

    Parameters
    ----------
    categories
        Columns that are categories somewhere in the formula.
    numbers
        Columns that are numbers somewhere.
    bare
        Columns that are categories since they are texts: no ``C(...)`` and no group asks for it.
    """

    categories: frozenset[str]
    numbers: frozenset[str]
    bare: frozenset[str]


def classify_columns(formula: str, frame: Frame) -> Kinds:
    """Return which columns of a formula are categories, and which are numbers, for a frame.

    Nothing is coded, so a column may have one category alone.

    Raises
    ------
    DataError
        If a term cannot be computed.
    """
    variable = needs("formulae.terms.variable", "formulas").Variable
    environment = needs("formulae.environment", "formulas").Environment([NAMES])
    description = describe_terms(formula)
    try:
        with np.errstate(all="ignore"):
            description.set_types(frame, environment)
            components = [*read_components(description)]
            if description.response is not None:
                description.response.set_type(frame, environment)
                components += description.response.term.components
    except DataError:
        raise
    except Exception as problem:
        raise _refuse_formula(formula, problem) from problem
    asked = category_columns(formula)
    categories, numbers, bare = set[str](), set[str](), set[str]()
    for component in components:
        names = name_columns(component)
        if component.kind == "categoric":
            categories |= names
            if isinstance(component, variable):
                bare |= names
        else:
            numbers |= names
    return Kinds(frozenset(categories), frozenset(numbers), frozenset(bare - asked))


def _refuse_formula(formula: str, problem: Exception) -> DataError:
    """Return the error of a formula that cannot be computed for a frame."""
    actual = f"{type(problem).__name__}: {problem}"
    hint = f"columns made before the fit; known are {', '.join(NAMES)}, scale, center, C"
    return DataError(f"formula {formula!r}", "what can be computed", actual, hint)


@cache
def category_columns(formula: str) -> frozenset[str]:
    """Return the columns that a formula makes categories: in ``C(...)``, and the factors of its
    groups.
    """
    description = describe_terms(formula)
    names = set[str]()
    for term in description.group_terms:
        for component in term.factor.components:
            names |= name_columns(component)
    for component in read_components(description):
        if makes_categories(component):
            names |= name_columns(component)
    return frozenset(names)


def makes_categories(component: Any) -> bool:
    """Return whether a component of a term is a call of `CATEGORY_FUNCTIONS`."""
    call = needs("formulae.terms.call", "formulas").Call
    return isinstance(component, call) and component.call.callee in CATEGORY_FUNCTIONS


def name_columns(component: Any) -> frozenset[str]:
    """Return the columns of a component of a term. The contrast of ``C(x, Sum)`` is none."""
    contrasts = CONTRASTS if makes_categories(component) else frozenset[str]()
    return frozenset(component.var_names - {""} - contrasts)


def reuse_coding(matrices: Any) -> None:
    """Let calls of matrices that are made code new rows as they coded the first ones.

    ``C(x)`` of rows that lack a category is refused by formulae otherwise.
    """
    box = needs("formulae.categorical", "formulas").CategoricalBox
    environment = needs("formulae.environment", "formulas").Environment
    call = needs("formulae.terms.call", "formulas").Call

    def pass_values(data: Any, *contrast: Any, **options: Any) -> Any:
        return box(np.asarray(data.data if isinstance(data, box) else data), None, None)

    functions = dict.fromkeys(CATEGORY_FUNCTIONS, pass_values)
    terms = [*(matrices.common.terms.values() if matrices.common else ())]
    for term in matrices.group.terms.values() if matrices.group else ():
        terms += [term.expr, term.factor]
    for term in terms:
        for component in term.components if term.kind != "intercept" else ():
            if isinstance(component, call):
                outer = component.env.namespace
                component.env = environment([functions]).with_outer_namespace(outer)


@cache
def parsed(formula: str) -> tuple[str, str, frozenset[str], frozenset[str]]:
    """Return the two sides of a formula, and the columns that each names.

    Raises
    ------
    ArgumentError
        If it is no formula with a response.
    """
    formulae, (left, mark, right) = needs("formulae", "formulas"), formula.partition("~")
    expected, hint = FORMULA.expected, FORMULA.hint
    if not (left.strip() and mark and right.strip()):
        raise ArgumentError("regression, formula", expected, repr(formula), hint)
    try:
        response = formulae.model_description(f"{left} ~ 1").response.term.components
        terms = [*read_components(describe_terms(right))]
    except Exception as problem:
        raise ArgumentError("regression, formula", expected, problem, hint) from problem
    names, others = (
        frozenset(name for component in side for name in name_columns(component))
        for side in (response, terms)
    )
    return left.strip(), right.strip(), names, others


class Group(NamedTuple):
    """A term ``(EXPR | FACTOR)``.

    Parameters
    ----------
    name, factor
        Its name, ``x|hospital``, and that of its factor.
    columns
        Names of the q columns of the expression.
    levels
        Names of the L groups; of a site's own they are numbers, of as many as a site has at most.
    own
        Whether each group is at one site, as where groups are sites or wards of them.
    """

    name: str
    factor: str
    columns: tuple[str, ...]
    levels: tuple[str, ...]
    own: bool

    @property
    def spread(self) -> str:
        """Name of the site of its sds."""
        return f"{self.name}_spread"

    @property
    def size(self) -> int:
        """L q, the number of columns that it has in the rows."""
        return len(self.columns) * len(self.levels)
