"""Messages of `bayesfed.geometry`."""

import math

import bayesfed.geometry as g
from tests.geometry.geometry_points import point, randn
from tests.house.wrong_calls.given import KEY

COMPLETE = ("bayesfed/geometry",)


def zero_tangent(at):
    """Return a tangent of zeros."""
    return g.Tangent(0 * at.s, 0 * at.u, 0 * at.v)


def off(step):
    """Return a tangent that takes a part of the point away."""
    at = point()
    return g.Tangent(-step * at.s, 0 * at.u, 0 * at.v)


CASES = [
    (lambda std: g.random_point(9, 7, 3, std=std, key=KEY), -1.0),
    (
        lambda: g.orthographic_retraction(point(), off(1.0)),
        "a shorter step",
        lambda: g.orthographic_retraction(point(), off(0.5)),
    ),
    (
        lambda: g.orthographic_retraction(point(), off(1.0)),
        "metric_retraction",
        lambda: g.metric_retraction(point(), off(1.0)),
    ),
    (
        lambda: g.from_dense(randn(9, 7).half(), 2),
        ".to(torch.float32)",
        lambda: g.from_dense(randn(9, 7).half().float(), 2),
    ),
    (
        lambda: g.project(point(), point().v, point().v),
        "the point's shapes, (M, R) and (N, R)",
        lambda: g.project(point(), point().u, point().v),
    ),
    (lambda rank: g.from_dense(randn(9, 7), rank), 8),
    (
        lambda: g.metric_retraction(point(), zero_tangent(point()) * math.inf),
        "a smaller learning rate",
        lambda: g.metric_retraction(point(), zero_tangent(point()) * 0.1),
    ),
    (lambda weights: g.sum_points([point()] * 2, weights, 1), [1.0]),
    (
        lambda: g.check_point(g.FixedRank(2 * point().u, point().s, point().v), "x"),
        "from_factors",
        lambda: g.check_point(g.from_factors(2 * point().u @ point().s, point().v, 3), "x"),
    ),
    (
        lambda: g.difference(point(), point(9, 6)),
        "one layer at a time",
        lambda: g.difference(point(), point()),
    ),
]
