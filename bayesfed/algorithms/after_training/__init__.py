"""One phase: Laplace around a trained network, calibration on held-out rows, statistics of batch
norms, and fusion of networks in one round.
"""
