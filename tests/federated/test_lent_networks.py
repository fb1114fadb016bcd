"""A run borrows a network: it seeds what the network draws, says which parts are in evaluation
mode, and gives everything back.
"""

import random
import threading
import warnings
from contextlib import nullcontext

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.errors import ArgumentError, ClientError, PosteriorError
from bayesfed.federated.clients.side import ClientSide
from bayesfed.federated.core.owners import owned
from bayesfed.keys import forked, streams
from bayesfed.models.live import drawing, networks_in
from tests.conftest import tree_equal
from tests.support import recipes
from tests.support.random_networks import KINDS, FunctionalDropout, drawing_net

WORK = bf.Training(steps=3, batch_size=8, optimiser=bf.Sgd(0.2))


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def net_of(name):
    return drawing_net(name, recipes.FEATURES, recipes.CLASSES)


def state(algorithm, pool=None):
    """The state after two rounds."""
    data = pool or bf.InProcess(recipes.rows())
    return bf.run(algorithm, data, rounds=2, progress=False).snapshot.state


def stir():
    """Move every global generator."""
    torch.rand(3)
    random.random()
    np.random.rand()


# Random numbers


@pytest.mark.parametrize("name", KINDS)
def test_what_a_network_draws_is_seeded_by_client_and_round(name):
    algorithm = bf.fed_avg(net_of(name), training=WORK)
    before = streams()
    first = state(algorithm)
    assert streams() == before
    stir()
    assert tree_equal(state(algorithm), first)
    with bf.InProcess(recipes.rows(), workers=2) as pool:
        assert tree_equal(state(algorithm, pool), first)
    before = streams()
    threads = bf.InProcess(recipes.rows(), workers=2, kind="thread")
    with threads as pool, pytest.raises(ArgumentError, match="draw from no global generator"):
        state(algorithm, pool)
    assert streams() == before
    cohort = bf.InProcess(recipes.rows(), cohort=2)
    with pytest.raises(ArgumentError, match="random"):
        state(algorithm, cohort)


@pytest.mark.parametrize(
    "generator", [torch.Generator(), np.random.RandomState(3)], ids=["torch", "numpy"]
)
def test_a_generator_that_a_network_holds_is_seeded_too_and_left_as_it_was(generator):
    net = nn.Sequential(net_of("OwnStreams"))
    net.held, drawn = generator, []
    numpy = isinstance(generator, np.random.RandomState)

    def noise(module, given, output):
        drawn.append(float(generator.rand() if numpy else torch.rand((), generator=generator)))
        return output + drawn[-1] if module.training else output

    net.register_forward_hook(noise)
    algorithm, before = bf.fed_avg(net, training=WORK), streams([generator])
    first = state(algorithm)
    assert streams([generator]) == before
    noise(nn.Identity(), None, torch.zeros(()))
    assert tree_equal(state(algorithm), first)
    # Every client and round has noise of its own.
    assert len({*drawn[:12]}) == 12
    with bf.InProcess(recipes.rows(), workers=2) as pool:
        assert tree_equal(state(algorithm, pool), first)


def test_another_process_finds_generators_of_its_own():
    side = ClientSide.of(bf.fed_avg(net_of("OwnStreams"), training=WORK).phases[0])
    assert len(side.generators) == 3
    assert "generators" not in vars(cloudpickle.loads(cloudpickle.dumps(side)))


METHODS = {
    "scaffold": bf.scaffold,
    "fed_rlr": lambda net, training: bf.fed_rlr(net, 2, training=training),
    "ditto": lambda net, training: bf.ditto(net, strength=0.1, training=training),
    "p_fed_bayes": bf.p_fed_bayes,
    "fed_pa": lambda net, training: bf.fed_pa(net, samples=2, training=training),
    "d_turbo_vbi": lambda net, training: bf.d_turbo_vbi(
        bf.declare(net), observations=48, training=training
    ),
    "federated_svi": lambda net, training: bf.federated_svi(
        bf.models.bayesian(net),
        observations=48,
        example=recipes.rows()["client-0"][:3],
        training=bf.Training(steps=3, batch_size=8),
    ),
    "one_round": bf.one_round,
    "calibrated": lambda net, training: bf.calibrated(net, classes=recipes.CLASSES, bins=20),
}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_seeds_it(method):
    algorithm = METHODS[method](net_of("Noise"), training=WORK)
    first = state(algorithm)
    stir()
    assert tree_equal(state(algorithm), first)


def test_passes_with_dropout_find_what_drops_by_looking():
    rows = recipes.rows()["client-0"].inputs
    algorithm = bf.mc_dropout(bf.fed_avg(net_of("FunctionalDropout"), training=WORK))
    result = bf.run(algorithm, recipes.rows(), rounds=1, progress=False)
    assert float(result.predictive(rows, draws=8).probabilities.std(0).mean()) > 1e-3
    for name, modules in {"Recurrent": [nn.LSTM], "Noise": [KINDS["Noise"]]}.items():
        assert [type(one) for one in drawing(net_of(name), {}, rows)] == modules
    quiet = nn.Sequential(nn.Linear(recipes.FEATURES, recipes.CLASSES), nn.Dropout(0.0))
    result = bf.run(bf.mc_dropout(bf.fed_avg(quiet)), recipes.rows(), rounds=1, progress=False)
    with pytest.raises(PosteriorError, match="a network with dropout, found Sequential"):
        result.predictive(rows, draws=2).probabilities.sum()


# Modes


def sleeping():
    return nn.Sequential(
        nn.Linear(recipes.FEATURES, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)
    ).eval()


def test_parts_in_evaluation_mode_are_named_by_every_door():
    words = "expected a network in training mode, found 1, 2 in evaluation mode"
    example = recipes.rows()["client-0"][:3]
    for door in (
        lambda net: bf.fed_avg(net, buffers="mean"),
        bf.scaffold,
        lambda net: bf.fed_rlr(net, 2),
        lambda net: bf.d_turbo_vbi(bf.declare(net), observations=48),
        lambda net: bf.federated_svi(bf.models.bayesian(net), observations=48, example=example),
        bf.p_fed_bayes,
    ):
        with pytest.warns(UserWarning, match=words):
            door(sleeping())
    # What it says to try works.
    net = sleeping()
    net[1].requires_grad_(False)
    net[2].train()
    for answered in (net, recipes.net().eval()):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            bf.fed_avg(answered)
            bf.fed_avg(sleeping().train(), buffers="mean")


def test_a_part_that_is_frozen_on_purpose_stays_as_it_is():
    net = sleeping().train()
    net[1].eval().requires_grad_(False)
    net[1].running_mean.fill_(0.3)
    result = bf.run(bf.fed_avg(net, training=WORK), recipes.rows(), rounds=2, progress=False)
    assert owned(result.snapshot.state, "model").keys() == {
        f"{layer}.{part}" for layer in (0, 3) for part in ("weight", "bias")
    }
    assert result.model.net[1].running_mean.eq(0.3).all()
    assert [module.training for module in net] == [True, False, True, True]


# What is the user's


class Leaving(FunctionalDropout):
    """Leaves traces of every pass: a count in a buffer that is saved or not, attributes, a hook."""

    def __init__(self, saved=False):
        with forked(bf.Key(0)):
            super().__init__(recipes.FEATURES, recipes.CLASSES)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long), persistent=saved)
        self.register_buffer("seen", torch.zeros(3, dtype=torch.bool), persistent=False)
        self.past, self.number = [], 0

    def drawn(self, inner):
        self.calls += 1
        self.seen[0] = True
        self.past.append(inner)
        self.last, self.number = inner, self.number + 1
        self.enter.register_forward_hook(lambda *given: None)
        return super().drawn(inner) * (1 + 0.1 * self.calls + 0.1 * self.number)


def everything(nets):
    """All that networks have, by module and name: values of tensors, identities of the rest."""
    found = {}
    for number, net in enumerate(nets):
        for path, module in net.named_modules():
            for name, value in vars(module).items():
                place = number, path, name
                inner = value if isinstance(value, dict) else {"": value}
                found[place] = list(value) if isinstance(value, dict | list | set) else value
                for part, one in inner.items():
                    if isinstance(one, torch.Tensor):
                        grad = one.grad if one.is_leaf else None
                        found[*place, part] = (
                            id(one),
                            one.requires_grad,
                            one.tolist(),
                            grad is None,
                        )
                        found[place] = None if one is value else found[place]
                    else:
                        found[*place, part] = id(one)
    return found


class Fault(Exception):
    pass


@pytest.mark.parametrize("fault", [False, True])
@pytest.mark.parametrize("name", recipes.tiny_recipes())
def test_a_run_leaves_the_network_as_it_was(name, fault, monkeypatch):
    made, passes = [], []

    def noted(make):
        return lambda: made.append(make()) or made[-1]

    def leave(module, given, output):
        if any(module is net for net in made):
            module.last, module.count = output, len(passes)
            module.train(not module.training)
            passes.append(module)
            if fault and len(passes) == 7:
                raise Fault

    for maker in ("net", "dropping", "adapted"):
        monkeypatch.setattr(recipes, maker, noted(getattr(recipes, maker)))
    tiny = recipes.tiny_recipes()[name]()
    before, drawn = everything(made), streams()
    # A hook that no module has.
    with torch.nn.modules.module.register_module_forward_hook(leave), tiny.pool() as pool:
        end = pytest.raises(ClientError, match="Fault") if fault else nullcontext()
        try:
            with end:
                bf.run(tiny.algorithm, pool, rounds=1, progress=False)
        except pytest.fail.Exception:
            # Copies alone were trained.
            assert len(passes) < 7
    assert everything(made) == before
    assert streams() == drawn


def test_traces_of_a_pass_are_gone_after_a_turn_and_reach_nobody():
    net = Leaving()
    before = everything([net])
    algorithm = bf.fed_avg(net, training=WORK)
    first = state(algorithm)
    assert everything([net]) == before
    with bf.InProcess(recipes.rows(), workers=2) as pool:
        assert tree_equal(state(algorithm, pool), first)
    algorithm.predictor(first)(recipes.rows()["client-0"].inputs)
    assert everything([net]) == before


def test_a_saved_buffer_of_any_dtype_that_changes_is_named_or_follows_the_policy():
    net = Leaving(saved=True)
    before = everything([net])
    with pytest.raises(ClientError, match=r"no running statistics, found \['calls'\]"):
        state(bf.fed_avg(net, training=WORK))
    assert everything([net]) == before
    for policy in ("mean", "local"):
        algorithm = bf.fed_avg(net, buffers=policy, training=WORK)
        first = state(algorithm)
        with bf.InProcess(recipes.rows(), workers=2) as pool:
            assert tree_equal(state(algorithm, pool), first)
        assert everything([net]) == before


@pytest.mark.parametrize("name", ["FunctionalDropout", "plain"])
def test_runs_of_one_algorithm_in_threads_do_not_disturb_one_another(name):
    net = recipes.net() if name == "plain" else net_of(name)
    algorithm = bf.fed_avg(net, training=WORK)
    inputs = recipes.rows()["client-0"].inputs
    alone, found = state(algorithm), [None] * 3
    outputs = algorithm.predictor(alone)(inputs)
    before, drawn = everything([net]), streams()

    def run(number):
        found[number] = state(algorithm), algorithm.predictor(alone)(inputs)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for end, predicted in found:
        assert tree_equal(end, alone)
        assert torch.equal(predicted, outputs)
    assert everything([net]) == before
    assert streams() == drawn


def test_networks_are_found_in_whatever_has_them():
    net, other = recipes.net(), recipes.dropping()

    class Own:
        def __init__(self):
            self.parts = {"one": [lambda: net]}

        def use(self):
            return other

    assert networks_in(Own())[0] is net
    assert other not in networks_in(Own())
    assert other in networks_in(Own.use)
    assert networks_in((Own().use, 1, "text", None)).count(net) == 1
