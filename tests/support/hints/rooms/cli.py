"""Messages of `bayesfed.cli`, as commands print them."""

import tempfile
from pathlib import Path

from bayesfed.cli.main import main

COMPLETE = ("bayesfed/cli",)
TEXT = """\
rounds = 1
data = { kind = "digits", test = 1700 }
partition = { kind = "iid", clients = 2 }
net = { kind = "mlp", widths = [64, 10] }
recipe = { kind = "fed_avg", training = { steps = 1 } }
"""


def begun():
    """Return a folder of results in which no seed is finished."""
    folder = Path(tempfile.mkdtemp())
    (folder / "versions.json").write_text("[]")
    return str(folder)


def gone_on():
    """Run an experiment, and draw its folder."""
    folder = Path(tempfile.mkdtemp())
    (folder / "a.toml").write_text(TEXT)
    assert main(["run", str(folder / "a.toml"), "--out", str(folder), "--quiet"]) == 0
    assert main(["plot", str(folder / "a")]) == 0


def sweep():
    """Return the file of a sweep."""
    path = Path(tempfile.mkdtemp()) / "a.toml"
    path.write_text(TEXT + "[sweep]\n'recipe.training.steps' = [1, 2]\n")
    return str(path)


def compared(workers=1):
    """Run a sweep."""
    options = ["--out", tempfile.mkdtemp(), "--quiet", "--workers", str(workers)]
    assert main(["compare", sweep(), *options]) == 0


CASES = [
    (
        lambda: main(["compare", sweep(), "--workers", "0", "--out", tempfile.mkdtemp()]),
        "1",
        compared,
    ),
    (lambda: main(["doctor", "--estimate", sweep()]), "bayesfed compare", compared),
    (lambda: main(["list", "fed_avgg"]), "fed_avg", lambda: main(["list", "fed_avg"])),
    (lambda: main(["plot", begun()]), "bayesfed run, which goes on", gone_on),
]
