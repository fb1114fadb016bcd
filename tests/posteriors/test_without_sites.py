"""What is left of a posterior without some of the sites: its status is that of the weights that are
left, and where these do not do a regression fits the other sites by themselves.
"""

from __future__ import annotations

import pickle
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch

import bayesfed as bf
from bayesfed.cli.main import main
from bayesfed.errors import ArgumentError, PosteriorError, UndeterminedWarning
from bayesfed.inference.exact import checking, stages, weighing
from bayesfed.inference.exact.at_values import beside
from bayesfed.inspect.tables import score_table
from tests.posteriors.test_exact_runs import exact, rows, run, same

INPUTS, TARGETS = rows()
# Three sites that agree, the last of them of six rows, and one that is far from them.
PARTS = {"s0": slice(0, 27), "s1": slice(27, 54), "few": slice(54, 60)}
CLIENTS = {name: bf.Dataset(INPUTS[part], TARGETS[part]) for name, part in PARTS.items()}
CLIENTS["odd"] = bf.Dataset(INPUTS[:15], TARGETS[:15] + 4 * INPUTS[:15, 0])


@pytest.fixture(scope="module")
def found():
    return run(CLIENTS)


def left_out(posterior, *memories):
    """Leave sites out without the warnings."""
    for memory in memories:
        posterior = posterior.leave_out(memory)
    return posterior


def test_the_status_is_that_of_the_weights_that_are_left(found):
    posterior, memories = found.posterior, found.snapshot.memories
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fine = posterior.without(memories["few"])
    inside = [CLIENTS[name] for name in ("s0", "s1", "odd")]
    mean, sds, evidence = exact(
        torch.cat([part.inputs for part in inside]), torch.cat([part.targets for part in inside])
    )
    assert (fine.status, fine.doubt) == ("exact", "")
    assert ((fine.constants["beta.mean"] - mean) / sds).abs().max() < 0.02
    assert (fine.constants["beta.sd"] / sds - 1).abs().max() < 0.02
    assert abs(fine.log_evidence[0] - evidence) < 0.02
    with pytest.warns(UndeterminedWarning, match="posterior without a site: its status is 'unev"):
        odd = posterior.without(memories["odd"])
    assert odd.status == "uneven weights"
    assert odd.k_hat > 0.7
    words = f"(k-hat {odd.k_hat:.2f}, ESS {odd.ess:.0f})"
    assert words in odd.doubt
    assert words in odd.lack
    assert "sds of beta rest on few points; the points are not where the posterior" in odd.lack
    assert "try a fit of the other sites alone" in odd.lack
    # What is taken out of weights that do not do leaves others that do not do.
    assert left_out(odd, memories["few"]).status == "uneven weights"


def test_weights_that_are_a_little_uneven_are_said_to_be_about_right(found):
    some = left_out(found.posterior, found.snapshot.memories["s1"])
    assert some.status == "uneven weights"
    assert some.k_hat < weighing.GOOD
    assert f"means are off by about {some.ess**-0.5:.1g} sds" in some.lack
    inside = [CLIENTS[name] for name in ("s0", "few", "odd")]
    mean, sds, _ = exact(
        torch.cat([part.inputs for part in inside]), torch.cat([part.targets for part in inside])
    )
    error = ((some.constants["beta.mean"] - mean) / sds).abs().max()
    assert error < 3 * some.ess**-0.5


def test_one_rule_is_that_of_the_run_and_of_what_is_left(found):
    posterior = found.posterior
    state = posterior.state
    verdict, trusted = checking.judge(state, lambda points: beside(posterior.traced, points))
    assert trusted
    assert state["verdict"].tolist() == [weighing.EXACT, *verdict[:4]]
    # A site that says the same everywhere changes no weight, and no status.
    nothing = replace(posterior, left_out={"nobody": torch.zeros_like(state["value"])})
    assert nothing.status == posterior.status
    assert torch.equal(nothing.weights, posterior.weights)
    for code, word in ((weighing.ADAPTED, "adapted"), (weighing.EXACT, "exact")):
        rounds = stages.numbers(stages.DONE, 2 if code == weighing.ADAPTED else 1, 0)
        assert replace(nothing, state=state | {"stage": rounds}).status == word


def test_without_every_site_it_is_the_prior_that_is_to_be_drawn(found):
    nobody = left_out(found.posterior, *found.snapshot.memories.values())
    assert nobody.status == "uneven weights"
    assert nobody.lack.endswith("no rows are left; try draw_prior(key), which draws the prior")
    assert nobody.draw_prior(bf.Key(0)).keys() == {"beta"}
    assert nobody.without_each(found.snapshot.memories) == {}


def test_a_site_is_left_out_once(found):
    posterior, memories = found.posterior, found.snapshot.memories
    fine = posterior.without(memories["few"])
    for ask in (fine.without, fine.at_client):
        with pytest.raises(PosteriorError, match="whose rows are in the posterior, found one that"):
            ask(memories["few"])
    assert fine.sites_in(memories) == ["odd", "s0", "s1"]
    assert [*fine.without_each(memories)] == ["without odd", "without s0", "without s1"]
    assert [*fine.by_site(memories)] == ["odd", "s0", "s1"]
    # Log likelihoods by site are of those that are in, and known if all of theirs are.
    assert fine.log_likelihoods(bf.Key(0), memories).keys() == {"odd", "s0", "s1"}
    assert fine.without_each(memories)["without s0"].left_out.keys() > fine.left_out.keys()


def test_sites_of_the_same_rows_are_not_one_site():
    twins = run({"one": CLIENTS["few"], "two": CLIENTS["few"], "s0": CLIENTS["s0"]})
    posterior, memories = twins.posterior, twins.snapshot.memories
    assert torch.equal(*(posterior.kept(memories)[name] for name in ("one", "two")))
    both = left_out(posterior, memories["one"], memories["two"])
    assert both.sites_in(memories) == ["s0"]


def test_tables_and_pictures_of_sites_have_the_status_of_each(found):
    posterior, memories = found.posterior, found.snapshot.memories
    table = posterior.by_site(memories)
    assert {name: one["status"] for name, one in table.items()} == {
        "few": "exact",
        "odd": "uneven weights",
        "s0": "uneven weights",
        "s1": "uneven weights",
    }
    printed = score_table(table, heading="site").splitlines()
    assert printed[0].split() == ["site", "elpd", "error", "shift", "k_hat", "ess", "status"]
    assert printed[2].endswith("  exact")
    every = {"all": posterior, **posterior.without_each(memories)}
    axes = bf.inspect.plot_intervals(every, draws=200)
    legend = {text.get_text(): text for text in axes.get_legend().get_texts()}
    assert [*legend][:3] == ["all", "without few", "without odd: uneven weights"]
    marks = {mark.get_label(): mark for mark in axes.get_lines() if mark.get_label() in legend}
    assert marks["without few"].get_markerfacecolor() != "none"
    odd = marks["without odd: uneven weights"]
    assert (odd.get_markerfacecolor(), odd.get_linestyle()) == ("none", ":")


def by_site(inputs, targets=None):
    """A line with a level for each site, which stays there."""
    beta = pyro.sample("beta", dist.Normal(torch.zeros(2), 10.0).to_event(1))
    with pyro.plate("client", 1):
        level = pyro.sample("level", dist.Normal(torch.tensor(0.0), 1.0))
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Normal(inputs @ beta + level, 1.0), obs=targets)


@pytest.mark.slow
def test_levels_of_a_site_that_is_left_out_are_not_those_of_its_rows():
    result = run(CLIENTS, by_site)
    posterior, memories = result.posterior, result.snapshot.memories
    fine = posterior.without(memories["few"])
    with pytest.raises(PosteriorError, match="found one that is left out; try the memory of anoth"):
        fine.at_client(memories["few"])
    own = posterior.at_client(memories["few"])
    with pytest.raises(PosteriorError, match="other than that of at_client, found the same one"):
        own.without(memories["few"])
    assert "few" not in own.by_site(memories)
    other = fine.at_client(memories["s0"])
    assert other.values["level"].shape == (len(other.weights), 1)
    assert other.status == fine.status


def hospital(seed, count=50, shift=0.0):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=count)
    ward = draw.choice(["east", "west"], count)
    y = 1 + shift + 2 * x + 0.5 * draw.normal(size=count)
    return pd.DataFrame({"y": y, "x": x, "ward": ward})


SITES = {"a": (0, 70), "b": (1, 70), "few": (2, 12), "odd": (3, 40, 2.0)}
FRAMES = {name: hospital(*drawn) for name, drawn in SITES.items()}
FORMULA = "y ~ x + ward"


@pytest.fixture(scope="module")
def fit():
    return bf.regression(FORMULA, FRAMES, progress=False)


def fitted_by_themselves(*names):
    """Fit some sites with the priors and levels of all."""
    made = bf.running.prepared(FORMULA, FRAMES)
    clients = {name: made.clients[name] for name in names}
    return bf.run(made.algorithm, clients, progress=False)


def test_the_others_are_fitted_by_themselves_where_the_weights_do_not_do(fit):
    odd = fit.without("odd")
    alone = fitted_by_themselves("a", "b", "few")
    assert odd.status == alone.posterior.status == "exact"
    assert same(odd.result.snapshot.state, alone.snapshot.state)
    assert odd.posterior.k_hat < 0.5
    assert odd.result.unheard == {}
    assert repr(odd).startswith(f"{FORMULA}, normal, without odd; status exact\n")
    # They are asked once for the same sites, in any order.
    assert fit.without("odd").result is odd.result
    assert fit.without("a").without("odd").result is fit.without("odd").without("a").result
    # The weights of the fit of all, for nothing, where they do.
    few = fit.without("few")
    assert few.status == "exact"
    assert few.result is fit.result
    # And those of the new fit.
    both = odd.without("few")
    assert both.result is odd.result
    assert both.left_out == ("odd", "few")
    alone = fitted_by_themselves("a", "b").posterior.constants
    for name in ("standardised", "sigma"):
        mean, sd = (both.posterior.constants[f"{name}.{what}"] for what in ("mean", "sd"))
        assert ((mean - alone[f"{name}.mean"]) / alone[f"{name}.sd"]).abs().max() < 0.05
        assert (sd / alone[f"{name}.sd"] - 1).abs().max() < 0.03


def test_sites_are_left_out_until_none_is_left(fit):
    last = fit.without("odd").without("few").without("a")
    assert [*last.result.snapshot.memories] == ["b"]
    assert last.status == "exact"
    with pytest.warns(UndeterminedWarning, match="without 'odd', 'few', 'a', 'b'.*draw_prior"):
        nobody = last.without("b")
    assert nobody.status == "uneven weights"
    for name in ("b", "odd"):
        with pytest.raises(ArgumentError, match=f"in the fit, found '{name}', and none is left"):
            nobody.without(name)
    with pytest.raises(ArgumentError, match="one of 'b'; try 'b'|one of 'b', found 'a'"):
        last.without("a")


def test_tables_and_plot_have_the_status_of_each_fit(fit):
    table = fit.tables(None)["coefficients"]
    assert dict(zip(table["without"], table["status"], strict=True)) == dict.fromkeys(
        ("", *sorted(FRAMES)), "exact"
    )
    legend = [text.get_text() for text in fit.plot().get_legend().get_texts()]
    names = [f"without {name}: exact" for name in sorted(FRAMES)]
    assert legend == ["all sites: exact", *names]


def test_where_nobody_can_be_asked_the_status_says_that_the_weights_do_not_do(fit):
    closed = replace(fit, refits=None)
    with pytest.warns(UndeterminedWarning, match="regression without 'odd': its status is 'uneve"):
        odd = closed.without("odd")
    assert odd.status == "uneven weights"
    assert f"k-hat {odd.posterior.k_hat:.2f}" in odd.posterior.doubt
    assert "without odd; status uneven weights" in repr(odd)
    statuses = closed.tables(None)["coefficients"].groupby("without")["status"].first()
    assert (statuses["few"], statuses["odd"]) == ("exact", "uneven weights")
    axes = closed.plot()
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert "without odd: uneven weights" in legend
    # Over a network, as under secure sums, sites leave nothing.
    silent = replace(fit, result=replace(fit.result, snapshot=_silent(fit)))
    for ask in (silent.without, lambda name: silent.predict(FRAMES[name], site=name)):
        with pytest.raises(PosteriorError, match="what a site keeps .*without secure sums"):
            ask("a")


def _silent(fit):
    return replace(fit.result.snapshot, memories={})


def test_a_fit_that_was_sent_elsewhere_asks_its_own_sites(fit):
    other = pickle.loads(pickle.dumps(fit))
    assert same(
        other.without("odd").result.snapshot.state, fit.without("odd").result.snapshot.state
    )


def test_the_bar_of_the_new_fit_says_which_sites_are_left_out(monkeypatch):
    labels = []
    bars = "bayesfed.federated.engine.callbacks.progress"
    monkeypatch.setattr(bars, lambda total, label: labels.append(label) or (lambda report: None))
    shown = bf.regression(FORMULA, FRAMES)
    shown.without("odd").without("a")
    assert labels == ["federated_svi", "without odd", "without a, odd"]


def test_secure_sums_are_not_taken_apart_by_a_second_fit():
    hidden = bf.regression(FORMULA, FRAMES, secure=4, progress=False)
    with pytest.raises(PosteriorError, match="what a site keeps .*without secure sums"):
        hidden.without("odd")
    assert not hidden.refits.results


def test_draws_are_those_of_the_fit_where_the_posterior_is_not_reached(fit):
    state = fit.result.snapshot.state
    name = next(name for name in state if name.endswith("/verdict"))
    place = name.removesuffix("verdict")
    verdict = state[name].clone()
    verdict[0] = weighing.GAUSSIAN
    state = {**state, name: verdict, f"{place}{stages.TRAIL}": torch.zeros(0, 2).double()}
    snapshot = replace(fit.result.snapshot, state=state)
    only_checked = replace(fit, result=replace(fit.result, snapshot=snapshot))
    posterior = only_checked.posterior
    assert posterior.status == "gaussian"
    assert not torch.equal(posterior.weights, posterior.verdict.weights)
    key = bf.Key(0, "regression", "draws")
    places = torch.multinomial(posterior.weights, 1000, replacement=True, generator=key.generator())
    sigmas = posterior.values["sigma"][places]
    assert np.array_equal(only_checked.draws()["sigma"], sigmas)


FILE = """\
[regression]
formula = "y ~ x + ward"
data = "rows.csv"
site = "hospital"
"""


def test_a_saved_fit_cannot_ask_and_its_table_has_what_the_run_asked(tmp_path, capsys):
    frames = [frame.assign(hospital=name) for name, frame in FRAMES.items()]
    pd.concat(frames).to_csv(tmp_path / "rows.csv", index=False)
    (tmp_path / "odd.toml").write_text(FILE)
    assert main(["run", str(tmp_path / "odd.toml"), "--out", str(tmp_path), "--quiet"]) == 0
    written = pd.read_csv(tmp_path / "odd/seed-0/coefficients.csv", keep_default_na=False)
    assert (written["status"] == "exact").all()
    said = capsys.readouterr().out
    assert "status" in said
    opened = bf.open(tmp_path / "odd")
    assert opened.refits is None
    with pytest.warns(UndeterminedWarning, match="without 'odd': its status is 'uneven weights'"):
        odd = opened.without("odd")
    assert odd.status == "uneven weights"
    # The picture is that of the table.
    assert (tmp_path / "odd/pictures/coefficients.png").is_file()
    rest = fitted_by_themselves("a", "b", "few")
    known = written[(written["without"] == "odd") & (written["coefficient"] == "sigma")]
    sigma = rest.posterior.constants["sigma.mean"]
    assert abs(float(known["mean"].iloc[0]) - float(sigma)) < 0.1 * float(known["sd"].iloc[0])
    table = tmp_path / "odd/seed-0/coefficients.csv"
    table.write_text(table.read_text().replace("exact", "uneven weights"))
    assert main(["plot", str(tmp_path / "odd"), "--format", "svg"]) == 0
    assert "uneven weights" in (tmp_path / "odd/pictures/coefficients.svg").read_text()


@pytest.mark.slow
def test_a_hospital_that_is_left_out_is_predicted_as_a_new_one():
    frames = {name: hospital(seed, 15, 2.0 * seed) for seed, name in enumerate("abc")}
    whole = bf.regression("y ~ x + (1 | hospital)", frames, site="hospital", progress=False)
    rest = whole.without("c")
    assert rest.result is not whole.result
    new = frames["c"][:3]
    as_new, as_left_out = rest.predict(new), rest.predict(new, site="c")
    assert as_left_out.equals(as_new)
    named = rest.predict(new.assign(hospital="c"))
    assert named.equals(as_new)
    known = whole.predict(new, site="c")
    assert (known["mean_high"] - known["mean_low"]).max() < 1.5
    assert (as_left_out["mean_high"] - as_left_out["mean_low"]).min() > 3
    inside = rest.predict(frames["a"][:3], site="a")
    assert (inside["mean_high"] - inside["mean_low"]).max() < 1.5
    # So it is by weights alone.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weighed = replace(whole, refits=None).without("c")
    assert weighed.predict(new, site="c").equals(weighed.predict(new))
