"""Messages of `bayesfed.models.regression.formulas`: what a formula may not be."""

import numpy as np
import pandas as pd

from bayesfed.models.regression.formulas import (
    MAX_CHARACTERS,
    MAX_TERMS,
    build_design,
    parse_formula,
    read_formula,
)

COMPLETE = ("bayesfed/models/regression/formulas.py",)
FRAME = pd.DataFrame(
    {
        "y": np.arange(12.0),
        "days": np.arange(12.0) + 1,
        "event": 1.0,
        **{name: np.resize(["a", "b"], 12).repeat(turn)[:12] for turn, name in enumerate("zwv", 1)},
    }
)


def case(wrong, tried, *right):
    """Return a case: what is read, a part of the hint, and what is read where it is followed."""
    return lambda: read_formula(wrong), tried, lambda: [*map(parse_formula, right)]


def terms(count, prefix="x"):
    """A sum of that many columns."""
    return " + ".join(f"{prefix}{number}" for number in range(count))


HINT = "y ~ x1 + x2 + (1 | hospital)"
MADE = "a column made before the fit"
CASES = [
    (lambda: parse_formula(3), HINT, lambda: parse_formula(HINT)),
    (lambda: parse_formula("x"), HINT, lambda: parse_formula(HINT)),
    (
        lambda: build_design("y ~ exp(z)", FRAME),
        "numbers, or C(x)",
        lambda: build_design("y ~ C(z)", FRAME),
    ),
    (
        lambda: build_design("y ~ z:w:v", FRAME),
        "y ~ x * z * w",
        lambda: build_design("y ~ z * w * v", FRAME),
    ),
    (
        lambda: build_design("censored(days, y) ~ 1", FRAME),
        "censored(time, event), event 0 where",
        lambda: build_design("censored(days, event) ~ 1", FRAME),
    ),
    case("y ~ " + "x" * MAX_CHARACTERS, "columns made before the fit", "y ~ x"),
    case("y ~ " + "x" * MAX_CHARACTERS, "fewer terms", "y ~ x"),
    case(" ", HINT, HINT),
    case("y ~ x ~ z", HINT, HINT),
    case("(y ~ x)", HINT, HINT),
    case("y ~ Sum + C(x, Sum)", "C(x, Sum())", "y ~ Sum + C(x, Sum())"),
    case("y ~ x^2", "I(x**2)", "y ~ I(x**2)"),
    case("y ~ my-col$", "`a name` in backticks", "y ~ `my-col$`"),
    case("y ~ ---x", MADE, "y ~ minus_x"),
    case("y ~ I(\u0663 * x)", "0.5", "y ~ I(0.5 * x)"),
    case("y ~ I(x / 99999999999999999999)", "a column in other units", "y ~ x_in_metres"),
    case("y ~ I(x + 10**16)", "a column in other units", "y ~ x_in_metres"),
    case("y ~ True + I(x == True)", "1 and 0, or a column", "y ~ 1 + I(x == 1) + x"),
    case("y ~ C(x, Treatment('west\"))", "'west', or `my column`", "y ~ `my column`"),
    case("y ~ C(x, Treatment('west\"))", "'west'", "y ~ C(x, Treatment('west'))"),
    case("y ~ I(1e5 * x)", "100000, or 0.001", "y ~ I(100000 * x) + I(0.001 * x)"),
    case("y ~ (x || group)", "(x | group), whose", "y ~ (x | group)"),
    case("y ~ .", "y ~ x1 + x2, each by its name", "y ~ x1 + x2"),
    case("y ~ np", "`np` in backticks", "y ~ `np`"),
    case("y ~ x.__class__", "`x.__class__` in backticks", "y ~ `x.__class__`"),
    case("y ~ (x", HINT, "y ~ x1 + x2 + (1 | hospital)"),
    case("y ~ x | group", HINT, "y ~ x1 + x2 + (1 | hospital)"),
    case("y ~ x > 1", "I(x > 1) for a comparison", "y ~ I(x > 1)"),
    case("y[(z)] ~ x", MADE, "y_is_z ~ x"),
    case("y ~ scale(log(x))", MADE, "y ~ scale(log_x)"),
    case("y == 'level' ~ x", "y['level']", "y['level'] ~ x"),
    case("y - 1 ~ x", "I(y - 1)", "I(y - 1) ~ x"),
    case("y ~ (x > 1)", "I(x > 1)", "y ~ I(x > 1)"),
    case("y ~ z * (x | group)", "y ~ x + (1 | group)", "y ~ x + (1 | group)"),
    case("y ~ (x1 + x2)**z", "(x1 + x2)**2", "y ~ (x1 + x2)**2"),
    case("y ~ x**2", "I(x**2)", "y ~ I(x**2)"),
    case(f"y ~ {terms(MAX_TERMS + 1)}", "fewer terms", f"y ~ {terms(MAX_TERMS - 1)}"),
    case("y ~ a:b:c:d:e:f:g:h:i", "an interaction as a column made before", "y ~ all_of_them"),
    case("y ~ -x", "I(-x)", "y ~ I(-x)"),
    case("y ~ 2 * x", "I(2 * x)", "y ~ I(2 * x)"),
    case("y ~ x + 2", "`2` in backticks", "y ~ x + `2`"),
    case("y ~ (1 | log(x))", "(1 | group), of a column", "y ~ (1 | group)"),
    case("scale(y) ~ x", "y ~ x with the column itself", "y ~ x"),
    case("scale(y) ~ x", "one made before the fit", "y_scaled ~ x"),
    case("y ~ I(3)", "I(x + 1)", "y ~ I(x + 1)"),
    case("y ~ p(x, z)", "p(...) ~ x, as the response", "p(x, z) ~ x"),
    case("y ~ x:offset(days)", "y ~ x + offset(log(days))", "y ~ x + offset(log(days))"),
    case("y ~ log(x, z)", "log(x)", "y ~ log(x)"),
    case("y ~ clip(x)", "clip(x, low, high)", "y ~ clip(x, low, high)"),
    case("y ~ `log`(x)", "log(x)", "y ~ log(x)"),
    case("y ~ bs(x)", "I(x**2)", "y ~ I(x**2)"),
    case("y ~ bs(x)", MADE, "y ~ x_1 + x_2"),
    case("y ~ I(x - np.mean(x))", "center(x)", "y ~ center(x)"),
    case("y ~ I(x / np.std(x))", "scale(x)", "y ~ scale(x)"),
    case("y ~ rank(x)", MADE, "y ~ rank_of_x"),
    case("y ~ squrt(x)", "sqrt", "y ~ sqrt(x)"),
    case("y ~ T(x)", "C(x, Treatment('level'))", "y ~ C(x, Treatment('level'))"),
    case("y ~ np.fromfile(x)", MADE, "y ~ x"),
    case("y ~ C(x, Poly)", "C(x, Treatment('level')), or C(x, Sum)", "y ~ C(x, Sum)"),
    case("y ~ C(x, Treatment(level))", "C(x, Treatment('level'))", "y ~ C(x, Treatment('level'))"),
    case("y ~ C(x, levels=z)", "contrast=...", "y ~ C(x, contrast=Sum)"),
    case("y ~ C(x, levels=z)", "an ordered column for an order", "y ~ x"),
    case(f"y ~ I({terms(200)})", MADE, "y ~ the_sum"),
    case("y ~ where(x > 1, 'a', 'b')", "I(x == 'level')", "y ~ I(x == 'level')"),
    case("y ~ I(offset(x))", "a term of its own", "y ~ offset(x)"),
    case("y ~ I((x > 1) | (z > 2))", "I((x > 1) * (z > 2))", "y ~ I((x > 1) * (z > 2))"),
    case("y ~ I(x:z)", "I(x * z) for a product", "y ~ I(x * z)"),
    case("y ~ I(-x**2)", "-(x**2), (-x)**2", "y ~ I(-(x**2))", "y ~ I((-x)**2)"),
    case("y ~ I(x**2**3)", "(x**2)**3", "y ~ I((x**2)**3)"),
    case("y ~ I(1 < x < 3)", "I((x > 1) * (x < 3))", "y ~ I((x > 1) * (x < 3))"),
    case("y ~ (0 | group)", "and 0 or 1 first", "y ~ (0 + x | group)"),
    case("y ~ `x:z` + x:z", "one with another name", "y ~ x_z + x:z"),
    case("y ~ I((x + z) * w) + I(x + z * w)", MADE, "y ~ product + I(x + z * w)"),
]
