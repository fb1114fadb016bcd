"""How far a posterior moved, in its own sds."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesfed.federated.core import Info
from bayesfed.inference.variational.fusion import Fused
from bayesfed.trees import Tree


def moves(fused: Fused, before: Tree, after: Tree) -> Info:
    """Return how far a round moved the posterior, over all entries of Gaussian blocks: means in
    their sds, and logarithms of sds.

    ``moved`` and ``moved_sd`` are the largest moves, ``moved_rms`` is the root of the mean square
    of the means'.
    """
    means, sds = list[Tensor](), list[Tensor]()
    for block in fused.layout.blocks:
        old, new = block.read(fused.pair, before), block.read(fused.pair, after)
        if "loc" in new:
            old_sd, new_sd = (
                usual["scale"] if "scale" in usual else usual["scale_tril"].square().sum(-1).sqrt()
                for usual in (old, new)
            )
            means.append(((new["loc"] - old["loc"]) / new_sd).abs().reshape(-1))
            sds.append((new_sd / old_sd).log().abs().reshape(-1))
    if not means:
        return {}
    mean, sd = torch.cat(means), torch.cat(sds)
    return {
        "moved": float(mean.max()),
        "moved_sd": float(sd.max()),
        "moved_rms": float(mean.square().mean().sqrt()),
    }
