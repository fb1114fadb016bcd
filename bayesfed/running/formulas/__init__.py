"""Regressions by formula: `prepared`, before their fit; `fitted`, after it."""
