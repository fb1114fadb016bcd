"""The manifold of matrices of fixed rank, thin throughout: no function forms an ``M x N`` matrix
unless its name says dense.

Its files, lowest first:

====================== =============================================================================
`thin`                 QR, SVD and norm of a product of thin factors
`fixed_rank`           points ``u s v^T``: from dense matrices and factors and back, distance,
                       weighted sums
`tangents`             tangent vectors: the projection from two thin products, their norm; metric
                       and orthographic retraction
====================== =============================================================================

References
----------
Vandereycken (2013), Low-rank matrix completion by Riemannian optimization. Absil and Oseledets
(2015), Low-rank retractions: a survey and new results. FedRLR is the federated Riemannian low-rank
compression scheme with over-the-air aggregation; equation numbers are its own.
"""

from bayesfed.errors.names import attached

__getattr__, __dir__, __all__ = attached(__name__, __file__)
