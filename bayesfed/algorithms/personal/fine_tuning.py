"""`personalised`: any method, after which each client fine-tunes the model that it received on its
own rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.errors.checks import checked
from bayesfed.errors.plurals import plural
from bayesfed.federated import (
    Algorithm,
    Descent,
    Fit,
    Layer,
    LocalOptions,
    Model,
    Optimiser,
    Personal,
    Sent,
    Training,
    Visit,
    layered,
    published,
)
from bayesfed.federated.core import MODEL, Conditions, Skip, of, owned
from bayesfed.federated.core.settings import with_settings
from bayesfed.federated.training.descent import holding
from bayesfed.keys import Key
from bayesfed.models import Likelihood
from bayesfed.models.modules import Predicate, selected
from bayesfed.trees import Shapes, Tree, only, running_statistics, shapes, to, trainable

# Most clients whose messages are looked at before a run.
MOST = 100


@dataclass(frozen=True, kw_only=True)
class FineTuned(Layer):
    """After the local step, the client trains the model that it received on its own rows and keeps
    the result. What is sent does not change.

    Parameters
    ----------
    steps
        Steps of the fine-tuning.
    begin
        ``(message, memory) -> model``: what the fine-tuning begins with, given what the core
        received and what it keeps.
    expected
        Names and shapes of that model's parameters.
    fixed
        Names of parameters that stay as they begin.
    """

    owner: str = "tuned"
    steps: Descent
    begin: Callable[[Tree, Tree], Tree]
    expected: Shapes
    fixed: tuple[str, ...] = ()

    def send(self, visit: Visit, fit: Fit) -> Sent:
        """Fine-tune. A client without rows keeps no model.

        Raises
        ------
        UpdateError
            If the message does not hold the whole model.
        """
        if not len(visit.data):
            return Sent(fit, memory={})
        begun = to(self.begin(visit.message, fit.memory), visit.data.inputs.device)
        if shapes(begun) != dict(self.expected):
            raise UpdateError(
                "personalised",
                "a message with the whole model",
                f"leaves {sorted(begun)}",
                "fed_avg, fed_lora, fed_per",
            )
        key, held = visit.key.child("personal"), holding(only(begun, self.fixed))
        tuned = self.steps.train(begun, visit.data, key, LocalOptions(), held).payload
        return Sent(fit, memory=tuned)


@checked()
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
        Method of one phase and one size of model, whose messages hold the model's parameters, or
        changes of them (`stc`).
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
        If the method has several phases, several sizes or a posterior, or its network has running
        statistics; if `where` chooses nothing; if a number is outside its domain. When it is run,
        if a message to a client holds less than the model.

    Examples
    --------
    >>> result = run(personalised(fed_avg(net), steps=20), clients, rounds=40)
    >>> result.clients["client-003"].model(inputs)
    """
    name = f"personalised, {algorithm.name!r}"
    if len(algorithm.phases) != 1 or algorithm.sizes or algorithm.posterior is not None:
        posterior = ", a posterior" if algorithm.posterior else ""
        raise ArgumentError(
            name,
            "a method of one phase, one size, without posterior",
            f"{plural(len(algorithm.phases), 'phase')}, "
            f"{plural(len(algorithm.sizes), 'size')}{posterior}",
            "fed_avg, fed_prox, fed_lora",
        )
    phase = algorithm.phases[0]
    own = algorithm.personal or with_settings(algorithm=algorithm)(
        lambda state, memory: Personal(algorithm.predictor(state))
    )
    core, _ = phase.scope.parted(algorithm.initial)
    shown = published(phase.server, core, 0, None)
    # A core with several kinds of leaves may publish the network's alone, by their own names.
    told = MODEL if shown.keys() == owned(core, MODEL).keys() else phase.owner
    # What the server alone has of the state is as it begins.
    rest = {one: leaf for one, leaf in algorithm.initial.items() if one not in of(told, shown)}
    model = own(rest | of(told, shown), {}).model
    if not isinstance(model, Model):
        raise ArgumentError(
            name,
            "messages that hold a network's parameters",
            type(model).__name__,
            "fed_avg, fed_prox, fed_lora",
        )
    net = model.net
    certain = running_statistics(net, certain=True)
    if running := [one for one in running_statistics(net) if one in certain or one in core]:
        raise ArgumentError(name, "a network without running statistics", running, "nn.GroupNorm")
    chosen = trainable(net)
    tuned = selected(net, chosen, where) if where else [*chosen]
    if not tuned:
        raise ArgumentError(
            f"{name}, where", "a predicate that chooses a parameter", "none", "where=None"
        )
    work = Training(steps, batch_size, optimiser)
    descent = work.likelihood_descent(net, likelihood)

    @with_settings(own=own, phase=phase, rest=rest, told=told)
    def begin(message: Tree, memory: Tree) -> Tree:
        return dict(own(rest | of(told, message), of(phase.owner, memory)).model.parameters)

    def personal(state: Tree, memory: Tree) -> Personal:
        tuned = owned(memory, "tuned")
        return Personal(Model(net, tuned)) if tuned else own(state, memory)

    def whole(conditions: Conditions) -> None:
        """Refuse a method whose messages hold less than the model, by those of some clients."""
        for profile in conditions.profiles[:MOST]:
            plan = phase.assign(core, 0, profile, Key(0, "personalised"))
            if isinstance(plan, Skip):
                continue
            unlike = sorted(set(plan.view.restrict(dict(shown))) ^ set(shown))
            if unlike:
                raise ArgumentError(
                    name,
                    "messages with the whole model",
                    f"others to client {profile.name!r}: {unlike}",
                    "fed_avg, fed_per",
                )

    layer = FineTuned(
        steps=descent,
        begin=begin,
        expected=shapes(chosen),
        fixed=tuple(one for one in chosen if one not in tuned),
    )
    made = layered(algorithm, layer, where=name, inside=True)
    return replace(made, personal=personal, checks=(*algorithm.checks, whole))
