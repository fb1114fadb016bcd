"""Laws of codecs of messages: what is decoded, with which errors, and the effect of damage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from bayesfed.compress import Codec
from bayesfed.errors import WireError
from bayesfed.keys import Key
from bayesfed.testing.law import law, refuses, same
from bayesfed.trees import Tree


def trees(key: Key) -> dict[str, Tree]:
    """Return trees to try a codec on: ordinary, empty, zero, constant, scalar, with integers and
    masks, not contiguous.
    """
    generator = key.generator()
    ordinary = {
        "a": torch.randn(5, 7, generator=generator),
        "b.c": torch.randn(3, generator=generator),
    }
    return {
        "ordinary": ordinary,
        "no leaf": {},
        "empty leaf": {"a": torch.empty(0, 3)},
        "zeros": {"a": torch.zeros(4, 4)},
        "equal values": {"a": torch.full((9,), 0.3)},
        "one value": {"a": torch.tensor(1.5)},
        "integers": {
            "n": torch.arange(10),
            "m": torch.tensor([True, False]),
            "u": torch.arange(7, dtype=torch.uint8),
            "short": torch.arange(-3, 4, dtype=torch.int16),
            "byte": torch.arange(-3, 4, dtype=torch.int8),
        },
        "not contiguous": {"a": torch.randn(6, 4, generator=generator).T[::2]},
    }


def check_codec(
    codec: Codec,
    *,
    tolerance: float = 0.0,
    bound: Callable[[str, Tree], float | Tensor] | None = None,
    further: Mapping[str, Tree] | None = None,
    damages: int = 200,
) -> None:
    """Check that a codec keeps names, shapes, values and meta, is deterministic, and refuses NaN
    and damage.

    Parameters
    ----------
    codec
        The codec to check.
    tolerance
        Allowed relative error of the values; 0 means bit for bit.
    bound
        Instead of `tolerance`: ``(name, tree) -> largest absolute error`` of a floating-point leaf;
        other leaves must be exact.
    further
        Further trees to try the codec on.
    damages
        Number of damaged messages that it must refuse.

    Raises
    ------
    LawError
        If a law is broken.
    """
    key = Key(0, "codec-law")
    meta: dict[str, str | int | float | bool] = {"client": "k", "round": 3, "scale": 0.1}
    for what, tree in {**trees(key), **(further or {})}.items():
        message = codec.encode(tree, meta, key)
        law(isinstance(message, bytes), f"{what}: a message is bytes, not {type(message).__name__}")
        law(message == codec.encode(tree, meta, key), f"{what}: two encodings with one key differ")
        back, said = codec.decode(message, key)
        law(said == meta, f"{what}: meta {said} against {meta}")
        same(tree, back, what, tolerance=tolerance, bound=bound)
        law(
            all(leaf.is_contiguous() for leaf in back.values()),
            f"{what}: decoded leaves are contiguous",
        )
    for bad in (float("nan"), float("inf")):
        refuses(
            partial(codec.encode, {"a": torch.tensor([1.0, bad])}, meta, key),
            WireError,
            f"encoding {bad}",
        )
    for what, tree in (further or {}).items():
        for name, leaf in tree.items():
            if leaf.is_floating_point() and leaf.numel():
                bad_tree = {**tree, name: torch.full_like(leaf, float("nan"))}
                refuses(
                    partial(codec.encode, bad_tree, meta, key),
                    WireError,
                    f"{what}: encoding NaN in {name!r}",
                )
    message = codec.encode(trees(key)["ordinary"], meta, key)
    random = key.child("damage").numpy()
    for _ in range(damages):
        place, kind = int(random.integers(len(message))), int(random.integers(3))
        damaged = (
            message[:place],
            message[:place]
            + bytes([message[place] ^ (1 << int(random.integers(8)))])
            + message[place + 1 :],
            message[:place] + random.bytes(4) + message[place:],
        )[kind]
        refuses(partial(codec.decode, damaged, key), WireError, f"damage {kind} at byte {place}")
