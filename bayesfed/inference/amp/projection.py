"""`Projection`: long vectors shortened block by block with a random matrix, and recovered by AMP.

References
----------
Xue, Lau, Riemannian low-rank model compression for federated learning with over-the-air
aggregation, baselines 2 and 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.inference.amp.iteration import amp
from bayesfed.keys import Key
from bayesfed.trees import is_finite


@dataclass(frozen=True)
class Projection:
    """Shorten long vectors block by block with one Gaussian matrix, which every party draws from
    the same key.

    A vector of D numbers is padded with zeros, cut into ``ceil(D / columns)`` blocks, and each
    block x becomes A x. The sum of projections is the projection of the sum, so a channel may add
    them; for `recover`, the sum must be sparse. The paper has 8 x 256, 200 x 256 (Table II) and
    256/omega rows (Fig. 9), with standard normal entries. Here their variance is 1/m: projecting
    keeps the energy of a block, and so the transmit power.

    Parameters
    ----------
    key
        Key that the matrix is drawn from.
    rows, columns
        m and n: a block of n numbers becomes m.

    Raises
    ------
    ArgumentError
        If one of them is below 1.
    """

    key: Key
    rows: int
    columns: int = 256

    def __post_init__(self) -> None:
        if min(self.rows, self.columns) < 1:
            actual = (self.rows, self.columns)
            raise ArgumentError(
                "Projection", "rows and columns >= 1", actual, "Projection(key, 200, 256)"
            )

    def matrix(
        self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> Tensor:
        """Return A ``(m, n)``, entries N(0, 1/m), drawn in float64 on the CPU so that every party
        has the same numbers.
        """
        draw = torch.randn(
            self.rows, self.columns, dtype=torch.float64, generator=self.key.generator()
        )
        return (draw / math.sqrt(self.rows)).to(device, dtype)

    def project(self, vector: Tensor) -> Tensor:
        """Return the projections of the blocks, ``(ceil(D / n), m)``.

        Parameters
        ----------
        vector
            ``(D,)``.

        Raises
        ------
        ArgumentError
            If `vector` is not one-dimensional, empty, or not of finite floating-point numbers.
        """
        if (
            vector.ndim != 1
            or not vector.numel()
            or not vector.is_floating_point()
            or not is_finite(vector)
        ):
            actual = f"{tuple(vector.shape)} of {vector.dtype}"
            raise ArgumentError(
                "project", "finite floating-point numbers (D,), D >= 1", actual, "leaf.flatten()"
            )
        blocks = torch.nn.functional.pad(vector, (0, -len(vector) % self.columns)).view(
            -1, self.columns
        )
        return blocks @ self.matrix(vector.dtype, vector.device).T

    def recover(self, projected: Tensor, length: int) -> Tensor:
        """Return the vector ``(length,)`` that `amp` recovers; for a block that diverges, its best
        iterate is taken.

        Blocks of 256 are too small for the large-system limit to hold, hence the damping: of 100
        blocks with 30 non-zero entries, each sent as 200 numbers, a few do not settle without it.
        The tolerance is as fine as a channel's noise allows.

        Parameters
        ----------
        projected
            ``(ceil(length / n), m)``, as `project` returns it, or the noisy sum of several.
        length
            Length of the vector, D.

        Raises
        ------
        ArgumentError
            If the blocks are not those of a vector of `length`, or not finite.
        """
        expected = (math.ceil(length / self.columns), self.rows)
        if tuple(projected.shape) != expected or length < 1 or not is_finite(projected):
            actual = f"{tuple(projected.shape)}, {int((~projected.isfinite()).sum())} NaN or Inf"
            hint = "`project`'s result"
            raise ArgumentError(
                "recover", f"finite numbers {expected} for length {length}", actual, hint
            )
        a = self.matrix(projected.dtype, projected.device)
        return amp(a, projected, tol=1e-4, damping=0.3).estimate.flatten()[:length]
