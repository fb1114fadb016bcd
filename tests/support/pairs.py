"""Which recipe runs with which net, link and data: every pair is tried for one round on a few rows,
and a refusal says why.

Recipes are those that a file can name; `pairs.toml` says what they are paired with, and the
smallest value of what each needs.
"""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesfed.errors import BayesfedError
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.inspect.tables import table
from bayesfed.running.experiments import names
from bayesfed.running.experiments.build import build
from bayesfed.running.experiments.experiment import ExperimentFile
from bayesfed.running.experiments.kinds import keys, options
from bayesfed.running.launch import run

SETTINGS: Mapping[str, Any] = tomllib.loads(
    Path(__file__).with_name("pairs.toml").read_text(encoding="utf-8")
)
AXES = ("net", "link", "data")
LINKS: Mapping[str, Any] = SETTINGS["link"]
RAN = "runs"
LONGEST = 200


@dataclass(frozen=True)
class Pair:
    """Outcome of one pair: `RAN`, or the reason of a refusal; a `hole` is an error that is not a
    refusal.
    """

    recipe: str
    other: str
    found: str
    hole: bool = False


def recipes() -> list[str]:
    """Return the recipes that a file can name."""
    return list(options(Algorithm))


def tree(recipe: str, axis: str, other: str) -> dict[str, Any]:
    """Return the experiment of a pair, as a file would say it."""
    made_by, smallest, always = names.public()[recipe], SETTINGS["smallest"], SETTINGS["always"]
    needed = {name: smallest[name] for name in names.required(made_by) if name in smallest}
    default = "lora(mlp)" if recipe.endswith("_lora") else "mlp"
    chosen = {"net": default, "data": "digits"} | {axis: other}
    settings = {
        **SETTINGS["rest"],
        "recipe": {
            "kind": recipe,
            **needed,
            **{name: always[name] for name in keys(made_by) if name in always},
            **SETTINGS["own"].get(recipe, {}),
        },
    }
    settings = deepcopy(settings | {name: SETTINGS[name][one] for name, one in chosen.items()})
    if chosen["data"] == "numbers.csv":
        _predict_numbers(settings, made_by)
    inside = settings["recipe"].get("algorithm")
    if isinstance(inside, dict) and "net" in inside:
        # A network of the recipe's own, which those of the axis cannot stand for.
        inside["net"]["widths"][-1] = 1 if chosen["data"] == "numbers.csv" else 10
        del settings["net"]
    if "make" in names.required(made_by):
        settings["recipe"]["make"] = settings.pop("net")
    return settings


def _predict_numbers(settings: dict[str, Any], made_by: Any) -> None:
    """Give the net one output, and the recipe a likelihood of numbers wherever it takes one."""
    net, recipe = settings["net"], settings["recipe"]
    (net.get("net") or net)["widths"] = [64, 6, 1]
    if "declared" in names.required(made_by):
        recipe["declared"] = {"likelihood": "Normal"}
    for one in (
        recipe.get("model"),
        recipe.get("algorithm"),
        recipe if "likelihood" in keys(made_by) else None,
    ):
        if isinstance(one, dict):
            one["likelihood"] = "Normal"


@contextmanager
def files() -> Iterator[Path]:
    """Make a folder with the tables that the data of `pairs.toml` are read from."""
    with tempfile.TemporaryDirectory() as name:
        features = [[(7 * row + 3 * i) % 11 / 11 for i in range(64)] for row in range(50)]
        targets: dict[str, Sequence[float]] = {
            "classes.csv": [row % 10 for row in range(50)],
            "numbers.csv": [sum(row[:5]) for row in features],
        }
        for file, target in targets.items():
            rows = [",".join(map(str, [*row, y])) for row, y in zip(features, target, strict=True)]
            (Path(name) / file).write_text(
                "\n".join([",".join([*(f"x{i}" for i in range(64)), "y"]), *rows, ""])
            )
        yield Path(name)


def attempt(recipe: str, axis: str, other: str, folder: Path) -> Pair:
    """Run one pair for one round."""
    try:
        built = build(ExperimentFile(folder / "pair.toml", "", tree(recipe, axis, other)), 0)
        run(built.algorithm, built.pool, progress=False, **built.options)
    except BayesfedError as problem:
        return Pair(
            recipe, other, str(problem).removeprefix("pair.toml, ").removeprefix("recipe: ")
        )
    except Exception as problem:
        return Pair(recipe, other, f"{type(problem).__name__}: {problem}", hole=True)
    return Pair(recipe, other, RAN)


def _reason(pair: Pair) -> str:
    """Return the reason in one line, the same for all recipes that have it."""
    text = " ".join(pair.found.replace(pair.recipe, "recipe").split()).removeprefix("recipe: ")
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def show(axis: str, say: Callable[[str], None]) -> bool:
    """Try all pairs of an axis, print the table and the reasons; return whether there was
    no hole.
    """
    from tqdm import tqdm

    others = list(SETTINGS[axis])
    with files() as folder:
        rows = {
            recipe: [attempt(recipe, axis, other, folder) for other in others]
            for recipe in tqdm(recipes(), desc=f"recipe x {axis}")
        }
    pairs = [pair for row in rows.values() for pair in row]
    reasons = list(dict.fromkeys(_reason(pair) for pair in pairs if pair.found != RAN))

    def cell(pair: Pair) -> str:
        return (
            RAN
            if pair.found == RAN
            else f"{'HOLE ' * pair.hole}[{reasons.index(_reason(pair)) + 1}]"
        )

    say(
        table(
            [f"recipe x {axis}", *others],
            [[recipe, *map(cell, row)] for recipe, row in rows.items()],
        )
    )
    say("\n".join(f"[{number}] {reason}" for number, reason in enumerate(reasons, 1)) + "\n")
    return not any(pair.hole for pair in pairs)
