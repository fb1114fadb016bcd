"""Fusion rules: one of your own runs as the shipped ones do; what is no rule, or does not say what
its payloads mean, is refused.
"""

from dataclasses import dataclass
from typing import get_args

import pytest
import torch

import bayesfed as bf
from bayesfed.errors import ArgumentError
from bayesfed.federated.core.owners import owned
from bayesfed.federated.core.update import Kind
from bayesfed.inference.variational.fusion import FusionKind, MeanParameters, Start, SummedGradients
from bayesfed.inference.variational.fusion.rule import valued
from bayesfed.trees import under, without, zip_map
from tests.posteriors.test_federated_svi import clients, fitted, same

VELOCITY = "velocity/"


@dataclass(frozen=True)
class HeavyBall:
    """Clients send changes of parameters; the server moves along their mean, with momentum."""

    momentum: float = 0.0
    kind = "delta"
    adds = False

    def check(self, fused):
        pass

    def initial(self, fused):
        return fused.first | {
            f"{VELOCITY}{name}": torch.zeros_like(leaf) for name, leaf in fused.first.items()
        }

    def publish(self, state):
        return without(state, VELOCITY)

    def start(self, state, memory, fused, share):
        return Start(state)

    def finish(self, parameters, start, state, memory, fused):
        return zip_map(torch.sub, parameters, state), {
            "rounds": memory.get("rounds", torch.zeros(())) + 1
        }

    def step(self, state, answers, rate, fused):
        if not answers.weight:
            return state
        velocity = {
            name: self.momentum * leaf + rate * answers.mean()[name]
            for name, leaf in under(state, VELOCITY).items()
        }
        return zip_map(torch.add, self.publish(state), velocity) | {
            f"{VELOCITY}{name}": leaf for name, leaf in velocity.items()
        }

    def parameters(self, state, fused):
        return state


def test_without_momentum_a_rule_of_ones_own_is_the_average():
    own, shipped = (
        owned(fitted(rule=rule, rounds=3).snapshot.state, "model")
        for rule in (HeavyBall(), MeanParameters())
    )
    moved = without(own, VELOCITY)
    assert valued(moved).keys() == shipped.keys()
    for name, leaf in valued(moved).items():
        assert torch.allclose(leaf, shipped[name], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_what_only_the_server_needs_is_not_sent_and_is_in_the_snapshot():
    rule = HeavyBall(0.5)
    whole, half = (fitted(rule=rule, rounds=rounds) for rounds in (4, 2))
    velocity = under(owned(whole.snapshot.state, "model"), VELOCITY)
    assert velocity
    assert all(bool(leaf.any()) for leaf in velocity.values())
    assert whole.posterior.parameters.keys() == velocity.keys()
    assert same(
        whole.snapshot.state,
        fitted(rule=rule, rounds=4, run={"resume": half.snapshot}).snapshot.state,
    )
    assert not same(whole.snapshot.state, fitted(rule=HeavyBall(), rounds=4).snapshot.state)
    parts, data = clients()
    assert same(
        whole.snapshot.state,
        fitted(rule=rule, rounds=4, parts=(bf.InProcess(parts, workers=2), data)).snapshot.state,
    )
    assert all(float(memory["model/rounds"]) == 4 for memory in whole.snapshot.memories.values())


def test_a_client_without_rows_changes_nothing_in_a_rule_of_ones_own():
    parts, data = clients()
    with_empty = fitted(
        rule=HeavyBall(0.5), parts=({**parts, "empty": data[:0]}, data)
    ).snapshot.state
    assert same(fitted(rule=HeavyBall(0.5), parts=(parts, data)).snapshot.state, with_empty)


class Silent(HeavyBall):
    """A rule that does not say what its payloads mean."""

    @property
    def kind(self):
        raise AttributeError("kind")


class Unknown(HeavyBall):
    kind = "deltas"


class Partial:
    kind, adds = "value", False


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (
            Silent(),
            (
                r"federated_svi, fusion, kind: expected what payloads mean, one of "
                r"\['value'.*found none; try kind = \"value\" in Silent"
            ),
        ),
        (Unknown(), r"fusion, kind: expected .*'delta'.*found 'deltas'"),
        (
            Partial(),
            (
                "expected a fusion rule, found .*Partial.* has no check, initial, publish, "
                "start, finish, step, parameters"
            ),
        ),
        (bf.PVI, r"expected a fusion rule, found the class PVI; try an instance, PVI\(\)"),
        (3, "expected a fusion rule, found 3"),
    ],
)
def test_what_is_no_rule_is_refused(rule, words):
    with pytest.raises(ArgumentError, match=words):
        fitted(rule=rule)
    with pytest.raises(ArgumentError, match="found 'PVI'.* has no kind, adds"):
        bf.federated_svi(
            None, None, fusion="PVI", scale="local", observations=1, example=clients()[1][:1]
        )


def test_kinds_are_those_of_updates():
    assert {*get_args(FusionKind)} <= {*get_args(Kind)}
    assert [
        rule().kind
        for rule in (bf.inference.MeanParameters, bf.inference.Wasserstein, bf.inference.ReverseKL)
    ] == [
        "value",
        "moments",
        "natural",
    ]
    assert [
        rule().kind for rule in (bf.inference.ProductOfExperts, bf.PVI, bf.SummedGradients)
    ] == [
        "natural",
        "natural",
        "gradient",
    ]


def test_the_first_argument_of_a_rule_is_its_own():
    assert bf.PVI(0.3).damping == bf.inference.ProductOfExperts(0.3).damping == 0.3
    assert SummedGradients(0.2).learning_rate == 0.2
