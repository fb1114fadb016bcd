"""Lossless integer codes: round trips, slow twins, known answers, and what they cost."""

import math

import numpy as np
import pytest

from bayesfed.compress.leaf import Reader, Writer
from bayesfed.compress.lossless import ranges
from bayesfed.compress.lossless.bits import Fixed, bit_length, pack, unpack, unzigzag, zigzag
from bayesfed.compress.lossless.cheapest import STANDARD, Cheapest
from bayesfed.compress.lossless.golomb import Golomb
from bayesfed.compress.lossless.ranges import Range
from bayesfed.compress.lossless.splits import read_alphabet
from bayesfed.errors import WireError
from tests.compress.integer_sequences import (
    CODES,
    HIGHEST,
    LOWEST,
    SEQUENCES,
    WIDE,
    as_varint,
    every,
    name,
    written,
)

EXACT = [Fixed(), Golomb(), Golomb(signed=True)]  # all but Range know their length to the bit


def entropy_bits(values):
    counts = np.unique(values, return_counts=True)[1]
    return float(counts @ np.log2(len(values) / counts))


@every(CODES)
@pytest.mark.parametrize("values", SEQUENCES.values(), ids=SEQUENCES.keys())
def test_what_goes_in_comes_out_at_the_length_predicted(code, values):
    predicted = code.predicted_bits(values)
    if math.isinf(predicted):
        with pytest.raises(WireError):
            code.write(values, Writer())
        return
    raw = written(code, values)
    source = Reader(raw + b"next")
    back = code.read(source, len(values))
    assert back.dtype == np.int64
    np.testing.assert_array_equal(back, values)
    assert bytes(source.raw(4)) == b"next"
    if code in EXACT:
        assert predicted == 8 * len(raw)
    else:
        assert abs(predicted - 8 * len(raw)) <= 0.001 * 8 * len(raw) + 64


@every(CODES)
def test_an_empty_sequence_takes_nothing(code):
    assert written(code, np.zeros(0, np.int64)) == b""
    assert code.predicted_bits(np.zeros(0, np.int64)) == 0
    assert len(code.read(Reader(b""), 0)) == 0


@every(WIDE)
def test_all_of_64_bits(code):
    draw = np.random.default_rng(1)
    values = np.concatenate([[LOWEST, HIGHEST, 0, -1], draw.integers(LOWEST, HIGHEST, 500)])
    np.testing.assert_array_equal(code.read(Reader(written(code, values)), len(values)), values)


def test_the_greatest_integer():
    code, values = Golomb(), np.array([HIGHEST, 0, HIGHEST - 1])
    np.testing.assert_array_equal(code.read(Reader(written(code, values)), 3), values)


def test_negative_integers_are_for_signed():
    with pytest.raises(WireError, match=r"expected integers >= 0, found -3 to 1; try Golomb\(sig"):
        Golomb().write(np.array([1, -3]), Writer())


def test_codes_refuse_to_write_what_they_cannot_hold():
    with pytest.raises(WireError, match="magnitudes below"):
        Golomb(signed=True).write(np.array([1 << 62]), Writer())


# The slow exact twins: bit by bit, with strings.
def as_bytes(bits):
    bits += "0" * (-len(bits) % 8)
    return bytes(int(bits[at : at + 8], 2) for at in range(0, len(bits), 8))


def planes(values, unary, binary):
    first, second = (
        "".join("0" * unary(x) + "1" for x in values),
        "".join(binary(x) for x in values),
    )
    return as_varint(len(first)) + as_bytes(first) + as_bytes(second)


def low_bits(x, width):
    return f"{x % (1 << width):0{width}b}" if width else ""


def slow_golomb(values):
    lengths = [sum((x >> k) + 1 + k for x in values) for k in range(64)]
    k = lengths.index(min(lengths))
    return bytes([k]) + planes(values, lambda x: x >> k, lambda x: low_bits(x, k))


def slow_fixed(values):
    least = min(values)
    width = (max(values) - least).bit_length()
    folded = 2 * least if least >= 0 else -2 * least - 1
    return (
        bytes([width])
        + as_varint(folded)
        + as_bytes("".join(low_bits(x - least, width) for x in values))
    )


@pytest.mark.parametrize(
    ("code", "slow"),
    [
        (Golomb(), slow_golomb),
        (Fixed(), slow_fixed),
    ],
    ids=name,
)
@pytest.mark.parametrize(
    "values", [v for v in SEQUENCES.values() if 0 < len(v) <= 3000 and v.min() >= 0], ids=len
)
def test_slow_twins_write_the_same_bytes(code, slow, values):
    assert written(code, values) == slow(values.tolist())


def test_bits_across_words_and_blocks():
    draw = np.random.default_rng(3)
    widths = draw.integers(0, 65, 70000)
    widths[-40:] = 0
    values = draw.integers(0, 1 << 64, len(widths), dtype=np.uint64) >> np.minimum(
        64 - widths, 63
    ).astype(np.uint64)
    values[widths == 0] = 0
    out = Writer()
    pack(values, widths, out)
    assert (
        out.bytes()[:6000]
        == as_bytes(
            "".join(
                low_bits(int(x), w)
                for x, w in zip(values[:3000], widths[:3000].tolist(), strict=True)
            )
        )[:6000]
    )
    assert len(out.bytes()) == -(-widths.sum() // 8)
    np.testing.assert_array_equal(unpack(Reader(out.bytes()), widths, len(widths)), values)


def test_bit_lengths_and_zigzag_at_their_edges():
    edges = sorted({max(0, (1 << p) + d) for p in range(64) for d in (-1, 0, 1)} | {(1 << 64) - 1})
    np.testing.assert_array_equal(
        bit_length(np.array(edges, np.uint64)), [x.bit_length() for x in edges]
    )
    np.testing.assert_array_equal(zigzag(np.array([0, -1, 1, -2, 2])), [0, 1, 2, 3, 4])
    limits = np.array([-(1 << 62), (1 << 62) - 1])
    np.testing.assert_array_equal(unzigzag(zigzag(limits)), limits)


def slow_range(raw, count):
    """Decode the words with integers and a loop, after the tables."""
    source = Reader(raw)
    split = ranges.read_split(source)
    symbols = read_alphabet(source, count)
    weights = ranges.weights_of(ranges.read_model(source, len(symbols))).tolist()
    words = np.frombuffer(source.raw(4 * source.varint(10**6)), "<u4").tolist()[::-1]
    stops = np.cumsum(weights).tolist()
    assert stops[-1] == 1 << 24

    def word():
        return words.pop() if words else 0

    point, width, values = word() << 32 | word(), (1 << 64) - 1, []
    low = 0
    for _ in range(count):
        scale = width >> 24
        place = ((point - low) % (1 << 64)) // scale
        index = int(np.searchsorted(stops, place, side="right"))
        low, width = (
            (low + scale * (stops[index] - weights[index])) % (1 << 64),
            scale * weights[index],
        )
        if width < 1 << 32:
            low, width, point = (
                (low << 32) % (1 << 64),
                width << 32,
                (point << 32) % (1 << 64) | word(),
            )
        values.append(symbols[index])
    values = np.array(values)
    return values if split is None else split.join(source, values)


@pytest.mark.parametrize(
    "which", ["geometric", "signed", "bytes", "two values", "few and far", "two of two"]
)
def test_range_coded_words_are_read_by_integers_alone(which):
    values = SEQUENCES[which]
    np.testing.assert_array_equal(slow_range(written(Range(), values), len(values)), values)


def test_the_model_of_the_range_coder_is_exactly_the_weights():
    # One symbol alone narrows the whole range to its share: the first word of its code must lie
    # there and nowhere else.
    import constriction

    draw = np.random.default_rng(8)
    weights = ranges.weights_of(draw.geometric(0.003, 5000))
    model = constriction.stream.model.Categorical((weights - 1).astype(np.float64), perfect=False)
    stops = np.cumsum(weights)
    quantiles = np.concatenate([stops - 1, stops - weights]).tolist()
    found = []
    for quantile in quantiles:
        point = quantile * (((1 << 64) - 1) >> 24)
        words = np.array([point >> 32, point & 0xFFFFFFFF], np.uint32)
        found.append(constriction.stream.queue.RangeDecoder(words).decode(model))
    assert found == [*range(5000), *range(5000)]


# What they cost.
def million(kind):
    draw = np.random.default_rng(11)
    return {
        "narrow": lambda: np.rint(draw.normal(0, 2, 10**6)),
        "wide": lambda: np.rint(draw.normal(-500, 300, 10**6)),
        "geometric": lambda: draw.geometric(0.3, 10**6) - 1,
    }[kind]().astype(np.int64)


@pytest.mark.parametrize("kind", ["narrow", "wide", "geometric"])
def test_a_million_symbols_cost_their_entropy(kind):
    values = million(kind)
    entropy = entropy_bits(values)
    for code, share in (
        (Range(), 0.0005),
        (Golomb(signed=kind != "geometric"), 0.05),
    ):
        if kind == "wide" and code == Golomb(signed=True):
            continue
        raw = written(code, values)
        np.testing.assert_array_equal(code.read(Reader(raw), len(values)), values)
        assert entropy - 8 <= 8 * len(raw) <= (1 + share) * entropy + 512
        assert abs(code.predicted_bits(values) - 8 * len(raw)) <= 256


def test_a_symbol_seen_once_costs_no_table():
    draw = np.random.default_rng(2)
    values = np.rint(draw.normal(0, 1e6, 20000)).astype(np.int64)
    gaussian = len(values) * math.log2(1e6 * math.sqrt(2 * math.pi * math.e))
    assert 8 * len(written(Range(), values)) < 1.03 * gaussian
    one_sided = np.rint(draw.exponential(1e6, 20000)).astype(np.int64)
    assert 8 * len(written(Range(), one_sided)) < 1.03 * len(values) * math.log2(1e6 * math.e)


@every((Fixed(), Range(), Cheapest()))
def test_equal_symbols_cost_a_few_bytes(code):
    assert len(written(code, np.full(10**5, -3))) <= 4


def test_the_least_extent_wins_and_says_so():
    for values in SEQUENCES.values():
        lengths = [code.predicted_bits(values) for code in STANDARD.values()]
        if len(values):
            assert Cheapest().predicted_bits(values) == 8 + min(lengths)
            assert written(Cheapest(), values)[0] == [*STANDARD][lengths.index(min(lengths))]


def test_the_tags_are_the_format():
    assert {0: Fixed(), 1: Golomb(), 2: Golomb(signed=True), 8: Range()} == STANDARD
    for tag in (3, 7, 9):
        with pytest.raises(WireError, match=rf"a tag among \[0, 1, 2, 8\], found {tag}"):
            Cheapest().read(Reader(bytes([tag, 0, 0])), 1)
