"""Callbacks that send the figures of every round to TensorBoard, MLflow or Weights & Biases.

`tracker` has what they share: the figures, the settings, resuming, the end of a run. `libraries`
has one sink for each library.
"""
