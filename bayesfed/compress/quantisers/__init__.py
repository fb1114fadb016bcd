"""Leaf codecs: codecs of one floating-point tensor.

From the bottom: `entries`, what all of them share; `floats` and `uniform`; `qsgd` and
`probabilistic`, random rounding; `cells` and `lattice`, lattices with subtractive dither;
`ternary`, `sparsify` and `sparse`, which send only some of the entries.
"""
