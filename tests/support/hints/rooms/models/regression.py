"""Messages of `bayesfed.models.regression` and of `bayesfed.regression`, whose frames they tell."""

import datetime
import io
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import torch

import bayesfed as bf
from bayesfed.running.formulas.prepared import prepared
from bayesfed.running.formulas.records import of_record

COMPLETE = (
    # The messages of `formulas` have a room of their own.
    *(f"bayesfed/models/regression/{name}.py" for name in ("categories", "design", "families")),
    *(
        f"bayesfed/models/regression/{name}.py"
        for name in ("frames", "model", "refusals", "tables")
    ),
    "bayesfed/running/formulas",
)
DRAWN = np.random.default_rng(0).normal(size=12)
FRAME = pd.DataFrame(
    {
        "x": DRAWN,
        "y": DRAWN[::-1],
        "cut": pd.cut(DRAWN, [-9, 0, 9], labels=["low", "high"]),
        "grade": pd.Categorical(
            np.where(DRAWN > 0, "high", "low"), categories=["low", "high"], ordered=True
        ),
        "k": np.arange(12) % 3,
        "one": 1.0,
        "hole": np.where(np.arange(12) == 3, np.nan, DRAWN),
        "zero": np.arange(12) % 2,
    }
)


def made(formula, family="normal", data=FRAME, missing="refuse"):
    whole = data is None or isinstance(data, dict) or "site" in data
    frames = data if whole else {"a": data}
    return prepared(formula, frames, family, "site", missing)


def predicted(frame):
    fit = made("y ~ x + cut")
    return fit.design.new(frame, "a")


def counts(frame):
    """Rows of a site that may have no whole numbers."""
    return made("p(k, k) ~ x", "binomial").design.rows(frame, "a")


@cache
def fitted():
    return bf.regression("y ~ x", {"a": FRAME, "b": FRAME}, progress=False)


@cache
def alone():
    """Fit one site."""
    return bf.regression("y ~ x", {"a": FRAME}, progress=False)


def silent():
    """Return a fit whose sites kept nothing, as over a network."""
    fit = fitted()
    snapshot = replace(fit.result.snapshot, memories={})
    return replace(fit, result=replace(fit.result, snapshot=snapshot))


def some(formula):
    """Rows of a site that lacks a category."""
    return made(formula).design.new(FRAME[FRAME["grade"] == "low"], "a")


def texts(data):
    return {name: frame.assign(k=frame["k"].astype(str)) for name, frame in data.items()}


NAMED = FRAME.rename(columns={"x": "sigma"})
SPELT = {"a": texts({"a": FRAME})["a"].assign(k="b"), "b": FRAME.assign(k=["B ", "a"] * 6)}
EMPTY = {"a": FRAME, "b": FRAME.assign(x=np.nan)}


PAIR = FRAME.assign(site=["a", "b", None] * 4)
TWICE = pd.concat([FRAME, FRAME[["x"]]], axis=1)
COMMAS = [f"{v},5;{v * v % 5}" for v in range(12)]
DAYS = pd.to_datetime("2020-03-01") + pd.to_timedelta(np.arange(12) ** 2, "D")
NUMBERED = pd.concat([FRAME, FRAME], ignore_index=True)
ORDERS = {
    name: FRAME.assign(grade=FRAME["grade"].cat.set_categories(order, ordered=True))
    for name, order in (("a", ["low", "high"]), ("b", ["high", "low"]))
}
LISTS = {
    name: frame.assign(grade=frame["grade"].cat.as_unordered()) for name, frame in ORDERS.items()
}


def read(names, lines, delimiter, decimal):
    """Return the frame of a CSV text."""
    text = io.StringIO("\n".join([names, *lines]))
    return pd.read_csv(text, sep=delimiter, decimal=decimal)


HOSPITALS = {"a": FRAME.assign(x1=FRAME["x"], x2=FRAME["x"] ** 2, hospital=FRAME["grade"])}
MIXED = {"a": FRAME, "b": FRAME.assign(k="text")}


def elsewhere():
    """Return a fit whose sites keep their own effects."""
    fit, model = fitted(), made("y ~ x + (1 | site)", data={"a": FRAME, "b": FRAME}).model
    memories = {"a": {"slot.round": torch.zeros(1)}}
    snapshot = replace(fit.result.snapshot, memories=memories)
    return replace(fit, model=model, result=replace(fit.result, snapshot=snapshot))


CASES = [
    (
        lambda: fitted().predict({"x": 1.0}),
        "pandas.DataFrame([{'x': 1.0}])",
        lambda: fitted().predict(pd.DataFrame([{"x": 1.0}])),
    ),
    (
        lambda: bf.regression({"a": FRAME}, "y ~ x"),
        "y ~ x1 + x2 + (1 | hospital)",
        lambda: made("y ~ x1 + x2 + (1 | hospital)", data=HOSPITALS),
    ),
    (
        lambda: bf.regression("zero ~ x", {"a": FRAME}, family="logit"),
        "'bernoulli'",
        lambda: made("zero ~ x", "bernoulli"),
    ),
    (
        lambda: bf.regression("zero ~ x", {"a": FRAME}, family="gamma"),
        "federated_svi(model) with a Pyro model",
        lambda: bf.federated_svi(made("zero ~ x", "bernoulli").model),
    ),
    (
        lambda: made("y ~ k", data=texts({"a": FRAME})),
        "frame['k'].astype(float)",
        lambda: made("y ~ k", data=FRAME.assign(k=texts({"a": FRAME})["a"]["k"].astype(float))),
    ),
    (
        lambda: made("y ~ k", data=texts({"a": FRAME})),
        "C(k)",
        lambda: made("y ~ C(k)", data=texts({"a": FRAME})),
    ),
    (
        lambda: made("censored(k, x) ~ x", "weibull"),
        "event 0 where",
        lambda: made("censored(k + 1, zero) ~ x", "weibull"),
    ),
    (
        lambda: made("y ~ nothing(x)"),
        "a column made before the fit",
        lambda: made("y ~ z", data=FRAME.assign(z=1 * DRAWN**2)),
    ),
    (lambda: made("y ~"), "y ~ x1 + x2", lambda: made("y ~ x + k")),
    (lambda: made("y ~ x +"), "y ~ x1 + x2", lambda: made("y ~ x + k + (1 | cut)")),
    (lambda: made("y ~ xx"), "x", lambda: made("y ~ x")),
    (lambda: made("y ~ hole"), "missing='drop'", lambda: made("y ~ hole", missing="drop")),
    (lambda: made("y ~ C(x)"), "pandas.cut", lambda: made("y ~ cut")),
    (
        lambda: made("y ~ x", data=PAIR),
        "missing='drop'",
        lambda: made("y ~ x", data=PAIR.assign(site=[*"ab"] * 6)),
    ),
    (
        lambda: made("y ~ x", data=PAIR, missing="drop"),
        "frame['site'].fillna('unknown')",
        lambda: made("y ~ x", data=PAIR.assign(site=PAIR["site"].fillna("unknown"))),
    ),
    (
        lambda: made("y ~ x", data={"a": FRAME.assign(site="b")}),
        "frame.drop(columns='site')",
        lambda: made("y ~ x", data={"a": FRAME}),
    ),
    (
        lambda: made("y ~ x", data={"a": TWICE}),
        "frame.loc[:, ~frame.columns.duplicated()]",
        lambda: made("y ~ x", data={"a": TWICE.loc[:, ~TWICE.columns.duplicated()]}),
    ),
    (
        lambda: made("y ~ z", data=FRAME.assign(z=[1, "a"] * 6)),
        "pandas.to_numeric(frame['z'])",
        lambda: made("y ~ z", data=FRAME.assign(z=pd.to_numeric(FRAME["k"].astype(object)))),
    ),
    (
        lambda: made("y ~ z", data=FRAME.assign(z=1j * DRAWN)),
        "frame['z'].abs()",
        lambda: made("y ~ z", data=FRAME.assign(z=(1j * DRAWN))["z"].abs().to_frame().join(FRAME)),
    ),
    (
        lambda: made("y ~ z", data=FRAME.assign(z=DAYS)),
        "(pandas.to_datetime(frame['z']) - pandas.Timestamp('2020-01-01')).dt.days",
        lambda: made("y ~ z", data=FRAME.assign(z=(DAYS - pd.Timestamp("2020-01-01")).days)),
    ),
    (
        lambda: made("y ~ z", data=FRAME.assign(z=DAYS - DAYS[0])),
        "frame['z'].dt.days",
        lambda: made("y ~ z", data=FRAME.assign(z=(DAYS - DAYS[0]).days)),
    ),
    (
        lambda: made("y ~ k", data=FRAME.assign(k=[f"{v},5" for v in range(12)])),
        "pandas.read_csv(..., decimal=',')",
        lambda: made(
            "y ~ k", data=read("k;y", [f"{v},5;{v * v % 5}" for v in range(12)], ";", ",")
        ),
    ),
    (
        lambda: made("y ~ name", data=NUMBERED.assign(name=[f"n{v}" for v in range(24)])),
        "(1 | name)",
        lambda: made("y ~ (1 | name)", data=NUMBERED.assign(name=[f"n{v}" for v in range(24)])),
    ),
    (
        lambda: made("word ~ x", "ordinal", FRAME.assign(word=["low", "high"] * 6)),
        "ordered=True",
        lambda: made("grade ~ x", "ordinal"),
    ),
    (
        lambda: made("y ~ grade", data=ORDERS),
        "frame['grade'].cat.set_categories",
        lambda: made("y ~ grade", data=HOSPITALS),
    ),
    (
        lambda: made("y ~ grade", data=LISTS),
        "frame['grade'].cat.set_categories",
        lambda: made("y ~ grade", data=HOSPITALS),
    ),
    (
        lambda: made("y ~ x + (1 | k)", data={"a": FRAME, "b": FRAME}),
        "(1 | site:k)",
        lambda: made("y ~ x + (1 | site:k)", data={"a": FRAME, "b": FRAME}),
    ),
    (
        lambda: made("word ~ x", "bernoulli", FRAME.assign(word=["b", "w", "e"] * 4)),
        "word['w']",
        lambda: made("word['w'] ~ x", "bernoulli", FRAME.assign(word=["b", "w", "e"] * 4)),
    ),
    (
        lambda: made("word ~ x", "poisson", FRAME.assign(word=["b", "w", "e"] * 4)),
        "family='ordinal'",
        lambda: made("grade ~ x", "ordinal"),
    ),
    (
        lambda: made("y ~ C(k)", data=MIXED),
        "astype(str)",
        lambda: made("y ~ C(k)", data=texts(MIXED)),
    ),
    (
        lambda: made("x ~ k", data={"a": FRAME, "b": FRAME.assign(k=FRAME["k"].astype(str))}),
        "astype(float)",
        lambda: made("x ~ k", data={"a": FRAME, "b": FRAME.assign(k=FRAME["k"].astype(float))}),
    ),
    (lambda: made("y ~ x | grade"), "y ~ x1 + x2", lambda: made("y ~ x + (1 | grade)")),
    (lambda: made("y ~ log(grade)"), "numbers, or C(x)", lambda: made("y ~ C(grade)")),
    (
        lambda: made("y ~ scale(grade)"),
        "columns made before the fit",
        lambda: made("y ~ scale(z)", data=FRAME.assign(z=1.0 * (FRAME["grade"] == "low"))),
    ),
    (
        lambda: made("y ~ z", data=FRAME.assign(z=[datetime.date(2020, 1, 1)] * 12)),
        "pandas.to_datetime(frame['z'])",
        lambda: made("y ~ z", data=FRAME.assign(z=(DAYS - pd.Timestamp("2020-01-01")).days)),
    ),
    (
        lambda: made("y ~ C(grade, Treatment('hihg'))"),
        "'high'",
        lambda: made("y ~ C(grade, Treatment('high'))"),
    ),
    (
        lambda: counts(FRAME.assign(k=0.5)),
        "columns made before the fit",
        lambda: counts(FRAME.assign(k=np.round(0.5))),
    ),
    (lambda missing: fitted().predict(FRAME, missing=missing), "omit"),
    (
        lambda: predicted(FRAME.assign(cut="none")),
        "rows with 'low'",
        lambda: predicted(FRAME.assign(cut="low")),
    ),
    (lambda: made("y ~ x", data=FRAME[:0]), "other rows", lambda: made("y ~ x")),
    (
        lambda: made("y ~ scale(exp(x))"),
        "a column made before the fit",
        lambda: made("y ~ scale(z)", data=FRAME.assign(z=np.exp(DRAWN))),
    ),
    (
        lambda: made("log(zero) ~ x"),
        "other rows",
        lambda: made("log(zero) ~ x", data=FRAME[FRAME["zero"] > 0].assign(zero=DRAWN[:6] ** 2)),
    ),
    (
        lambda: made("scale(y) ~ x"),
        "one made before the fit",
        lambda: made("z ~ x", data=FRAME.assign(z=DRAWN / 2)),
    ),
    (
        lambda: made("y ~ I(np.mean(x) * (x > 1))"),
        "a column made before",
        lambda: made("y ~ z", data=FRAME.assign(z=DRAWN.mean() * (DRAWN > 1))),
    ),
    (
        lambda: made("y ~ sigma", data=NAMED),
        "frame.rename(columns={'sigma': 'sigma_x'})",
        lambda: made("y ~ sigma_x", data=NAMED.rename(columns={"sigma": "sigma_x"})),
    ),
    (
        lambda: made("y ~ k", data=SPELT),
        "frame['k'].str.strip().str.lower()",
        lambda: made(
            "y ~ k",
            data={n: one.assign(k=one["k"].str.strip().str.lower()) for n, one in SPELT.items()},
        ),
    ),
    (
        lambda: made("y ~ x", data=EMPTY, missing="drop"),
        "without the columns",
        lambda: made("y ~ k", data=EMPTY, missing="drop"),
    ),
    (
        lambda: made("y ~ x", data=EMPTY, missing="drop"),
        "frames of other sites",
        lambda: made("y ~ x", data={"a": FRAME}, missing="drop"),
    ),
    (
        lambda: made("y ~ x", data=dict(list(FRAME.groupby("k")))),
        "{str(name): frame for name, frame in data.groupby('site')}",
        lambda: made("y ~ x", data={str(name): frame for name, frame in FRAME.groupby("k")}),
    ),
    (lambda: made("y ~ log(zero)"), "log(x + 1)", lambda: made("y ~ log(zero + 1)")),
    (lambda: made("y ~ x", "poisson"), "such a column", lambda: made("k ~ x", "poisson")),
    (lambda: made("y ~ one"), "leaving it out", lambda: made("y ~ x")),
    (
        lambda: prepared("y ~ x", FRAME, "normal", "home", "refuse"),
        "site='name",
        lambda: prepared("y ~ x", FRAME, "normal", "cut", "refuse"),
    ),
    (
        lambda: prepared("y ~ x", {"a": [1]}, "normal", "site", "refuse"),
        "{'name': pandas",
        lambda: made("y ~ x"),
    ),
    (
        lambda: bf.regression("y ~ x", 3),
        "or running.prepared of made-up frames",
        lambda: bf.running.prepared("y ~ x", {"a": FRAME[:4]}).design.rows(FRAME, "a"),
    ),
    (lambda name: fitted().without(name), "c"),
    (lambda name: fitted().without("a").without(name), "a"),
    (
        lambda: alone().without("a").without("a"),
        "the fit of all sites",
        alone,
    ),
    (
        lambda: silent().without("a"),
        "snapshot.memories[name] of a run in this process, without secure sums",
        lambda: fitted().without("a"),
    ),
    (
        lambda: silent().predict(FRAME, site="a"),
        "snapshot.memories[name] of a run in this process, without secure sums",
        lambda: fitted().predict(FRAME, site="a"),
    ),
    (
        lambda: replace(fitted(), refits=None).without("a"),
        "a fit of the other sites alone",
        lambda: bf.regression("y ~ x", {"b": FRAME}, progress=False),
    ),
    (lambda name: fitted().predict(FRAME, site=name), "c"),
    (
        lambda: elsewhere().predict(FRAME, site="a"),
        'site=""',
        lambda: fitted().predict(FRAME, site=""),
    ),
    (
        lambda: of_record({}),
        "open(folder, algorithm=prepared(...).algorithm)",
        lambda: made("y ~ x").algorithm,
    ),
]
