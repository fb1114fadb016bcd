"""Lossless codes of integers.

From the bottom: `bits`, packed and unary bits and the code `Fixed`; `golomb`; `splits`, the
integers that occur, whole or as tokens; `ranges`, a range coder with a static model;
`cheapest`, the choice of the shortest code.
"""
