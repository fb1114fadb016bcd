"""How good a posterior and its predictions are.

`scoring` has scores of predictions as functions of tensors; `predictive` the predictive
distribution of any posterior, with all its scores; `detection` tells rows that a model should not
answer; `conformal` makes sets that hold the truth.
"""
