"""Codecs of one tensor: floats, grids, lattices, ternary values, and those that send a part of the entries."""
