"""Looking at a run: tables, pictures and the ArviZ export. Matplotlib and ArviZ are imported where they are used."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
