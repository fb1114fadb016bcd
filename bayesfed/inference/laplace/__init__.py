"""The Laplace approximation: a Gaussian around a trained network, its precision the generalised
Gauss-Newton matrix (GGN) of the rows plus a prior.

`layers` has what a layer sees and what its outputs do to those of the network; `structures` what
rows add to the GGN in each of its forms; `blocks` its eigenvalues and bases; `evidence` the prior
precision that the rows prefer; `posterior` draws and predictions.
"""
