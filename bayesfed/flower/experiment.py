"""`Experiment`: what server and clients have in common, returned by one Python function that both
call.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import COUNT, Role, checked_class
from bayesfed.federated import Algorithm, Callback, Sampler, everyone
from bayesfed.federated.engine.reports import OnClientError
from bayesfed.flower.fingerprint import digest_of, parts_of

ROWS = Role(
    callable,
    "a function of a client's name that returns its rows",
    "lambda client: Dataset(inputs, targets)",
)


@checked_class(save_every=COUNT, data=ROWS)
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
        If `save_every` is below 1, or `data` is no function.
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

    @cached_property
    def parts(self) -> Mapping[str, str]:
        """Digests of what must agree on both sides, by name (`bayesfed.flower.fingerprint`): a
        regression's formula, family, levels, moments and priors; a model's source text and
        constants; guide, likelihood, training and other settings of the algorithm; its phases,
        codecs and links; names, shapes and types of its state. They are computed once, before a run
        changes anything.

        Raises
        ------
        ArgumentError
            If the source text of a function or class of one's own cannot be read.
        """
        return parts_of(self.algorithm, self.codecs)

    @property
    def fingerprint(self) -> str:
        """The digest of all `parts`."""
        return digest_of(self.parts)


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
