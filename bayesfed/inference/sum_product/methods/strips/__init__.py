"""Grids as strips of rows, each solved exactly.

`scan` sums many chains at once; `sums` sums strips with it; `propagation` passes messages between
strips; `propagation_jit` is its sweep as a numba kernel.
"""
