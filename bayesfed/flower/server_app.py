"""The ServerApp: ``serverapp = "bayesfed.flower.server_app:app"``.

Flower returns no results, so they are written on the machine of the SuperLink.

===============  ===================================================================================
run-config
===============  ===================================================================================
experiment       ``"module:function"``; the function returns an `Experiment`
clients          number of clients, or their names separated by commas
out              folder of ``checkpoints``, ``rounds.jsonl`` (one report per line), ``rounds.txt``
                 (a table) and, of a regression by formula, ``coefficients.csv``;
                 ``bayesfed.open(out)`` gives the result, of a regression the fit
deadline-s       longest time of a phase; 0 waits as long as a node is online; 600 by default
hello-s          longest time until all clients have come; 300 by default
resume           true: resume from the checkpoints in ``out``, if there are any
secrets          folder of keys, with a file named after each client: a keyed run, under a new
                 random run id
===============  ===================================================================================
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesfed.errors import ArgumentError, needs

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp

    from bayesfed.federated import RoundReport
    from bayesfed.running import Result

__all__ = ["app", "serve", "server_app"]  # noqa: F822 app is created at first use


def server_app() -> ServerApp:
    """Return a ServerApp that runs the experiment in its run-config.

    Raises
    ------
    MissingExtraError
        If Flower is not installed.
    """
    made: ServerApp = needs("flwr.serverapp", "flower", "flwr").ServerApp()

    def main(grid: Grid, context: Context) -> None:
        serve(grid, context.run_config)

    made.main()(main)
    return made


def serve(grid: Any, run: Mapping[str, Any], **options: Any) -> Result:
    """Run an experiment over a grid and write its results.

    Parameters
    ----------
    grid
        Flower's grid.
    run
        Flower's run-config.
    options
        Further arguments of `Flower`, for tests.

    Raises
    ------
    ArgumentError
        If a key of the configuration is missing or wrong, a client has no secret, or there are
        checkpoints but `resume` is not set.
    """
    from bayesfed.data.files import write_whole
    from bayesfed.federated import checkpoint, newest
    from bayesfed.flower.experiment import load as experiment_of
    from bayesfed.flower.pool import Flower
    from bayesfed.running import run as run_of
    from bayesfed.running.formulas.records import REGRESSION

    if missing := {"experiment", "clients", "out"} - run.keys():
        raise ArgumentError(
            "run-config", f"{sorted(missing)} too", sorted(run), "the template's pyproject.toml"
        )
    experiment = experiment_of(str(run["experiment"]))
    out = Path(str(run["out"]))
    wanted = run["clients"]
    out.mkdir(parents=True, exist_ok=True)
    saved, log = out / "checkpoints", out / "rounds.jsonl"
    resume = newest(saved)
    if resume is not None and not run.get("resume"):
        raise ArgumentError(
            "out", "a folder without checkpoints", f"{out}, round {resume.round}", "resume=true"
        )
    keys = _keys(Path(str(run["secrets"]))) if "secrets" in run else None
    pool = Flower(
        grid,
        wanted if isinstance(wanted, int) else [name.strip() for name in str(wanted).split(",")],
        deadline_s=float(run.get("deadline-s", 600)) or None,
        hello_s=float(run.get("hello-s", 300)),
        experiment=experiment.fingerprint,
        parts=experiment.parts,
        codecs=experiment.codecs,
        **options,
    )
    result = run_of(
        experiment.algorithm,
        pool,
        rounds=experiment.rounds,
        seed=experiment.seed,
        sampler=experiment.sampler,
        on_client_error=experiment.on_client_error,
        test=experiment.test() if experiment.test else None,
        callbacks=[
            *experiment.callbacks(),
            checkpoint(saved, every=experiment.save_every),
            lambda report: _note(log, pool, report),
        ],
        progress=False,
        resume=resume,
        secrets=keys,
        run_id=secrets.token_hex(8) if keys is not None and resume is None else None,
    )
    write_whole(out / "rounds.txt", (result.table() + "\n").encode())
    print(result.table())  # noqa: T201 shown by `flwr log`
    if REGRESSION in experiment.algorithm.origin:
        _show_fit(out, result)
    return result


def _show_fit(out: Path, result: Result) -> None:
    """Print the fit of a regression, and write its coefficients if it has any yet."""
    from bayesfed.data.files import write_whole
    from bayesfed.running.formulas.fitted import Regression
    from bayesfed.running.formulas.records import REGRESSION, of_record

    fit = Regression(*of_record(result.algorithm.origin[REGRESSION]), result)
    print(fit)  # noqa: T201 shown by `flwr log`
    if "points" in fit.posterior.state:
        content = fit.tables(None)["coefficients"].to_csv()
        write_whole(out / "coefficients.csv", content.encode())


def _keys(folder: Path) -> dict[str, bytes]:
    """Return the clients' keys."""
    try:
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
    except OSError as problem:
        raise ArgumentError(
            "secrets", "a folder with a file for every client", problem, "its full path"
        ) from problem


def _note(log: Path, pool: Any, report: RoundReport) -> None:
    """Append the report of a round as a line of JSON."""
    from bayesfed.federated import bits

    told = ("round", "seconds", "refused", "clients", "server", "metrics")
    line = {
        **{name: getattr(report, name) for name in told},
        "bits_down": bits(report.rows, "down"),
        "bits_up": bits(report.rows, "up"),
        "bytes_sent": pool.bytes_sent,
        "bytes_received": pool.bytes_received,
    }
    with open(log, "a") as file:
        file.write(json.dumps(line) + "\n")


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(name)
    globals()["app"] = made = server_app()
    return made
