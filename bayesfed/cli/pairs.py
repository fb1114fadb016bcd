"""Which recipe runs with which net, link and data: every pair is tried for one round on a few rows, and what is refused says why.

Recipes are those that a file can name; what each needs beyond the pair is `SMALLEST`, by the parameter's name.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesfed.cli import names
from bayesfed.cli.build import build
from bayesfed.cli.experiment import ExperimentFile
from bayesfed.cli.hints import keys, options, required
from bayesfed.errors import BayesfedError
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.inspect.tables import table
from bayesfed.running import run

if TYPE_CHECKING:
    from collections.abc import Iterator

AXES = ("net", "link", "data")
RAN = "runs"
LONGEST = 200

_MLP = {"kind": "mlp", "widths": [64, 6, 10]}
NETS: Mapping[str, Any] = {
    "mlp": _MLP,
    "cnn": {"kind": "cnn", "channels": [2, 3], "hidden": 4},
    "alexnet": {"kind": "alexnet", "width": 1, "hidden": 4},
    "mobilenet": {"kind": "mobilenet", "width": 0.01},
    "resnet18": {"kind": "resnet18", "width": 0.125},
    "resnet18 group": {"kind": "resnet18", "width": 0.125, "norm": "group"},
    "lora(mlp)": {"kind": "lora", "rank": 2, "net": _MLP},
    "fixed_rank(mlp)": {"kind": "fixed_rank", "rank": 2, "net": _MLP},
    "hybrid(mlp)": {"kind": "hybrid", "rank_ratio": 0.5, "net": _MLP},
}
LINKS: Mapping[str, Any] = {
    "Digital": "Digital",
    "air, Gbma": {"kind": "OverTheAir", "snr_db": 60.0},
    "air, inversion": {"kind": "OverTheAir", "snr_db": 60.0, "power": {"kind": "ChannelInversion", "threshold": 0.01}},
    "air, compressed": {"kind": "OverTheAir", "snr_db": 60.0, "sensing": {"rows": 8, "columns": 16}},
}
DATA: Mapping[str, Any] = {
    "digits": {"kind": "digits", "test": 1757},
    "blobs": {"kind": "blobs", "samples": 50, "features": 64, "classes": 10},
    "classes.csv": {"kind": "from_csv", "path": "classes.csv", "label": "y"},
    "numbers.csv": {"kind": "from_csv", "path": "numbers.csv", "label": "y", "regression": True},
}
SMALLEST: Mapping[str, Any] = {
    "strength": 0.1,
    "ratios": [1.0, 0.5],
    "ranks": [2, 1],
    "rank": 1,
    "nets_of": [2, 1],
    "nets": [{"kind": "shrunk", "alpha": 1.0}, {"kind": "shrunk", "alpha": 0.25}],
    "capacity": "dynamic",
    "deadline_s": 1e6,
    "planner": {"sizes": [1.0], "deadline_s": 1e6, "beta": [0.5, 0.5]},
    "settings": {"kind": "fit_flexible", "shares": [1.0]},
    "model": {"prior": {"kind": "Gaussian", "sd": 0.5}},
    "guide": "AutoNormal",
    "fusion": {"kind": "PVI", "damping": 0.25},
    "scale": "local",
    "clip": 1.0,
    "noise": 0.1,
    "participants": 4,
    "rule": "Median",
    "algorithm": {"kind": "fed_avg", "steps": 1, "batch_size": 4},
    "steps": 1,
    "batch_size": 4,
}
_EVERYONE_ABLE = {"kind": "fleet", "energy_j": [1e6, 1e6], "like": {"bandwidth_hz": 1e9}}
_ADAPTERS = ("fs_lora", "fed_lora", "ffa_lora", "hetero_lora", "flex_lora", "fed_stack_lora", "bayesian_lora")


@dataclass(frozen=True)
class Pair:
    """What came of one pair: `RAN`, or why not; `hole` if it broke where it should have been refused."""

    recipe: str
    other: str
    found: str
    hole: bool = False


def recipes() -> list[str]:
    """Return the recipes that a file can name."""
    return list(options(Algorithm))


def columns(axis: str) -> Mapping[str, Any]:
    """Return what recipes are paired with."""
    return {"net": NETS, "link": LINKS, "data": DATA}[axis]


def tree(recipe: str, axis: str, other: str) -> dict[str, Any]:
    """Return the experiment of a pair, as a file would say it."""
    made_by = names.public()[recipe]
    needed = [name for name in required(made_by) if name in SMALLEST] + [name for name in ("steps", "batch_size") if name in keys(made_by)]
    table_of = {"kind": recipe} | {name: copy.deepcopy(SMALLEST[name]) for name in needed}
    net: Any = NETS["lora(mlp)" if recipe in _ADAPTERS and axis != "net" else other if axis == "net" else "mlp"]
    found: dict[str, Any] = {"rounds": 1, "data": DATA[other if axis == "data" else "digits"], "partition": {"kind": "iid", "clients": 4}}
    found |= {"net": net, "recipe": table_of, "devices": _EVERYONE_ABLE, "draws": 2}
    if axis == "link":
        found["link"] = LINKS[other]
    if axis == "data" and other == "numbers.csv":
        net = {**net, "net": {**_MLP, "widths": [64, 6, 1]}} if "net" in net else {**_MLP, "widths": [64, 6, 1]}
        found["net"] = net
        _normal(table_of, made_by)
    if "make" in required(made_by):
        table_of["make"] = net
        del found["net"]
    return found


def _normal(table_of: dict[str, Any], made_by: Any) -> None:
    """Say that targets are numbers, wherever a recipe says its likelihood."""
    if "declared" in required(made_by):
        table_of["declared"] = {"likelihood": "Normal"}
    for where in (table_of.get("model"), table_of.get("algorithm")):
        if isinstance(where, dict):
            where["likelihood"] = "Normal"
    if "likelihood" in keys(made_by):
        table_of["likelihood"] = "Normal"


@contextmanager
def files() -> Iterator[Path]:
    """Make a folder with the tables that `DATA` reads."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        heading = ",".join([*(f"x{i}" for i in range(64)), "y"])
        features = [[(7 * row + 3 * i) % 11 / 11 for i in range(64)] for row in range(50)]
        for file, target in (("classes.csv", lambda row: row % 10), ("numbers.csv", lambda row: sum(features[row][:5]))):
            lines = [",".join(map(str, [*features[row], target(row)])) for row in range(50)]
            (folder / file).write_text("\n".join([heading, *lines]) + "\n")
        yield folder


def attempt(recipe: str, axis: str, other: str, folder: Path) -> Pair:
    """Run one pair for one round."""
    try:
        built = build(ExperimentFile(folder / "pair.toml", "", tree(recipe, axis, other)), 0)
        run(built.algorithm, built.pool, progress=False, **built.options)
    except BayesfedError as problem:
        return Pair(recipe, other, str(problem).removeprefix("pair.toml, ").removeprefix("recipe: "))
    except Exception as problem:
        return Pair(recipe, other, f"{type(problem).__name__}: {problem}", hole=True)
    return Pair(recipe, other, RAN)


def _reason(pair: Pair) -> str:
    """Return the reason in one line, the same for all recipes that have it."""
    text = " ".join(pair.found.replace(pair.recipe, "recipe").split()).removeprefix("recipe: ")
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def show(axis: str, say: Callable[[str], None]) -> bool:
    """Try all pairs of an axis, print the table and the reasons; return whether there was no hole."""
    from tqdm import tqdm

    others, found = list(columns(axis)), dict[tuple[str, str], Pair]()
    with files() as folder:
        for recipe in tqdm(recipes(), desc=f"recipe x {axis}"):
            found |= {(recipe, other): attempt(recipe, axis, other, folder) for other in others}
    reasons = list(dict.fromkeys(_reason(pair) for pair in found.values() if pair.found != RAN))

    def cell(pair: Pair) -> str:
        return RAN if pair.found == RAN else f"{'HOLE ' * pair.hole}[{reasons.index(_reason(pair)) + 1}]"

    say(table([f"recipe x {axis}", *others], [[recipe, *(cell(found[recipe, other]) for other in others)] for recipe in recipes()]))
    say("\n".join(f"[{number}] {reason}" for number, reason in enumerate(reasons, 1)) + "\n")
    return not any(pair.hole for pair in found.values())
