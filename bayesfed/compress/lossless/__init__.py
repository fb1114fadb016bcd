"""Lossless codes of integers.

From the bottom: `bits`, packed and unary bits and the code `Fixed`; `golomb`; `alphabet`, the
integers that occur; `splits`, `frequencies` and `ranges`, a range coder with a static model;
`cheapest`, the choice of the shortest code.
"""
