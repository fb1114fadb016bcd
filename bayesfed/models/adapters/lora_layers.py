"""A linear layer with a low-rank adapter over frozen weights:
``y = x W^T + b + scale * (x A^T) B^T``, where W never changes.

B is ``(m, r)`` and A ``(r, n)``, as in LoRA. Slice j is column j of B with row j of A, and any set
of slices is an adapter of lower rank. If G is the gradient of the effective weight, the gradient of
B is ``scale G A^T`` and that of A is ``scale B^T G``. With one scale for each slice, ``(r,)``, the
diagonal of a sketch, these are FSLoRA's (3).

References
----------
Hu et al. (2021), LoRA. Kalajdzievski (2023), A rank stabilization scaling factor for fine-tuning
with LoRA. Fang et al., FSLoRA, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import POSITIVE, check, checked, number
from bayesfed.geometry.thin import check_rank
from bayesfed.keys import Key
from bayesfed.models.low_rank.thin_layers import Deterministic
from bayesfed.models.modules import evaluating

Scaling = Literal["lora", "rs"]
Make = Callable[[], Tensor]
"""Makes a factor of an adapter, for one use."""


@checked(alpha=POSITIVE)
def lora_scale(rank: int, alpha: float, scaling: Scaling = "lora") -> float:
    """Return the factor on an adapter's product: ``alpha / r`` (LoRA) or ``alpha / sqrt(r)``
    (rsLoRA).

    Parameters
    ----------
    rank
        r of the global adapter; clients that hold fewer of its slices keep this scale.
    alpha
        Positive number.
    scaling
        "lora" or "rs".

    Raises
    ------
    ArgumentError
        If the rank is below 1, `alpha` is not positive and finite, or the scaling is unknown.
    """
    check_rank("lora_scale, rank", rank, 1 << 20)
    return alpha / rank if scaling == "lora" else alpha / math.sqrt(rank)


def fresh_adapter(weight: Tensor, rank: int, key: Key) -> tuple[Tensor, Tensor]:
    """Return B, all zero, and A, uniform within ``1 / sqrt(n)`` of 0, as in LoRA's own code: such
    an adapter does not change the layer yet.

    Parameters
    ----------
    weight
        ``(m, n)``, whose device and dtype are used; adapters of lower precision than float32 would
        not learn, so they are float32. A is drawn on the CPU.
    rank
        r.
    key
        Random key of A.
    """
    outputs, inputs = weight.shape
    a = (2 * torch.rand(rank, inputs, generator=key.generator()) - 1) / math.sqrt(inputs)
    kind = torch.promote_types(weight.dtype, torch.float32)
    return weight.new_zeros(outputs, rank, dtype=kind), a.to(weight.device, kind)


class Frozen(nn.Parameter):
    """A parameter that requires no gradient and is shared by all copies of its module: there is one
    in memory for all clients and sizes.
    """

    def __new__(cls, data: Tensor) -> Frozen:
        """Share the tensor's memory."""
        made: Frozen = super().__new__(cls, data.detach(), requires_grad=False)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Frozen:
        """Return itself, since nothing writes to it."""
        return self


def is_transposed(module: nn.Module) -> bool:
    """Return whether a module maps x to ``x W + b``, found by looking: Conv1D of GPT-2 does."""
    leaves = dict(module.named_parameters())
    weight, others = leaves.get("weight"), leaves.keys() - {"weight", "bias"}
    if weight is None or weight.ndim != 2 or others or isinstance(module, nn.Linear):
        return False
    row = torch.linspace(-1, 1, len(weight)).to(weight)[None]
    try:
        with torch.no_grad(), evaluating(module):
            found = module(row)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return False
    wanted = (row @ weight + leaves.get("bias", 0)).detach()
    return wanted.shape == found.shape and torch.allclose(found, wanted, 1e-3, 1e-4)


def matrix_of(layer: nn.Module) -> Tensor:
    """Return a layer's weight as a matrix, a row for each output."""
    weight = cast(Tensor, layer.weight)
    return weight.mT if is_transposed(layer) else weight.flatten(1)


class _Branch(torch.autograd.Function):
    """``x -> scale (x A^T) B^T`` of factors that are made for each use, forwards and backwards, so
    that no layer holds them in between.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, b: Make, a: Make, scale: float) -> Tensor:
        ctx.made = b, a, scale
        return functional.linear(functional.linear(x, a()) * scale, b())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (upstream,), (b, a, scale) = gradients, ctx.made
        return upstream @ b().to(upstream) * scale @ a().to(upstream), None, None, None


class LoraLinear(Deterministic):
    """A linear layer with an adapter; or a convolution, an embedding, or a layer ``x W + b``, on
    whose weight the adapter's product is laid out.

    Parameters
    ----------
    base
        The pretrained layer, with frozen parameters; not copied.
    b, a
        ``(m, r)`` and ``(r, n)``, copied.
    scale
        Factor on the adapter's product. For the length of a call it may be ``(r,)``, one number for
        each slice.
    dropout
        Probability that an input of the adapter, not of the base, is set to zero in training.

    Raises
    ------
    ArgumentError
        If shapes do not fit, or `dropout` is outside [0, 1).
    """

    scale: float | Tensor
    # What makes B and A of slices that the layer computes with and does not train, for the length
    # of a fit.
    untrained: tuple[Make, Make] | None

    def __init__(
        self, base: nn.Module, b: Tensor, a: Tensor, scale: float, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.transposed = is_transposed(base)
        outputs, inputs = matrix_of(base).shape
        rank = len(a)
        if (tuple(b.shape), tuple(a.shape)) != ((outputs, rank), (rank, inputs)) or not rank:
            raise ArgumentError(
                "LoraLinear",
                f"B ({outputs}, r) and A (r, {inputs})",
                f"{tuple(b.shape)}, {tuple(a.shape)}",
                "lora(net, rank, key)",
            )
        check("LoraLinear, dropout", dropout, number("[0, 1)", "0.1"))
        self.in_features, self.out_features = inputs, outputs
        self.base = base
        self.lora_b = nn.Parameter(b.detach().clone(memory_format=torch.contiguous_format))
        self.lora_a = nn.Parameter(a.detach().clone(memory_format=torch.contiguous_format))
        # Without dropout nothing random is drawn, so that clients may train in threads.
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.scale, self.rate = scale, dropout
        self.untrained = None

    @property
    def rank(self) -> int:
        """Number of slices that the adapter has now."""
        return len(self.lora_a)

    def product(self, b: Tensor, a: Tensor) -> Tensor:
        """Return ``B diag(scale) A`` of any slices."""
        return (b * self.scale) @ a

    def laid_out(self, product: Tensor) -> Tensor:
        """Return a product ``(m, n)`` in the shape and type of the base's weight."""
        weight = cast(Tensor, self.base.weight)
        return (product.mT if self.transposed else product).reshape(weight.shape).to(weight)

    @property
    def is_linear(self) -> bool:
        """Whether inputs meet the adapter directly; dropout is not applied in other layers."""
        return self.transposed or isinstance(self.base, nn.Linear)

    @property
    def weight(self) -> Tensor:
        """The effective weight ``W + B diag(scale) A``, computed at every access, for modules that
        read a layer's weight directly.
        """
        weight = cast(Tensor, self.base.weight)
        weight = weight + self.laid_out(self.product(self.lora_b, self.lora_a))
        if self.untrained:
            b, a = self.untrained
            weight = weight + self.laid_out(self.product(b(), a()))
        return weight

    @property
    def bias(self) -> Tensor | None:
        """Bias of the base."""
        return cast(Tensor | None, self.base.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(..., n)`` to ``(..., m)``, or as the base does."""
        if not self.is_linear:
            found: Tensor = functional_call(self.base, {"weight": self.weight}, (x,))
            return found
        base: Tensor = self.base(x)
        hidden = functional.linear(self.dropout(x).to(self.lora_a.dtype), self.lora_a) * self.scale
        trained = functional.linear(hidden, self.lora_b)
        if self.untrained:
            # After the trained slices, and so before them in the backward pass, which then has no
            # gradient of `x` yet to hold beside a factor.
            apply: Any = _Branch.apply
            beside = apply(x.to(self.lora_a.dtype), *self.untrained, self.scale)
            base = base + beside.to(base.dtype)
        return base + trained.to(base.dtype)

    def extra_repr(self) -> str:
        """Show the rank."""
        return f"rank={self.rank}"
