"""Golden files: messages of every codec and code, byte for byte, and what they are read as.

A file that no longer fits is a change of format, of a seed or of a library that draws or codes
(NumPy's PCG64, constriction's range coder): versions are pinned. Nothing in the trees is drawn. To
write new files, knowingly::

    python -m tests.house.test_golden --write

``NAME.bin`` is the message; what it is read as is `tree()` itself where nothing is lost, else
``NAME.tree.bin``, as `pack` writes it.
"""

import sys
from pathlib import Path

import pytest
import torch

from bayesfed.compress import Coded, Lattice, PosteriorGrid, pack, unpack
from bayesfed.keys import Key
from tests.support.codecs.shipped import message_codecs

FOLDER = Path(__file__).parent / "golden"
KEY, META = Key(0, "golden"), {"client": "k", "round": 3, "scale": 0.5}
CODECS = message_codecs() | {
    "posterior grid fine": PosteriorGrid(0.0001),
    "exceptions": Coded(exceptions={"*.weight": Lattice(bits=5)}),
}
# Its sds are exponentials, whose last bit is the platform's.
ROUNDED = {"posterior grid", "posterior grid fine"}


def spread(*shape, step=7919, modulus=2003):
    """Numbers between -1 and 1 that look drawn, without drawing."""
    count = torch.Size(shape).numel()
    return (
        ((torch.arange(count) * step % modulus) * 2 - modulus).div(modulus).float().reshape(shape)
    )


def tree(name):
    """The tree of a golden message: floats of several shapes, booleans and integers as far as the
    name says; for the posterior grid means and sds.
    """
    weight = spread(7, 9) ** 3
    support = spread(12, 10).roll(3, 1).abs() < 0.3
    support[2:7, 3:8] = True
    result = {
        "0.weight": weight,
        "0.bias": spread(7, step=17),
        "conv": spread(2, 3, 2, 2, step=31),
        "one": torch.tensor(0.5),
        "none": torch.zeros(0, 3),
        "0.support": support,
        "steps": (spread(40, step=101) * 12).long().abs(),
        "bytes": (spread(30, step=13).abs() * 255).to(torch.uint8),
    }
    if name in ROUNDED:
        result |= {
            "mean/a": weight,
            "sd/a": 0.05 + 0.01 * spread(7, 9, step=77).abs(),
            "mean/b": spread(11, step=5),
            "shared/sd": torch.tensor(0.1),
        }
    if name.startswith(("integers", "masks")):
        result = {name: leaf for name, leaf in result.items() if not leaf.is_floating_point()}
    return result


def paths(name):
    stem = FOLDER / name.replace(" ", "_")
    return stem.with_suffix(".bin"), stem.with_suffix(".tree.bin")


def equal(left, right):
    return list(left) == list(right) and all(
        leaf.dtype == right[name].dtype and torch.equal(leaf, right[name])
        for name, leaf in left.items()
    )


@pytest.mark.parametrize("name", CODECS)
def test_messages_are_what_they_were(name):
    message, _ = paths(name)
    assert message.stat().st_size < 2000
    assert CODECS[name].encode(tree(name), META, KEY) == message.read_bytes()


@pytest.mark.parametrize("name", CODECS)
def test_messages_are_read_as_they_were(name):
    message, stored = paths(name)
    found, meta = CODECS[name].decode(message.read_bytes(), KEY)
    assert meta == META
    expected = unpack(stored.read_bytes())[0] if stored.exists() else tree(name)
    if name in ROUNDED:
        assert list(found) == list(expected)
        for leaf, value in expected.items():
            assert torch.allclose(found[leaf].double(), value.double(), rtol=1e-6, atol=0), leaf
    else:
        assert equal(found, expected)


def test_every_file_is_read():
    wanted = {path for name in CODECS for path in paths(name)}
    assert set(FOLDER.iterdir()) <= wanted


def test_threads_do_not_change_a_bit():
    threads = torch.get_num_threads()
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            for name in ("coded lattice 2", "coded qsgd", "coded uniform", "posterior grid fine"):
                assert CODECS[name].encode(tree(name), META, KEY) == paths(name)[0].read_bytes()
    finally:
        torch.set_num_threads(threads)


def write():
    """Write every file anew; those that nothing fits any more are left for git to show."""
    FOLDER.mkdir(exist_ok=True)
    for name, codec in CODECS.items():
        message, stored = paths(name)
        message.write_bytes(codec.encode(tree(name), META, KEY))
        found, _ = codec.decode(message.read_bytes(), KEY)
        stored.unlink(missing_ok=True)
        if not equal(found, tree(name)):
            stored.write_bytes(pack(found, {}))


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    write()
