"""Leaf codecs: codecs of one floating-point tensor.

From the bottom: `entries`, what all of them share; `floats`, without chance;
`probabilistic`, random rounding; `cells` and `lattice`, lattices with subtractive dither;
`sparsify`, which sends only some of the entries.
"""
