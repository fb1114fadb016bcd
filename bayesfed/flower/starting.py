"""A new Flower app: copies of the two files of the template."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from bayesfed.errors import ArgumentError

NAMES = ("pyproject.toml", "experiment.py")


def new_app(folder: str | Path) -> Path:
    """Write a minimal app into a folder, created if needed: its configuration and an example
    experiment.

    Raises
    ------
    ArgumentError
        If one of the files exists already.
    """
    folder = Path(folder)
    if there := [name for name in NAMES if (folder / name).exists()]:
        raise ArgumentError("new_app", "a folder without these files", there, "another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        (folder / name).write_text(files("bayesfed.flower").joinpath("app", name).read_text())
    return folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="bayesfed new",
        description="Write a minimal Flower app: pyproject.toml and experiment.py.",
    )
    parser.add_argument("folder", type=Path)
    print(f"an app in {new_app(parser.parse_args(arguments).folder)}/")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
