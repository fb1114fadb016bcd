"""Codecs: trees of tensors to bytes and back.

From the bottom: `wire`, the format of a message, and `leaf`, the interfaces of codes; `lossless`
and `masks`, *integer codes* and *mask codes*, which are lossless; `quantisers`, *leaf codecs* for
one tensor (`Float`, `Uniform`, `Qsgd`, `Probabilistic`, `Lattice`, `Ternary`, `TopK`, `Sparse`);
and *codecs* of a whole tree: `Cast`, `Coded`, `PosteriorGrid`, `Flexible`, `Budgeted` for a given
size, and `ErrorFeedback` around any of them. All of them are values and can be combined:
``Coded(TopK(0.01, Qsgd(7)))``.
"""

from bayesfed.errors.names import attached

__getattr__, __dir__, __all__ = attached(__name__, __file__)
