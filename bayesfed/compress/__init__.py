"""Turning trees of tensors into bytes and back: the wire format, the codecs over it, and the codes below them.

From the message down: a *codec* writes a tree (`Cast`, `Coded`, `PosteriorGrid`, `Flexible` and at a given size `Budgeted`, `ErrorFeedback`
around any of them); a *leaf codec* one tensor (`Float`, `Uniform`, `Qsgd`, `Probabilistic`, `Lattice`, `Ternary`, `TopK`, `KernelWise`,
`Sparse`); an *integer code* and a *mask code* a sequence of integers and a support, losslessly (`symbols`, `masks`). They are values and
compose: ``Coded(TopK(0.01, Qsgd(7)))``.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
