"""A method of one's own: composed of a local step and a server, registered from any file, and then
a method as any other.
"""

import importlib
import sys
from dataclasses import dataclass, replace

import pytest
import torch

import bayesfed as bf
from bayesfed.algorithms import registry
from bayesfed.errors import ArgumentError
from bayesfed.federated import Average, Publisher, published, rounds
from bayesfed.federated.core.owners import of, owned
from bayesfed.federated.engine.assembly import assembled
from bayesfed.testing import check_local, check_view
from bayesfed.trees import parameters
from tests.conftest import tree_equal
from tests.flower.flower_grid import pool_over
from tests.support.hostile.verdict import check_hostile

WORK = bf.Training(steps=3, batch_size=16)
BIBTEX = """@article{doe2026pulling,
  author = {Doe, Jane},
  title = {Pulling Clients Together},
  journal = {Journal of Things},
  volume = {1},
  year = {2026}
}"""
METHOD = f'''
"""FedProx once more: a gradient step and a pull to the broadcast model, whose strength the server
chooses in each round."""

from dataclasses import dataclass

import bayesfed as bf
from bayesfed.federated import Fit
from bayesfed.trees import zip_map

BIBTEX = """{BIBTEX}"""


@dataclass(frozen=True)
class PullOptions(bf.federated.LocalOptions):
    """Options of `Pulling`."""

    pull: float = 0.0


@dataclass(frozen=True)
class Pulling:
    """Train as another local does, then go back a share of the way."""

    local: object
    kind = "value"
    options = PullOptions

    def fit(self, message, memory, data, key, options):
        fit = self.local.fit(message, memory, data, key, options)
        pulled = zip_map(lambda own, sent: own + options.pull * (sent - own), fit.payload, message)
        return Fit(pulled, {{}}, fit.info)


@bf.recipe(cites=("doe2026pulling", "mcmahan2017communication"), bibtex=BIBTEX)
def fed_pull(net, *, strength=0.5, training=None, link=None):
    """Pull clients together."""
    work = training or bf.Training()

    def told(turn):
        pull = strength / (1 + turn.round)
        return work.options_as(PullOptions, turn.round, turn.profile.samples, pull=pull)

    local = Pulling(work.fitting(net))
    return bf.compose("fed_pull", net, local, training=work, options=told, link=link)
'''


@pytest.fixture
def registered(monkeypatch):
    """Registrations of a test end with it; those of this package are made before, once and
    for all.
    """
    monkeypatch.setattr(registry, "_REGISTERED", dict(bf.methods()))


@pytest.fixture
def fed_pull(tmp_path, monkeypatch, registered):
    (tmp_path / "my_method.py").write_text(METHOD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_method", raising=False)
    yield importlib.import_module("my_method").fed_pull
    sys.modules.pop("my_method")


def final(algorithm, pool, count=2):
    *_, report = rounds(algorithm, pool, rounds=count)
    return report.state


# A method in one file outside of the package.


def test_it_runs_serially_and_with_workers(fed_pull, net, clients, digits):
    algorithm = fed_pull(net, training=WORK)
    result = bf.run(algorithm, clients, rounds=2, test=digits[1], progress=False)
    assert result.final("accuracy") > 0.1
    with bf.InProcess(clients, workers=2) as pool:
        assert tree_equal(final(algorithm, pool), result.snapshot.state)
    # Without a pull it is FedAvg; pulled all the way, no client moves, to the rounding of the
    # weighted mean.
    assert tree_equal(
        final(fed_pull(net, strength=0.0, training=WORK), bf.InProcess(clients)),
        final(bf.fed_avg(net, training=WORK), bf.InProcess(clients)),
    )
    for name, leaf in final(
        fed_pull(net, strength=1.0, training=WORK), bf.InProcess(clients), 1
    ).items():
        assert torch.allclose(leaf, algorithm.initial[name], atol=1e-6)


def test_it_keeps_the_laws(fed_pull, net, clients):
    algorithm = fed_pull(net, training=WORK)
    (phase,), state = algorithm.phases, owned(algorithm.initial, "model")
    data = clients["client-000"]
    given = phase.assign(state, 0, bf.InProcess(clients).profiles[0], bf.Key(0))
    assert given.options.pull == 0.5
    check_local(phase.local, state, data, given.options)
    check_view(
        given.view,
        phase.local.fit(state, {}, data, bf.Key(0), given.options).payload,
        phase.local.kind,
    )
    found = check_hostile(algorithm, lambda: bf.InProcess(clients), "client-000")
    assert found["one NaN"].field == "values"


def test_it_runs_over_a_flower_grid_to_the_same_bits(fed_pull, net, clients, tmp_path):
    algorithm = fed_pull(net, training=WORK)
    pool, _ = pool_over(algorithm, clients, tmp_path / "sites")
    assert tree_equal(final(algorithm, pool), final(algorithm, bf.InProcess(clients)))


def test_it_goes_into_what_takes_a_method(fed_pull, net, clients):
    algorithm = fed_pull(net, training=WORK)
    private = bf.private(
        algorithm, clip=1.0, noise=0.0, participants=4, key=bf.Key(0), at_client=True
    )
    robust = bf.robust(algorithm, bf.federated.Median())
    for wrapped in (private, robust):
        state = final(wrapped, bf.InProcess(clients))
        assert state.keys() == algorithm.initial.keys()
        assert not tree_equal(state, algorithm.initial)


def test_it_is_found_and_cited(fed_pull, net):
    assert bf.methods()["fed_pull"].make is fed_pull
    assert {"fed_avg", "fed_pull"} <= bf.methods().keys()
    own, average = bf.citation("fed_pull").split("\n\n")
    assert own == BIBTEX
    assert average == bf.citation("fed_avg")
    assert bf.citation(fed_pull(net)) == bf.citation("fed_pull")
    assert bf.citation(bf.robust(fed_pull(net), bf.federated.Median())) == bf.citation(
        "fed_pull"
    ) + "\n\n" + bf.citation("Median")


# Registration.


def test_a_name_is_registered_once(registered):
    def fed_avg(net): ...

    with pytest.raises(
        ArgumentError,
        match=(
            r"recipe: expected a name of its own, found 'fed_avg', which "
            r"bayesfed.algorithms.baselines.fed_avg has"
        ),
    ):
        bf.recipe()(fed_avg)
    assert bf.methods()["fed_avg"].make is bf.fed_avg

    # The same module may do so again: it is loaded anew.
    def mine(net): ...

    assert bf.recipe(cites=())(mine) is bf.recipe(cites=("mcmahan2017communication",))(mine) is mine
    assert bf.methods()["mine"].cites == ("mcmahan2017communication",)


def test_a_key_without_an_entry_is_told(registered):
    @bf.recipe(cites=("nobody2026nothing",))
    def mine(net): ...

    with pytest.raises(
        ArgumentError,
        match=(
            r"citation of 'mine': expected a BibTeX entry for each key, found none for "
            r"\['nobody2026nothing'\]"
        ),
    ):
        bf.citation("mine")


def test_every_shipped_recipe_is_registered_under_the_name_of_its_algorithms():
    shipped = {
        name: method
        for name, method in bf.methods().items()
        if method.make.__module__.startswith("bayesfed.")
    }
    assert len(shipped) >= 27
    for name, method in shipped.items():
        assert (method.name, method.make.__name__) == (name, name)
        assert getattr(bf, name) is method.make


# Composition.


def test_a_composition_of_defaults_is_fed_avg(net, clients):
    state = final(bf.compose("mine", net, training=WORK), bf.InProcess(clients))
    assert tree_equal(state, final(bf.fed_avg(net, training=WORK), bf.InProcess(clients)))
    changes = bf.compose("mine", net, WORK.fitting(net, kind="delta"), training=WORK)
    for name, leaf in final(changes, bf.InProcess(clients)).items():
        assert torch.allclose(leaf, state[name], atol=1e-6)


@dataclass(frozen=True)
class Shaken:
    """A server that draws."""

    def step(self, state, reducer, round):
        mean, info = Average().step(state, reducer, round)
        return {name: leaf + torch.randn_like(leaf) for name, leaf in mean.items()}, info


def test_a_server_draws_the_same_in_a_run_that_goes_on(net, clients):
    shaken = bf.compose("shaken", net, server=Shaken(), training=WORK)
    whole = bf.run(shaken, clients, rounds=3, progress=False)
    torch.manual_seed(1)
    first = bf.run(shaken, clients, rounds=1, progress=False)
    went_on = bf.run(shaken, clients, rounds=3, progress=False, resume=first.snapshot)
    assert tree_equal(whole.snapshot.state, went_on.snapshot.state)
    drawn = [
        bf.run(shaken, clients, rounds=1, seed=seed, progress=False).snapshot.state
        for seed in (0, 1)
    ]
    assert tree_equal(drawn[0], first.snapshot.state)
    assert not tree_equal(*drawn)


def test_a_composition_has_checks_and_says_what_it_lacks(net, clients):
    def many(run):
        if len(run.profiles) < 3:
            raise ArgumentError("mine", "three clients", len(run.profiles), "more clients")

    def lack(state, rounds):
        assert "1.weight" in state
        return "" if rounds > 1 else "it is early; try two rounds"

    mine = bf.compose("mine", net, training=WORK, checks=[many], unfinished=lack)
    with pytest.raises(ArgumentError, match="mine: expected three clients, found 2"):
        bf.run(mine, dict(list(clients.items())[:2]), rounds=1, progress=False)
    with pytest.warns(UserWarning, match="it is early"):
        bf.run(mine, clients, rounds=1, progress=False)
    assert tree_equal(
        bf.run(mine, clients, rounds=2, progress=False).snapshot.state,
        bf.run(bf.fed_avg(net, training=WORK), clients, rounds=2, progress=False).snapshot.state,
    )


def test_options_default_to_those_of_the_training(net, clients):
    work = bf.Training(epochs=1.0, batch_size=16, schedule=bf.federated.cosine(0.1, 4))
    (phase,) = bf.compose("mine", net, training=work).phases
    for profile in bf.InProcess(clients).profiles:
        assert phase.assign(parameters(net), 2, profile, bf.Key(0)).options == work.options(
            2, profile.samples
        )


def test_weights_are_the_clients_rows_unless_told(net, clients):
    pool = bf.InProcess({**clients, "empty": clients["client-000"][:0]})
    for weight, expected in (
        ({}, float),
        ({"weight": lambda profile, size: 2.0}, lambda rows: 2.0),
    ):
        (phase,) = bf.compose("mine", net, training=WORK, **weight).phases
        found = [
            phase.assign(parameters(net), 0, profile, bf.Key(0)).weight for profile in pool.profiles
        ]
        assert found == [expected(profile.samples) for profile in pool.profiles]


def test_several_locals_need_a_capacity(net, clients):
    steps = [replace(WORK, steps=count).fitting(net) for count in (4, 1)]
    with pytest.raises(
        ArgumentError, match="mine: expected a capacity for several locals, found none"
    ):
        bf.compose("mine", net, steps, training=WORK)
    sized = bf.compose("mine", net, steps, training=WORK, capacity=lambda profile, round, key: 1)
    assert tree_equal(
        final(sized, bf.InProcess(clients)),
        final(bf.compose("mine", net, steps[1], training=WORK), bf.InProcess(clients)),
    )


def test_running_statistics_need_a_policy(clients):
    net = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 10)
    )
    with pytest.raises(ArgumentError, match="mine.*running statistics"):
        bf.compose("mine", net, training=WORK)


# A server need not publish.


@dataclass(frozen=True)
class Half:
    """Go half of the way to the clients' mean."""

    def step(self, state, reducer, round):
        mean, info = Average().step(state, reducer, round)
        return {name: (leaf + mean[name]) / 2 for name, leaf in state.items()}, info


@dataclass(frozen=True)
class Shy(Half):
    """Show clients zeros."""

    def publish(self, state, round, version):
        return {name: torch.zeros_like(leaf) for name, leaf in state.items()}


def test_clients_see_the_state_of_a_server_that_does_not_publish(net, clients):
    assert not isinstance(Half(), Publisher)
    state = parameters(net)
    assert published(Half(), state, 0, None) is state
    assert tree_equal(
        published(Shy(), state, 0, None),
        {name: torch.zeros_like(leaf) for name, leaf in state.items()},
    )
    whole = owned(final(bf.fed_avg(net, training=WORK), bf.InProcess(clients), 1), "model")
    half = final(bf.compose("half", net, server=Half(), training=WORK), bf.InProcess(clients), 1)
    for name, leaf in owned(half, "model").items():
        assert torch.allclose(leaf, (whole[name] + state[name]) / 2, atol=1e-7)
    # What is put around a server shows what the server shows.
    around = bf.private(
        bf.compose("shy", net, server=Shy(), training=WORK),
        clip=1.0,
        noise=0.0,
        participants=4,
        key=bf.Key(0),
    )
    server = assembled(around.phases[0]).server
    assert tree_equal(
        published(server, of("model", state), 0, None), published(Shy(), state, 0, None)
    )
