"""Adapters in the coordinates of their product: ``B A = (U S) V^T``, so that slices are worth
their singular values.

With ``A = C V^T`` the coordinates are ``B' = B C = U S`` and ``A' = V^T``. A change of them goes
back exactly, ``(B + dB' C^+) (A + C dA') = (B' + dB') (A' + dA')``. What the server adds up, its
momentum and the mean of its models stay in the coordinates of its own factors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from bayesfed.geometry.thin import signed_qr
from bayesfed.trees import Tree, leaf_of


class Rewritten(NamedTuple):
    """An adapter in the coordinates of its product, and the way back.

    Parameters
    ----------
    b, a
        ``U S (m, r)`` and ``V^T (r, n)``, singular values falling. Rows of A' are orthonormal also
        where these are zero, so that every slice can be trained; those beyond n are zero.
    there, back
        ``C (r, r)``, with ``A = C A'``, and its pseudoinverse.
    """

    b: Tensor
    a: Tensor
    there: Tensor
    back: Tensor


def rewritten(b: Tensor, a: Tensor) -> Rewritten:
    """Rewrite an adapter, by thin QRs and an SVD of an ``r x r`` core; no product is formed.

    Parameters
    ----------
    b, a
        B ``(m, r)`` and A ``(r, n)``. Computed in 64 bits, returned as they are.
    """
    columns, rank = b.double(), len(a)
    rows, triangle = signed_qr(a.double().mT)
    _, left = signed_qr(columns)
    v = torch.linalg.svd(left @ triangle.mT).Vh
    lacking = rank - len(v)
    there = functional.pad(triangle.mT @ v.mT, (0, lacking))
    found = (
        columns @ there,
        functional.pad(v @ rows.mT, (0, 0, 0, lacking)),
        there,
        torch.linalg.pinv(there),
    )
    return Rewritten(*(part.to(b) for part in found))


def put_rewritten(tree: Tree, bases: Mapping[str, Rewritten]) -> Tree:
    """Return a tree with the rewritten adapters of some layers in place of its own."""
    found = dict(tree)
    for name, basis in bases.items():
        found |= {leaf_of(name, "lora_b"): basis.b, leaf_of(name, "lora_a"): basis.a}
    return found


def put_back(changes: Tree, bases: Mapping[str, Rewritten]) -> Tree:
    """Return changes of rewritten adapters as those of the adapters themselves."""
    found = dict(changes)
    for name, basis in bases.items():
        b, a = leaf_of(name, "lora_b"), leaf_of(name, "lora_a")
        found |= {b: changes[b] @ basis.back, a: basis.there @ changes[a]}
    return found
