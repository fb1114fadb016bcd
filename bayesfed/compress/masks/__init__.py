"""Lossless codes of boolean matrices, such as supports.

From the bottom: `runs`, plain bits and run lengths; `neighbours` and `contexts`, arithmetic coding
with the probability of each entry given its neighbours; `cheapest`, the choice of the shortest
code.
"""
