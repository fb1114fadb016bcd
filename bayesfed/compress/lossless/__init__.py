"""Codes of integers: bit packing, Golomb-Rice, Elias, canonical Huffman, range coding, and whichever is shortest."""
