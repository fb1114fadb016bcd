"""`Training` and `LocalOptions`: local work as a value, and what a message says of it."""

import subprocess
import sys
from dataclasses import dataclass, replace

import pytest
import torch

import bayesfed as bf
from bayesfed.data.dataset import rows_of
from bayesfed.errors import ArgumentError, ClientError, UpdateError
from bayesfed.federated import Sized
from bayesfed.federated.core.options import read_options
from bayesfed.federated.core.seams import Around, options_of
from bayesfed.trees import is_finite
from tests.conftest import tree_equal

WORK = bf.Training(steps=2, batch_size=16)


def final(algorithm, clients, rounds=2, **options):
    return bf.run(algorithm, clients, rounds=rounds, progress=False, **options).snapshot.state


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"steps": 0}, "Training, steps: expected a whole number >= 1, found 0"),
        ({"steps": 2.5}, "Training, steps: expected a whole number >= 1, found 2.5"),
        ({"steps": True}, "Training, steps: expected a whole number >= 1, found True"),
        ({"steps": "50"}, "Training, steps: expected a whole number >= 1, found '50'"),
        ({"batch_size": 0}, "Training, batch_size: expected a whole number >= 1, found 0"),
        ({"batch_size": 0.5}, "Training, batch_size: expected a whole number >= 1, found 0.5"),
        ({"epochs": 0}, r"Training, epochs: expected a number in \(0, inf\), found 0"),
        ({"epochs": -1.0}, r"Training, epochs: expected a number in \(0, inf\), found -1.0"),
        ({"epochs": float("nan")}, r"Training, epochs: expected a number in \(0, inf\), found nan"),
        ({"epochs": float("inf")}, r"Training, epochs: expected a number in \(0, inf\), found inf"),
        (
            {"optimiser": 0.1},
            r"Training, optimiser: expected an Optimiser or None, found 0.1; try Sgd\(0.05\)",
        ),
        (
            {"optimiser": torch.optim.SGD},
            "Training, optimiser: expected an Optimiser or None, found the class SGD",
        ),
        (
            {"optimiser": bf.Sgd},
            "Training, optimiser: expected an Optimiser or None, found the class Sgd",
        ),
        (
            {"prior_precision": 0.3},
            "Training: expected both or neither, found prior_precision 0.3, observations None",
        ),
        (
            {"prior_precision": -1.0, "observations": 10},
            "Training, prior_precision: expected a number >= 0 or 'auto', found -1.0",
        ),
        (
            {"prior_precision": 0.3, "observations": 0},
            "Training, observations: expected a whole number >= 1, found 0",
        ),
        ({"schedule": 0.5}, "Training, schedule: expected a function, found 0.5"),
    ],
)
def test_bad_values_are_refused(bad, words):
    with pytest.raises(ArgumentError, match=words):
        bf.Training(**bad)


def test_it_is_a_value():
    assert bf.Training(steps=3, optimiser=bf.Sgd(0.1)) == replace(
        bf.Training(optimiser=bf.Sgd(0.1)), steps=3
    )
    with pytest.raises(AttributeError):
        bf.Training().steps = 3


@pytest.mark.parametrize(
    ("epochs", "batch_size", "rows", "steps"),
    [
        (1.0, 16, 64, 4),
        (2, 16, 64, 8),
        (0.5, 16, 64, 2),
        (1.0, 64, 10, 1),
        (3.0, None, 50, 3),
        (0.01, 16, 64, 1),
        (1.0, 16, 0, 1),
        (None, 16, 64, 7),
    ],
)
def test_epochs_are_passes_over_the_clients_own_rows(epochs, batch_size, rows, steps):
    own = {"steps": 7} if epochs is None else {"epochs": epochs}
    work = bf.Training(batch_size=batch_size, **own)
    assert work.steps_for(rows) == steps
    assert work.options(0, rows).steps == (0 if epochs is None else steps)


@pytest.mark.parametrize("options", [{}, {"workers": 2}], ids=["serial", "workers"])
def test_an_epoch_gives_each_client_its_own_number_of_steps(net, clients, options):
    """A run in epochs is, client by client, the run of as many steps."""
    sizes = {len(data) // 16 for data in clients.values()}
    assert len(sizes) > 1
    algorithm = bf.fed_avg(net, training=bf.Training(epochs=1.0, batch_size=16))
    for name, data in clients.items():
        with bf.InProcess({name: data}, **options) as pool:
            found = final(algorithm, pool, 1)
        steps = round(len(data) / 16)
        assert tree_equal(
            found,
            final(
                bf.fed_avg(net, training=bf.Training(steps=steps, batch_size=16)), {name: data}, 1
            ),
        )


def test_all_rows_in_each_step_is_a_batch_of_all_rows(net, clients):
    whole, large = (
        bf.fed_avg(net, training=bf.Training(steps=2, batch_size=size)) for size in (None, 10**6)
    )
    assert tree_equal(final(whole, clients), final(large, clients))


def test_a_schedule_is_a_factor_on_the_rate_of_its_round(net, clients):
    work = replace(WORK, optimiser=bf.Sgd(0.1), schedule=lambda round: 0.5)
    assert work.options(3, 10) == bf.federated.LocalOptions(rate_factor=0.5)
    assert tree_equal(
        final(bf.fed_avg(net, training=work), clients),
        final(bf.fed_avg(net, training=replace(WORK, optimiser=bf.Sgd(0.05))), clients),
    )


# Options in the header of a message.


@dataclass(frozen=True)
class Pulled(bf.federated.LocalOptions):
    """Options of a local that holds on to something."""

    pull: float = 0.0
    times: int = 1


def test_only_what_differs_from_the_defaults_travels():
    assert bf.federated.LocalOptions().header() == {}
    options = Pulled(rate_factor=0.5, pull=0.25, times=3)
    assert options.header() == {"rate_factor": 0.5, "pull": 0.25, "times": 3}
    assert read_options(Pulled, options.header()) == options
    assert read_options(bf.federated.LocalOptions, {}) == bf.federated.LocalOptions()


def test_a_whole_number_may_stand_for_a_float():
    found = read_options(bf.federated.LocalOptions, {"scale": 4})
    assert found == bf.federated.LocalOptions(scale=4.0)
    assert isinstance(found.scale, float)


@pytest.mark.parametrize(
    ("record", "header", "words"),
    [
        (
            bf.federated.LocalOptions,
            {"rate_facto": 0.5},
            (
                r"field 'rate_facto': expected a field of LocalOptions: rate_factor, .*; try "
                r"'rate_factor'"
            ),
        ),
        (bf.federated.LocalOptions, {"learning_rate": 0.5}, "expected a field of LocalOptions"),
        (
            bf.federated.LocalOptions,
            {"pull": 0.5},
            r"found 'pull'; try a record that extends LocalOptions",
        ),
        (Pulled, {"pul": 0.5}, r"expected a field of Pulled: .*, times, found 'pul'; try 'pull'"),
        (
            bf.federated.LocalOptions,
            {"steps": 2.5},
            "field 'steps': expected a finite int, found 2.5; try 0",
        ),
        (
            bf.federated.LocalOptions,
            {"steps": True},
            "field 'steps': expected a finite int, found True",
        ),
        (
            bf.federated.LocalOptions,
            {"scale": "4"},
            "field 'scale': expected a finite float, found '4'",
        ),
        (
            bf.federated.LocalOptions,
            {"scale": True},
            "field 'scale': expected a finite float, found True",
        ),
        (
            bf.federated.LocalOptions,
            {"rate_factor": float("nan")},
            "field 'rate_factor': expected a finite float, found nan",
        ),
        (
            bf.federated.LocalOptions,
            {"rate_factor": float("inf")},
            "expected a finite float, found inf",
        ),
    ],
)
def test_strange_headers_are_refused(record, header, words):
    with pytest.raises(UpdateError, match=words):
        read_options(record, header)


class Echo:
    """Train as another local does, and report what it was told."""

    options = Pulled

    def __init__(self, local):
        self.local, self.kind = local, local.kind

    def fit(self, message, memory, data, key, options):
        fit = self.local.fit(message, memory, data, key, options)
        return fit._replace(
            info={
                **fit.info,
                "pull": options.pull,
                "times": float(options.times),
                "factor": options.rate_factor,
            }
        )


def pulled(net, *, local=None, told=None):
    local = Echo(WORK.fitting(net)) if local is None else local
    told = told or (
        lambda turn: WORK.options_as(
            Pulled, turn.round, turn.profile.samples, pull=0.5 + turn.round, times=3
        )
    )
    return bf.compose("pulled", net, local, training=WORK, options=told)


@pytest.mark.parametrize("options", [{}, {"workers": 2}], ids=["serial", "workers"])
def test_a_record_that_extends_travels_through_a_round(net, clients, options):
    with bf.InProcess(clients, **options) as pool:
        result = bf.run(pulled(net), pool, rounds=2, progress=False)
    for record in result.history:
        assert record.clients.keys() == clients.keys()
        for info in record.clients.values():
            assert (info["pull"], info["times"], info["factor"]) == (0.5 + record.round, 3.0, 1.0)
    assert tree_equal(result.snapshot.state, final(bf.fed_avg(net, training=WORK), clients))


def test_a_local_around_another_reads_the_record_of_the_inner(net):
    echo = Echo(WORK.fitting(net))
    assert options_of(Around(echo)) is options_of(Around(Around(echo))) is Pulled
    assert options_of(Sized((echo, echo))) is Pulled
    assert options_of(WORK.fitting(net)) is bf.federated.LocalOptions


@pytest.mark.parametrize("options", [{}, {"workers": 2}], ids=["serial", "workers"])
def test_a_field_that_a_local_does_not_read_is_not_ignored(net, clients, options):
    with (
        bf.InProcess(clients, **options) as pool,
        pytest.raises(ClientError, match=r"stage 'decode'.*'pull'.*a field of LocalOptions"),
    ):
        bf.run(pulled(net, local=WORK.fitting(net)), pool, rounds=1, progress=False)


def test_masks_of_classes_are_refused_where_targets_are_numbers():
    with pytest.raises(
        ArgumentError,
        match=(
            "masked: expected a likelihood of classes, found Normal; try masked=False, or "
            "Categorical"
        ),
    ):
        bf.Training().fitting(bf.mlp([4, 3, 1], bf.Key(0, "net")), bf.Normal(1.0), masked=True)


def test_a_prior_is_weight_decay_of_its_precision_by_all_rows(net, clients):
    """MAP estimates; the same under SGD's own decay, for every point method; a precision of 0
    changes nothing.
    """
    rows = sum(map(len, clients.values()))
    prior = {"prior_precision": 0.05 * rows, "observations": rows}
    decayed = replace(WORK, optimiser=bf.Sgd(0.05, weight_decay=0.05))
    for make in (
        bf.fed_avg,
        bf.fed_paq,
        lambda net, **options: bf.fed_prox(net, strength=0.1, **options),
    ):
        one, two = (
            final(make(net, training=work), clients) for work in (replace(WORK, **prior), decayed)
        )
        assert all(torch.allclose(one[name], two[name], atol=1e-5) for name in one)
    plain = final(bf.fed_avg(net, training=WORK), clients)
    assert tree_equal(
        plain,
        final(
            bf.fed_avg(net, training=replace(WORK, prior_precision=0.0, observations=rows)), clients
        ),
    )
    masked = final(bf.fed_avg(net, training=replace(WORK, **prior), masked=True), clients)
    assert sum(float(leaf.square().sum()) for leaf in masked.values()) < sum(
        float(leaf.square().sum()) for leaf in plain.values()
    )
    with pytest.raises(
        ArgumentError, match="expected a method with point estimates, found PersonalElbo"
    ):
        bf.p_fed_bayes(net, training=replace(WORK, **prior))


@pytest.mark.parametrize(
    ("value", "twin"),
    [
        (bf.Sgd(0.1), lambda leaves: torch.optim.SGD(leaves, 0.1)),
        (bf.Sgd(0.1, 0.9), lambda leaves: torch.optim.SGD(leaves, 0.1, 0.9)),
        (
            bf.Sgd(0.1, 0.9, 0.01),
            lambda leaves: torch.optim.SGD(leaves, 0.1, 0.9, weight_decay=0.01),
        ),
        (bf.Adam(0.1), lambda leaves: torch.optim.Adam(leaves, 0.1, fused=True)),
        (
            bf.Adam(0.1, (0.8, 0.99), 0.05),
            lambda leaves: torch.optim.AdamW(
                [{"params": leaves[:1]}, {"params": leaves[1:], "weight_decay": 0.0}],
                0.1,
                (0.8, 0.99),
                weight_decay=0.05,
                fused=True,
            ),
        ),
    ],
)
def test_steps_have_the_bits_of_torchs_own_optimisers(value, twin):
    def stepped(made):
        noise = torch.Generator().manual_seed(0)
        leaves = [
            torch.randn(shape, generator=noise).requires_grad_() for shape in ((30, 20), (7,))
        ]
        optimiser = made(leaves)
        for _ in range(5):
            for leaf in leaves:
                leaf.grad = torch.randn(leaf.shape, generator=noise)
            optimiser.step()
        return leaves

    for own, theirs in zip(
        stepped(lambda leaves: value.build(leaves, 0.1)), stepped(twin), strict=True
    ):
        assert torch.equal(own, theirs)


@pytest.mark.parametrize("recipe", [bf.fed_avg, bf.fed_paq, bf.d_turbo_vbi])
def test_decay_by_group_is_that_of_a_loop_in_torch(recipe, net, clients):
    """Matrices decay, biases and norms do not; an optimiser of a page's form is the same."""
    work = replace(WORK, optimiser=bf.Adam(0.01, weight_decay=0.3))
    own = replace(WORK, optimiser=Grouped(0.01))
    made, settings = net, {}
    if recipe is bf.d_turbo_vbi:
        made, settings = bf.declare(net), {"observations": sum(map(len, clients.values()))}
    one, two, plain = (
        final(recipe(made, training=each, **settings), clients)
        for each in (work, own, replace(WORK, optimiser=bf.Adam(0.01)))
    )
    assert all(torch.equal(leaf, two[name]) for name, leaf in one.items())
    assert not tree_equal(one, plain)


@dataclass(frozen=True)
class Grouped:
    """AdamW as it is written by hand."""

    learning_rate: float

    def build(self, leaves, learning_rate):
        decayed = [leaf for leaf in leaves if leaf.ndim > 1]
        groups = [
            {"params": decayed, "weight_decay": 0.3},
            {"params": [leaf for leaf in leaves if leaf.ndim < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, learning_rate, fused=True)


@pytest.mark.slow
def test_training_does_not_import_torchs_compiler():
    code = """
import sys, bayesfed as bf
data = bf.federate(bf.digits()[0][:60], bf.iid(60, 2, bf.Key(0, "parts")))
for optimiser in (bf.Sgd(0.1), bf.Adam(1e-3)):
    work = bf.Training(steps=2, optimiser=optimiser)
    bf.run(bf.fed_avg(bf.mlp([64, 4, 10], bf.Key(0, "net")), training=work), data, rounds=1)
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_rows_of_a_batch_are_those_of_an_index_in_the_same_layout():
    numbers = torch.tensor([3, 0, 3])
    inputs, targets = torch.randn(5, 4, 3, 2), torch.arange(5)
    images = inputs.contiguous(memory_format=torch.channels_last)
    for values in (inputs, images, inputs.transpose(0, 1).contiguous().transpose(0, 1)):
        data = bf.Dataset(values, targets, domains=tuple("abcde"))
        taken, indexed = rows_of(data, numbers), data[numbers]
        assert taken.inputs.stride() == indexed.inputs.stride()
        assert torch.equal(taken.inputs, indexed.inputs)
        assert torch.equal(taken.targets, indexed.targets)
        assert taken.domains == indexed.domains == ("d", "a", "d")


def test_finite_numbers_whose_sum_is_not_are_finite():
    largest = torch.finfo(torch.float32).max
    assert is_finite(torch.full((4,), largest))
    assert is_finite(torch.full((40,), 60000.0, dtype=torch.float16))
    for odd in (torch.inf, -torch.inf, torch.nan):
        assert not is_finite(torch.tensor([1.0, odd]))
    assert not is_finite(torch.tensor([torch.inf, -torch.inf]))
