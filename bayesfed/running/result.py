"""What came out of a run: the model, its posterior, scores, tables, files."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import a, check, checked_class
from bayesfed.federated import Algorithm, Posterior, Predictor, Record, Row, Snapshot, bits
from bayesfed.federated.core import Direction
from bayesfed.inference.evaluation.predictive import Predictive
from bayesfed.inference.turbo.support_posterior import DeclaredPosterior
from bayesfed.inspect import Client, PersonalScores, round_table
from bayesfed.inspect.at_clients import NEVER, check_rows, own_posterior, scores_by_client, stays
from bayesfed.inspect.personal import client_of, personal_scores
from bayesfed.keys import Key
from bayesfed.models import Belief, Likelihood
from bayesfed.running.settling import Settling, settling

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@checked_class()
@dataclass(frozen=True)
class Result:
    """A finished run: the model, its posterior, and a record of every round.

    Parameters
    ----------
    algorithm
        What was run.
    history
        One `Record` a round, those made before it was resumed among them; a `RecordFile`, which
        reads them back, if `run` was given ``records=``.
    snapshot
        Hand it to `run` as `resume` to go on.
    data
        By client: the rows that were fitted, of a run in this process; None if not known.
    unheard
        Share of all rows of each client that was asked and never heard.
    """

    algorithm: Algorithm
    history: Sequence[Record]
    snapshot: Snapshot
    data: Mapping[str, Dataset] | None = field(default=None, repr=False, compare=False)
    unheard: Mapping[str, float] = field(default_factory=dict, repr=False, compare=False)

    @property
    def model(self) -> Predictor:
        """The transmitted model: call it on inputs."""
        return self.algorithm.predictor(self.snapshot.state)

    @property
    def posterior(self) -> Posterior:
        """The posterior after the last round: draw from it and predict with it; `ArgumentError` if
        the method has none.
        """
        if self.algorithm.posterior is None:
            hint = "d_turbo_vbi, or laplace(result.model) after this run"
            raise ArgumentError("Result.posterior", "a Bayesian method", self.algorithm.name, hint)
        return self.algorithm.posterior(self.snapshot.state)

    @property
    def belief(self) -> Belief:
        """What a declared model believes of each site: means, sds, inclusion probabilities;
        `ArgumentError` of other models.
        """
        if not isinstance(posterior := self.posterior, DeclaredPosterior):
            raise ArgumentError(
                "Result.belief", "a declared model", self.algorithm.name, "Result.posterior"
            )
        return posterior.belief

    @property
    def settling(self) -> Settling | None:
        """How far a variational run is from its fixed point: first guide left, last moves,
        disagreement; None for other methods.
        """
        return settling(self.algorithm, self.history)

    @property
    def settled(self) -> bool | None:
        """Whether a variational run has settled; None for other methods."""
        return None if (state := self.settling) is None else state.settled

    @property
    def clients(self) -> dict[str, Client]:
        """Clients that took part, by name: ``clients["a"].model`` is what client a predicts with,
        its own model where the method is personal.

        Of a personal method whose clients keep their memories to themselves (Flower):
        `ArgumentError`.
        """
        names = sorted({name for record in self.history for name in record.clients})
        return {
            name: client_of(self.algorithm, self.snapshot, self.history, name) for name in names
        }

    def personal_scores(
        self,
        data: Mapping[str, Dataset],
        *,
        likelihood: Likelihood | None = None,
        draws: int = 100,
        seed: int = 0,
    ) -> PersonalScores:
        """Score what each client predicts with on its own rows, its own model or the transmitted
        one: mean, worst decile, and a table by client.

        `data` are rows of each client by name that were not trained on, such as
        ``split_rows(clients, 0.25)[1]``; clients without rows are left out, and `ArgumentError`
        says if there is none or none took part. The likelihood is that of point models, by default
        `Categorical()` for classes and `Normal()` for numbers.
        """
        run = self.algorithm, self.snapshot, self.history
        return personal_scores(*run, data, likelihood=likelihood, draws=draws, seed=seed)

    @property
    def ledger(self) -> tuple[Row, ...]:
        """Every message of the run."""
        return tuple(row for record in self.history for row in record.rows)

    def bits(self, direction: Direction | None = None) -> int:
        """Return the bits sent down, up, or (default) both ways."""
        if direction not in ("up", "down", None):
            raise ArgumentError("Result.bits", "'up', 'down' or None", repr(direction), "'up'")
        return bits(self.ledger, direction)

    def series(self, name: str) -> list[tuple[int, float]]:
        """Return (round, value) of a metric or server figure where it was entered."""
        found = ((record.round, {**record.server, **record.metrics}) for record in self.history)
        return [(number, figures[name]) for number, figures in found if name in figures]

    def final(self, name: str) -> float:
        """Return the last value of a metric or server figure; `ArgumentError` if there is none."""
        if not (series := self.series(name)):
            known = sorted(
                {key for record in self.history for key in {**record.server, **record.metrics}}
            )
            hint = "run(..., test=data)" if name == "accuracy" else "a callback that enters it"
            raise ArgumentError("Result.final", f"one of {known}", repr(name), hint)
        return series[-1][1]

    def table(self, *, every: int = 1) -> str:
        """Return an aligned table of the rounds."""
        if every < 1:
            raise ArgumentError("Result.table", "every >= 1", every, "every=5")
        return round_table(self.history, every=every)

    def to_arviz(
        self,
        data: Dataset | Mapping[str, Dataset] | None = None,
        *,
        draws: int = 100,
        thin: int = 1,
        seed: int = 0,
        own: Mapping[str, Dataset] | None = None,
    ) -> Any:
        """Export posterior, predictions and the federation's figures; see
        `bayesfed.inspect.to_arviz`.

        ArviZ's r-hat means nothing for draws of a fitted q, which are independent: read convergence
        from the ELBO and `k_hat`. Give the rows by client if a part of the posterior stays with
        clients, as local latents do. ``constant_data.row_fitted`` says which rows were fitted.
        Held-out rows of clients by name, `own`, are scored as by `personal_scores`, and the scores
        are entered in ``federation``.
        """
        from bayesfed.inspect import to_arviz

        check_rows("Result.to_arviz", data)
        state, kept = self.snapshot.state, self.snapshot.memories
        scores = self.personal_scores(own, draws=draws, seed=seed).clients if own else None
        export = partial(to_arviz, memories=kept, fitted=self.data, own=scores)
        return export(self.algorithm, state, self.history, data, draws=draws, thin=thin, seed=seed)

    def predictive(
        self, inputs: Tensor, *, draws: int = 100, seed: int = 0, client: str | None = None
    ) -> Predictive:
        """Return what the posterior predicts for inputs ``(B, ...)``: probabilities or means, draws
        of targets, scores.

        If a part of the posterior stays with clients, as local latents do, name the `client` whose
        inputs they are, one that took part; else, and without a posterior: `ArgumentError`. `draws`
        are those of the parameters, and `seed` names them.
        """
        wanted = a(Tensor, "a tensor of inputs (B, ...)", "data.inputs, or torch.as_tensor(array)")
        check("Result.predictive, inputs", inputs, wanted)
        where, posterior = "Result.predictive", self.posterior
        if client is not None:
            rows = (self.data or {}).get(client) or None
            posterior = own_posterior(posterior, self.snapshot.memories, client, rows, where)
        elif kept := stays(posterior):
            expected = f"a client, since {kept[0]} stays with clients"
            raise ArgumentError(where, expected, "none", f"client='name'{NEVER}")
        return Predictive(posterior, inputs, Key(seed, "predictive"), count=draws)

    def scores(
        self, data: Dataset | Mapping[str, Dataset], *, draws: int = 100, seed: int = 0
    ) -> dict[str, dict[str, float]]:
        """Score the posterior predictive; print it with `bayesfed.inspect.score_table`.

        Parameters
        ----------
        data
            Rows to predict, or those of every client by name; clients without rows are left out.
            They must be by name if a part of the posterior stays with clients, as local latents do:
            each client is then predicted with its own.
        draws, seed
            Draws of the parameters, and what names them.

        Returns
        -------
        dict
            `Predictive.scores` of each client by its name, and of all rows together as "all": not
            the mean of the clients' scores.

        Raises
        ------
        ArgumentError
            If there is no posterior, no row, a client called "all", or a part of the posterior that
            is not known for these rows.
        """
        return scores_by_client(
            self.posterior, self.snapshot.memories, data, Key(seed, "predictive"), draws
        )

    def k_hat(
        self, data: Dataset | Mapping[str, Dataset], draws: int = 1000, *, seed: int = 0
    ) -> float:
        """Return how far the posterior is from the exact one of these rows, all that were fitted;
        see `bayesfed.inspect.k_hat`.

        If a model has local latents, give the rows by client: k-hat is then that of the shared and
        of all local sites together. A guide whose local sites do not depend on the shared ones, as
        those of `AutoNormal`, makes the sds of population parameters too narrow, and k-hat tells.

        Raises
        ------
        ArgumentError, PosteriorError
            If the posterior has no importance weights, there are no rows or fewer than 100 draws,
            or rows are not by client, or not those of the clients, where local latents need them.
        """
        from bayesfed.inspect.compat import k_hat_of

        return k_hat_of(self.posterior, self.snapshot.memories, data, draws, Key(seed, "k_hat"))

    def save_model(self, path: str | Path) -> None:
        """Write the transmitted model's parameters as a safetensors file."""
        from safetensors.torch import save_file

        leaves = self.model.parameters.items()
        save_file({name: leaf.contiguous() for name, leaf in leaves}, str(path))

    def save(
        self,
        folder: str | Path,
        *,
        test: Dataset | None = None,
        own: Mapping[str, Dataset] | None = None,
    ) -> Path:
        """Write the run to a folder, which `bayesfed compare`, `plot` and `report` read: records,
        ledger, model, posterior, versions.

        The folder's name is the experiment's in tables and pictures. Predictions are exported for
        the rows `test`; what clients predict with is scored on their held-out rows `own`, by name,
        as by `personal_scores`. Returned is the folder of this seed, ``folder/seed-N``.

        `ArgumentError` if a run of this seed is there already, or an experiment file.
        """
        from bayesfed.running.folders import note_versions, save

        into = Path(folder) / f"seed-{self.snapshot.seed}"
        for taken in (into / "metrics.json", Path(folder) / "experiment.toml"):
            if taken.exists():
                raise ArgumentError(
                    "Result.save", "a folder without this run", f"{taken} exists", "another folder"
                )
        note_versions(Path(folder))
        if missing := save(
            into, self, test, self.snapshot.seed, self.personal_scores(own) if own else None
        ):
            warnings.warn(f"{into}: no posterior.nc: {missing}", stacklevel=2)
        return into

    def plot_elbo(self, axes: Axes | None = None) -> Axes:
        """Plot the ELBO per round; see `bayesfed.inspect.plot_series`."""
        from bayesfed.inspect import plot_series

        series = {self.algorithm.name: self.series("elbo")}
        return plot_series(series, label="ELBO (nats)", axes=axes)
