"""The server's steps: Newton's to the mode, and the natural gradient's to the Gaussian of least
divergence (the Bayesian learning rule, Khan and Rue, 2023).

A start is a tree: its question (`asking`), the ``lengths`` of its candidates and ``notes``. Answers
are sums over all parties, the prior among them. A step asks for several lengths at once, and for
derivatives at the length that was best before; where that does not rise enough, it goes to the best
one and asks for derivatives there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesfed.trees import Tree

# Lengths of a Newton step and of a natural gradient step that are tried.
LENGTHS = torch.tensor([1.0, 8.0, 4.0, 2.0, 0.5, 0.25, 0.1, 0.03, 0.005], dtype=torch.float64)
DAMPINGS = torch.tensor([1.0, 0.6, 0.3, 0.1, 0.02, 0.0], dtype=torch.float64)
# Factor on all lengths where none rises.
SHORTER = 0.004
# A step is taken if it rises by this share of the best rise; noise of sums of 32 bits.
ENOUGH, NOISE = 0.05, 1e-3
# Sds to the mode at which to stop; sds, and nats of divergence, that a Gaussian may still move by.
NEAR, STILL, CLOSE = 0.05, 0.02, 0.02
# Smallest curvature that is divided by, and that counts as one, relative to what was expected; how
# often it, or a rise, must be missing; what stands for no mode.
FLOOR, FLAT, OFTEN, FAR = 1e-6, 1e-3, 3, 1e9
# Notes: whether derivatives at the centre are asked for, how often no candidate rose, how often a
# curvature was missing (-1: the basis is not yet that of a curvature), the status, sds to the mode
# if there is one.
FRESH, STUCK, FLATS, STATUS, AWAY = range(5)
GOING, ARRIVED, LOST, FREE = range(4)


def begun(centre: Tensor, basis: Tensor, lengths: Tensor = LENGTHS) -> Tree:
    """Return a start at which nothing but derivatives at the centre is asked for."""
    shift = torch.zeros(len(lengths), len(basis), dtype=torch.float64)
    scale = torch.full_like(shift, float(lengths is DAMPINGS))
    notes = torch.tensor([1.0, 0.0, -1.0, GOING, FAR], dtype=torch.float64)
    question = {"centre": centre, "basis": basis, "shift": shift, "scale": scale}
    return question | {"lengths": lengths, "notes": notes}


def climbed(start: Tree, answer: Tree) -> Tree:
    """Take a Newton step towards the mode, as the answer to the start's question says."""
    value, notes = answer["value"], start["notes"].clone()
    best = int(value.argmax())
    if not _enough(start, value):
        if value[best] <= 0:
            notes[STUCK] += 1
            notes[STATUS] = LOST if notes[STUCK] >= OFTEN else GOING
            return start | {"shift": SHORTER * start["shift"], "notes": notes}
        notes[FRESH], notes[STUCK] = 1, 0
        centre = start["centre"] + start["basis"] @ start["shift"][best]
        return begun(centre, start["basis"]) | {"notes": notes}
    centre = start["centre"] + start["basis"] @ start["shift"][0]
    curve = -_matrix(answer["curve"], len(centre))
    unit = curve.diagonal().abs().clamp_min(1e-30).rsqrt().clamp_max(1e6)
    unit = unit if notes[FLATS] < 0 else torch.ones_like(unit)
    curvature, axes = torch.linalg.eigh(unit[:, None] * curve * unit)
    flat = notes[FLATS] >= 0 and float(curvature.abs().min()) < FLAT
    notes[FLATS] = notes[FLATS] + 1 if flat else 0
    # A direction without curvature is stretched twice, and then believed.
    size = curvature.abs().clamp_min(FLOOR)
    root = torch.where((size < FLAT) & (notes[FLATS] >= OFTEN - 1), 1.0, size.rsqrt())
    step = root * (axes.T @ (unit * answer["slope"].mean(0)))
    low, away = float(curvature[0]), float(step.norm())
    if low < -FLAT and away < 1:
        # A saddle, whose gradient shows no way down from it.
        step = step + (curvature < -FLAT).double() * torch.where(step < 0, -1.0, 1.0)
    notes[AWAY] = away if low >= FLAT else FAR
    if away < NEAR and (low >= FLAT or notes[FLATS] >= OFTEN):
        notes[STATUS] = ARRIVED if low >= FLAT else FREE
    # The longest is often best once, while a scale grows, and too long after that.
    expected = torch.tensor(1.0) if notes[FRESH] else start["lengths"][best].clamp_max(4.0)
    notes[FRESH] = 0
    lengths = _ordered(LENGTHS, expected)
    return {
        "centre": centre,
        "basis": start["basis"] @ (unit[:, None] * axes * root),
        "shift": lengths[:, None] * step,
        "scale": torch.zeros_like(start["scale"]),
        "lengths": lengths,
        "notes": notes,
    }


def widened(start: Tree, answer: Tree) -> tuple[Tree, bool]:
    """Take a natural gradient step towards the Gaussian, and say whether its first candidate is as
    good as any.
    """
    gained = start["scale"].log().sum(1) + answer["value"]
    best = int(gained.argmax())
    if not _enough(start, gained - gained[-1]):
        shift, scale = start["shift"][best], start["scale"][best]
        centre = start["centre"] + start["basis"] @ shift
        return begun(centre, start["basis"] * scale, DAMPINGS), bool(start["lengths"][best] == 0)
    shift, scale = start["shift"][0], start["scale"][0]
    curve = -scale[:, None] * _matrix(answer["curve"], len(scale)) * scale
    curvature, axes = torch.linalg.eigh(curve)
    curvature = curvature.clamp(0.2, 5.0)
    basis = start["basis"] @ (scale[:, None] * axes)
    slopes = (answer["slope"] * scale) @ axes
    slope = slopes.mean(0)
    expected = DAMPINGS[0] if start["notes"][FRESH] else start["lengths"][best].clamp_min(0.02)
    lengths = _ordered(DAMPINGS[:-1], expected, DAMPINGS[-1:])
    precision = 1 + lengths[:, None] * (curvature - 1)
    made = begun(start["centre"] + start["basis"] @ shift, basis, lengths)
    made |= {"shift": lengths[:, None] * slope / precision, "scale": precision.rsqrt()}
    made["notes"][FRESH] = 0
    sds = basis.square().sum(1).sqrt()
    move = (basis @ (slope / curvature)).abs() / sds
    error = (basis @ (slopes / curvature).T).std(1) / len(slopes) ** 0.5 / sds
    nats = (slope.square() / curvature + 1 / curvature - 1 + curvature.log()).sum() / 2
    still = float(nats) < CLOSE or bool((move <= error.clamp_min(STILL)).all())
    return made, still


def _enough(start: Tree, rises: Tensor) -> bool:
    """Return whether the first candidate will do."""
    return bool(start["notes"][FRESH]) or bool(rises[0] >= ENOUGH * rises.max() - NOISE)


def _ordered(lengths: Tensor, first: Tensor, *last: Tensor) -> Tensor:
    return torch.cat([first[None], lengths[lengths != first], *last])


def _matrix(triangle: Tensor, size: int) -> Tensor:
    """Return the symmetric matrix of a triangle."""
    whole = torch.zeros(size, size, dtype=torch.float64)
    low, high = torch.tril_indices(size, size)
    whole[low, high] = triangle
    return whole + whole.tril(-1).T
