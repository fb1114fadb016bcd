"""Belief propagation on binary grids.

`parity` stores a grid as the two colours of a checkerboard; `checkerboard` updates one colour at a
time (`checkerboard_jit` has the kernel).
"""
