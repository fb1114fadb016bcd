"""`report`: the page itself, filled from its template."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from bayesfed import __version__
from bayesfed.data.files import write_whole, writing
from bayesfed.errors import ArgumentError, BayesfedError
from bayesfed.errors.checks import checked
from bayesfed.federated import Record
from bayesfed.inspect.learning_curves import Runs, curves, plot_curves
from bayesfed.running.comparison import LEGEND, Comparison
from bayesfed.running.folders import Folder, named_folders
from bayesfed.running.reporting.clients import client_table
from bayesfed.running.reporting.supports import address, support_maps
from bayesfed.running.settings import read_json

if TYPE_CHECKING:
    from jinja2 import Template


@checked()
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
    given = [folders] if isinstance(folders, str | Path) else folders
    named = named_folders("report", [Folder(Path(one)) for one in given])
    try:
        page = _page(named)
    except BayesfedError:
        raise
    except (OSError, ValueError, KeyError, SafetensorError) as problem:
        damage = f"{type(problem).__name__}: {problem}"
        hint = "running the experiment again in another folder"
        raise ArgumentError("report", "folders whose files are whole", damage, hint) from problem
    path = Path(path)
    with writing("report", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, page.encode())
    return path


def template(name: str) -> Template:
    """Return a template of this folder."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    # Only what this package ships is taken as markup; a page escapes everything from folders.
    return Environment(
        loader=PackageLoader("bayesfed.running", "reporting"),
        autoescape=name.endswith("html"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    ).get_template(name)


def _page(named: dict[str, Folder]) -> str:
    runs = {name: folder.histories() for name, folder in named.items()}
    experiments = [_experiment(name, folder, runs[name]) for name, folder in named.items()]
    return template("page.html").render(
        version=__version__,
        today=date.today().isoformat(),
        experiments=experiments,
        summary=Comparison(named).cells,
        versions=_versions(named),
        legend=LEGEND,
        curves=_curves(runs),
        citations=list(dict.fromkeys(entry for one in experiments for entry in one["citation"])),
    )


def _curves(runs: Runs) -> str:
    """Return the picture of the learning curves; nothing where no run measured anything."""
    if not any(row["round"] for row in curves(runs).values()):
        return ""
    drawn = BytesIO()
    plot_curves(runs).savefig(drawn, dpi=130)
    return address(drawn)


def _experiment(name: str, folder: Folder, histories: list[list[Record]]) -> dict[str, Any]:
    """Return what the page says of one folder."""
    seed = folder.finished[0]
    method = folder.method(seed)
    return {
        "name": name,
        "seed": seed,
        "method": method.get("name", ""),
        "settings": method.get("settings", {}),
        "text": "" if folder.file is None else folder.file.text,
        "clients": client_table(folder, histories),
        "maps": support_maps(folder, seed, histories[0]),
        "health": method.get("health", ""),
        "citation": [entry for entry in method.get("citation", "").split("\n\n") if entry],
    }


def _versions(named: dict[str, Folder]) -> tuple[list[str], list[list[str]]]:
    """Return a row for each package and a column for each folder, with an arrow where a version
    changed between rounds.
    """
    entries = [read_json(folder.path / "versions.json") for folder in named.values()]
    packages = dict.fromkeys(name for several in entries for entry in several for name in entry)
    rows = [
        [
            name,
            *(" → ".join(dict.fromkeys(entry.get(name, "-") for entry in one)) for one in entries),
        ]
        for name in packages
    ]
    return ["package", *named], rows
