"""The manifold of matrices of fixed rank, thin throughout: nothing forms an ``M x N`` matrix unless its name says dense.

====================== ==================================================================================================================
`fixed_rank`           points ``u s v^T``: from dense matrices and factors and back, distance, a linear layer's product
`tangents`             tangent vectors: the projection from two thin products, inner products, a linear layer's product
`retractions`          metric and orthographic retraction, the latter's inverse, vector transport
`sums`                 weighted sums of points, recompressed, and of tangents, exact
`coordinates`          tangents as flat vectors, plain or with exactly as many numbers as there are dimensions
`ranks`                ranks for a compression ratio: uniform, by energy, greedy
`adaptation`           a rank that shrinks by energy and grows along the gradient
`thin`                 QR, SVD and norm of a product of thin factors, a randomised SVD
====================== ==================================================================================================================

A step of Riemannian gradient descent on one layer, and its laws, `bayesfed.testing.check_fixed_rank`::

    probe = zero_tangent(point, requires_grad=True)
    loss(apply(point, x) + apply_tangent(point, probe, x)).backward()
    point = metric_retraction(point, -step * project(point, probe.up.grad, probe.vp.grad))

References
----------
Vandereycken (2013), Low-rank matrix completion by Riemannian optimization. Absil and Oseledets (2015), Low-rank retractions: a survey and new
results. Equations of FedRLR are those of the federated Riemannian low-rank compression scheme with over-the-air aggregation.
"""

from bayesfed.geometry.adaptation import grow, normal_directions, tangent_directions, truncate
from bayesfed.geometry.coordinates import from_coordinates, from_vector, to_coordinates, to_vector
from bayesfed.geometry.fixed_rank import (
    FixedRank,
    apply,
    canonical,
    check_point,
    distance,
    from_dense,
    from_factors,
    random_point,
    singular_values,
    to_dense,
    to_factors,
)
from bayesfed.geometry.ranks import energy_rank, energy_ranks, greedy_ranks, largest_rank, numbers, uniform_ranks
from bayesfed.geometry.retractions import inverse_orthographic, metric_retraction, orthographic_retraction, transport
from bayesfed.geometry.sums import concatenated, sum_points, sum_tangents
from bayesfed.geometry.tangents import (
    Tangent,
    apply_tangent,
    check_tangent,
    difference,
    inner,
    norm,
    project,
    project_factors,
    random_tangent,
    tangent_to_dense,
    to_ambient,
    to_tangent,
    zero_tangent,
)

__all__ = [
    "FixedRank",
    "Tangent",
    "apply",
    "apply_tangent",
    "canonical",
    "check_point",
    "check_tangent",
    "concatenated",
    "difference",
    "distance",
    "energy_rank",
    "energy_ranks",
    "from_coordinates",
    "from_dense",
    "from_factors",
    "from_vector",
    "greedy_ranks",
    "grow",
    "inner",
    "inverse_orthographic",
    "largest_rank",
    "metric_retraction",
    "norm",
    "normal_directions",
    "numbers",
    "orthographic_retraction",
    "project",
    "project_factors",
    "random_point",
    "random_tangent",
    "singular_values",
    "sum_points",
    "sum_tangents",
    "tangent_directions",
    "tangent_to_dense",
    "to_ambient",
    "to_coordinates",
    "to_dense",
    "to_factors",
    "to_tangent",
    "to_vector",
    "transport",
    "truncate",
    "uniform_ranks",
    "zero_tangent",
]
