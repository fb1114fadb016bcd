"""Turning trees of tensors into bytes and back: the wire format, the codecs over it, and the codes below them.

From the message down: a *codec* writes a tree (`Cast`, `Coded`, `PosteriorGrid`, `Flexible` and at a given size `Budgeted`, `ErrorFeedback`
around any of them); a *leaf codec* one tensor (`Float`, `Uniform`, `Qsgd`, `Probabilistic`, `Lattice`, `Ternary`, `TopK`, `KernelWise`,
`Sparse`); an *integer code* and a *mask code* a sequence of integers and a support, losslessly (`symbols`, `masks`). They are values and
compose: ``Coded(TopK(0.01, Qsgd(7)))``.
"""

from bayesfed.compress.budgets import Budgeted, FlexibleMap, Setting, fit_flexible
from bayesfed.compress.codecs import Cast, Codec
from bayesfed.compress.coded import Coded
from bayesfed.compress.feedback import ErrorFeedback
from bayesfed.compress.flexible import Flexible
from bayesfed.compress.leaf import IntegerCode, LeafCodec, MaskCode
from bayesfed.compress.posterior import PosteriorGrid
from bayesfed.compress.quantisers.floats import Float
from bayesfed.compress.quantisers.lattice import Lattice
from bayesfed.compress.quantisers.probabilistic import Probabilistic
from bayesfed.compress.quantisers.qsgd import FedPaqQuantiser, Qsgd
from bayesfed.compress.quantisers.sparse import Sparse
from bayesfed.compress.quantisers.sparsify import KernelWise, TopK
from bayesfed.compress.quantisers.ternary import Ternary
from bayesfed.compress.quantisers.uniform import Uniform
from bayesfed.compress.support import gather_active, scatter_active
from bayesfed.compress.wire import pack, unpack

__all__ = [
    "Budgeted",
    "Cast",
    "Codec",
    "Coded",
    "ErrorFeedback",
    "FedPaqQuantiser",
    "Flexible",
    "FlexibleMap",
    "Float",
    "IntegerCode",
    "KernelWise",
    "Lattice",
    "LeafCodec",
    "MaskCode",
    "PosteriorGrid",
    "Probabilistic",
    "Qsgd",
    "Setting",
    "Sparse",
    "Ternary",
    "TopK",
    "Uniform",
    "fit_flexible",
    "gather_active",
    "pack",
    "scatter_active",
    "unpack",
]
