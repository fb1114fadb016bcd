"""`Experiment`: what server and clients have in common, returned by one Python function that both
call.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import COUNT, checked_class
from bayesfed.federated import Algorithm, Callback, Sampler, everyone
from bayesfed.federated.engine.reports import OnClientError


@checked_class(save_every=COUNT)
@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A run over Flower.

    A client uses the local steps of the algorithm, and `data` and `device`; the server uses
    everything else.

    Parameters
    ----------
    algorithm
        The algorithm to run.
    data
        ``(client) -> Dataset``, the client's own rows; called only at that client.
    rounds
        Number of rounds; None for methods that end by themselves.
    seed
        Seed of the run.
    sampler
        Clients of each round.
    on_client_error
        As in `bayesfed.run`. Default: "drop", since devices come and go.
    device
        ``(client) -> figures`` for planners, called at the client.
    test
        ``() -> Dataset``, scored in every round at the server.
    callbacks
        ``() -> callbacks``, called at the server.
    save_every
        Rounds between two checkpoints.
    codecs
        Your own dataclasses among the codecs.

    Raises
    ------
    ArgumentError
        If `save_every` is below 1.
    """

    algorithm: Algorithm
    data: Callable[[str], Dataset]
    rounds: int | None = None
    seed: int = 0
    sampler: Sampler = everyone
    on_client_error: OnClientError = "drop"
    device: Callable[[str], dict[str, float]] | None = None
    test: Callable[[], Dataset] | None = None
    callbacks: Callable[[], Sequence[Callback]] = tuple
    save_every: int = 1
    codecs: tuple[type, ...] = ()

    @property
    def fingerprint(self) -> str:
        """A digest of what must agree on both sides: the name of the algorithm, its phases, and
        names, shapes and dtypes of its state.
        """
        algorithm = self.algorithm
        shapes = [
            [name, str(leaf.dtype), list(leaf.shape)]
            for name, leaf in sorted(algorithm.initial.items())
        ]
        text = json.dumps([algorithm.name, [phase.name for phase in algorithm.phases], shapes])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def load(reference: str) -> Experiment:
    """Import a module and return the experiment that its function makes.

    Parameters
    ----------
    reference
        ``"module:function"``.

    Raises
    ------
    ArgumentError
        If there is no such function, or it does not return an `Experiment`.
    """
    module, _, name = reference.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError, ValueError) as problem:
        raise ArgumentError(
            "experiment",
            "a function that can be imported",
            f"{reference!r}: {problem}",
            "module:function, the module beside the app's pyproject.toml",
        ) from problem
    experiment = function()
    if not isinstance(experiment, Experiment):
        raise ArgumentError(
            reference, "an Experiment", type(experiment).__name__, "return Experiment(...)"
        )
    return experiment
