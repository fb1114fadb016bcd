"""The matrices of a formula for a frame, and what its columns are: numbers or categories."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from bayesfed.errors import BayesfedError, DataError, needs
from bayesfed.errors.nearness import nearest
from bayesfed.models.regression.formulas import (
    CONTRASTS,
    NAMESPACE,
    build_design,
    describe_terms,
    each_term,
    parse_formula,
    read_formula,
)
from bayesfed.models.regression.frames import Frame

# Name of the intercept in a formula.
INTERCEPT = "Intercept"


def evaluated(formula: str, frame: Frame) -> Any:
    """Return the matrices of a formula for a frame without missing values.

    Raises
    ------
    ArgumentError
        If the formula calls what is not on the list (`formulas.parse_formula`).
    DataError
        If they cannot be made.
    """
    read_formula(formula)
    try:
        with np.errstate(all="ignore"):
            return build_design(formula, frame)
    except BayesfedError:
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
    ArgumentError
        If the formula calls what is not on the list.
    DataError
        If a term cannot be computed.
    """
    variable = needs("formulae.terms.variable", "formulas").Variable
    environment = needs("formulae.environment", "formulas").Environment([NAMESPACE])
    description = describe_terms(formula)
    try:
        with np.errstate(all="ignore"):
            description.set_types(frame, environment)
            components = [component for term in each_term(description) for component in term]
            if description.response is not None:
                description.response.set_type(frame, environment)
                components += description.response.term.components
    except BayesfedError:
        raise
    except Exception as problem:
        raise _refuse_formula(formula, problem) from problem
    types = needs("pandas", "formulas").api.types
    asked = category_columns(formula)
    categories, numbers, bare = set[str](), set[str](), set[str]()
    for component in components:
        for name in name_columns(component):
            # A column of texts in ``I(ward == 'west')`` is one of categories.
            if component.kind == "categoric" or not types.is_numeric_dtype(frame[name].dtype):
                categories.add(name)
            else:
                numbers.add(name)
        if component.kind == "categoric" and isinstance(component, variable):
            bare |= name_columns(component)
    return Kinds(frozenset(categories), frozenset(numbers), frozenset(bare - asked))


def _refuse_formula(formula: str, problem: Exception) -> DataError:
    """Return the error of a formula that cannot be computed for a frame."""
    actual = f"{type(problem).__name__}: {problem}"
    hint = "columns made before the fit, of numbers where the formula computes"
    return DataError(f"formula {formula!r}", "what can be computed", actual, hint)


@cache
def category_columns(formula: str) -> frozenset[str]:
    """Return the columns that a formula makes categories: in ``C(...)``, and the factors of its
    groups.
    """
    description = describe_terms(formula)
    names = set[str]()
    for group in description.group_terms:
        for component in group.factor.components:
            names |= name_columns(component)
    for term in each_term(description):
        for component in term:
            if makes_categories(component):
                names |= name_columns(component)
    return frozenset(names)


def makes_categories(component: Any) -> bool:
    """Return whether a component of a term is a call of ``C``."""
    call = needs("formulae.terms.call", "formulas").Call
    return isinstance(component, call) and bool(component.call.callee == "C")


def name_columns(component: Any) -> frozenset[str]:
    """Return the columns of a component of a term. The contrast of ``C(x, Sum)`` is none."""
    contrasts = frozenset(CONTRASTS) if makes_categories(component) else frozenset[str]()
    return frozenset(component.var_names - {""} - contrasts)


def check_contrasts(formula: str, levels: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise `DataError` if a contrast, as of ``C(x, Treatment('west'))``, names a category that no
    site has.

    Parameters
    ----------
    formula
        The formula.
    levels
        Categories of all sites by column.
    """
    for term in each_term(describe_terms(formula)):
        for component in term:
            if not makes_categories(component):
                continue
            (column,) = name_columns(component)
            known = levels[column]
            for contrast in component.call.args[1:]:
                for argument in getattr(contrast, "args", ()):
                    if argument.value not in known:
                        texts = [str(level) for level in known]
                        near = nearest(str(argument.value), texts) or texts[0]
                        expected = f"a category of {column!r} in {component.name}"
                        hint = repr(near if isinstance(known[0], str) else int(near))
                        raise DataError("regression, formula", expected, repr(argument.value), hint)


def reuse_coding(matrices: Any) -> None:
    """Let calls of matrices that are made code new rows as they coded the first ones.

    ``C(x)`` of rows that lack a category is refused by formulae otherwise.
    """
    box = needs("formulae.categorical", "formulas").CategoricalBox
    environment = needs("formulae.environment", "formulas").Environment
    call = needs("formulae.terms.call", "formulas").Call

    def pass_values(data: Any, *contrast: Any, **options: Any) -> Any:
        return box(np.asarray(data), None, None)

    for term in each_term(matrices.model):
        for component in term:
            if isinstance(component, call):
                outer = component.env.namespace
                component.env = environment([{"C": pass_values}]).with_outer_namespace(outer)


def parsed(formula: str) -> tuple[str, str, frozenset[str], frozenset[str]]:
    """Return the two sides of a formula, and the columns that each names.

    Raises
    ------
    ArgumentError
        If it is no formula with a response, or calls what is not on the list.
    """
    read = parse_formula(formula)
    return read.response, read.predictors, read.response_columns, read.columns


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
