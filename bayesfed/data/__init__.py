"""Data sets and how they are split over clients.

From the bottom: `dataset` and `rows`, checked tensors; `readers`, real data sets from files and
other libraries; `synthetic`, drawn data; `partition`, which rows each client holds; `texts`,
labelled texts and their tokens.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
