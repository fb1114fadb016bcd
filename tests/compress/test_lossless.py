"""Lossless integer codes: round trips, slow twins, known answers, and what they cost."""

import heapq
import math
import sys

import numpy as np
import pytest

from bayesfed.compress.buffer import Reader, Writer
from bayesfed.compress.lossless import ranges
from bayesfed.compress.lossless.alphabet import read_alphabet
from bayesfed.compress.lossless.bits import Fixed, bit_length, pack, unpack, unzigzag, zigzag
from bayesfed.compress.lossless.elias import EliasDelta, EliasGamma
from bayesfed.compress.lossless.golomb import Golomb
from bayesfed.compress.lossless.huffman import Huffman, code_lengths
from bayesfed.compress.lossless.ranges import Range
from bayesfed.compress.lossless.symbols import STANDARD, Cheapest, Signed
from bayesfed.errors import ArgumentError, MissingExtraError, WireError
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

EXACT = STANDARD[:-1]  # all but Range know their length to the bit


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


@every((Golomb(), EliasGamma(), EliasDelta()))
def test_the_greatest_integer(code):
    values = np.array([HIGHEST, 0, HIGHEST - 1])
    np.testing.assert_array_equal(code.read(Reader(written(code, values)), 3), values)


@every((Golomb(), EliasGamma(), EliasDelta()))
def test_negative_integers_are_for_signed(code):
    with pytest.raises(WireError, match=r"expected integers >= 0, found -3; try Signed"):
        code.write(np.array([1, -3]), Writer())


def test_codes_refuse_to_write_what_they_cannot_hold():
    with pytest.raises(WireError, match="magnitudes below"):
        Signed(Golomb()).write(np.array([1 << 62]), Writer())
    with pytest.raises(WireError, match="at most 65536 different integers"):
        Huffman().write(np.arange(65537) * 1000, Writer())
    with pytest.raises(WireError, match="different integers within a span"):
        Huffman().write(np.array([LOWEST, HIGHEST]), Writer())
    with pytest.raises(WireError, match="integers that one of"):
        Cheapest((Golomb(), Huffman())).write(np.array([LOWEST, HIGHEST]), Writer())


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


def slow_gamma(values):
    return planes(
        values,
        lambda x: (x + 1).bit_length() - 1,
        lambda x: low_bits(x + 1, (x + 1).bit_length() - 1),
    )


def slow_delta(values):
    tails = [(x + 1).bit_length() - 1 for x in values]
    return slow_gamma(tails) + as_bytes(
        "".join(low_bits(x + 1, tail) for x, tail in zip(values, tails, strict=True))
    )


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
        (EliasGamma(), slow_gamma),
        (EliasDelta(), slow_delta),
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


# Known answers.
def payload(code, value):
    """Return the bits that a thousand more of it add, each."""
    one, more = (code.predicted_bits(np.full(count, value - 1)) for count in (8000, 16000))
    return (more - one) / 8000


def test_elias_codewords_have_the_published_lengths():
    numbers = (1, 2, 3, 4, 7, 8, 15, 16, 17, 32, 100, 1000, 10**6)
    assert [payload(EliasGamma(), x) for x in numbers] == pytest.approx(
        [1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 13, 19, 39], abs=0.01
    )
    assert [payload(EliasDelta(), x) for x in numbers] == pytest.approx(
        [1, 4, 4, 5, 5, 8, 8, 9, 9, 10, 11, 16, 28], abs=0.01
    )


def test_the_textbook_huffman_code():
    # Cormen, Leiserson, Rivest, Stein: 224 bits for 100 letters.
    counts = np.array([45, 13, 12, 16, 9, 5])
    assert code_lengths(counts).tolist() == [1, 3, 3, 3, 4, 4]
    raw = written(Huffman(), np.repeat(np.arange(6), counts))
    assert raw.endswith(as_varint(224) + raw[-28:])


def heap_bits(counts):
    heap, total = list(counts), 0
    heapq.heapify(heap)
    while len(heap) > 1:
        merged = heapq.heappop(heap) + heapq.heappop(heap)
        total += merged
        heapq.heappush(heap, merged)
    return total


def test_package_merge_is_as_good_as_a_heap_and_stops_at_twenty():
    draw = np.random.default_rng(5)
    for size in (1, 2, 3, 5, 17, 256, 3000):
        counts = draw.integers(1, 1000, size)
        assert int(code_lengths(counts) @ counts) == heap_bits(counts.tolist())
    fibonacci = [1, 1]
    while len(fibonacci) < 30:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    lengths = code_lengths(np.array(fibonacci))
    assert lengths.max() == 20
    assert sum(2.0**-lengths) == 1
    assert int(lengths @ fibonacci) < 1.00001 * heap_bits(fibonacci)
    full = code_lengths(np.full(65536, 3))
    assert (full == 16).all()


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
        (Huffman(), 0.02),
        (Golomb() if kind == "geometric" else Signed(Golomb()), 0.05),
    ):
        if kind == "wide" and code == Signed(Golomb()):
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


@every((Fixed(), Huffman(), Range(), Cheapest()))
def test_equal_symbols_cost_a_few_bytes(code):
    assert len(written(code, np.full(10**5, -3))) <= 4


def test_the_least_extent_wins_and_says_so():
    draw = np.random.default_rng(4)
    for values in SEQUENCES.values():
        lengths = [code.predicted_bits(values) for code in STANDARD]
        if len(values):
            assert Cheapest().predicted_bits(values) == 8 + min(lengths)
            assert written(Cheapest(), values)[0] == lengths.index(min(lengths))
    # A reader takes the tag whatever it would have tried itself.
    values = draw.geometric(0.3, 100) - 1
    np.testing.assert_array_equal(
        Cheapest((Fixed(),)).read(Reader(written(Cheapest((Golomb(),)), values)), 100), values
    )


def test_the_tags_are_the_format():
    golomb, gamma, delta = Golomb(), EliasGamma(), EliasDelta()
    assert (
        Fixed(),
        golomb,
        Signed(golomb),
        gamma,
        Signed(gamma),
        delta,
        Signed(delta),
        Huffman(),
        Range(),
    ) == STANDARD
    for codes in ((), (Signed(Fixed()),)):
        with pytest.raises(ArgumentError, match="codes among"):
            Cheapest(codes)
    with pytest.raises(WireError, match="a tag below 9, found 9"):
        Cheapest().read(Reader(b"\x09\x00\x00"), 1)


def test_without_constriction(monkeypatch):
    raw, values = written(Range(), SEQUENCES["bytes"]), SEQUENCES["bytes"]
    monkeypatch.setitem(sys.modules, "constriction", None)
    assert math.isinf(Range().predicted_bits(values))
    assert written(Cheapest(), values)[0] != STANDARD.index(Range())
    with pytest.raises(MissingExtraError, match=r"bayesfed\[codes\]"):
        Range().write(values, Writer())
    with pytest.raises(MissingExtraError, match="constriction"):
        Range().read(Reader(raw), len(values))
