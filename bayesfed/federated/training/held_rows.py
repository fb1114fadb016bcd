"""Rows of a client that are not trained on, so that a setting can be chosen on them: every
tenth.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesfed.data.dataset import Dataset

# One row in so many is held out.
EVERY = 10


def split_held(data: Dataset) -> tuple[Dataset, Dataset]:
    """Return the rows to train on, and every tenth row, which is held out. A client with fewer than
    ten rows holds out none.
    """
    held = is_held(len(data))
    return data[~held], data[held]


def is_held(rows: int) -> Tensor:
    """Return which rows are held out, ``(rows,)`` booleans."""
    return torch.arange(rows) % EVERY == EVERY - 1
