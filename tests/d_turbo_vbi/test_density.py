"""A density as the aim of D-Turbo-VBI: the field that gives it, floors, when pruning begins, what
is taken back, and the temperature beside it.
"""

import math
import warnings
from dataclasses import replace

import pytest
import torch

import bayesfed as bf
from bayesfed.algorithms.d_turbo_vbi import Changes, Returns, ToDensity
from bayesfed.algorithms.d_turbo_vbi.chosen import Candidates, chosen
from bayesfed.algorithms.d_turbo_vbi.density import HELD, smallest
from bayesfed.algorithms.d_turbo_vbi.held_out import HeldOut
from bayesfed.algorithms.d_turbo_vbi.watch import Scored, Watch
from bayesfed.errors import ArgumentError, CollapseError, CollapseWarning, UndeterminedWarning
from bayesfed.federated import rounds
from bayesfed.federated.core.protocols import Fit
from bayesfed.federated.training.held_out_scores import FACTORS, HIGHEST, LOWEST, better
from bayesfed.inference.turbo.elbo import MeanFieldElbo, decode_inclusion
from bayesfed.models import MarkovGrid

WORK = bf.Training(steps=4, batch_size=16, optimiser=bf.Adam(5e-3))
SOON = ToDensity(patience=0, keep=0.5)


def drawn(*shape):
    return torch.randn(
        shape, generator=bf.Key(0, "density", str(shape)).generator(), dtype=torch.float64
    )


@pytest.mark.parametrize("wanted", [1, 40, 199, 200])
def test_the_field_is_about_the_smallest_that_gives_the_count(wanted):
    odds = drawn(200) * 4
    field = smallest(lambda field: int((odds + field > 0).sum()), wanted, 3.0, within=0)
    assert int((odds + field > 0).sum()) >= wanted
    assert int((odds + field - 2e-3 > 0).sum()) <= wanted


def test_exactly_so_many_are_chosen_the_most_probable_ones_after_floors():
    sites = {"wide": drawn(10, 100), "thin": drawn(10, 10) - 30}
    none = {name: torch.zeros_like(odds, dtype=torch.bool) for name, odds in sites.items()}
    policy = ToDensity(0.2, floor=0.02)
    # No layer loses much more than its share.
    assert policy.wanted({name: ~leaf for name, leaf in none.items()}, 0.9) == (
        990,
        {"wide": 810, "thin": 81},
    )
    wanted, least = policy.wanted(none, 0.9)
    assert (wanted, least) == (220, {"wide": 20, "thin": 10})
    odds, above = chosen(
        {name: Candidates(sites[name], none[name], least[name], rows=True) for name in sites},
        wanted,
    )
    assert sum(int((leaf > 0).sum()) for leaf in odds.values()) == wanted
    # Its ten most probable ones, and one of each other row.
    assert int((odds["thin"] > 0).sum()) == 14
    assert bool((odds["thin"] > 0).any(1).all())
    assert torch.allclose(odds["thin"][odds["thin"] > 0], torch.tensor(HELD).double())
    # In the wide layer, the order of the log-odds.
    assert torch.equal(odds["wide"] > 0, sites["wide"] > above)


def test_weights_of_a_sparse_start_move_from_the_first_round_on(clients, net):
    """They waited for a fit that few weights drawn from a key do not have."""
    assert ToDensity.of(0.02, 0.03) == ToDensity(0.02, floor=0.005, patience=0)
    assert ToDensity.of(0.02, 0.1) == ToDensity.of(0.02) == ToDensity(0.02, floor=0.005)
    algorithm = bf.d_turbo_vbi(
        bf.declare(net, bf.Prior(bf.Independent())),
        observations=counted(clients),
        training=WORK,
        changes=Changes.ternary(0.03),
        density=0.03,
        returns=Returns(every=1),
    )
    reports = rounds(algorithm, bf.InProcess(clients), rounds=3)
    assert all(report.server["reactivated"] > 0 for report in reports)


def test_the_report_names_layers_near_the_floor_that_they_have(clients, net):
    """It took the number of columns for the number of entries."""
    algorithm = bf.d_turbo_vbi(
        bf.declare(net),
        observations=counted(clients),
        training=WORK,
        density=replace(SOON, target=0.1, floor=0.1),
    )
    *_, report = rounds(algorithm, bf.InProcess(clients), rounds=6)
    near = {key: value for key, value in report.server.items() if key.startswith("near_floor/")}
    assert near == {"near_floor/1.weight": 103, "near_floor/3.weight": 16}


def test_among_equals_active_entries_come_first_and_others_are_spread_over_rows():
    equal, active = torch.full((10, 10), -3.0), torch.zeros(10, 10, dtype=torch.bool)
    active[7, 1:5] = True
    # Rounding does not make equals unequal.
    equal[0] += 1e-6
    for wanted, most in ((4, 4), (20, 6)):
        odds, _ = chosen({"one": Candidates(equal, active, 0)}, wanted)
        assert int((odds["one"] > 0).sum()) == wanted
        assert bool((odds["one"][active] > 0).all())
        assert int((odds["one"] > 0).sum(1).max()) <= most


@pytest.mark.parametrize(("unit", "expected"), [((1, 6), 12), ((4, 1), 12), ((2, 3), 12)])
def test_blocks_are_chosen_whole_and_as_many_as_come_nearest(unit, expected):
    odds, _ = chosen(
        {"one": Candidates(drawn(4, 6), torch.ones(4, 6, dtype=torch.bool), 0, unit=unit)}, 11
    )
    on = odds["one"] > 0
    tiles = on.reshape(4 // unit[0], unit[0], 6 // unit[1], unit[1])
    assert bool((tiles.all(3).all(1) == tiles.any(3).any(1)).all())
    assert int(on.sum()) == expected


@pytest.mark.parametrize("support", [bf.Independent(), MarkovGrid()])
@pytest.mark.parametrize("start", [0.2, 0.6])
def test_density_got_is_density_asked_whatever_the_support(clients, net, support, start):
    """Supports of independent entries ended at 98 %: all inactive ones have equal evidence."""
    result = bf.run(
        bf.d_turbo_vbi(
            bf.declare(net, bf.Prior(support)),
            observations=counted(clients),
            training=WORK,
            density=replace(SOON, target=0.4),
            changes=Changes.ternary(start=start),
        ),
        clients,
        rounds=4,
        progress=False,
    )
    assert [value for _, value in result.series("density")][-2:] == pytest.approx(
        [0.4] * 2, rel=0.02
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ToDensity(0.0), r"ToDensity, target: expected a number in \(0, 1\]"),
        (lambda: ToDensity(0.01, floor=0.02), "floor <= target"),
        (lambda: ToDensity(patience=-1), "ToDensity, patience: expected a whole number >= 0"),
        (lambda: ToDensity.of("a third"), r"expected a number in \(0, 1\], found 'a third'"),
    ],
)
def test_what_is_no_density_is_refused(make, words):
    with pytest.raises(ArgumentError, match=words):
        make()


def after(*nlls):
    watch = Watch()
    for round, nll in enumerate(nlls):
        watch, _ = Watch.of(watch.leaf()).after(nll, round, ToDensity())
    return watch


def test_pruning_begins_when_the_fit_gains_little_and_in_the_end_anyway():
    assert not after(2.0, 1.5, 1.0).settled
    assert after(2.0, 1.5, 1.0, 0.9).settled
    # A network that learns nothing at first waits, and not for ever.
    assert not after(2.3, 2.3, 2.3).settled
    assert after(*[2.3] * 9).settled
    # An offset of the likelihood, as a density has one, changes nothing.
    assert after(-2.0, -2.5, -3.0, -3.1).settled


def test_a_round_that_loses_what_was_gained_is_told_and_slows_the_pruning():
    watch = after(2.0, 1.0, 0.9, 0.85)
    lost, risen = watch.after(1.6, 4, ToDensity())
    assert risen == pytest.approx(0.75 / 2.0)
    assert (lost.lost, lost.lowest) == (1, 0.85)
    assert watch.keep < lost.keep < 1
    assert lost.after(0.8, 5, ToDensity())[0].lost == 0


def test_without_a_density_nothing_is_a_loss():
    watch = after(2.0, 1.0, 0.9, 0.85)
    for round in range(4, 12):
        watch, _ = watch.after(9.0, round, None)
    assert watch.lost == 0


def test_the_watch_scores_the_model_that_was_sent_on_at_most_256_rows(declared, clients):
    """A mean over the local steps hid a model that fell apart on arrival and was repaired."""
    data = max(clients.values(), key=len)
    step = -(-len(data) // 256)
    assert step > 1
    algorithm = bf.d_turbo_vbi(declared, observations=counted(clients), training=WORK)
    (phase,), state = algorithm.phases, algorithm.initial
    message = phase.assign(state, 0, bf.InProcess(clients).profiles[0], bf.Key(0)).view.restrict(
        phase.server.publish(state, 0, None)
    )
    with torch.no_grad():
        logits = declared.net(data.inputs[::step])
    slow = -declared.likelihood.pointwise(logits, data.targets[::step]).mean()
    scored = Scored(Recorded(), MeanFieldElbo(declared))
    for rows, expected in ((data, slow), (data[:0], torch.tensor(0.0))):
        fit = scored.fit(message, {}, rows, bf.Key(0), bf.federated.LocalOptions())
        assert torch.allclose(fit.payload["run/nll"], expected)


def counted(clients):
    return sum(map(len, clients.values()))


def test_a_run_reaches_its_density_and_every_output_stays_reachable(clients, net):
    result = bf.run(
        bf.d_turbo_vbi(bf.declare(net), observations=counted(clients), training=WORK, density=SOON),
        clients,
        rounds=4,
        progress=False,
    )
    assert [value for _, value in result.series("density")] == pytest.approx(
        [0.5, 0.33, 0.33, 0.33], abs=0.01
    )
    assert all(
        bool((result.model.parameters[name] != 0).any(dim=1).all())
        for name in ("1.weight", "3.weight")
    )


def test_a_fit_that_falls_apart_is_taken_back_and_then_ends_the_run(clients, net):
    wild = replace(WORK, schedule=lambda round: 1.0 if round < 3 else 2000.0)
    algorithm = bf.d_turbo_vbi(
        bf.declare(net), observations=counted(clients), training=wild, density=SOON
    )
    with (
        pytest.warns(CollapseWarning, match="weights are active again"),
        pytest.raises(CollapseError, match="try a lower temperature"),
    ):
        bf.run(algorithm, clients, rounds=12, progress=False)


class Recorded:
    """A local step that keeps the rows that it is given."""

    def __init__(self):
        self.rows = None

    def fit(self, message, memory, data, key, options):
        self.rows = data
        return Fit({}, {}, {})


def test_held_out_rows_are_scored_and_not_trained_on(declared, clients):
    data = clients["client-000"]
    algorithm = bf.d_turbo_vbi(declared, observations=counted(clients), training=WORK)
    (phase,), state = algorithm.phases, algorithm.initial
    message = phase.assign(state, 0, bf.InProcess(clients).profiles[0], bf.Key(0)).view.restrict(
        phase.server.publish(state, 0, None)
    )
    objective, inner = MeanFieldElbo(declared), Recorded()
    scores = (
        HeldOut(inner, objective, draws=400)
        .fit(message, {}, data, bf.Key(0), bf.federated.LocalOptions())
        .payload["run/scores"]
    )
    held = torch.arange(len(data)) % 10 == 9
    assert torch.equal(inner.rows.inputs, data.inputs[~held])
    # The slow twin draws weights.
    posterior, noise = algorithm.posterior(algorithm.initial), bf.Key(1).generator()
    likely = []
    for _ in range(400):
        draw = {
            f"{name}.w": site.mean
            + site.sd * 2**0.5 * torch.randn(site.mean.shape, generator=noise)
            for name, site in posterior.belief.items()
        }
        logits = posterior.predict(draw, data.inputs[held])
        likely.append(declared.likelihood.pointwise(logits, data.targets[held]))
    slow = float((math.log(400) - torch.stack(likely).logsumexp(dim=0)).mean())
    assert float(scores[FACTORS.index(2.0)]) == pytest.approx(slow, abs=0.01)
    assert not HeldOut(inner, objective).scores(message, data[:0], bf.Key(0)).any()


def test_the_factor_of_the_temperature_is_the_best_of_three_within_bounds():
    assert FACTORS == (1.0, 0.5, 2.0)
    assert better(torch.tensor([0.2, 0.3, 0.4]), 0.1) == better(torch.zeros(3), 0.1) == 1.0
    assert better(torch.tensor([0.2, 0.1, 0.4]), 0.1) == 0.5
    assert better(torch.tensor([0.3, 0.2, 0.1]), 0.7) == pytest.approx(HIGHEST / 0.7)
    assert better(torch.tensor([0.2, 0.1, 0.3]), LOWEST) == 1.0


def test_every_round_says_the_temperature_and_why_it_was_chosen(clients, net):
    algorithm = bf.d_turbo_vbi(
        bf.declare(net),
        observations=sum(map(len, clients.values())),
        training=WORK,
        density=SOON,
        temperature="auto",
    )
    history = bf.run(algorithm, clients, rounds=2, progress=False).history
    for record in history:
        nlls = [record.server["held_out_nll" + end] for end in ("", "_cooler", "_hotter")]
        assert all(0 < nll < 10 for nll in nlls), record.round
    before, after = (record.server for record in history)
    best = min("", "_cooler", "_hotter", key=lambda end: after["held_out_nll" + end])
    moved = after["temperature"] / before["temperature"]
    assert moved in (1.0, pytest.approx({"": 1.0, "_cooler": 0.5, "_hotter": 2.0}[best]))


def test_auto_without_rows_to_hold_out_is_the_run_at_that_temperature(clients, net):
    few = {name: data[slice(0, 9)] for name, data in clients.items()}
    fixed, auto = (
        bf.run(
            bf.d_turbo_vbi(
                bf.declare(net),
                observations=36,
                training=WORK,
                density=SOON,
                temperature=temperature,
            ),
            few,
            rounds=2,
            progress=False,
        ).snapshot.state
        for temperature in (None, "auto")
    )
    assert set(auto) - set(fixed) == {"run/temperature"}
    # The temperature travels in 16 bits.
    assert all(
        torch.allclose(auto[name].double(), leaf.double(), rtol=1e-3, atol=1e-5)
        for name, leaf in fixed.items()
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"temperature": "automatic"},
            "d_turbo_vbi, temperature: expected a number or 'auto' or None, found 'automatic'",
        ),
        ({"temperature": -1.0}, r"temperature: expected a number in \(0, inf\)"),
        ({"density": 0.3, "field": lambda round: 0.0}, "expected a density or a field, found both"),
    ],
)
def test_wrong_temperatures_and_densities(options, words, net):
    with pytest.raises(ArgumentError, match=words):
        bf.d_turbo_vbi(bf.declare(net), observations=10, **options)


def test_a_temperature_of_the_likelihood_is_not_given_twice(declared):
    with pytest.raises(
        ArgumentError, match="expected one temperature, found 'auto' and 0.2 of the likelihood"
    ):
        bf.d_turbo_vbi(declared, observations=10, temperature="auto")


@pytest.mark.parametrize("changes", [None, Changes(start=0.5)])
def test_channels_go_whole_and_the_outputs_of_the_network_stay(clients, net, changes):
    declared = bf.declare(net, bf.Prior(bf.models.Channels()))
    algorithm = bf.d_turbo_vbi(
        declared,
        observations=sum(map(len, clients.values())),
        training=WORK,
        density=replace(SOON, target=0.25),
        changes=changes,
    )
    result = bf.run(algorithm, clients, rounds=6, progress=False)
    # Half of the rows but for the last layer's.
    first = [
        float(active.double().mean())
        for name, active in algorithm.initial.items()
        if name.startswith("before/")
    ]
    assert first == ([0.5] * (len(first) - 1) + [1.0] if changes else [1.0] * len(first))
    active = [(leaf != 0).flatten(1) for leaf in result.model.parameters.values() if leaf.ndim > 1]
    assert all(bool((rows.all(1) | ~rows.any(1)).all()) for rows in active)
    assert bool(active[-1].all())
    assert not all(bool(rows.all()) for rows in active[:-1])


@pytest.mark.parametrize("shape", [1.0, 20.0, 1000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("codec", [None, bf.Cast(64)])
def test_every_dtype_runs_at_every_shape_of_the_slab(clients, shape, dtype, codec):
    """Messages of 64 bits were clipped in 32: "cannot be converted to type float"."""
    net = bf.mlp([64, 16, 10], bf.Key(0, "net")).to(dtype)
    cast = {name: replace(data, inputs=data.inputs.to(dtype)) for name, data in clients.items()}
    prior = bf.Prior(precision=bf.BernoulliGamma(slab_shape=shape, spike_shape=shape))
    algorithm = bf.d_turbo_vbi(
        bf.declare(net, prior),
        observations=counted(clients),
        training=replace(WORK, steps=2),
        density=SOON,
        codec=codec,
    )
    result = bf.run(algorithm, cast, rounds=3, progress=False)
    assert result.final("density") == pytest.approx(0.33, rel=0.02)
    own = {name: leaf for name, leaf in result.snapshot.state.items() if leaf.is_floating_point()}
    assert {leaf.dtype for name, leaf in own.items() if not name.startswith("run/")} == {dtype}


def test_probabilities_of_a_message_have_the_precision_of_its_means():
    code = torch.arange(256, dtype=torch.uint8)
    exact = torch.arange(256, dtype=torch.float64) / 510 + 0.5
    assert torch.equal(decode_inclusion(code, torch.float64), exact)


def test_a_density_that_is_missed_is_said_with_what_reaches_it(clients, net):
    def run(rounds, density):
        algorithm = bf.d_turbo_vbi(
            bf.declare(net), observations=counted(clients), training=WORK, density=density
        )
        return bf.run(algorithm, clients, rounds=rounds, progress=False)

    with pytest.warns(UndeterminedWarning, match=r"is 0.5, asked 0.33; try more rounds"):
        run(1, SOON)
    low = replace(SOON, target=0.01, floor=0.01, keep=0.01)
    with pytest.warns(UndeterminedWarning, match=r"asked 0.01; try density=0\.022, the floors"):
        result = run(2, low)
    assert "asked 0.010" in repr(result)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(2, SOON)
