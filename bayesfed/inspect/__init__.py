"""Looking at a run: tables, plots and the export to ArviZ.

From the bottom: `tables` and `partitions`; `figures`, and the plots in `pictures`, `maps`,
`devices` and `calibration`; `compat`, the only import of ArviZ, with k-hat, and `export` above it.
Matplotlib and ArviZ are imported only where they are used.
"""

from bayesfed.errors.names import attached

__getattr__, __dir__, __all__ = attached(__name__, __file__)
