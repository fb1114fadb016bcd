"""`Experiment`: what server and clients are told alike, from one Python function that both call."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bayesfed.data.dataset import Dataset
from bayesfed.errors import ArgumentError, complain
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.federated.engine.callbacks import Callback
from bayesfed.federated.engine.reports import OnClientError
from bayesfed.federated.engine.samplers import Sampler, everyone


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A run over Flower.

    The server takes the algorithm, the rounds and what follows; a client the algorithm's local steps, and its own rows by `data`.

    Parameters
    ----------
    data
        ``(client) -> Dataset``: a client's own rows, called at that client only.
    on_client_error
        As of `bayesfed.run`; "drop" by default, since devices come and go.
    device
        ``(client) -> figures`` for planners, called at the client.
    test
        ``() -> Dataset``: scored every round at the server.
    callbacks
        ``() -> callbacks``, made at the server.
    save_every
        Rounds between two checkpoints.
    codecs
        Dataclasses of your own among the codecs.
    """

    algorithm: Algorithm
    data: Callable[[str], Dataset]
    rounds: int
    seed: int = 0
    sampler: Sampler = everyone
    on_client_error: OnClientError = "drop"
    device: Callable[[str], dict[str, float]] | None = None
    test: Callable[[], Dataset] | None = None
    callbacks: Callable[[], Sequence[Callback]] = tuple
    save_every: int = 1
    codecs: tuple[type, ...] = ()

    def __post_init__(self) -> None:
        if self.save_every < 1:
            raise ArgumentError(complain("Experiment", expected="save_every >= 1", actual=self.save_every, hint="1"))

    @property
    def fingerprint(self) -> str:
        """What must be the same on both sides: the algorithm's name, its phases, and names, shapes and types of its state."""
        algorithm = self.algorithm
        shapes = [[name, str(leaf.dtype), list(leaf.shape)] for name, leaf in sorted(algorithm.initial.items())]
        text = json.dumps([algorithm.name, [phase.name for phase in algorithm.phases], shapes])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def load(reference: str) -> Experiment:
    """Import a module and call its function: ``"module:function"``.

    Raises
    ------
    ArgumentError
        If there is no such function, or it returns something else than an `Experiment`.
    """
    module, _, name = reference.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError, ValueError) as problem:
        actual, hint = f"{reference!r}: {problem}", "module:function, the module beside the app's pyproject.toml"
        raise ArgumentError(complain("experiment", expected="a function that can be imported", actual=actual, hint=hint)) from problem
    experiment = function()
    if not isinstance(experiment, Experiment):
        raise ArgumentError(complain(reference, expected="an Experiment", actual=type(experiment).__name__, hint="return Experiment(...)"))
    return experiment
