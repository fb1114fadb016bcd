"""SCAFFOLD (Karimireddy et al., 2020) in one file outside of the package: control variates in
client memory, two payloads in one message.
"""

from dataclasses import dataclass

import torch
from torch import nn

import bayesfed as bf
from bayesfed.federated import Algorithm, Average, Descent, Fit, Kind, Model
from bayesfed.inference import MaximumLikelihood
from bayesfed.trees import Tree, trainable, under

# The two kinds of leaves, in states, messages, payloads and memories.
MODEL, CONTROL = "model/", "control/"


def named(kind: str, tree: Tree) -> Tree:
    """Return leaves by their full names, those of their kind."""
    return {kind + name: leaf for name, leaf in tree.items()}


@dataclass(frozen=True)
class Controlled:
    """SGD steps, each followed by a step against the client's drift."""

    descent: Descent
    kind: Kind = "value"

    def fit(
        self,
        message: Tree,
        memory: Tree,
        data: bf.Dataset,
        key: bf.Key,
        options: bf.federated.LocalOptions,
    ) -> Fit:
        """Return the trained model and, under names of their own, the proposed control variates;
        keep the client's.
        """
        model, c = under(message, MODEL), under(message, CONTROL)
        own = under(memory, CONTROL) or {name: torch.zeros_like(leaf) for name, leaf in c.items()}
        rates: list[float] = []

        def after_step(trained: Tree, rate: float, left: int) -> None:
            rates.append(rate)
            for name, leaf in trained.items():
                leaf.sub_(rate * (c[name] - own[name]))

        fit = self.descent.train(model, data, key, options, after_step)
        if not rates:
            return fit._replace(payload=message, memory=memory)
        after = {
            name: own[name] - c[name] + (model[name] - fit.payload[name]) / sum(rates) for name in c
        }
        proposed = {name: c[name] + leaf - own[name] for name, leaf in after.items()}
        payload = named(MODEL, fit.payload) | named(CONTROL, proposed)
        return Fit(payload, named(CONTROL, after), fit.info)


@bf.recipe(cites=("karimireddy2020scaffold",))
def my_scaffold(net: nn.Module, *, training: bf.Training | None = None) -> Algorithm:
    """Train as `fed_avg` does, with control variates; all clients take part in every round."""
    work, model = training or bf.Training(), trainable(net)
    local = Controlled(work.descent(MaximumLikelihood(net, bf.Categorical()), net))
    zeros = {name: torch.zeros_like(leaf) for name, leaf in model.items()}
    return bf.compose(
        "my_scaffold",
        net,
        local,
        Average(),
        training=work,
        initial=named(MODEL, model) | named(CONTROL, zeros),
        predictor=lambda state: Model(net, under(state, MODEL)),
        owner="",
    )
