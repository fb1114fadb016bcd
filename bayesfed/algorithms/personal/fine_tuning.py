"""`personalised`: any method, after which each client fine-tunes the model that it received on its
own rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from bayesfed.algorithms.wrappers.phases import each_phase
from bayesfed.data.dataset import Dataset
from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.federated.core.algorithm import Algorithm, Model, Personal, Phase, published
from bayesfed.federated.core.options import LocalOptions
from bayesfed.federated.core.protocols import Fit
from bayesfed.federated.core.wrappers import Around
from bayesfed.federated.training.delta_downlink import Holding
from bayesfed.federated.training.descent import Descent
from bayesfed.federated.training.local_work import Training
from bayesfed.federated.training.optimisers import Optimiser
from bayesfed.inference.objectives.likelihood import MaximumLikelihood
from bayesfed.keys import Key
from bayesfed.models.modules import Predicate
from bayesfed.models.priors.likelihoods import Categorical, Likelihood
from bayesfed.trees import Shapes, Tree, running_statistics, shapes, to, trainable, under, without

# Prefix of the fine-tuned model in a client's memory.
TUNED = "tuned/"


@dataclass(frozen=True)
class FineTuned(Around):
    """A local step, after which the client trains the model of the message on its own rows and
    keeps the result.

    Parameters
    ----------
    local
        The method's local step. What it sends does not change.
    descent
        Steps of the fine-tuning.
    begin
        ``(message, memory) -> model``: what the fine-tuning begins with.
    expected
        Names and shapes of that model's parameters.
    fixed
        Names of parameters that stay as they begin.
    """

    descent: Descent
    begin: Callable[[Tree, Tree], Tree]
    expected: Shapes
    fixed: tuple[str, ...] = ()

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Fit as the method does, then fine-tune. A client without rows keeps no model.

        Raises
        ------
        UpdateError
            If the message does not hold the whole model.
        """
        fit = self.local.fit(message, without(memory, TUNED), data, key, options)
        if not len(data):
            return fit
        begun = to(self.begin(message, fit.memory), data.inputs.device)
        if shapes(begun) != dict(self.expected):
            actual = f"leaves {sorted(begun)}"
            raise UpdateError(
                "personalised",
                "a message with the whole model",
                actual,
                "fed_avg, fed_lora, fed_per",
            )

        def held(trained: dict[str, Tensor], rate: float, left: int) -> None:
            for name in self.fixed:
                trained[name].copy_(begun[name])

        tuned = self.descent.train(
            begun, data, key.child("personal"), LocalOptions(), held if self.fixed else None
        ).payload
        return fit._replace(
            memory=fit.memory | {TUNED + name: leaf for name, leaf in tuned.items()}
        )


def personalised(
    algorithm: Algorithm,
    *,
    steps: int = 50,
    batch_size: int | None = 64,
    optimiser: Optimiser | None = None,
    likelihood: Likelihood | None = None,
    where: Predicate | None = None,
) -> Algorithm:
    """Let each client fine-tune the model that it received, and keep the result: FedAvg with
    fine-tuning, and the same for other methods.

    What is sent and what the server computes do not change by a bit. A client fine-tunes in every
    round that it takes part in, after its work for the method, so that it has a model of its own
    whenever the run ends; this costs `steps` more steps a round. A client that never took part has
    the transmitted model. Where the method already has personal models (`fed_per`), fine-tuning
    begins with those.

    Parameters
    ----------
    algorithm
        Method of one phase and one size of model, whose messages hold the model's parameters.
    steps, batch_size, optimiser
        Fine-tuning of a round, as in `Training`. Default optimiser: ``Sgd(0.05)``.
    likelihood
        Likelihood of the targets. Default: `Categorical()`.
    where
        ``(parameter name, owning module) -> bool``: which parameters are fine-tuned. Default: all
        that are trained.

    Raises
    ------
    ArgumentError
        If the method has several phases, several sizes or a posterior, sends changes of the model
        to its clients (`stc`), or its network has running statistics; if `where` chooses nothing;
        if a number is outside its domain.

    Examples
    --------
    >>> result = run(personalised(fed_avg(net), steps=20), clients, rounds=40)
    >>> result.clients["client-003"].model(inputs)
    """
    name = f"personalised, {algorithm.name!r}"
    if len(algorithm.phases) != 1 or algorithm.sizes or algorithm.posterior is not None:
        actual = f"{len(algorithm.phases)} phases, {len(algorithm.sizes)} sizes" + (
            ", a posterior" if algorithm.posterior else ""
        )
        raise ArgumentError(
            name,
            "a method of one phase, one size, without posterior",
            actual,
            "fed_avg, fed_prox, fed_lora",
        )
    phase = algorithm.phases[0]
    own = algorithm.personal or (lambda state, memory: Personal(algorithm.predictor(state)))
    model = own(published(phase.server, algorithm.initial, 0, None), {}).model
    if not isinstance(model, Model) or isinstance(phase.local, Holding):
        actual = (
            "changes of the model" if isinstance(phase.local, Holding) else type(model).__name__
        )
        raise ArgumentError(
            name, "messages that hold a network's parameters", actual, "fed_avg, fed_prox, fed_lora"
        )
    net = model.net
    certain = running_statistics(net, certain=True)
    if running := [
        one for one in running_statistics(net) if one in certain or one in algorithm.initial
    ]:
        raise ArgumentError(name, "a network without running statistics", running, "nn.GroupNorm")
    chosen = trainable(net)
    fixed = [
        one for one in chosen if where and not where(one, net.get_submodule(one.rpartition(".")[0]))
    ]
    if len(fixed) == len(chosen):
        raise ArgumentError(
            f"{name}, where", "a predicate that chooses a parameter", "none", "where=None"
        )
    work = Training(steps, batch_size, optimiser)
    descent = work.descent(MaximumLikelihood(net, likelihood or Categorical()), net)

    def begin(message: Tree, memory: Tree) -> Tree:
        return dict(own(message, memory).model.parameters)

    def changed(phase: Phase) -> Phase:
        return replace(
            phase, local=FineTuned(phase.local, descent, begin, shapes(chosen), tuple(fixed))
        )

    def personal(state: Tree, memory: Tree) -> Personal:
        tuned = under(memory, TUNED)
        return Personal(Model(net, tuned)) if tuned else own(state, memory)

    return replace(each_phase(algorithm, name, changed), personal=personal)
