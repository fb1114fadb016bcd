"""Data sets and how they are split over clients.

From the bottom: `dataset` and `rows`, checked tensors; `readers`, real data sets from files and
other libraries; `synthetic`, drawn data; `partition`, which rows each client holds; `texts`,
labelled texts and their tokens.
"""

from bayesfed.errors.names import attached

__getattr__, __dir__, __all__ = attached(__name__, __file__)
