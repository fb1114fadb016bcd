"""How far a result can be trusted, when nobody knows the truth.

`uniqueness` bounds how far loopy messages can lead away from their fixed point, `starts` compares
runs from several starts, and `words` has the warnings.
"""
