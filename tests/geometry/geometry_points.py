"""Points and tangents that tests of the geometry are run on."""

import torch

from bayesfed import geometry as g
from bayesfed.keys import Key

DOUBLE = torch.float64


CASES = [
    (rows, columns, rank)
    for rows, columns in ((9, 5), (5, 9), (7, 7), (1, 6), (60, 20))
    for rank in sorted({1, 3, min(rows, columns)})
    if rank <= min(rows, columns)
]


def randn(*shape, name="x", dtype=DOUBLE):
    return torch.randn(*shape, generator=Key(0, name).generator(), dtype=dtype)


def point(rows=9, columns=7, rank=3, *, name="p", dtype=DOUBLE):
    return g.random_point(rows, columns, rank, Key(0, name), dtype=dtype)


def short(at, *, name="z", size=0.5):
    """Draw a tangent whose norm is a share of the smallest singular value."""
    tangent = g.random_tangent(at, Key(0, name))
    return tangent * (size * g.singular_values(at)[-1] / g.norm(tangent))
