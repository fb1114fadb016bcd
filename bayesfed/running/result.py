"""What came out of a run: the model, its posterior, scores, tables, files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import a, check, checked, checked_class, one_of, whole
from bayesfed.errors.plurals import plural
from bayesfed.federated import Algorithm, Posterior, Predictor, Record, Row, Snapshot, bits
from bayesfed.federated.core import Direction
from bayesfed.inference.evaluation.predictive import Predictive
from bayesfed.inference.turbo.support_posterior import DeclaredPosterior
from bayesfed.inspect import Client, PersonalScores, plot_series, round_table
from bayesfed.inspect.at_clients import NEVER, check_rows, own_posterior, scores_by_client, stays
from bayesfed.inspect.personal import client_of, personal_scores
from bayesfed.keys import Key
from bayesfed.models import Belief, Likelihood
from bayesfed.running.health import Health, health
from bayesfed.running.networks import network_of, saved_leaves, write_tensors
from bayesfed.running.pickling import Reduced, reduced
from bayesfed.running.settling import Settling, settling

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INPUTS = a(Tensor, "a tensor of inputs (B, ...)", "data.inputs, or torch.as_tensor(array)")


@checked_class()
@dataclass(frozen=True, repr=False)
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
        Share of all rows of each client that was never heard, largest first; None if not known.
    """

    algorithm: Algorithm
    history: Sequence[Record]
    snapshot: Snapshot
    data: Mapping[str, Dataset] | None = field(default=None, compare=False)
    unheard: Mapping[str, float] | None = field(default=None, compare=False)
    _known: dict[str, float] = field(default_factory=dict, init=False, compare=False)

    def __repr__(self) -> str:
        rounds = plural(len(self.history), "round")
        made = f"{self.algorithm.name}, {rounds}, seed {self.snapshot.seed}"
        return f"Result({'; '.join(filter(None, [made, str(self.health)]))})"

    @property
    def model(self) -> Predictor:
        """The transmitted model: call it on inputs."""
        return self.algorithm.predictor(self.snapshot.state)

    def network(self) -> nn.Module:
        """Return the transmitted model as a module of its own, in evaluation mode, for
        `torch.export` or to train on; `ArgumentError` if it is not one network but an ensemble.
        """
        return network_of(self.model)

    @property
    def posterior(self) -> Posterior:
        """The posterior after the last round; `ArgumentError` if the method has none."""
        if self.algorithm.posterior is None:
            hint = "d_turbo_vbi, or laplace(result.model) after this run"
            raise ArgumentError("Result.posterior", "a Bayesian method", self.algorithm.name, hint)
        return self.algorithm.posterior(self.snapshot.state)

    @property
    def belief(self) -> Belief:
        """Means, sds, inclusion probabilities of a declared model; else `ArgumentError`."""
        return self._declared("belief").belief

    @checked()
    def inputs(self, names: Sequence[str] = (), *, site: str = "") -> dict[str, float]:
        """Return the posterior probability that each input of a declared model is used, by its
        name; see `DeclaredPosterior.inputs`. Draw it with `bayesfed.inspect.plot_inputs`.
        """
        return self._declared("inputs").inputs(names, site=site)

    def _declared(self, name: str) -> DeclaredPosterior:
        if not isinstance(posterior := self.posterior, DeclaredPosterior):
            where, found = f"Result.{name}", self.algorithm.name
            raise ArgumentError(where, "a declared model", found, "Result.posterior")
        return posterior

    @property
    def settling(self) -> Settling | None:
        """How far a variational run is from its fixed point; None for other methods."""
        return settling(self.algorithm, self.history)

    @property
    def settled(self) -> bool | None:
        """Whether a variational run has settled; None for other methods."""
        return None if (state := self.settling) is None else state.settled

    @property
    def health(self) -> Health:
        """What the run knows of its own health; `repr`, `bayesfed compare` and `report` show it."""
        lack = self.algorithm.unfinished
        doubt = lack(self.snapshot.state, len(self.history)) if lack else ""
        return health(self.history, self.settling, self.unheard, self._known, doubt)

    @property
    def clients(self) -> dict[str, Client]:
        """Clients that took part, by name; ``clients["a"].model`` is what a predicts with, its own
        model where the method is personal. `ArgumentError` if that stays with the clients.
        """
        run = self.algorithm, self.snapshot, self.history
        names = sorted({name for record in self.history for name in record.clients})
        return {name: client_of(*run, name) for name in names}

    @checked()
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
        the one that the method trains with.
        """
        run = self.algorithm, self.snapshot, self.history
        check_rows("Result.personal_scores", data, self.data)
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

    @checked()
    def series(self, name: str) -> list[tuple[int, float]]:
        """Return (round, value) of a metric or server figure where it was entered; `ArgumentError`,
        with the names that were entered, if this one never was.
        """
        found = [(record.round, record.server | record.metrics) for record in self.history]
        known = sorted({key for _, figures in found for key in figures})
        hint = "run(..., test=data)" if name == "accuracy" else "a callback that enters it"
        check("Result.series", name, one_of(known, hint))
        return [(number, figures[name]) for number, figures in found if name in figures]

    def final(self, name: str) -> float:
        """Return the last value of `series`."""
        return self.series(name)[-1][1]

    @checked(every=whole(1, "every=5"))
    def table(self, *, every: int = 1) -> str:
        """Return an aligned table of the rounds."""
        return round_table(self.history, every=every)

    @checked()
    def to_arviz(
        self,
        data: Dataset | Mapping[str, Dataset] | None = None,
        *,
        draws: int | None = None,
        thin: int = 1,
        seed: int = 0,
        own: Mapping[str, Dataset] | None = None,
    ) -> Any:
        """Export posterior, predictions and the run's figures; see `bayesfed.inspect.to_arviz`.

        ArviZ's r-hat means nothing for independent draws: see the ELBO and `k_hat`. Give the rows
        by client if a part of the posterior stays with clients, as local latents do.
        ``constant_data.row_fitted`` says which rows were fitted. Scores of clients' held-out rows
        by name, `own`, are entered in ``federation``.
        """
        from bayesfed.inspect import to_arviz

        check_rows("Result.to_arviz", data, self.data)
        state, kept = self.snapshot.state, self.snapshot.memories
        scores = self.personal_scores(own, draws=draws or 100, seed=seed).clients if own else None
        export = partial(to_arviz, memories=kept, fitted=self.data, own=scores)
        return export(self.algorithm, state, self.history, data, draws=draws, thin=thin, seed=seed)

    @checked(inputs=INPUTS)
    def predictive(
        self, inputs: Tensor, *, draws: int = 100, seed: int = 0, client: str | None = None
    ) -> Predictive:
        """Return what the posterior predicts for inputs ``(B, ...)``: probabilities or means, draws
        of targets, scores.

        If a part of the posterior stays with clients, as local latents do, name the `client` whose
        inputs they are, one that took part; else, and without a posterior: `ArgumentError`. `draws`
        are those of the parameters, and `seed` names them.
        """
        where, posterior = "Result.predictive", self.posterior
        row = next((rows.inputs.shape[1:] for rows in (self.data or {}).values()), None)
        if row and inputs.shape == row:
            actual = f"one row without a batch, {tuple(inputs.shape)}"
            expected = f"inputs (B, {', '.join(map(str, row))})"
            raise ArgumentError(where, expected, actual, "inputs[None]")
        if client is not None:
            check(f"{where}, client", client, one_of(sorted(self.data or self.clients)))
            rows = (self.data or {}).get(client) or None
            posterior = own_posterior(posterior, self.snapshot.memories, client, rows, where)
        elif kept := stays(posterior):
            expected = f"a client, since {kept[0]} stays with clients"
            raise ArgumentError(where, expected, "none", f"client='name'{NEVER}")
        return Predictive(posterior, inputs, Key(seed, "predictive"), count=draws)

    @checked()
    def scores(
        self, data: Dataset | Mapping[str, Dataset], *, draws: int = 100, seed: int = 0
    ) -> dict[str, dict[str, float]]:
        """Return `Predictive.scores` of each client by its name, and of all rows together as "all":
        not the mean of the clients' scores. Print them with `bayesfed.inspect.score_table`.

        `data` are rows to predict, or those of every client by name; clients without rows are left
        out. They must be by name if a part of the posterior stays with clients, as local latents
        do: each client is then predicted with its own. `draws` are those of the parameters, and
        `seed` names them. `ArgumentError` if there is no posterior, no row, a client called "all",
        or a part of the posterior that is not known for these rows.
        """
        check_rows("Result.scores", data, self.data)
        key = Key(seed, "predictive")
        return scores_by_client(self.posterior, self.snapshot.memories, data, key, draws)

    @checked()
    def k_hat(
        self, data: Dataset | Mapping[str, Dataset], draws: int = 1000, *, seed: int = 0
    ) -> float:
        """Return how far the posterior is from the exact one of these rows, all that were fitted;
        see `bayesfed.inspect.k_hat`.

        If a model has local latents, give the rows by client: k-hat is then that of the shared and
        of all local sites together. A guide whose local sites do not depend on the shared ones, as
        those of `AutoNormal`, makes the sds of population parameters too narrow, and k-hat tells.
        `ArgumentError` or `PosteriorError` without importance weights or with fewer than 100 draws
        or no rows, or if rows are not by client, or not the clients', where local latents need it.
        """
        from bayesfed.inspect.compat import k_hat_of

        found = k_hat_of(self.posterior, self.snapshot.memories, data, draws, Key(seed, "k_hat"))
        self._known["k_hat"] = found
        return found

    @checked()
    def save_model(self, path: str | Path) -> None:
        """Write the transmitted model as a safetensors file, with all that `load_state_dict` of
        `network` takes: frozen parameters, buffers, and every name of tied ones.
        """
        write_tensors(Path(path), saved_leaves(self.model))

    @checked()
    def save(
        self,
        folder: str | Path,
        *,
        test: Dataset | Mapping[str, Dataset] | None = None,
        own: Mapping[str, Dataset] | None = None,
    ) -> Path:
        """Write the run to a folder, which `bayesfed compare`, `plot` and `report` read: records,
        ledger, model, posterior, versions, and a model card.

        Its name is the experiment's in tables and pictures. Predictions are exported for the rows
        `test`, by client where a part of the posterior stays with clients; clients' held-out rows
        `own`, by name, are scored as by `personal_scores`. Returned is ``folder/seed-N``.

        `ArgumentError` if it has a run of this seed or an experiment file, or cannot be written to.
        """
        from bayesfed.running.reporting.card import save_new

        return save_new(self, Path(folder), test, self.personal_scores(own) if own else None)

    def __reduce__(self) -> Reduced:
        kept = self.data, self.unheard
        return reduced(type(self), self.algorithm, self.history, self.snapshot, kept)

    def plot_elbo(self, axes: Axes | None = None) -> Axes:
        """Plot the ELBO per round; see `bayesfed.inspect.plot_series`."""
        name = self.algorithm.name
        return plot_series({name: self.series("elbo")}, label="ELBO (nats)", axes=axes)
