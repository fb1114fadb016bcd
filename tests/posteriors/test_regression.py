"""Regressions by formula: coefficients against dense references and against pooled rows, the design
of every kind of term, what is refused, predictions, and posteriors without a site.
"""

import formulae
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

import bayesfed as bf
from bayesfed.errors import (
    ArgumentError,
    ClientError,
    DataError,
    UndeterminedWarning,
)
from bayesfed.inference.exact.form import Form
from bayesfed.inference.exact.own import inside
from bayesfed.inference.exact.traced import doubled, traced
from bayesfed.models.regression.design import Design
from bayesfed.models.regression.model import RegressionModel

SITES = ("a", "b", "c")


def hospital(name, count=40):
    draw = np.random.default_rng([SITES.index(name), 7])
    age, ward = draw.normal(60, 10, count), draw.choice(["east", "west", "north"], count)
    eta = (age - 60) / 10 * 0.6 + 0.5 * (ward == "west")
    days = draw.integers(1, 9, count)
    return pd.DataFrame(
        {
            "age": age,
            "ward": ward,
            "days": days,
            "cost": 100 + 5 * eta + 2 * draw.normal(size=count),
            "died": (draw.random(count) < 1 / (1 + np.exp(-eta))).astype(int),
            "falls": draw.poisson(days * np.exp(eta)),
            "grade": pd.cut(eta + draw.logistic(size=count), [-99, -0.5, 1, 99], labels=[*"xyz"]),
            "won": draw.binomial(days, 1 / (1 + np.exp(-eta))),
            "time": np.exp(eta) * draw.weibull(1.5, count),
            "seen": (draw.random(count) < 0.7).astype(int),
        }
    )


DATA = {name: hospital(name) for name in SITES}
POOLED = pd.concat(DATA.values(), ignore_index=True)


def fit(formula, family="normal", data=None, **options):
    return bf.regression(formula, data or DATA, family=family, progress=False, **options)


@pytest.fixture(scope="module")
def died():
    return fit("died ~ age", "bernoulli")


def grid(log_density, centre, width, size=81):
    """Means and sds of two values whose posterior is summed over a grid of plus or minus 6 sds."""
    axes = [c + w * np.linspace(-6, 6, size) for c, w in zip(centre, width, strict=True)]
    one, two = np.meshgrid(*axes, indexing="ij")
    logs = log_density(one[..., None], two[..., None])
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    means = [(weights * value).sum() for value in (one, two)]
    sds = [
        np.sqrt((weights * (value - mean) ** 2).sum())
        for value, mean in zip((one, two), means, strict=True)
    ]
    return np.array(means), np.array(sds)


def close(table, means, sds, names, within=0.06):
    """Whether a table's rows are a reference's, in its sds; 4,000 draws are within .05."""
    found = table.loc[list(names)]
    assert np.abs((found["mean"] - means) / sds).max() < within
    assert np.abs(found["sd"] / sds - 1).max() < 0.05


def scaled_age():
    age = POOLED["age"].to_numpy()
    return age - age.mean(), age.std()


def test_a_logistic_regression_is_that_of_a_grid(died):
    x, sd = scaled_age()
    y = POOLED["died"].to_numpy()

    def density(intercept, slope):
        eta = intercept + slope * x
        prior = stats.norm.logpdf(intercept[..., 0], 0, 2.5) + stats.norm.logpdf(
            slope[..., 0], 0, 2.5 / sd
        )
        return (y * eta - np.logaddexp(0, eta)).sum(-1) + prior

    means, sds = grid(density, (0.1, 0.06), (0.2, 0.022))
    assert died.status == "exact"
    close(died.table(), means[1:], sds[1:], ["age"])
    # The intercept of the columns as they are, at whose mean the reference has it.
    draws = died.draws(4000)
    centred = draws["Intercept"] + draws["age"] * POOLED["age"].mean()
    assert abs(centred.mean() - means[0]) < 0.06 * sds[0]


def test_a_poisson_regression_with_an_exposure_is_that_of_a_grid():
    found = fit("falls ~ age + offset(log(days))", "poisson")
    x, sd = scaled_age()
    y, offset = POOLED["falls"].to_numpy(), np.log(POOLED["days"].to_numpy())
    start = np.log(y.mean()) - offset.mean()

    def density(intercept, slope):
        eta = intercept + slope * x + offset
        prior = stats.norm.logpdf(intercept[..., 0], start, 2.5)
        return (
            (y * eta - np.exp(eta)).sum(-1) + prior + stats.norm.logpdf(slope[..., 0], 0, 2.5 / sd)
        )

    means, sds = grid(density, (0.15, 0.06), (0.06, 0.006))
    assert found.status == "exact"
    close(found.table(), means[1:], sds[1:], ["age"])


def test_a_normal_regression_is_conjugate_at_every_sigma():
    found = fit("cost ~ age")
    x, sd = scaled_age()
    y, design = POOLED["cost"].to_numpy(), np.column_stack([np.ones(len(x)), x / sd])
    prior = np.array([y.mean(), 0.0])
    logs, means, covariances = [], [], []
    for sigma in (
        sigmas := np.linspace(0.6, 1.6, 200) * np.std(y - design @ np.linalg.lstsq(design, y)[0])
    ):
        width = 2.5 * y.std()
        cover = sigma**2 * np.eye(len(y)) + width**2 * design @ design.T
        gain = width**2 * design.T @ np.linalg.inv(cover)
        means.append(prior + gain @ (y - design @ prior))
        covariances.append(width**2 * (np.eye(2) - gain @ design))
        logs.append(stats.multivariate_normal.logpdf(y, design @ prior, cover) - sigma / y.std())
    weights = np.exp(np.array(logs) - max(logs))
    weights /= weights.sum()
    mean = weights @ np.array(means)
    spread = np.array([np.diag(one) for one in covariances]) + (np.array(means) - mean) ** 2
    close(found.table(), mean[1] / sd, np.sqrt(weights @ spread)[1] / sd, ["age"])
    sigma = weights @ sigmas
    close(found.table(), sigma, np.sqrt(weights @ (sigmas - sigma) ** 2), ["sigma"])
    evidence = np.log(np.exp(np.array(logs) - max(logs)).sum()) + max(logs)
    evidence += np.log((sigmas[1] - sigmas[0]) / y.std())
    assert abs(found.posterior.log_evidence[0] - evidence) < 0.05


FAMILIES = (
    ("cost ~ age + ward", "student_t"),
    ("p(won, days) ~ age * ward", "binomial"),
    ("falls ~ scale(age) + C(ward)", "negative_binomial"),
    ("grade ~ age", "ordinal"),
    ("censored(time, seen) ~ age", "weibull"),
)


def made(formula, family="normal", data=None, missing="refuse"):
    data = data or DATA
    design = Design.of(formula, family, "site", missing, data)
    rows = {name: design.rows(frame, name) for name, frame in data.items()}
    return design, rows, RegressionModel.of(design, list(rows.values()))


@pytest.mark.parametrize(("formula", "family"), FAMILIES)
def test_rows_and_model_of_sites_are_those_of_pooled_rows(formula, family):
    _, rows, model = made(formula, family)
    _, pooled, one = made(formula, family, {"all": POOLED})
    inputs = torch.cat([part.inputs for part in rows.values()])
    # A mean of all sites is that of pooled rows but for rounding, which only `scale` brings in.
    assert torch.allclose(inputs, pooled["all"].inputs, rtol=1e-13, atol=1e-15)
    assert "scale" in formula or torch.equal(inputs, pooled["all"].inputs)
    assert torch.equal(torch.cat([part.targets for part in rows.values()]), pooled["all"].targets)
    assert np.allclose(model.moments, one.moments)
    assert (model.columns, model.classes) == (one.columns, one.classes)
    assert (model.start, model.scale) == pytest.approx((one.start, one.scale))


@pytest.mark.slow
@pytest.mark.parametrize(("formula", "family"), FAMILIES)
def test_every_family_gives_one_site_what_it_gives_several(formula, family):
    several, one = fit(formula, family), fit(formula, family, {"all": POOLED})
    assert several.status == one.status
    two = one.table()
    close(several.table(), two["mean"], two["sd"], two.index, within=0.1)


def test_columns_are_named_and_scaled_by_all_sites():
    design, rows, _ = made("cost ~ scale(age) + C(ward):days")
    assert design.columns[:2] == ("Intercept", "scale(age)")
    scaled = torch.cat([part.inputs[:, 1] for part in rows.values()])
    assert abs(float(scaled.mean())) < 1e-9
    assert float(scaled.std(correction=0)) == pytest.approx(1)
    assert made("cost ~ 1")[0].columns == ("Intercept",)
    # A site without a ward has its column all the same.
    fewer = DATA | {"b": DATA["b"][DATA["b"]["ward"] != "west"]}
    assert made("cost ~ ward", data=fewer)[0].columns == ("Intercept", "ward[north]", "ward[west]")


def test_a_group_that_is_at_one_site_is_its_own():
    wards = {name: frame.assign(bed=name + frame["ward"]) for name, frame in DATA.items()}
    design = made("cost ~ (1 + age | site) + (1 | ward) + (1 | bed)", data=wards)[0]
    assert [(one.name, len(one.levels), one.own) for one in design.groups] == [
        ("1|site", 1, True),
        ("age|site", 1, True),
        ("1|ward", 3, False),
        ("1|bed", 3, True),
    ]
    assert design.names(3, "b") == ("beast", "bnorth", "bwest")
    # A group that no site has, and a site that is new, are predicted from the distribution.
    _, unknown, _ = design.new(wards["b"].assign(bed="new")[:2], "b")
    assert unknown[3].flatten().tolist() == [1, 1]
    assert not unknown[0].any()
    assert design.new(wards["b"], "elsewhere")[1][0].all()


@pytest.mark.slow
def test_effects_of_sites_are_integrated_there_and_stay():
    shifted = {
        name: frame.assign(cost=frame["cost"] + 10 * SITES.index(name))
        for name, frame in DATA.items()
    }
    found = fit("cost ~ age + (1 | hospital)", data=shifted, site="hospital")
    assert "1|hospital" not in found.posterior.values
    assert "1|hospital_sigma" in found.table().index
    known = [found.predict(shifted[name][:5], site=name)["mean"].mean() for name in SITES]
    assert np.allclose(known, [shifted[name]["cost"].mean() for name in SITES], atol=5)
    new = found.predict(shifted["a"][:5])
    assert (new["high"] - new["low"]).min() > 20


def test_sums_hide_sites_and_small_ones_are_refused(died):
    hidden = fit("died ~ age", "bernoulli", secure=3)
    one, two = (each.posterior.constants for each in (hidden, died))
    same = {name: torch.allclose(one[name], two[name], 1e-4, 1e-5) for name in two}
    assert all(same[name] for name in two if name != "k_hat"), same
    assert list(hidden.tables(None)["coefficients"]["without"].unique()) == [""]
    with pytest.raises(ClientError, match="least_rows: expected 41 rows, found 40"):
        fit("died ~ age", "bernoulli", least_rows=41)


def test_a_fit_without_draws_says_so():
    made = bf.running.prepared("falls ~ age", DATA, "poisson")
    with pytest.warns(UndeterminedWarning, match="it ended in the stage 'mode'"):
        result = bf.run(made.algorithm, made.clients, rounds=2, progress=False)
    found = bf.running.Regression(made.design, made.model, result)
    assert repr(found) == "falls ~ age, poisson; status mode"
    huge = {name: frame.assign(falls=1e13 * frame["falls"]) for name, frame in DATA.items()}
    with pytest.raises(ClientError, match="a sum below -1e.12, .* targets from 1e.13 to .*units"):
        fit("falls ~ age", "poisson", huge)


def test_slopes_of_sites_are_integrated_beside_their_levels():
    _, rows, model = made("cost ~ age + (1 + age | site)")
    with doubled():
        found = traced(model, Form.of(rows["a"]), "client")
        point = 0.3 * torch.arange(1, found.size + 1).cos()
        values = found.values(point)
        tau = torch.cat([*model.spreads(values).values()])
        still = {group.name: torch.zeros(1, 1, 1) for group in model.groups}
        for name, part in rows.items():
            mean = model.predictor(values | still, part.inputs)
            age = torch.tensor(DATA[name]["age"].to_numpy() - POOLED["age"].mean())
            each = torch.stack([torch.ones(len(age)), age], 1) * tau
            cover = each @ each.T + values["sigma"] ** 2 * torch.eye(len(age))
            known = stats.multivariate_normal.logpdf(part.targets, mean, cover)
            assert float(inside(found, part, point).log_rows(point)) == pytest.approx(known)


def test_a_site_without_complete_rows_is_no_site():
    holes = {
        name: frame.assign(ward=None) if name == "b" else frame for name, frame in DATA.items()
    }
    formula = "died ~ age + C(ward) + (1 + age | site) + offset(days)"
    with pytest.warns(UserWarning, match="complete rows at each site, found none at 'b'; try a fo"):
        _, rows, model = made(formula, "bernoulli", holes, "drop")
    assert [len(rows[name]) for name in SITES] == [40, 0, 40]
    assert rows["b"].inputs.shape[1] == rows["a"].inputs.shape[1]
    others = made(formula, "bernoulli", {name: DATA[name] for name in "ac"})[2]
    assert model.moments == others.moments


def test_rows_are_predicted_with_intervals(died):
    rows = POOLED.drop(columns="died")
    found = died.predict(rows)
    assert list(found.columns) == ["mean", "mean_low", "mean_high", "low", "high"]
    assert (found.index == rows.index).all()
    assert abs(found["mean"].mean() - POOLED["died"].mean()) < 0.02
    assert found["mean_low"].lt(found["mean"]).all()
    odd = died.predict(rows.assign(ward="elsewhere"), interval=0.5)
    assert odd["mean_low"].gt(found["mean_low"]).all()


def test_intervals_are_drawn_of_all_sites_and_without_each(died):
    axes = died.plot()
    low, high, mean = (died.table()[name].to_numpy() for name in ("low", "high", "mean"))
    drawn = [part.get_segments()[0] for part in axes.collections]
    ends = np.array([line[:, 0] for line in drawn]).reshape(len(mean), 1 + len(SITES), 2)
    sds = died.table()["sd"].to_numpy()
    assert np.allclose(ends[:, 0], np.stack([low - mean, high - mean], 1) / sds[:, None], atol=0.01)
    other = died.without("c").table()
    assert np.allclose(ends[:, 3, 0], (other["low"] - mean) / sds, atol=0.01)
    assert [one.get_text() for one in axes.get_legend().get_texts()] == [
        "all sites: exact",
        *(f"without {name}: exact" for name in SITES),
    ]


def test_a_site_is_left_out(died):
    less = died.without("b")
    refit = fit("died ~ age", "bernoulli", {name: DATA[name] for name in "ac"})
    # Its priors are of other means and sds, which hardly count.
    reference = refit.table().loc[["age"]]
    close(less.table(), reference["mean"], reference["sd"], ["age"], within=0.2)
    with pytest.raises(ArgumentError, match="site"):
        died.without("d")
    with pytest.raises(ArgumentError, match="one of 'a', 'c'"):
        less.without("b")
    with pytest.raises(ArgumentError, match="a pandas frame with rows"):
        less.predict(DATA["a"][:0])
    for ask in (less.draws, lambda draws: less.table(draws=draws)):
        with pytest.raises(ArgumentError, match="a whole number >= 1"):
            ask(0)


def test_what_does_not_fit_is_refused_by_name():
    with pytest.raises(DataError, match=r"site 'a': expected a column 'agee'.*'age'"):
        fit("cost ~ agee")
    with pytest.raises(ArgumentError, match="a formula with a response"):
        fit("cost ~ age +")
    with pytest.raises(ArgumentError, match="formula: expected a formula with a response"):
        bf.running.prepared(3, DATA)
    with pytest.raises(ArgumentError, match="family: expected .*; try 'poisson'"):
        bf.running.prepared("cost ~ age", DATA, "poison")
    with pytest.raises(ArgumentError, match="found 'bs', not yet"):
        fit("cost ~ bs(age, df=4)")
    with pytest.raises(ArgumentError, match=r"the name of a column, found log\(...\)"):
        fit("cost ~ scale(log(age))")
    with pytest.raises(ArgumentError, match="found 'unknown' at character 8"):
        fit("cost ~ unknown(age)")
    with pytest.raises(DataError, match="0 and 1"):
        fit("falls ~ age", "bernoulli")
    with pytest.raises(DataError, match=r"log\(days - 1\)"):
        fit("cost ~ log(days - 1)")
    with pytest.raises(DataError, match="'days'.*more than one value"):
        fit("cost ~ days", data={name: frame.assign(days=2) for name, frame in DATA.items()})
    mixed = DATA | {"b": DATA["b"].assign(ward=1)}
    with pytest.raises(DataError, match="one type at all sites"):
        fit("cost ~ ward", data=mixed)
    with pytest.raises(ArgumentError, match="pandas frames by site"):
        fit("cost ~ age", data={"a": [1, 2]})


@pytest.mark.parametrize(
    "term",
    [
        "I(age - np.mean(age))",
        "np.cumsum(age)",
        "np.roll(age, 1)",
        "np.minimum.accumulate(age)",
        "np.log(age - np.min(age) + 1)",
        "offset(age / np.std(age))",
        "I(np.mean(age) * (age > 75))",
        "(np.argsort(age) | site)",
    ],
)
def test_a_term_of_other_rows_is_refused(term):
    with pytest.raises(ArgumentError, match="functions of each row alone"):
        made(f"cost ~ days + {term}")
    with pytest.raises(ArgumentError, match="regression, formula: expected"):
        made(f"{term} ~ days")


def test_a_column_that_is_compared_with_a_text_is_one_of_categories():
    design, rows, _ = made("cost ~ I(ward == 'west') + where(ward != 'east', age, 0)")
    assert design.columns[1:] == ("I(ward == 'west')", "where(ward != 'east', age, 0)")
    inputs = torch.cat([part.inputs for part in rows.values()])
    assert torch.equal(inputs[:, 1], torch.tensor((POOLED["ward"] == "west").to_numpy()).double())
    known = POOLED["age"].where(POOLED["ward"] != "east", 0).to_numpy()
    assert torch.equal(inputs[:, 2], torch.tensor(known))


@pytest.mark.parametrize("formula", ["cost ~ ward / age", "cost ~ 0 + (ward + grade)**2"])
def test_terms_that_share_a_column_are_those_of_pooled_rows(formula):
    design, rows, _ = made(formula)
    known = formulae.design_matrices(formula, POOLED).common
    inputs = torch.cat([part.inputs for part in rows.values()])[:, : len(design.columns)]
    assert np.allclose(inputs, known.design_matrix)


def test_an_interaction_that_formulae_leaves_incomplete_is_refused():
    coded = {name: frame.assign(old=frame["age"] > 60) for name, frame in DATA.items()}
    coded = {name: frame.assign(old=frame["old"].map(str)) for name, frame in coded.items()}
    with pytest.raises(ArgumentError, match="beside those of fewer columns"):
        made("cost ~ ward:grade:old", data=coded)
    assert len(made("cost ~ ward * grade * old", data=coded)[0].columns) == 18


def test_terms_of_a_row_alone_are_no_terms_of_other_rows():
    formula = "ward['east'] ~ center(age) * C(grade) + np.sqrt(days) + (scale(age) | ward)"
    # Halves of three rows lack categories.
    assert len(made(formula, "bernoulli")[1]) == 3
    small = {"a": POOLED.drop_duplicates("grade")}
    assert len(made("days ~ C(ward) + C(grade)", data=small)[1]["a"]) == 3


@pytest.mark.parametrize(
    ("name", "family"),
    [("sigma", "normal"), ("nu", "student_t"), ("Intercept", "poisson"), ("shape", "weibull")],
)
def test_a_column_may_not_have_the_name_of_a_value_of_the_fit(name, family):
    data = {site: frame.rename(columns={"age": name}) for site, frame in DATA.items()}
    for formula in (f"time ~ 0 + {name}", f"time ~ days + ({name} | site)"):
        with pytest.raises(ArgumentError, match=rf"than '{name}', .*columns=.*'{name}_x'"):
            made(formula, family, data)
    # A family without it has nothing of that name.
    assert name == "Intercept" or made(f"died ~ {name}", "bernoulli", data)


@pytest.mark.parametrize("by", ["days", ["days"]])
def test_names_of_sites_are_texts(by):
    with pytest.raises(ArgumentError, match=r"names of sites: expected texts, .*str\(name\)"):
        fit("cost ~ age", data=dict(list(POOLED.groupby(by))))


def test_categories_that_differ_by_blanks_or_capitals_are_warned_of():
    odd = DATA | {"b": DATA["b"].assign(ward=DATA["b"]["ward"].replace("east", "East "))}
    with pytest.warns(UserWarning, match=r"'ward'.*found \['East ', 'east'\]; try .*str.lower"):
        made("cost ~ ward", data=odd)


def test_missing_values_are_refused_with_their_numbers_or_left_out():
    holes = DATA | {"b": DATA["b"].assign(age=DATA["b"]["age"].where(DATA["b"]["age"] > 50))}
    gone = int((DATA["b"]["age"] <= 50).sum())
    with pytest.raises(DataError, match=rf"site 'b'.*{gone} of 40 rows.*{gone} in 'age'.*drop"):
        fit("cost ~ age", data=holes)
    _, rows, _ = made("cost ~ age", data=holes, missing="drop")
    assert len(rows["b"]) == 40 - gone
    # Columns that the formula does not name may have holes.
    assert len(made("cost ~ ward", data=holes)[1]["b"]) == 40
