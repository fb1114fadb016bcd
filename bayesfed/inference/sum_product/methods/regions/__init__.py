"""Generalised belief propagation: messages between regions of several variables, each of which is
summed exactly.

`choice` finds regions (short cycles, blocks of grids) and their counting numbers; `wiring` sorts
their overlaps into batches; `propagation` passes the messages.
"""
