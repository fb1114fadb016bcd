"""The front door: run an algorithm over clients' data and look at what came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from bayesfed.data.dataset import Dataset, concatenated
from bayesfed.errors import ArgumentError, complain
from bayesfed.federated.clients.pools import ClientPool, InProcess
from bayesfed.federated.core.algorithm import Algorithm, Posterior, Predictor, Weighing
from bayesfed.federated.core.protocols import Direction
from bayesfed.federated.engine import callbacks as watch
from bayesfed.federated.engine import round_loop as engine
from bayesfed.federated.engine.checkpoint import Checkpoints
from bayesfed.federated.engine.ledger import Row, bits
from bayesfed.federated.engine.reports import OnClientError, Record, Snapshot
from bayesfed.federated.engine.samplers import Sampler, everyone
from bayesfed.inference.evaluation.predictive import Predictive
from bayesfed.inference.turbo.support_posterior import DeclaredPosterior
from bayesfed.inspect.personal import Client, PersonalScores, client_of, personal_scores
from bayesfed.inspect.tables import round_table
from bayesfed.keys import Key
from bayesfed.models.priors.belief import Belief
from bayesfed.models.priors.likelihoods import Likelihood

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Result:
    """A finished run: the model, its posterior, and a record of every round.

    Parameters
    ----------
    algorithm
        What was run.
    history
        One `Record` a round, those made before it was resumed among them.
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
    def clients(self) -> dict[str, Client]:
        """Clients that took part, by name: ``clients["a"].model`` is what client a predicts with, its own model where the method is personal.

        Raises
        ------
        ArgumentError
            If the method is personal and the clients keep their memories to themselves (Flower).
        """
        names = sorted({name for record in self.history for name in record.clients})
        return {name: client_of(self.algorithm, self.snapshot, self.history, name) for name in names}

    def personal_scores(
        self, data: Mapping[str, Dataset], *, likelihood: Likelihood | None = None, draws: int = 100, seed: int = 0
    ) -> PersonalScores:
        """Score what each client predicts with on its own rows, its own model or the transmitted one: mean, worst decile, and a table by client.

        Parameters
        ----------
        data
            Rows of each client by name that were not trained on, such as ``split_rows(clients, 0.25)[1]``. Clients without rows are left out.
        likelihood, draws, seed
            Likelihood of point models, by default `Categorical()` for classes and `Normal()` for numbers; number of posterior draws; what names them.

        Raises
        ------
        ArgumentError
            If there are no rows, or no client of that name took part in the run.
        """
        return personal_scores(self.algorithm, self.snapshot, self.history, data, likelihood=likelihood, draws=draws, seed=seed)

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
        """Export posterior, predictions and the federation's figures; see `bayesfed.inspect.to_arviz`.

        ArviZ's r-hat means nothing for draws of a fitted q, which are independent: read convergence from the ELBO and `k_hat`.
        """
        from bayesfed.inspect.export import to_arviz

        return to_arviz(self.algorithm, self.snapshot.state, self.history, data, draws=draws, thin=thin, seed=seed)

    def predictive(self, inputs: Tensor, *, draws: int = 100, seed: int = 0) -> Predictive:
        """Return what the posterior predicts for inputs ``(B, ...)``: probabilities or means, draws of targets, scores."""
        return Predictive(self.posterior, inputs, Key(seed, "predictive"), count=draws)

    def scores(self, data: Dataset | Mapping[str, Dataset], *, draws: int = 100, seed: int = 0) -> dict[str, dict[str, float]]:
        """Score the posterior predictive; print it with `bayesfed.inspect.score_table`.

        Parameters
        ----------
        data
            Rows to predict, or those of every client by name; clients without rows are left out.
        draws, seed
            Draws of the parameters, and what names them.

        Returns
        -------
        dict
            `Predictive.scores` of each client by its name, and of all rows together as "all": not the mean of the clients' scores.

        Raises
        ------
        ArgumentError
            If the method has no posterior, there are no rows, or a client is called "all".
        """
        parts = {name: part for name, part in data.items() if len(part)} if isinstance(data, Mapping) else {}
        if "all" in parts:
            raise ArgumentError(complain("Result.scores", expected="clients of other names", actual="'all'", hint="renaming that client"))
        pooled = _pooled("Result.scores", data)
        ends = list(accumulate(map(len, parts.values())))
        groups = {name: slice(end - len(part), end) for end, (name, part) in zip(ends, parts.items(), strict=True)}
        found = self.predictive(pooled.inputs, draws=draws, seed=seed)
        return found.scores_of(pooled.targets, {**groups, "all": slice(None)})

    def k_hat(self, data: Dataset | Mapping[str, Dataset], draws: int = 1000, *, seed: int = 0) -> float:
        """Return how far the posterior is from the exact one of these rows, all that were fitted; see `bayesfed.inspect.k_hat`.

        Raises
        ------
        ArgumentError
            If the method's posterior has no importance weights, there are no rows, or fewer than 100 draws.
        PosteriorError
            If the model has local latents.
        """
        from bayesfed.inspect.psis import k_hat

        posterior = self.posterior
        if not isinstance(posterior, Weighing):
            found = type(posterior).__name__
            raise ArgumentError(complain("Result.k_hat", expected="a posterior with log_weights", actual=found, hint="federated_svi"))
        return k_hat(posterior.log_weights(_pooled("Result.k_hat", data), Key(seed, "k_hat"), draws=draws))

    def save_model(self, path: str | Path) -> None:
        """Write the transmitted model's parameters as a safetensors file."""
        from safetensors.torch import save_file

        save_file({name: leaf.contiguous() for name, leaf in self.model.parameters.items()}, str(path))

    def plot_elbo(self, axes: Axes | None = None) -> Axes:
        """Plot the ELBO per round; see `bayesfed.inspect.plot_series`."""
        from bayesfed.inspect.pictures import plot_series

        return plot_series({self.algorithm.name: self.series("elbo")}, label="ELBO (nats)", axes=axes)


def _pooled(where: str, data: Dataset | Mapping[str, Dataset]) -> Dataset:
    """Return all rows of all clients as one set."""
    parts = [part for part in data.values() if len(part)] if isinstance(data, Mapping) else [data]
    if not sum(map(len, parts)):
        raise ArgumentError(complain(where, expected="at least one row", actual="none", hint="a test set, or clients with rows"))
    return concatenated(parts)


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
    least: int = 1,
    secrets: Mapping[str, bytes] | None = None,
    run_id: str | None = None,
) -> Result:
    """Run an algorithm over clients until `rounds` rounds are made or a callback returns True.

    Parameters
    ----------
    clients
        A data set for each client by name, or a pool.
    test
        Scored every round by classification accuracy; for other metrics use `evaluate` as a callback.
    callbacks
        Called after every round in their order, `checkpoint` last, so that what the others entered is saved.
    progress
        Draw a progress bar on standard error.
    seed
        Names every draw of the run, with round and client; a snapshot that is gone on from must have the same.
    sampler
        ``(round, names, key) -> names``: who takes part in a round; default everyone.
    resume
        A snapshot to go on from: that of a `Result`, or from a folder of checkpoints (`load`, `newest`). If all rounds are made already,
        the result is what it says, and nothing runs.
    on_client_error, least, secrets, run_id
        Who is left out, how many must be left, and what messages are sealed with: as `bayesfed.federated.rounds`.

    Raises
    ------
    ArgumentError, DataError, ClientError
        As `bayesfed.federated.rounds`; an interrupted run loses nothing that a `checkpoint` callback saved.
    """
    if resume and (resume.algorithm, resume.seed, resume.round) == (algorithm.name, seed, rounds):
        return Result(algorithm, resume.history, resume)
    pool: ClientPool = InProcess(clients) if isinstance(clients, Mapping) else clients
    watchers: list[watch.Callback] = [watch.elbo]
    if test is not None:
        watchers.append(watch.evaluate(test))
    watchers += callbacks
    if progress:
        watchers.append(watch.progress(rounds, label=algorithm.name))
    watchers.sort(key=lambda watcher: isinstance(watcher, Checkpoints))
    history = list(resume.history) if resume else []
    made = engine.rounds(
        algorithm,
        pool,
        rounds=rounds,
        seed=seed,
        sampler=sampler,
        on_client_error=on_client_error,
        resume=resume,
        least=least,
        secrets=secrets,
        run_id=run_id,
    )
    for report in made:
        history.append(report.record)
        snapshot = report.snapshot
        verdicts = [watcher(report) for watcher in watchers]
        if any(verdict is True for verdict in verdicts):
            break
    return Result(algorithm, tuple(history), replace(snapshot, history=tuple(history)))
