"""Codecs of one leaf, leaves, and how tests send one through the other."""

from dataclasses import dataclass

import numpy as np
import torch

from bayesfed.compress.leaf import Reader, Writer
from bayesfed.keys import Key


@dataclass(frozen=True)
class Words:
    """Integers as they are: fast, and nothing to go wrong."""

    def write(self, values, out):
        out.raw(values.astype("<i8").tobytes())

    def read(self, source, count):
        return np.frombuffer(source.raw(8 * count), "<i8").astype(np.int64)

    def predicted_bits(self, values):
        return 64.0 * len(values)


KEY = Key(0, "quantisers")


def gaussian(*shape, name="gaussian"):
    return torch.randn(shape, generator=KEY.child(name).generator())


def leaves():
    """The leaves every codec must survive."""
    found = {
        str(shape): gaussian(*shape, name=str(shape))
        for shape in [
            (),
            (1,),
            (2,),
            (0,),
            (0, 3),
            (3, 0),
            (5, 7),
            (2, 3, 4, 4),
            (3, 2, 5),
            (1000,),
        ]
    }
    single = torch.zeros(6, 9)
    single[2, 5] = -0.7
    sparse = gaussian(20, 30) * (gaussian(20, 30, name="mask") > 1)
    return found | {
        "zeros": torch.zeros(4, 6),
        "negative zeros": -torch.zeros(9),
        "equal": torch.full((7, 5), -0.3),
        "one magnitude": gaussian(40).sign() * 0.1,
        "single": single,
        "sparse": sparse,
        "ternary": sparse.sign() * 0.25,
        "subnormal": gaussian(5, 7) * 1e-38,
        "smallest": torch.tensor([2.0**-149, -(2.0**-149), 0.0, 2.0**-148]),
        "huge": gaussian(5, 7) * 1e30,
        "wide": gaussian(5, 7) * 10.0 ** torch.arange(-30, 5).reshape(5, 7),
        "double": gaussian(5, 7).double(),
        "half": gaussian(5, 7).half(),
        "not contiguous": gaussian(6, 4).T[::2],
        "needs gradient": gaussian(5, 7).requires_grad_(),
    }


LEAVES = leaves()


def encode(codec, leaf, key=KEY):
    out = Writer()
    codec.write(leaf, key, out)
    return out.bytes()


def decode(codec, message, shape, key=KEY):
    source = Reader(message)
    back = codec.read(source, tuple(shape), key)
    source.done()
    return back


def there_and_back(codec, leaf, key=KEY):
    return decode(codec, encode(codec, leaf, key), leaf.shape, key)
