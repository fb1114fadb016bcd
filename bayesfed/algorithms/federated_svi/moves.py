"""How far a posterior moved, in its own sds."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesfed.federated.core import Info
from bayesfed.inference.variational import Fused
from bayesfed.trees import Tree


def moves(fused: Fused, before: Tree, after: Tree) -> Info:
    """Return how far a round moved the posterior, over all entries of Gaussian blocks: means in
    their sds, and logarithms of sds.

    ``moved`` and ``moved_sd`` are the largest moves, ``moved_rms`` is the root of the mean square
    of the means'.
    """
    means, sds = list[Tensor](), list[Tensor]()
    for block in fused.layout.blocks:
        if (old := block.moments(fused.pair, before)) and (new := block.moments(fused.pair, after)):
            means.append(((new.mean - old.mean) / new.sd).abs().reshape(-1))
            sds.append((new.sd / old.sd).log().abs().reshape(-1))
    if not means:
        return {}
    mean, sd = torch.cat(means), torch.cat(sds)
    return {
        "moved": float(mean.max()),
        "moved_sd": float(sd.max()),
        "moved_rms": float(mean.square().mean().sqrt()),
    }
