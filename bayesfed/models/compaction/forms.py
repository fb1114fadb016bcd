"""How one sparse layer is multiplied: dense, with empty rows and columns dropped, or as compressed
sparse rows.

Linear forms work on ``(features, rows)``. In this layout MKL's sparse product reads a whole batch
contiguously, and a network changes layout once, at its first layer. A batch given as
``(rows, features)`` becomes a transposed view, which the dense product takes as it is; only `Csr`
copies it.

Cost rule, in dense multiply-adds per row of the batch (measured on one AVX-512 core, float32, in
batches of 500 rows and more): an active weight of a sparse product costs 5 (4 on an idle machine, 6
where the memory is busy), an entry that is gathered, scattered or transposed costs 30. A layer of M
units is therefore multiplied as sparse below a density of ``(1 - 30 / M) / 5``: 18 % for 256 units.

Two other forms were tried and are slower. Groups of rows with similar columns, gathered and
multiplied tile by tile, lose at every density, because a Markov grid this sparse has clusters of
one or two weights. Convolutions as sparse products, by im2col or as a sum of shifted ones, lose to
the dense kernel even at a density of 2 % in layers of 16 to 32 channels.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from functools import cache

import torch
from torch import Tensor, nn

from bayesfed.models.compaction.pruned import Layer, constants, resized

SPARSE, MOVE = 5, 30


class Dense(nn.Module):
    """A linear layer on ``(features, rows)``, contiguous or transposed; returns a contiguous
    ``(units, rows)``.
    """

    layer: nn.Module

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, batch: Tensor) -> Tensor:
        """Return ``(units, rows)``."""
        if not isinstance(self.layer, nn.Linear):
            # Another module took the layer's place, as in dynamic quantisation; it takes rows.
            output: Tensor = self.layer(batch.t().contiguous())
            return output.t().contiguous()
        if self.layer.bias is None:
            return self.layer.weight @ batch
        return torch.addmm(self.layer.bias[:, None], self.layer.weight, batch)


class Dropped(nn.Module):
    """A layer without its empty rows and columns: inputs are gathered, and outputs are scattered
    among the constants of the empty rows.

    Takes ``(features, rows)`` for a linear layer, ``(..., channels, height, width)`` for a
    convolution.
    """

    inputs: Tensor
    outputs: Tensor
    constant: Tensor

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        rows, columns = live(layer)
        bias = constants(layer)
        small = resized(
            layer,
            layer.weight.detach()[rows][:, columns],
            None if layer.bias is None else bias[rows],
        )
        self.layer = Dense(small) if isinstance(small, nn.Linear) else small
        self.register_buffer("inputs", columns)
        self.register_buffer("outputs", rows)
        self.register_buffer("constant", bias)
        self.width = layer.weight.shape[1]

    def forward(self, batch: Tensor) -> Tensor:
        """Return ``(units, rows)`` or ``(..., channels, height, width)``."""
        axis = 0 if isinstance(self.layer, Dense) else -3
        if len(self.inputs) < self.width:
            batch = batch.index_select(axis, self.inputs)
        output: Tensor = self.layer(batch)
        if len(self.outputs) == len(self.constant):
            return output
        shape, view = list(output.shape), [1] * output.ndim
        shape[axis] = view[axis] = len(self.constant)
        full = self.constant.reshape(view).expand(shape).clone()
        return full.index_copy_(axis, self.outputs, output)


class Csr(nn.Module):
    """A linear layer as compressed sparse rows; returns a contiguous ``(units, rows)``."""

    ends: Tensor
    places: Tensor
    values: Tensor
    bias: Tensor
    inputs: Tensor | None

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        columns = live(layer)[1]
        # Gathering fewer than half of the inputs is cheaper than transposing all of them.
        few = 2 * len(columns) < layer.in_features
        self.register_buffer("inputs", columns if few else None)
        self.register_buffer("bias", constants(layer))
        matrix = layer.weight.detach()[:, columns] if few else layer.weight.detach()
        self.shape = tuple(matrix.shape)
        rows, places = matrix.nonzero(as_tuple=True)
        ends = torch.searchsorted(rows, torch.arange(len(matrix) + 1, device=rows.device))
        # Three dense buffers, since a sparse one cannot be copied or saved. MKL reads 32-bit
        # indices; others are converted in every product.
        self.register_buffer("ends", ends.int())
        self.register_buffer("places", places.int())
        self.register_buffer("values", matrix[rows, places])

    def forward(self, batch: Tensor) -> Tensor:
        """Return ``(units, rows)``."""
        if torch.compiler.is_compiling():
            # A graph, as for ONNX, has no sparse tensors.
            weight = self._dense()
        else:
            _ignore_beta_warning()
            weight = torch.sparse_csr_tensor(
                self.ends, self.places, self.values, self.shape, check_invariants=False
            )
        batch = batch.contiguous() if self.inputs is None else batch.index_select(0, self.inputs)
        return torch.addmm(self.bias[:, None].expand(-1, batch.shape[1]), weight, batch)

    def _dense(self) -> Tensor:
        # A weight's row is the number of rows that ended before it.
        ended = torch.zeros(len(self.places) + 1, dtype=torch.long, device=self.ends.device)
        ones = torch.ones_like(self.ends[1:], dtype=torch.long)
        rows = ended.index_add(0, self.ends[1:].long(), ones).cumsum(0)[:-1]
        return self.values.new_zeros(self.shape).index_put((rows, self.places.long()), self.values)


@cache
def _ignore_beta_warning() -> None:
    """Let torch issue its one-time warning that sparse rows are in beta, and ignore it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.eye(1).to_sparse_csr()


def live(layer: Layer) -> tuple[Tensor, Tensor]:
    """Return the indices of the rows and of the columns (channels) with an active weight, at least
    one of each.
    """
    active = (
        layer.weight.detach().ne(0).flatten(2).any(2)
        if layer.weight.ndim > 2
        else layer.weight.detach().ne(0)
    )
    rows, columns = (active.any(axis).nonzero()[:, 0] for axis in (1, 0))
    first = rows.new_zeros(1)
    return rows if len(rows) else first, columns if len(columns) else first


def candidates(layer: Layer, is_turned: bool) -> dict[str, tuple[float, Callable[[], nn.Module]]]:
    """Return the forms that a layer can take, each with its cost by the rule and a function that
    builds it.

    Parameters
    ----------
    layer
        A linear layer or a convolution.
    is_turned
        Whether the batch is transposed, so that `Csr` must copy it.
    """
    units, inputs = layer.weight.shape[:2]
    each = layer.weight[0, 0].numel()
    rows, columns = (len(index) for index in live(layer))
    forms: dict[str, tuple[float, Callable[[], nn.Module]]] = {}
    forms["dense"] = (
        units * inputs * each,
        lambda: Dense(layer) if isinstance(layer, nn.Linear) else layer,
    )
    if rows < units or columns < inputs:
        moved = (columns if columns < inputs else 0) + (units if rows < units else 0)
        forms["dropped"] = (rows * columns * each + MOVE * moved, lambda: Dropped(layer))
    if isinstance(layer, nn.Linear) and has_sparse_products(layer.weight):
        forms["csr"] = (
            SPARSE * int(layer.weight.count_nonzero())
            + MOVE * min(inputs, 2 * columns) * is_turned,
            lambda: Csr(layer),
        )
    return forms


def has_sparse_products(weight: Tensor) -> bool:
    """Return whether MKL's fast sparse products are available for a weight: on the CPU, in single
    or double precision.
    """
    return (
        torch.backends.mkl.is_available()
        and weight.device.type == "cpu"
        and weight.dtype in {torch.float32, torch.float64}
    )


def quickest(forms: Mapping[str, nn.Module], batch: Tensor) -> str:
    """Return the name of the form with the shortest of five runs on a batch, timed in turn
    after one warm-up each.
    """
    seconds = dict.fromkeys(forms, float("inf"))
    for turn in range(6):
        for name, form in forms.items():
            start = time.perf_counter()
            form(batch)
            seconds[name] = (
                min(seconds[name], time.perf_counter() - start) if turn else float("inf")
            )
    return min(seconds, key=lambda name: seconds[name])
