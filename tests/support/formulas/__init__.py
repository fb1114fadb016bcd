"""Random formulas: hostile ones, which must be refused, and legal ones, with what they mean.

`hostile` and `legal` have the grammars; `watch` refuses hostile ones in a process of its own that
records what Python does meanwhile.
"""
