"""A tree as safetensors bytes and back: any dtype, names in their order, leaves that share memory
written apart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from bayesfed.errors import WireError
from bayesfed.trees import Tree


def to_safetensors(tree: Mapping[str, Tensor]) -> bytes:
    """Return the file content; safetensors sorts names, so their order is written beside them."""
    return save(
        {name: leaf.detach().cpu().clone().contiguous() for name, leaf in tree.items()},
        {"order": json.dumps(list(tree))},
    )


def from_safetensors(content: bytes) -> Tree:
    """Read what `to_safetensors` wrote; the tensors own their memory.

    Raises
    ------
    WireError
        For anything else.
    """
    try:
        length = int.from_bytes(content[:8], "little")
        order = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["order"])
        leaves: Tree = load(content)
        if sorted(order) != sorted(leaves):
            raise ValueError("names that differ from the tensors'")
        return {name: leaves[name] for name in order}
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as problem:
        raise WireError(
            "tensors", "a safetensors file with an order", problem, "an undamaged one"
        ) from problem
