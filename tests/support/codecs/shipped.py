"""Every codec and code of the package, in one or more settings, and small trees for their messages.
The laws are run on these.
"""

from __future__ import annotations

import torch

from bayesfed.compress.codecs import Cast, Codec, ErrorFeedback
from bayesfed.compress.coded import Coded
from bayesfed.compress.flexible import Flexible
from bayesfed.compress.leaf import IntegerCode, LeafCodec, MaskCode
from bayesfed.compress.lossless.cheapest import STANDARD, Cheapest
from bayesfed.compress.lossless.ranges import Range
from bayesfed.compress.masks.cheapest import CheapestMask
from bayesfed.compress.masks.contexts import ContextMask
from bayesfed.compress.masks.runs import PlainMask, RunMask
from bayesfed.compress.posterior import PosteriorGrid
from bayesfed.compress.quantisers.floats import Float, Uniform
from bayesfed.compress.quantisers.lattice import Lattice
from bayesfed.compress.quantisers.probabilistic import Probabilistic, Qsgd
from bayesfed.compress.quantisers.sparsify import Sparse, Ternary, TopK
from bayesfed.compress.wire import MAX_BYTES
from bayesfed.keys import Key
from bayesfed.trees import Tree

LEAF_CODECS: dict[str, LeafCodec] = {
    "float32": Float(32),
    "float16": Float(16),
    "float16 range": Float(16, Range()),
    "uniform": Uniform(8),
    "probabilistic": Probabilistic(16),
    "qsgd": Qsgd(7, bucket=512),
    "qsgd max": Qsgd(16, norm="max"),
    "lattice 1": Lattice(bits=3, dimension=1),
    "lattice 2": Lattice(bits=3),
    "ternary": Ternary(0.1),
    "top": TopK(0.1),
    "top qsgd": TopK(0.1, Qsgd(16)),
    "sparse": Sparse(),
    "sparse lattice": Sparse(Lattice(bits=4)),
}
INTEGER_CODES: dict[str, IntegerCode] = {
    **dict(zip(("fixed", "golomb", "golomb signed", "range"), STANDARD.values(), strict=True)),
    "cheapest": Cheapest(),
}
MASK_CODES: dict[str, MaskCode] = {
    "plain": PlainMask(),
    "runs": RunMask(),
    "contexts": ContextMask(),
    "cheapest": CheapestMask(),
}


def message_codecs(limit: int = MAX_BYTES) -> dict[str, Codec]:
    """Return a codec of messages for each leaf codec and code, and those that use none of them."""
    return {
        "cast 32": Cast(32, limit),
        "cast 16": Cast(16, limit),
        **{f"coded {name}": Coded(codec, limit=limit) for name, codec in LEAF_CODECS.items()},
        **{
            f"integers {name}": Coded(integers=code, limit=limit)
            for name, code in INTEGER_CODES.items()
        },
        **{f"masks {name}": Coded(masks=code, limit=limit) for name, code in MASK_CODES.items()},
        "flexible": Flexible(0.5, 4, limit=limit),
        "posterior grid": PosteriorGrid(0.01, Coded(exceptions={"*sd": Float(32)}, limit=limit)),
        "feedback ternary": ErrorFeedback(Coded(Ternary(0.1), limit=limit)),
    }


def small_trees() -> list[Tree]:
    """Return trees with leaves of all kinds, including integers, booleans, and posterior means and
    sds.
    """
    generator = Key(0, "small trees").generator()

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    support = normal(6, 7) > 0.5
    return [
        {
            "0.weight": normal(6, 5),
            "0.bias": normal(6),
            "steps": torch.arange(12),
            "support/0": normal(6, 5) > 0.7,
            "one": normal(),
        },
        {
            "mean/0": normal(6, 7)[support],
            "support/0": support,
            "shared/sd": torch.tensor(0.1),
            "levels": (16 * normal(9).abs()).to(torch.uint8),
        },
        {
            "mean/0": normal(3, 4),
            "sd/0": normal(3, 4).exp(),
            "conv": normal(2, 3, 3, 3),
            "counts": (4 * normal(20)).abs().to(torch.int32),
        },
    ]
