"""`report`: the page itself, filled from its template."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from bayesfed import __version__
from bayesfed.data.files import write_whole
from bayesfed.errors import ArgumentError, BayesfedError
from bayesfed.federated import Record
from bayesfed.inspect.learning_curves import Runs, curves, plot_curves
from bayesfed.running.comparison import LEGEND, cells
from bayesfed.running.folders import Folder, read_json
from bayesfed.running.reporting.clients import client_table
from bayesfed.running.reporting.supports import Map, address, support_maps


@dataclass(frozen=True)
class Experiment:
    """What the page says of one folder."""

    name: str
    seeds: list[int]
    method: str
    settings: dict[str, Any]
    text: str
    clients: tuple[list[str], list[list[str]]]
    maps: tuple[str, list[Map], int]


def report(folders: str | Path | Iterable[str | Path], path: str | Path) -> Path:
    """Write one HTML page on experiments, from their folders of results: tables, curves, supports,
    clients, settings, versions, what to cite.

    The page is self-contained: it loads no file and no address.

    Parameters
    ----------
    folders
        Folders that `bayesfed run` or `Result.save` made, of different names. Of several seeds,
        means and standard deviations are shown.
    path
        File to write. An earlier one is replaced.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    ArgumentError
        If there is no folder, two have the same name, one has no finished seed, or a file in it
        cannot be read.
    MissingExtraError
        If matplotlib is not installed.
    """
    given = [Path(one) for one in ([folders] if isinstance(folders, str | Path) else folders)]
    named = {one.resolve().name: Folder(one) for one in given}
    if len(named) != len(given) or not given:
        actual = [str(one) for one in given]
        raise ArgumentError(
            "report", "folders of different names", actual, "bayesfed report results/NAME"
        )
    if missing := [name for name, folder in named.items() if not folder.finished]:
        raise ArgumentError(
            "report", "a finished seed of each", f"none of {missing}", "bayesfed run FILE"
        )
    try:
        page = _page(named)
    except BayesfedError:
        raise
    except (OSError, ValueError, KeyError, SafetensorError) as problem:
        damage, hint = (
            f"{type(problem).__name__}: {problem}",
            "running the experiment again in another folder",
        )
        raise ArgumentError("report", "folders whose files are whole", damage, hint) from problem
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, page.encode())
    return path


def _page(named: dict[str, Folder]) -> str:
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    here = files("bayesfed.running.reporting")
    # Only what this package ships is taken as markup; everything from folders is escaped.
    style = Markup(here.joinpath("page.css").read_text(encoding="utf-8"))
    template = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    ).from_string(here.joinpath("page.html").read_text(encoding="utf-8"))
    runs = {
        name: [folder.history(seed) for seed in folder.finished] for name, folder in named.items()
    }
    citations = {entry: None for folder in named.values() for entry in _citations(folder)}
    return template.render(
        style=style,
        version=__version__,
        today=date.today().isoformat(),
        experiments=[_experiment(name, folder, runs[name]) for name, folder in named.items()],
        summary=cells(named),
        versions=_versions(named),
        legend=LEGEND,
        curves=_curves(runs),
        citations=list(citations),
    )


def _curves(runs: Runs) -> str:
    """Return the picture of the learning curves; nothing where no run measured anything."""
    if not any(row["round"] for row in curves(runs).values()):
        return ""
    drawn = BytesIO()
    plot_curves(runs).savefig(drawn, dpi=130)
    return address(drawn)


def _experiment(name: str, folder: Folder, histories: list[list[Record]]) -> Experiment:
    seed = folder.finished[0]
    method = folder.method(seed)
    text = "" if folder.file is None else folder.file.text
    return Experiment(
        name,
        folder.finished,
        str(method.get("name", "")),
        method.get("settings", {}),
        text,
        client_table(folder, histories),
        support_maps(folder, seed, histories[0]),
    )


def _versions(named: dict[str, Folder]) -> tuple[list[str], list[list[str]]]:
    """Return a row for each package and a column for each set of folders with the same versions,
    with an arrow where one changed between rounds.
    """
    entries = {name: read_json(folder.path / "versions.json") for name, folder in named.items()}
    packages = list(
        dict.fromkeys(
            package for several in entries.values() for entry in several for package in entry
        )
    )
    columns: dict[tuple[str, ...], list[str]] = {}
    for name, several in entries.items():
        column = tuple(
            " → ".join(dict.fromkeys(str(entry.get(package, "-")) for entry in several))
            for package in packages
        )
        columns.setdefault(column, []).append(name)
    rows = [
        [package, *(column[place] for column in columns)] for place, package in enumerate(packages)
    ]
    return ["package", *map(", ".join, columns.values())], rows


def _citations(folder: Folder) -> list[str]:
    """Return the BibTeX entries of a folder's method; of one that an earlier version wrote, those
    of the recipe in its experiment.
    """
    from bayesfed.algorithms import citation

    text = str(folder.method(folder.finished[0]).get("citation", ""))
    if not text and folder.file is not None:
        recipe = folder.file.tree.get("recipe", "")
        try:
            text = citation(str(recipe.get("kind", "") if isinstance(recipe, dict) else recipe))
        except ArgumentError:
            return []
    return [entry for entry in text.split("\n\n") if entry]
