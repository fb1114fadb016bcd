"""How good a posterior and its predictions are.

`scoring` has scores of predictions as functions of tensors; `predictive` the predictive
distribution of any posterior, with all its scores; `simulation_based_calibration` compares ranks of
simulated truths with uniform ones.
"""
