"""Why a network does not take its inputs: the layer that was given another width or type than it
takes, found in the traceback; anything else is the user's own error.
"""

from __future__ import annotations

from torch import Tensor, nn

from bayesfed.errors import DataError
from bayesfed.errors.checks import shown

Looked = nn.Embedding | nn.EmbeddingBag
# What layers call the width of what they take.
WIDTHS = ("in_features", "in_channels", "num_features", "input_size")


def refused(where: str, inputs: Tensor, problem: Exception) -> DataError:
    """Return the error of a network that raised another for some inputs, with what to try where its
    cause is known.
    """
    said = str(problem).splitlines()[:1] or [""]
    if not (layer := misfit(problem)):
        return DataError(f"{where}: the network raised {type(problem).__name__}: {said[0]}")
    hint = "rows of the width and type that were trained on"
    actual = f"{shown(inputs)}: {said[0]}; {layer}"
    return DataError(where, "inputs that the network takes", actual, hint)


def misfit(problem: BaseException) -> str:
    """Return which layer raised an error since it was given another width or type than it takes,
    and what it was given; empty if the error has another cause.
    """
    found, at = "", problem.__traceback__
    while at is not None:
        layer, given = (at.tb_frame.f_locals.get(name) for name in ("self", "input"))
        at = at.tb_next
        if not isinstance(layer, nn.Module) or not isinstance(given, Tensor):
            continue
        has = vars(layer)
        weight, wide = layer._parameters.get("weight"), [has[one] for one in WIDTHS if one in has]
        narrow = any(one not in given.shape for one in wide)
        typed = weight is not None and wide and given.dtype != weight.dtype
        if narrow or typed or (isinstance(layer, Looked) and given.is_floating_point()):
            kind = "" if weight is None else f" of {str(weight.dtype).removeprefix('torch.')}"
            found = f"{layer}{kind} was given {shown(given)}"
    return found
