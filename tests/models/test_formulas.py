"""Formulas as data: what is read, what each refusal names, and that the design of a formula is that
of NumPy or of formulae on the same rows.
"""

import json
import subprocess
import sys
from pathlib import Path

import formulae
import numpy as np
import pandas as pd
import pytest

from bayesfed.errors import ArgumentError
from bayesfed.models.regression.formulas import (
    ELEMENTWISE,
    FUNCTIONS,
    MAX_CHARACTERS,
    MAX_TERMS,
    NAMESPACE,
    build_design,
    parse_formula,
)
from tests.support.formulas.legal import legal_formulas, problem_of

ROWS = 24
DRAW = np.random.default_rng(5)
FRAME = pd.DataFrame(
    {
        "y": DRAW.normal(size=ROWS),
        "x": DRAW.normal(size=ROWS),
        "z": DRAW.uniform(0.5, 3, ROWS),
        "days": DRAW.integers(1, 9, ROWS).astype(float),
        "won": np.ones(ROWS),
        "ward": np.resize(["east", "north", "west"], ROWS),
        "drug": np.repeat(["a", "b"], ROWS // 2),
        "length of stay": DRAW.normal(size=ROWS),
        "x.1": DRAW.normal(size=ROWS),
    }
)


def columns(formula):
    """The columns of a formula's common terms."""
    return build_design(formula, FRAME).common.design_matrix


def test_a_formula_is_read_to_its_sides_terms_columns_and_functions():
    formula = parse_formula(
        "censored(days + 1, won) ~ np.log(z) * C(ward) + I(drug == 'a') + offset(log(days))"
        " + (1 + scale(x) | ward / drug)"
    )
    assert formula.response == "censored(days + 1, won)"
    assert formula.response_columns == {"days", "won"}
    assert formula.columns == {"z", "ward", "drug", "days", "x"}
    assert formula.functions == {"censored", "log", "C", "I", "offset", "scale"}
    assert formula.compared == {"drug"}
    assert formula.common == (
        *("Intercept", "np.log(z)", "C(ward)", "np.log(z):C(ward)"),
        *("I(drug == 'a')", "offset(log(days))"),
    )
    assert formula.groups == ("1|ward", "1|ward:drug", "scale(x)|ward", "scale(x)|ward:drug")


def test_names_are_data():
    formula = parse_formula("`length of stay` ~ x.1 + größe + `np` + `__class__` + `a ~ b`")
    assert formula.response_columns == {"length of stay"}
    assert formula.columns == {"x.1", "größe", "np", "__class__", "a ~ b"}
    assert formula.response == "`length of stay`"
    assert parse_formula("ward['east'] ~ x").response_columns == {"ward"}
    assert parse_formula("ward[east] ~ x").response == "ward[east]"
    assert parse_formula("y ~ C(ward, Sum) + C(x, Treatment(2))").columns == {"ward", "x"}


# What formulae computes of the same rows, with functions of NumPy.
SAME = [
    "y ~ x + ward",
    "y ~ x * ward - x",
    "y ~ 0 + ward:x",
    "y ~ -1 + drug + ward",
    "y ~ (x + ward + drug)**2",
    "y ~ ward / x",
    "y ~ ward / drug",
    "y ~ (x + z) / drug",
    "y ~ center(x) + scale(z):drug",
    "y ~ standardize(x) + I(scale(x) * z)",
    "y ~ C(ward, Treatment('west')) + C(drug, Sum)",
    "y ~ C(ward, Sum('north')):x",
    "y ~ C(days, Treatment(2))",
    "y ~ np.log(z) + np.sqrt(z) + np.exp(x):ward",
    "y ~ {x / z} + I(x - z * 2)",
    "y ~ `length of stay` + x.1",
    "y ~\n  x\n  + z",
    "y ~ 1",
    "y ~ np.minimum(x, z) + np.where(x > 0, z, 1)",
]


@pytest.mark.parametrize("formula", SAME)
def test_the_design_is_that_of_formulae(formula):
    assert np.allclose(columns(formula), formulae.design_matrices(formula, FRAME).common)


X, Z, DAYS = (FRAME[name].to_numpy() for name in ("x", "z", "days"))
COMPUTED = [
    ("log(z)", np.log(Z)),
    ("log2(z) ", np.log2(Z)),
    ("np.log10(z)", np.log10(Z)),
    ("log1p(z)", np.log1p(Z)),
    ("exp(-x)", np.exp(-X)),
    ("expm1(x)", np.expm1(X)),
    ("sqrt(abs(x))", np.sqrt(np.abs(X))),
    ("floor(z)", np.floor(Z)),
    ("np.ceil(z)", np.ceil(Z)),
    ("sin(2 * 3.14159 * x)", np.sin(2 * 3.14159 * X)),
    ("cos(x)", np.cos(X)),
    ("minimum(x, z)", np.minimum(X, Z)),
    ("maximum(x, 0.5)", np.maximum(X, 0.5)),
    ("mod(days, 3)", DAYS % 3),
    ("I(days % 3)", DAYS % 3),
    ("I(days // 2)", DAYS // 2),
    ("I(2 * days // 3 * 2)", 2 * DAYS // 3 * 2),
    ("clip(x, -1, 1)", np.clip(X, -1, 1)),
    ("where(x > 0, x, 0)", np.where(X > 0, X, 0)),
    ("where(ward == 'east', x, z)", np.where(FRAME["ward"] == "east", X, Z)),
    ("I((x > 0) * (z < 2))", (X > 0) & (Z < 2)),
    ("I('east' != ward)", FRAME["ward"] != "east"),
    ("I(x**2 - (-z)**3 + (2**3)**2)", X**2 + Z**3 + 64),
    ("I(-(x**2))", -(X**2)),
    ("I(x / z / days)", X / Z / DAYS),
    ("I(x - z - days)", X - Z - DAYS),
    ("I(+x)", X),
    ("{log(exp(x)) + I(z)}", X + Z),
    ("center(x)", X - X.mean()),
]


@pytest.mark.parametrize(("term", "values"), COMPUTED, ids=[term for term, _ in COMPUTED])
def test_a_term_is_what_numpy_computes(term, values):
    assert np.allclose(np.squeeze(columns(f"y ~ 0 + {term}")), values)


def test_equal_sums_are_crossed_as_in_r():
    assert parse_formula("y ~ (x + z) * (x + z)").common == ("Intercept", "x", "z", "x:z")
    assert parse_formula("y ~ (x + z) * (x + days)").common[1:4] == ("x", "z", "days")
    # formulae cannot compare these calls.
    both = "(ward + I(x**2)) * (z + log(days))"
    assert len(parse_formula(f"y ~ {both} + offset(log(z)) + offset(2 * z)").common) == 11


def test_a_term_that_adds_nothing_where_it_stands_is_read_in_rs_order():
    late, early = (
        columns(f"y ~ 0 + {terms}") for terms in ("ward + ward:drug + drug", "ward * drug")
    )
    assert late.shape == early.shape
    assert np.linalg.matrix_rank(np.hstack([late, early])) == 6


def test_an_interaction_that_formulae_leaves_incomplete_is_refused():
    frame = FRAME.assign(sex=np.resize([*"fm"], ROWS))
    with pytest.raises(ArgumentError, match="beside those of fewer columns, found none of 'ward:d"):
        build_design("y ~ ward:drug:sex", frame)
    assert build_design("y ~ ward * drug * sex", frame).common.design_matrix.shape == (ROWS, 12)


def test_small_integers_do_not_wrap_in_functions():
    frame = FRAME.assign(small=np.full(ROWS, 200, np.uint8), low=np.full(ROWS, -128, np.int8))
    design = build_design("y ~ 0 + exp(small) + abs(low) + maximum(small, low)", frame).common
    assert np.allclose(design.design_matrix, [np.exp(200.0), 128, 200])


def test_a_formula_of_a_thousand_terms_is_read():
    formula = parse_formula("y ~ " + " + ".join(f"x{number}" for number in range(MAX_TERMS - 1)))
    assert len(formula.common) == MAX_TERMS
    assert len(parse_formula("y ~ a*b*c*d*e*f*g*h").common) == 256


HOSTILE = {
    "function of the list|a function of": [
        "np.savetxt('canary', x)",
        "np.fromfile('/etc/passwd')",
        "np.load('a.npy', allow_pickle=1)",
        "exec('import os')",
        "open('canary', 'w')",
        "getattr(x, 'values')",
        "np.core.multiarray.fromfile(x)",
        "np.log.at(x)",
        "numpy.log(x)",
        "os.system('true')",
        "lоg(x)",
        "\uff4e\uff50.log(x)",
        "T(ward)",
        "binary(ward)",
        "np.center(x)",
        "hsgp(x, m=9)",
    ],
    "each row alone": [
        *("min(x)", "np.mean(x)", "I(x - np.mean(x))", "np.cumsum(x)", "np.roll(x, 1)", "rank(x)"),
        *("np.minimum.accumulate(x)", "offset(x / np.std(x))", "quantile(x, 0.5)", "shift(x)"),
        *("(np.argsort(x) | ward)", "log(max(x))"),
    ],
    "not yet": ["bs(x, df=4)", "cr(x)", "ns(x, 3)", "poly(x, 2)", "weights(z)"],
    "two underscores": ["x.__class__", "I(x.__class__)", "np.__loader__(x)", "log.__globals__(x)"],
    "signs": [
        *("__import__('os')", "x # comment", "x; y", "x\\ny", "x\x00", "x @ z", "x^2", "x & z"),
        *("`x", "'x", "x$y", "I(x ? z : y)", "x\u202e", "_x", "\ud800", "x + \u00b2"),
    ],
    "operator between": [
        *("lambda x: x", "[x for x in y]", "I(x[0])", "f'x'", "I(x if z else y)", "x z", "x |"),
        *("I(x := 3)", "x = 3", "x > 2", "x | ward", "(x", "x)", "log(x,)", "I(not x)", "* x"),
    ],
    "one comparison": ["I(0 < x < 1)", "I(x == 1.5 == 'a')"],
    "the operators": ["I(x | z)", "I(x : z)", "I((x > 1) | (z > 1))"],
    "name of a column": [
        *("I(y['a'])", "y[x]", "(x = 3)", "log(x=z)", "C(log(x))", "scale(log(x))", "C(C(x))"),
        *("scale(1)", "center('x')", "C('x')"),
    ],
    "a contrast": ["C(x, Helmert)", "C(x, eval('1'))", "C(x, 3)", "C(x, Sum(1, 2))"],
    "the keyword": ["C(x, levels=z)", "C(x, Treatment(omit='a'))", "C(x, data=z)"],
    "a category": ["C(x, Treatment(east))", "C(x, Treatment(log(x)))", "C(x, Sum(-'a'))"],
    "contrast that is no column": ["C(ward, Sum) + Sum"],
    "texts after": ["I('a' * 999999999)", "where(x > 1, 'a', 'b')", "log('x')", "offset('x')"],
    "0 or 1": ["'abc'", "x + 2", "x / 2", "1:x", "(1 + x):z", "(x | 1)", "x * 3"],
    "argument": ["log()", "log(x, z)", "I(x, x)", "where(x)", "clip(x)", "C()", "C(x, Sum, z)"],
    "stands here": ["offset(x):z", "(offset(x) | ward)", "p(x, z)", "censored(x, z)"],
    "within a function": ["I(C(x))", "log(offset(x))", "I(p(x, z))"],
    "by its name": ["`log`(x)", "(log)(x)", "log(x)(z)", "'log'(x)", "log[x](x)"],
    "groups that are columns": ["(1 | log(x))", "(x | floor(z))"],
    "a sign of its own": ["-x", "x + -z", "-(1 | ward)"],
    "power of 1 to": ["x**2", "(x + z)**0", "(x + z)**99", "(x + z)**z", "(x + z)**2.0"],
    "one |": ["(x || ward)"],
    "terms with": ["((x | ward) | drug)", "(x | ward):z", "(x > 1)", "x % 2", "x // 2"],
    "names a column": ["I(3)", "log(2)", "offset(3)", "I(2 > 1)"],
    "what is raised": ["I(9**9**9)", "I(-x**2)", "I(x**2**3)"],
    "real numbers": [
        *("I(x + 9**999999999)", "I(x * (9**9)**9)", "I(1 / 0 + x)", "I(x * (0 - 8)**0.5)"),
        *("9" * 20, "9" * 9000, "I(x + 99999 * 99999 * 99999 * 99999)"),
    ],
    "numbers without letters": ["I(1e9 * x)", "I(x * 2j)", "I(0x10 * x)"],
    "digits 0 to 9": ["\u0663", "I(1\u0663 * x)"],
    "columns and numbers": ["True", "I(None)", "C(x, None)"],
    "np.log": ["np", "I(np)"],
    "that can be seen": ["``", "`a\nb`", "C(x, Treatment('\u202e'))", "I(ward == 'a\x00')", "'x\""],
    "each by its name|names of columns": [".", "x + ."],
    "can be combined": ["(0 | ward)"],
    "different names": ["I((x + z) * x) + I(x + z * x)", "`x:z` + x:z"],
    "2 signs in a row": ["---x", "(" * 25 + "x" + ")" * 25, "-" * 5000 + "x", "log(" * 400 + "x"],
    "at most": [
        "*".join("abcdefghijk"),
        ":".join("abcdefghijk"),
        "(" + " + ".join(f"x{number}" for number in range(60)) + ")**4",
        "I(" + " + ".join(f"x{number}" for number in range(400)) + ")",
        " + ".join(f"x{number}" for number in range(MAX_TERMS + 1)),
        "x" * MAX_CHARACTERS,
    ],
    "one ~": ["x ~ z", "(y ~ x)"],
}
CASES = [(term, words) for words, terms in HOSTILE.items() for term in terms]


@pytest.mark.parametrize(("term", "words"), CASES, ids=[ascii(term)[:40] for term, _ in CASES])
def test_what_is_not_on_the_list_is_refused_in_words(term, words):
    with pytest.raises(ArgumentError, match=words) as refused:
        parse_formula(f"y ~ x + {term}" if not term.startswith("*") else f"y ~ {term}")
    text = str(refused.value)
    assert text.isprintable()
    assert len(text) < 600


@pytest.mark.parametrize(
    "formula",
    [
        *("", " ", "y", "y ~", "~ x", "(y ~ x)", "y = x", "scale(y) ~ x", "-y ~ x", "1 ~ x"),
        *("y == 1 ~ x", "y[(z)] ~ x", "y[None] ~ x", "y + z ~ x", "(y | g) ~ x", "exec('1') ~ x"),
        *("min(y) ~ x", "'y' ~ x", "y:z ~ x", "offset(y) ~ x", "I(3) ~ x", 3, None, b"y ~ x"),
    ],
)
def test_what_is_no_response_is_refused(formula):
    with pytest.raises(ArgumentError, match="regression, formula: expected"):
        parse_formula(formula)


@pytest.mark.parametrize(
    ("term", "near"),
    [
        ("lgo(x)", "try log"),
        ("squrt(x)", "try sqrt"),
        ("scal(x)", "try scale"),
        ("np.exp2(x)", "exp"),
    ],
)
def test_a_misspelt_function_is_told_the_nearest(term, near):
    with pytest.raises(ArgumentError, match=near):
        parse_formula(f"y ~ {term}")


def test_a_formula_can_call_the_list_and_nothing_else():
    assert {*NAMESPACE} == {*ELEMENTWISE, "censored", "np"}
    assert {*vars(NAMESPACE["np"])} == {*ELEMENTWISE}
    for name in FUNCTIONS:
        with pytest.raises(ArgumentError, match=name):
            parse_formula("y ~ unlisted(x)")


def test_random_hostile_formulas_are_refused_and_do_nothing():
    """In a process whose audit hook records files, imports, code and sockets."""
    command = [sys.executable, "-m", "tests.support.formulas.watch"]
    options = ["--seed", "1", "--count", "400", "--soup", "300"]
    ended = subprocess.run(
        [*command, *options],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    record = json.loads(ended.stdout.splitlines()[-1])
    assert record["formulas"] == 400
    assert record["through"] == {}
    assert record["raw"] == {}
    assert record["files"] == []
    # The hook sees a formula that is not checked.
    assert "open('canary.txt'" in record["seen"]


def test_random_legal_formulas_are_what_they_mean():
    problems = {one.text: problem for one in legal_formulas(7, 20) if (problem := problem_of(one))}
    assert problems == {}
