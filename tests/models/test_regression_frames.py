"""Frames as statisticians have them: types of columns, names of sites, orders of categories,
missing cells, indices that repeat.
"""

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch

import bayesfed as bf
from bayesfed.errors import ArgumentError, DataError
from bayesfed.models.regression.categories import Summary, merge_all, merge_orders
from bayesfed.models.regression.frames import convert_column, name_site
from bayesfed.running.formulas.prepared import prepared

RNG = np.random.default_rng(3)
COUNT = 120
FRAME = pd.DataFrame(
    {
        "site": np.resize(["A", "B", "C"], COUNT),
        "x": RNG.normal(size=COUNT),
        "age": RNG.integers(30, 90, COUNT),
        "ward": RNG.choice(["east", "north", "west"], COUNT),
        "sex": RNG.choice(["f", "m"], COUNT),
        "y": RNG.normal(size=COUNT),
    }
)
ORDER = ["none", "mild", "severe"]


def design_of(formula, data=FRAME, family="normal", **options):
    return prepared(formula, data, family, **options)


def rows_of(regression):
    """Return the columns of the design for the rows of all sites."""
    count = len(regression.design.columns)
    return np.concatenate([rows.inputs[:, :count].numpy() for rows in regression.clients.values()])


def pooled(column_names, data=FRAME):
    """Return columns of the pooled frame in the order of the sites."""
    return data.sort_values("site", kind="stable")[column_names].to_numpy()


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "float32", "Int64", "object"])
def test_numbers_of_any_type_are_those_of_float64(kind):
    wide = FRAME.assign(weeks=FRAME["age"] // 2 + 3 * (FRAME["sex"] == "f"))
    narrow = wide.astype({"age": kind, "weeks": kind})
    formula = "y ~ I(age**2) + age:weeks + I(weeks - age) + scale(age)"
    assert np.array_equal(rows_of(design_of(formula, narrow)), rows_of(design_of(formula, wide)))
    assert design_of(formula, narrow).model == design_of(formula, wide).model


def test_flags_with_blanks_and_decimals_are_numbers():
    flags = (FRAME["x"] > 0).astype(object).where(FRAME.index != 7)
    data = FRAME.assign(flag=flags, price=[Decimal(int(age)) for age in FRAME["age"]])
    made = design_of("y ~ flag + price", data, missing="drop")
    expected = data.assign(flag=data["flag"] == True).drop(index=7)  # noqa: E712
    assert np.array_equal(rows_of(made)[:, 1:], pooled(["flag", "age"], expected).astype(float))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (pd.date_range("2020-01-01", periods=COUNT), r"'v', found the type datetime64.*\.dt\.days"),
        (pd.to_timedelta(np.arange(COUNT), "D"), r"'v', found the type timedelta.*\.dt\.days"),
        (pd.period_range("2020-01", periods=COUNT, freq="M"), "'v', found the type period"),
        ([datetime.date(2020, 1, 1)] * COUNT, "'v', found the type date"),
        (1j * FRAME["x"], "'v', found the type complex128"),
        ([1, "a", 2.0] * 40, r"one type at all sites, found .*str"),
        ([1, 2, "a", "b"] * 30, r"one type in column 'v', found values of int, str"),
        (FRAME["x"].map("{:.2f}".format), r"'v': expected numbers, .*astype\(float\)"),
        (FRAME["x"].map("{:.2f}".format).str.replace(".", ","), "'v'.*decimal=','.*thousands=','"),
        ((FRAME["age"] * 1000).map("{:,}".format), "'v'.*thousands=','.*decimal=','"),
        (FRAME["age"].map(lambda age: str(age) if age > 50 else "<50"), "'v'.*errors='coerce'"),
        (pd.date_range("2020-01-01", periods=COUNT).astype(str), "'v': expected dates as numbers"),
        ([f"patient {number}" for number in range(COUNT)], "'v': expected fewer categories"),
    ],
    ids=[
        *("dates", "spans", "periods", "days", "complex", "mixed by site", "mixed", "texts"),
        *("decimal comma", "thousands", "limit", "ISO dates", "names"),
    ],
)
def test_a_column_that_is_no_number_and_no_category_is_refused_by_name(values, words):
    with pytest.raises(DataError, match=words):
        design_of("y ~ x + v", FRAME.assign(v=list(values)))


def test_a_column_of_texts_that_is_meant_is_a_category():
    data = FRAME.assign(code=FRAME["age"].astype(str))
    number = data["code"].nunique()
    assert len(design_of("y ~ C(code)", data).design.columns) == number
    assert design_of("y ~ (1 | site:code)", data).design.groups[0].own


def test_an_sd_far_from_zero_is_not_lost():
    seconds = 1.7e9 + RNG.uniform(0, 3600, COUNT)
    _, sd = design_of("y ~ t", FRAME.assign(t=seconds)).model.moments[1]
    assert sd == pytest.approx(seconds.std(), rel=1e-6)
    with pytest.raises(DataError, match="'t'.*more than one value"):
        design_of("y ~ t", FRAME.assign(t=1.7e9))


def test_moments_of_sites_are_those_of_pooled_values():
    parts = [RNG.normal(5, 2, size) for size in (1, 7, 30)]
    mean, sd = merge_all([Summary.of(part) for part in parts]).moments
    together = np.concatenate(parts)
    assert (mean, sd) == pytest.approx((together.mean(), together.std()), rel=1e-14)


@pytest.mark.parametrize(
    ("value", "name"),
    [(3, "3"), (3.0, "3"), ("3", "3"), (np.int8(3), "3"), ("007", "007"), (2.5, "2.5")],
)
def test_a_site_has_one_name(value, name):
    assert name_site(value) == name


@pytest.mark.parametrize("empty", [None, np.nan, pd.NA, pd.NaT, "", "  "])
def test_an_empty_cell_is_no_site(empty):
    assert name_site(empty) is None


def test_sites_that_are_numbers_are_one_site_in_all_types():
    numbers = FRAME["site"].map({"A": 1, "B": 2, "C": 10})
    made = [
        design_of("y ~ x + (1 | hospital)", FRAME.assign(hospital=column), site="hospital")
        for column in (numbers, numbers.astype(float), numbers.astype(str))
    ]
    assert [*made[0].clients] == ["1", "10", "2"]
    for other in made[1:]:
        assert other.design == made[0].design
        assert other.design.homes == made[0].design.homes
    # Numbers are in the order of numbers.
    new = FRAME.assign(hospital=numbers)[:3]
    fixed = design_of("y ~ x + hospital", FRAME.assign(hospital=numbers), site="hospital")
    assert fixed.design.columns[2:] == ("hospital[2]", "hospital[10]")
    inputs, _, _ = fixed.design.new(new.assign(hospital=[10.0, 2.0, 1.0]), "")
    assert inputs[:, 2:4].tolist() == [[0, 1], [1, 0], [0, 0]]


def test_rows_without_a_site_are_counted():
    data = FRAME.assign(site=FRAME["site"].where(FRAME.index > 9).replace("B", " "))
    empty = int(data["site"].isna().sum() + (data["site"] == " ").sum())
    with pytest.raises(DataError, match=rf"'site'.*{empty} of {COUNT} rows without one"):
        design_of("y ~ x", data)
    with pytest.warns(UserWarning, match=rf"{empty} of {COUNT} rows without one, dropped"):
        made = design_of("y ~ x", data, missing="drop")
    assert sum(map(len, made.clients.values())) == COUNT - empty


def test_a_frame_belongs_to_the_site_of_its_key():
    frames = {"A": FRAME[FRAME["site"] == "A"], "B": FRAME[FRAME["site"] != "A"]}
    with pytest.raises(DataError, match="site 'B': .*'site', found 40 of 80 rows of others"):
        design_of("y ~ x", frames)
    with pytest.raises(DataError, match="site 'Basel'"):
        design_of("y ~ x", {"Basel": frames["A"]})
    made = design_of("y ~ x", {"A": frames["A"]})
    with pytest.raises(DataError, match="site 'A'.*of others"):
        made.design.new(FRAME, "A")
    with pytest.raises(DataError, match="one column 'x', found 2"):
        design_of("y ~ x", {"A": pd.concat([frames["A"], frames["A"][["x"]]], axis=1)})


def test_orders_of_sites_are_one_order():
    assert merge_orders([("a", "b", "d"), ("b", "c", "d")]) == ("a", "b", "c", "d")
    assert merge_orders([("a", "b"), ("b", "a")]) is None
    assert merge_orders([("west", "east"), ("west", "north")]) == ("west", "east", "north")


def ordinal(orders):
    """Return frames whose response has an order by site, or is a text where that is None."""
    values = {"A": ORDER, "B": ORDER, "C": ORDER[:2]}
    frames = {}
    for number, (site, order) in enumerate(orders.items()):
        rows = FRAME[number::3].drop(columns="site")
        pain = np.resize(values[site], len(rows))
        frames[site] = rows.assign(
            pain=pain if order is None else pd.Categorical(pain, order, ordered=True)
        )
    return frames


def test_an_ordinal_response_has_one_order():
    whole = design_of("pain ~ x", ordinal({"A": ORDER, "B": ORDER, "C": ORDER}), "ordinal")
    assert whole.design.classes == tuple(ORDER)
    for orders in (
        {"A": ORDER, "B": ORDER, "C": ORDER[:2]},
        {"A": ORDER, "B": None, "C": None},
        {"A": ORDER, "B": None, "C": ORDER[:2]},
    ):
        made = design_of("pain ~ x", ordinal(orders), "ordinal")
        assert made.design.classes == tuple(ORDER)
        for site, rows in made.clients.items():
            assert torch.equal(rows.targets, whole.clients[site].targets)


@pytest.mark.parametrize(
    ("orders", "words"),
    [
        ({"A": None, "B": None}, "'pain': expected an order of the response, .*ordered=True"),
        ({"A": ORDER, "B": ORDER[::-1]}, "one order at all sites, .*at 'A'; severe, mild, none at"),
        # Where "severe" stands beside "none" is not said.
        ({"A": ORDER, "C": ["mild", "none"]}, "one order at all sites"),
    ],
)
def test_an_ordinal_response_without_one_order_is_refused(orders, words):
    with pytest.raises(DataError, match=words):
        design_of("pain ~ x", ordinal(orders), "ordinal")


def test_the_first_category_of_a_column_is_the_reference():
    ward = pd.Categorical(FRAME["ward"], ["west", "east", "north", "nowhere"])
    made = design_of("y ~ ward", FRAME.assign(ward=ward))
    assert made.design.columns == ("Intercept", "ward[east]", "ward[north]")
    same = design_of("y ~ C(ward, Treatment('west'))")
    assert np.array_equal(rows_of(made), rows_of(same))
    total = rows_of(design_of("y ~ C(ward, Sum)"))
    wards = pooled(["ward"])[:, 0]
    assert (total[wards == "west", 1:] == -1).all()
    assert np.array_equal(total[:, 1], (wards == "east") * 1.0 - (wards == "west"))
    other = {"A": FRAME[::2].assign(ward=ward[::2]), "B": FRAME[1::2].assign(ward=ward[1::2])}
    reverse = ["north", "east", "west"]
    other = {name: rows.drop(columns="site") for name, rows in other.items()}
    other["B"]["ward"] = other["B"]["ward"].cat.set_categories(reverse)
    with pytest.warns(UserWarning, match="'ward'.*one order.*sorted until then"):
        made = design_of("y ~ ward", other)
    assert made.design.columns[1:] == ("ward[north]", "ward[west]")
    with pytest.raises(DataError, match="category of 'ward' in .*found 'wets'; try 'west'"):
        design_of("y ~ C(ward, Treatment('wets'))")


@pytest.mark.parametrize(
    "formula",
    [
        "y ~ x * ward",
        "y ~ x * site",
        "y ~ ward / x",
        "y ~ ward / sex",
        "y ~ (ward + sex)**2",
        "y ~ ward:x + sex",
        "y ~ 0 + ward * sex",
        "y ~ C(ward, Sum) * x",
        "y ~ I(ward == 'west') * x",
    ],
)
def test_terms_of_categories_are_coded_as_for_pooled_rows(formula):
    """Also where a site has one category: all sites together have the others."""
    data = FRAME.assign(ward=FRAME["ward"].where(FRAME["site"] != "A", "east"))
    several = design_of(formula, data)
    one = design_of(formula, {"all": data.assign(place=data["site"])}, site="client")
    order = data["site"].argsort(kind="stable").to_numpy()
    assert several.design.columns == one.design.columns
    assert np.array_equal(rows_of(several), rows_of(one)[order])
    # A design of full rank: no column is coded twice.
    assert np.linalg.matrix_rank(rows_of(one)) == len(one.design.columns)


def test_groups_that_every_site_numbers_are_asked_about():
    data = FRAME.assign(patient=np.arange(COUNT) // 3 % 20, bed=FRAME["site"] + "-bed")
    with pytest.warns(UserWarning, match=r"\(1 \| site:patient\).*keep \(1 \| patient\)"):
        design_of("y ~ x + (1 | patient)", data)
    # No question: a site's own name, texts that are at one site, texts that are words.
    made = design_of("y ~ x + (1 | site:patient) + (1 | bed) + (1 | ward)", data)
    assert [group.own for group in made.design.groups] == [True, True, False]


def test_groups_are_known_whatever_type_they_have():
    data = FRAME.assign(bed=FRAME["site"].map({"A": 1, "B": 2, "C": 3}))
    made = design_of("y ~ x + (1 | bed)", data)
    for column in (data["bed"].astype(float), data["bed"].astype(str), data["bed"].astype("int8")):
        rows = data.assign(bed=column)[:9]
        _, unknown, _ = made.design.new(rows[rows["site"] == "A"], "A")
        assert not unknown[0].any()
    _, unknown, _ = made.design.new(data[:1].assign(bed=4), "A")
    assert unknown[0].all()


@pytest.fixture(scope="module")
def fit():
    return bf.regression("y ~ x + ward", FRAME, progress=False)


def test_a_row_gets_a_prediction_in_its_place(fit):
    rows = FRAME.drop(columns="y")
    expected = fit.predict(rows)
    repeated = rows.set_axis(np.arange(COUNT) % 7)
    found = fit.predict(repeated)
    assert found.index.tolist() == repeated.index.tolist()
    assert np.array_equal(found.to_numpy(), expected.to_numpy())
    shuffled = rows.sample(frac=1, random_state=0)
    # Draws of a new response go with their place; means do not.
    assert np.allclose(fit.predict(shuffled)["mean"], expected["mean"].loc[shuffled.index])
    table = fit.tables(repeated)["predictions"]
    assert len(table) == COUNT
    assert table["x"].tolist() == rows["x"].tolist()


def test_missing_cells_of_new_rows_are_refused_or_left_out(fit):
    rows = FRAME[["x", "ward"]].assign(x=FRAME["x"].where(FRAME.index != 4))
    with pytest.raises(DataError, match="1 of 120 rows with missing values.*missing='drop'"):
        fit.predict(rows)
    left = fit.predict(rows, missing="drop")
    assert left.index.tolist() == [number for number in range(COUNT) if number != 4]
    with pytest.raises(ArgumentError, match="'refuse' or 'drop'"):
        fit.predict(rows, missing="omit")
    with pytest.raises(DataError, match="site 'A'.*of others"):
        fit.predict(FRAME, site="A")


def test_families_of_other_packages_lead_to_the_one_that_is_meant():
    for name, right in {
        "gaussian": "'normal'",
        "negbinomial": "'negative_binomial'",
        "logistic": "'bernoulli'",
        "poison": "'poisson'",
        "multinomial": "a Pyro model",
    }.items():
        with pytest.raises(ArgumentError, match=f"try .*{right}"):
            design_of("y ~ x", family=name)
    data = FRAME.assign(died=(FRAME["x"] > 0) * 1, falls=FRAME["age"] % 5)
    with pytest.raises(DataError, match="family='bernoulli'"):
        design_of("died ~ x", data, "binomial")
    with pytest.raises(DataError, match="family='poisson'"):
        design_of("falls ~ x", data, "bernoulli")
    with pytest.raises(DataError, match="such a column$"):
        design_of("y ~ x", data, "poisson")
    with pytest.raises(DataError, match=r"ward\['west'\] for 1"):
        design_of("ward ~ x", data, "bernoulli")


def test_a_converted_column_keeps_its_codes():
    codes = pd.Series([1.0, 2.0, 3.0], name="code")
    assert convert_column(codes, "A", category=True).dtype == np.int64
    assert convert_column(codes, "A", category=False).dtype == np.float64
    cut = pd.Series(pd.cut([0.5, 1.5, 2.5], [0, 1, 2, 3]), name="code")
    assert convert_column(cut, "A", category=True).cat.categories.tolist() == [
        "(0, 1]",
        "(1, 2]",
        "(2, 3]",
    ]
