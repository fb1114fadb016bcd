"""`Flexible`: a threshold on kernels over the whole update, then random rounding of magnitudes;
AnycostFL's flexible gradient compression.

Li et al., "AnycostFL: efficient on-demand federated learning over heterogeneous edge devices",
2023, section III-C. For the rho and L of a given budget see `bayesfed.compress.budgets`.

======================  ============================================================================
Paper                   Here
======================  ============================================================================
rho                     `Flexible.share`, the share of kernels that are kept
L                       `Flexible.levels`
u[k], Pi, m (2)         `Flexible.sparse`; the mask of a decoded leaf is ``leaf != 0``
Q_l (3), (4)            `bayesfed.compress.quantisers.probabilistic.Probabilistic`, one grid for
                        each leaf
entropy coding          `Cheapest`, of the integers ``sgn(u) (l + 1)``
Golomb coding           `CheapestMask`; ``mask=RunMask()`` is Golomb alone
======================  ============================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesfed.compress.coded import Coded
from bayesfed.compress.leaf import IntegerCode, MaskCode
from bayesfed.compress.lossless.cheapest import Cheapest
from bayesfed.compress.masks.cheapest import CheapestMask
from bayesfed.compress.quantisers.entries import Reals, Singles, energy, entries, largest, share_of
from bayesfed.compress.quantisers.probabilistic import MANY, Probabilistic
from bayesfed.compress.quantisers.sparsify import Kernels, as_kernels
from bayesfed.compress.wire import MAX_BYTES, Meta, unseal
from bayesfed.errors import WireError
from bayesfed.errors.checks import SHARE, checked_class
from bayesfed.keys import Key
from bayesfed.trees import Tree

LEVELS = "flexible.levels"


@checked_class(share=SHARE, levels=MANY)
@dataclass(frozen=True)
class Flexible:
    """Keep the kernels of largest Euclidean norm, and round their entries to L + 1 magnitudes.
    AnycostFL, section III-C, (2) to (4).

    A kernel is ``[o, i]`` of a weight ``(out, in, ...)``: a small matrix in a convolution, and one
    entry in a dense layer, as in a 1 x 1 convolution. Each entry of a bias, of another vector or of
    a scalar is a kernel too and is ranked with the others: no leaf is kept whole. Integers and
    masks are lossless.

    Given the choice of kernels, the decoded values are unbiased. A non-zero entry of a kept kernel
    never becomes zero, so the receiver gets m as ``leaf != 0``. It need not know rho, and L is in
    the message. No setting of rho and L is lossless; use `Cast` for that.

    Parameters
    ----------
    share
        rho, above 0 and at most 1: ``ceil(rho K)`` of K kernels are kept, and of equal norms the
        earlier ones. Kernels of zeros cost nothing.
    levels
        L, 1 to 2**24. Each leaf has its own grid from u_min to u_max: layers differ in scale, and a
        single grid for all leaves had twice the error at large rho.
    mask, code
        Codes of the positions and of the signed indices.
    limit
        Largest size of a message in bytes, as in `Coded`.

    Raises
    ------
    ArgumentError
        If a parameter is outside its range.
    WireError
        On encoding NaN or infinity, or a meta with the name that this codec uses itself; on
        decoding a damaged message.

    Notes
    -----
    The paper does not define the kernels of a dense layer. Relative squared errors at equal numbers
    of bytes, each with its best rho and L, for an update of `femnist_cnn` (20 steps of 32 images of
    Fashion-MNIST; 97 % of its entries are one dense layer), were 1.4 to 7 times as large with the
    weights of one output as a kernel: at 1/15, 0.093 against 0.024 from the start, and 0.020
    against 0.003 after 400 steps. With a threshold of each leaf's own in place of one for all,
    errors are 1.1 to 6 times as large.

    With `CheapestMask` these messages are 12 to 23 % shorter than with the Golomb code of the mask
    alone (`RunMask`), at about four times the encoding time.
    """

    share: float = 0.1
    levels: int = 16
    mask: MaskCode = CheapestMask()
    code: IntegerCode = Cheapest()
    limit: int = MAX_BYTES

    def encode(self, tree: Tree, meta: Meta, key: Key) -> bytes:
        """Threshold, round and write the message, with L in its meta."""
        if LEVELS in meta:
            raise WireError(
                f"meta {LEVELS!r}",
                "a name that is not the codec's own",
                meta[LEVELS],
                "another name",
            )
        return self._coded(self.levels).encode(
            self.sparse(tree), {**meta, LEVELS: self.levels}, key
        )

    def decode(self, message: bytes, key: Key) -> tuple[Tree, dict[str, Any]]:
        """Read a message of any rho and L."""
        _, meta = unseal(message, limit=self.limit)
        levels: Any = meta.get(LEVELS)
        if not MANY.fits(levels):
            raise WireError(
                f"message, {LEVELS}", MANY.expected, repr(levels), "a message of this codec"
            )
        tree, meta = self._coded(levels).decode(message, key)
        del meta[LEVELS]
        return tree, meta

    def sparse(self, tree: Mapping[str, Tensor]) -> Tree:
        """Return u-hat of (2): floating-point leaves, rounded to float32, with all but the largest
        kernels set to zero; other leaves unchanged.

        Raises
        ------
        WireError
            If a leaf holds NaN, infinity or a number outside the range of float32.
        """
        kernels = {
            name: entries(leaf, f"leaf {name!r}").reshape(as_kernels(tuple(leaf.shape)))
            for name, leaf in tree.items()
            if leaf.is_floating_point()
        }
        norms = {name: _squared_norms(rows) for name, rows in kernels.items() if rows.size}
        result, every = dict(tree), np.concatenate([*norms.values(), np.zeros(0)])
        kept = largest(every, share_of(self.share, len(every)))
        ends = np.cumsum([len(own) for own in norms.values()], dtype=np.int64)
        # Without kernels there is still one part, of none of them.
        for name, own in zip(norms, np.split(kept, ends[:-1]), strict=False):
            thinned = np.where(own[:, None], kernels[name], np.float32(0))
            result[name] = torch.from_numpy(thinned).reshape(tree[name].shape).to(tree[name].dtype)
        return result

    def variance(self, tree: Mapping[str, Tensor]) -> float:
        """Return the expected squared error over all entries: the loss of (2) plus the exact
        variance of (4).
        """
        sparse, rounded = self.sparse(tree), Probabilistic(self.levels)
        floats = [name for name, leaf in tree.items() if leaf.is_floating_point()]
        lost = (
            energy((tree[name].detach().cpu().float() - sparse[name]).reshape(-1).numpy())
            for name in floats
        )
        return math.fsum([*lost, *(rounded.variance(self._sent(sparse[name])) for name in floats)])

    def _sent(self, sparse: Tensor) -> Tensor:
        """Return the kernels of a leaf that are not zero; a vector or a scalar is sent whole."""
        kernels = sparse.reshape(as_kernels(tuple(sparse.shape)))
        return kernels[kernels.any(1)] if sparse.ndim > 1 else sparse

    def _coded(self, levels: int) -> Coded:
        # The leaves are thresholded already; what remains is to send the kernels that are not zero.
        rounded = Probabilistic(levels, self.code, self.mask)
        return Coded(Kernels(rounded, self.mask), limit=self.limit)


def _squared_norms(kernels: Singles) -> Reals:
    # In float64 no norm of float32 numbers overflows, or underflows to 0.
    wide = kernels.astype(np.float64)
    return np.asarray(np.einsum("ij,ij->i", wide, wide), np.float64)
