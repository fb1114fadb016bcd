"""Mask codes: exact round trips, lengths against probabilities, a decoder in whole numbers, and
readers that believe nothing.
"""

import math
import tracemalloc

import numpy as np
import pytest

from bayesfed.compress.leaf import Reader, Writer
from bayesfed.compress.masks.cheapest import STANDARD, CheapestMask
from bayesfed.compress.masks.contexts import Coding, ContextMask
from bayesfed.compress.masks.neighbours import CELLS, LEVELS, ONE, STRENGTH, STRIP, TABLE
from bayesfed.compress.masks.runs import PlainMask, RunMask
from bayesfed.errors import WireError

CODES = [*STANDARD.values(), CheapestMask()]
SHAPES = [
    (1, 1),
    (1, 9),
    (9, 1),
    (0, 3),
    (5, 0),
    (2, 2),
    (3, 3),
    (1, 400),
    (400, 2),
    (17, 23),
    (300, 40),
    (40, 300),
    (129, 129),
]


def clustered(shape, density=0.15, seed=0, reach=5):
    """Smooth noise above a threshold."""
    noise = (
        np.random.default_rng(seed)
        .normal(size=(shape[0] + reach, shape[1] + reach))
        .cumsum(0)
        .cumsum(1)
    )
    smooth = (
        noise[reach:, reach:]
        - noise[:-reach, reach:]
        - noise[reach:, :-reach]
        + noise[:-reach, :-reach]
    )
    return smooth > np.quantile(smooth, 1 - density)


def gibbs(shape=(300, 200), coupling=1.2, bias=-0.3, sweeps=30, seed=0):
    """A Markov grid: log-odds of an entry are a bias and the coupling for every neighbour that is
    set beyond two.
    """
    random = np.random.default_rng(seed)
    mask = random.random(shape) < 0.2
    black = np.add.outer(np.arange(shape[0]), np.arange(shape[1])) % 2 == 0
    for _ in range(sweeps):
        for colour in (black, ~black):
            padded = np.pad(mask, 1).astype(float)
            pull = bias + coupling * (
                padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:] - 2
            )
            mask = np.where(colour, random.random(shape) < 1 / (1 + np.exp(-pull)), mask)
    return mask


def encoded(code, mask):
    out = Writer()
    code.write(mask, out)
    return out.bytes()


def decoded(code, message, shape):
    source = Reader(message)
    mask = code.read(source, shape)
    source.done()
    return mask


def assert_round_trip(code, mask):
    back = decoded(code, encoded(code, mask), mask.shape)
    assert back.dtype == np.bool_
    assert back.shape == mask.shape
    assert (back == mask).all()


@pytest.mark.parametrize("code", CODES, ids=lambda code: type(code).__name__)
@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_written_is_read(code, shape):
    random = np.random.default_rng(math.prod(shape))
    masks = [random.random(shape) < density for density in (0, 1, 0.001, 0.1, 0.5, 0.99)]
    masks += [clustered(shape, density) for density in (0.1, 0.6)] if math.prod(shape) else []
    for mask in masks:
        assert_round_trip(code, mask)
        assert_round_trip(code, mask.T)  # Fortran order, too
        if not mask.size:
            assert encoded(code, mask) == b""


@pytest.mark.slow
def test_random_sizes():
    random = np.random.default_rng(1)
    for _ in range(60):
        shape = tuple(int(n) for n in random.integers(1, 60, 2))
        mask = clustered(shape, float(random.random()), int(random.integers(1000)))
        for code in CODES:
            assert_round_trip(code, mask)


class Whole:
    """The range decoder in whole numbers, a symbol at a time."""

    def __init__(self, raw):
        raw += bytes(-len(raw) % 4)
        self.words = [int.from_bytes(raw[at : at + 4], "big") for at in range(0, len(raw), 4)]
        self.low, self.width = 0, (1 << 64) - 1
        self.point = self.word() << 32 | self.word()

    def word(self):
        return self.words.pop(0) if self.words else 0

    def symbol(self, chance):
        """Return a symbol that is 1 with probability chance / 2**16."""
        split = ((1 << 24) - 2) * (ONE - chance) // ONE + 1
        share = self.width >> 24
        one = (self.point - self.low) % (1 << 64) // share >= split
        start, stop = (split, 1 << 24) if one else (0, split)
        self.low, self.width = (self.low + share * start) % (1 << 64), share * (stop - start)
        if self.width < 1 << 32:
            self.low, self.width = (self.low << 32) % (1 << 64), self.width << 32
            self.point = (self.point << 32 | self.word()) % (1 << 64)
        return int(one)


def twin(message, shape):
    """Decode entry by entry, with a dictionary of counts and no floating-point number; return the
    mask and its surprise in bits.
    """
    source = Reader(message)
    tag, table = source.byte(), [int.from_bytes(source.raw(2), "little") for _ in range(TABLE)]
    block = source.block()
    coder = Whole(bytes(block.raw(len(block))))
    turned = shape[1] > shape[0]
    if turned:
        shape = shape[::-1]
    rows, columns = shape
    height = math.ceil(rows / math.ceil(rows / STRIP))
    order = sorted((j + 3 * (i % height), i, j) for i in range(rows) for j in range(columns))
    mask, met, pending, due, bits = np.zeros(shape, np.bool_), {}, [], 64, 0.0

    def neighbour(i, j, up, left):
        row, column = i - up, j - left
        if not (0 <= row < rows and 0 <= column < columns) or row // height != i // height:
            return 0
        return int(mask[row, column])

    def chance(pattern):
        estimate = table[sum(bit << k for k, bit in enumerate(pattern[: LEVELS[0]]))]
        for level in LEVELS[:tag]:
            zeros, ones = met.get(pattern[:level], (0, 0))
            estimate = (STRENGTH * estimate + ONE * ones) // (STRENGTH + zeros + ones)
        return min(max(estimate, 1), ONE - 1)

    for number, (wave, i, j) in enumerate(order):
        pattern = tuple(neighbour(i, j, *cell) for cell in CELLS)
        probability = chance(pattern)
        mask[i, j] = coder.symbol(probability)
        bits -= math.log2(probability / ONE if mask[i, j] else 1 - probability / ONE)
        pending.append((pattern, mask[i, j]))
        last = number + 1 == len(order) or order[number + 1][0] > wave
        if last and number + 1 >= due:
            for known, value in pending:
                for level in LEVELS:
                    zeros, ones = met.get(known[:level], (0, 0))
                    met[known[:level]] = (zeros + (not value), ones + int(value))
            due, pending = number + 1 + max(64, (number + 1) // 16), []
    return (mask.T if turned else mask), bits


@pytest.mark.parametrize("shape", [(1, 50), (50, 1), (70, 2), (40, 30), (30, 40), (260, 20)])
def test_waves_decode_what_one_entry_at_a_time_decodes_in_whole_numbers(shape):
    for mask in (clustered(shape, 0.2), np.random.default_rng(0).random(shape) < 0.4):
        back, bits = twin(encoded(ContextMask(), mask), shape)
        assert (back == mask).all()
        assert bits == pytest.approx(Coding.of(mask).bits, abs=1e-6)


def test_every_neighbourhood_is_chosen_somewhere():
    """... and so the twin above sees each of them."""
    tags = {
        encoded(ContextMask(), clustered((60, 50), reach=reach, seed=reach))[0]
        for reach in (1, 2, 3, 5, 8)
    }
    tags |= {
        encoded(ContextMask(), mask)[0]
        for mask in (gibbs(), gibbs(coupling=0.5, bias=-1.5), np.eye(30, dtype=np.bool_))
    }
    assert tags >= {0, 4}
    assert len(tags) >= 3


def test_lengths_are_the_surprise_at_the_mask():
    for mask in (
        gibbs(),
        clustered((200, 300)),
        np.random.default_rng(0).random((100, 100)) < 0.05,
    ):
        bits = Coding.of(mask).bits
        assert bits <= 8 * len(encoded(ContextMask(), mask)) <= 1.02 * bits + 8 * 64


def jbig(mask):
    """Length of a plain adaptive coder: ten neighbours, Krichevsky and Trofimov's estimate, row by
    row.
    """
    padded = np.pad(mask, ((2, 0), (2, 2))).astype(int)
    rows, columns = mask.shape
    cells = [(2, -1), (2, 0), (2, 1), (1, -2), (1, -1), (1, 0), (1, 1), (1, 2), (0, -2), (0, -1)]
    pattern = sum(
        padded[2 - up : 2 - up + rows, 2 + right : 2 + right + columns] << k
        for k, (up, right) in enumerate(cells)
    )
    met, bits = [[0.5, 0.5] for _ in range(1024)], 0.0
    for context, symbol in zip(
        pattern.reshape(-1).tolist(), mask.reshape(-1).tolist(), strict=True
    ):
        bits -= math.log2(met[context][symbol] / sum(met[context]))
        met[context][symbol] += 1
    return bits


def test_contexts_against_a_plain_adaptive_coder_and_the_other_codes():
    for mask in (
        gibbs(),
        gibbs(coupling=0.8, bias=-0.8),
        clustered((300, 200)),
        clustered((300, 200), 0.5, reach=12),
    ):
        best = 8 * len(encoded(ContextMask(), mask))
        assert best <= 1.1 * jbig(mask)
        assert best <= 8 * min(len(encoded(code, mask)) for code in (PlainMask(), RunMask()))


def test_masks_that_are_the_same_everywhere_cost_a_byte():
    for value in (False, True):
        assert len(encoded(CheapestMask(), np.full((784, 256), value))) == 1


def test_the_cheapest_is_the_shortest():
    random = np.random.default_rng(0)
    for mask in (
        random.random((20, 20)) < 0.5,
        random.random((300, 100)) < 0.001,
        gibbs(),
        np.eye(5, dtype=np.bool_),
    ):
        assert len(encoded(CheapestMask(), mask)) == 1 + min(
            len(encoded(code, mask)) for code in STANDARD.values()
        )


GOLDEN = {
    "PlainMask": "f3fc7f140380401104403008018060",
    "RunMask": "480148f7fbfb0e10a50c20c30008187800",
    "ContextMask": "000a1bf070d18549d20cff66ccf5921998a11bf33b69",
}


def test_golden_bytes():
    """The bytes of version 1: a change here is a change of format."""
    smooth = clustered((12, 10), 0.3)
    assert {type(code).__name__: encoded(code, smooth).hex() for code in CODES[:-1]} == GOLDEN


def damage(message, random):
    raw = bytearray(message)
    match int(random.integers(4)):
        case 0:
            return bytes(raw[: int(random.integers(len(raw)))])
        case 1:
            return bytes(raw) + random.bytes(int(random.integers(1, 5)))
        case 2:
            return random.bytes(int(random.integers(len(raw) + 4)))
    for _ in range(int(random.integers(1, 4))):
        raw[int(random.integers(len(raw)))] = int(random.integers(256))
    return bytes(raw)


@pytest.mark.parametrize("number", range(len(CODES)))
def test_damage_is_refused_or_harmless(number):
    random = np.random.default_rng(number)
    for shape in ((1, 1), (13, 9), (4, 30), (45, 31)):
        mask = clustered(shape, 0.3)
        code = CODES[number]
        message = encoded(code, mask)
        for _ in range(200):
            broken = damage(message, random)
            try:
                back = code.read(Reader(broken), shape)
            except WireError:
                continue
            assert back.shape == shape
            assert back.dtype == np.bool_


@pytest.mark.parametrize("code", CODES, ids=lambda code: type(code).__name__)
def test_garbage_takes_no_memory_beyond_the_shape(code):
    shape = (400, 300)
    random = np.random.default_rng(0)
    for tag in range(6):
        tracemalloc.start()
        try:
            code.read(Reader(bytes([tag]) + random.bytes(200)), shape)
        except WireError:
            pass
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 80 * math.prod(shape) + 1_000_000


def forged(*parts):
    """A section of varints and raw bytes."""
    out = Writer()
    for part in parts:
        out.raw(part) if isinstance(part, bytes) else out.varint(part)
    return out.bytes()


@pytest.mark.parametrize(
    ("code", "message", "words"),
    [
        (PlainMask(), b"\x00\x00\x00", "more bytes"),
        (PlainMask(), b"\xff\xff\xff\xff", "zeros after the last"),
        (RunMask(), forged(2 * 14 + 1), "at most 27"),
        (RunMask(), forged(2 * 2, b"\x03", 3, b"\xa0", b"\xff\xff"), "."),
        (ContextMask(), b"\x05" + b"\x00\x80" * 4 + b"\x00", "neighbourhood 0 to 4"),
        (ContextMask(), b"\x00" + b"\x00\x80" * 3 + b"\x00\x00\x00", "probabilities above 0"),
        (
            ContextMask(),
            b"\x00" + b"\x00\x80" * 4 + b"\x10" + b"\x55" * 16,
            "end of the range coder's words",
        ),
        (ContextMask(), b"\x00" + b"\x00\x80" * 4 + b"\x7f", "at most 1"),
        (CheapestMask(), b"\x05", r"a tag among \[0, 1, 2, 3, 4\], found 5"),
        (CheapestMask(), b"", "1 more bytes"),
    ],
)
def test_hostile_messages_are_refused(code, message, words):
    with pytest.raises(WireError, match=words):
        decoded(code, message, (9, 3))


def test_arguments_are_checked():
    for code in CODES:
        for mask in (np.zeros(3, np.bool_), np.zeros((2, 2), np.uint8)):
            with pytest.raises(WireError, match="a boolean matrix"):
                encoded(code, mask)
