"""Belief propagation on binary grids.

`parity` stores a grid as the two colours of a checkerboard; `checkerboard` updates one colour at a
time, with a kernel in torch (`checkerboard_torch`) and one in numba (`checkerboard_jit`); `chains`
solves whole rows and columns exactly (`chains_jit` in numba).
"""
