"""The front door: run an algorithm over clients' data and look at what came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesfed.data.dataset import Dataset
from bayesfed.errors import ArgumentError, complain
from bayesfed.federated import callbacks as watch
from bayesfed.federated import engine
from bayesfed.federated.engine import OnClientError, Record, Snapshot
from bayesfed.federated.ledger import Direction, Row, bits
from bayesfed.federated.pools import ClientPool, InProcess
from bayesfed.federated.protocols import Algorithm, Posterior, Predictor
from bayesfed.federated.samplers import Sampler, everyone
from bayesfed.inference.posterior import DeclaredPosterior
from bayesfed.inspect.tables import round_table
from bayesfed.models.belief import Belief

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Result:
    """A finished run: the model, its posterior, and a record of every round.

    Parameters
    ----------
    history
        One `Record` a round.
    snapshot
        Hand it to `run` as `resume` to go on.
    """

    algorithm: Algorithm
    history: tuple[Record, ...]
    snapshot: Snapshot

    @property
    def model(self) -> Predictor:
        """The transmitted model: call it on inputs."""
        return self.algorithm.predictor(self.snapshot.state)

    @property
    def posterior(self) -> Posterior:
        """The posterior after the last round: draw from it and predict with it.

        Raises
        ------
        ArgumentError
            If the method has none.
        """
        if self.algorithm.posterior is None:
            raise ArgumentError(complain("Result.posterior", expected="a Bayesian method", actual=self.algorithm.name, hint="d_turbo_vbi"))
        return self.algorithm.posterior(self.snapshot.state)

    @property
    def belief(self) -> Belief:
        """What a declared model believes of each site: means, sds, inclusion probabilities.

        Raises
        ------
        ArgumentError
            If the method's model is not a declared one.
        """
        if not isinstance(posterior := self.posterior, DeclaredPosterior):
            raise ArgumentError(complain("Result.belief", expected="a declared model", actual=self.algorithm.name, hint="Result.posterior"))
        return posterior.belief

    @property
    def ledger(self) -> tuple[Row, ...]:
        """Every message of the run."""
        return tuple(row for record in self.history for row in record.rows)

    def bits(self, direction: Direction | None = None) -> int:
        """Return the bits sent down, up, or (default) both ways."""
        return bits(self.ledger, direction)

    def series(self, name: str) -> list[tuple[int, float]]:
        """Return (round, value) of a metric or server figure where it was entered."""
        found = ((record.round, {**record.server, **record.metrics}) for record in self.history)
        return [(number, figures[name]) for number, figures in found if name in figures]

    def final(self, name: str) -> float:
        """Return the last value of a metric or server figure.

        Raises
        ------
        ArgumentError
            If it was never entered; the message names those that were.
        """
        if not (series := self.series(name)):
            known = sorted({key for record in self.history for key in {**record.server, **record.metrics}})
            raise ArgumentError(complain("Result.final", expected=f"one of {known}", actual=repr(name), hint="a callback that enters it"))
        return series[-1][1]

    def table(self, *, every: int = 1) -> str:
        """Return an aligned table of the rounds."""
        return round_table(self.history, every=every)

    def to_arviz(self, data: Dataset | None = None, *, draws: int = 100, thin: int = 1, seed: int = 0) -> Any:
        """Export posterior, predictions and the federation's figures; see `bayesfed.inspect.to_arviz`."""
        from bayesfed.inspect.export import to_arviz

        return to_arviz(self.algorithm, self.snapshot.state, self.history, data, draws=draws, thin=thin, seed=seed)

    def save_model(self, path: str | Path) -> None:
        """Write the transmitted model's parameters as a safetensors file."""
        from safetensors.torch import save_file

        save_file({name: leaf.contiguous() for name, leaf in self.model.parameters.items()}, str(path))

    def plot_elbo(self, axes: Axes | None = None) -> Axes:
        """Plot the ELBO per round; see `bayesfed.inspect.plot_series`."""
        from bayesfed.inspect.pictures import plot_series

        return plot_series({self.algorithm.name: self.series("elbo")}, label="ELBO (nats)", axes=axes)


def run(
    algorithm: Algorithm,
    clients: Mapping[str, Dataset] | ClientPool,
    *,
    rounds: int,
    test: Dataset | None = None,
    seed: int = 0,
    sampler: Sampler = everyone,
    on_client_error: OnClientError = "raise",
    callbacks: Sequence[watch.Callback] = (),
    progress: bool = True,
    resume: Snapshot | None = None,
) -> Result:
    """Run an algorithm over clients until `rounds` rounds are made or a callback returns True.

    Parameters
    ----------
    clients
        A data set for each client by name, or a pool.
    test
        Scored every round by classification accuracy; for other metrics use `evaluate` as a callback.
    progress
        Draw a progress bar on standard error.

    Raises
    ------
    ArgumentError, DataError, ClientError
        As `bayesfed.federated.rounds`; an interrupted run loses nothing that a `checkpoint` callback saved.
    """
    pool: ClientPool = InProcess(clients) if isinstance(clients, Mapping) else clients
    watchers: list[watch.Callback] = [watch.elbo]
    if test is not None:
        watchers.append(watch.evaluate(test))
    watchers += callbacks
    if progress:
        watchers.append(watch.progress(rounds, label=algorithm.name))
    history: list[Record] = []
    for report in engine.rounds(algorithm, pool, rounds=rounds, seed=seed, sampler=sampler, on_client_error=on_client_error, resume=resume):
        history.append(report.record)
        snapshot = report.snapshot
        verdicts = [watcher(report) for watcher in watchers]
        if any(verdicts):
            break
    return Result(algorithm, tuple(history), snapshot)
