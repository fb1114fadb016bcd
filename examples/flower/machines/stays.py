"""Write a made-up file of stays, to try the tutorial without a patient: ``stays.py basel
stays.csv``.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

ROWS = 150


def main(hospital: str, path: str) -> None:
    """Write the rows of a hospital; the same name gives the same rows."""
    draw = np.random.default_rng(list(hospital.encode()))
    age = draw.normal(60, 10, ROWS).round(1)
    ward = draw.choice(["east", "west"], ROWS)
    log_odds = 0.06 * (age - 60) + 0.8 * (ward == "west")
    died = (draw.random(ROWS) < 1 / (1 + np.exp(-log_odds))).astype(int)
    Path(path).write_text(
        pd.DataFrame({"age": age, "ward": ward, "died": died}).to_csv(index=False)
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
