"""Lossless codes of integers.

From the bottom: `bits`, packed and unary bits and the code `Fixed`; `golomb` and `elias`;
`alphabet`, the integers that occur, and `huffman`; `splits`, `frequencies` and `ranges`, a range
coder with a static model; `symbols`, codes of negative integers and the choice of the shortest
code.
"""
