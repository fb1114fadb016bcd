"""One phase after training: Laplace around a trained network, calibration on held-out rows, and the statistics of batch norms."""
