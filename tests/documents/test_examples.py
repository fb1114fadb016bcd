"""The examples run, print a table and write what they say."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "written", "words"),
    [
        ("federated_svi", "run.nc", ["mean, one place", "blood pressure", "posterior sds apart"]),
        ("hospitals", "wards.png", ["log tau", "hospital-D", "local leaves in 8 messages: 0"]),
        ("calibrated_digits", "reliability.png", ["Dirichlet 0.1", "ECE", "FedAvg"]),
        ("custom_guide", "densities.png", ["optimum", "PVI", "SummedGradients"]),
        (
            "over_the_air",
            "noise.png",
            ["Dirichlet 0.3", "D-Turbo-VBI", "FedRLR", "0 dB", "channel uses", "mean power"],
        ),
        ("sparse_factors", "factors.png", ["low rank, sparse", "numbers left", "MB in all"]),
        (
            "mini_bayesfed",
            "posterior.npz",
            ["accuracy", "bits a number up", "2410", "hidden units"],
        ),
    ],
)
def test_an_example_runs_and_writes(name, written, words, tmp_path):
    command = [
        sys.executable,
        str(EXAMPLES / f"{name}.py"),
        "--rounds",
        "1",
        "--out",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "%|" not in done.stderr  # a file is no place for a bar
    for word in [*words, f"{written} "]:
        assert word in done.stdout
    assert (tmp_path / "out" / written).stat().st_size > 1000
