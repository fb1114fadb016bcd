"""Hostile formulas: each calls what is not on the list, says what no formula says, or is too large.

`hostile_formulas` makes them from payloads and the places of a formula where a payload may stand.
`token_soup` makes formulas of which some are legal by chance.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

CANARY = "canary.txt"
SECRET = "secret.txt"

# Where a payload stands: a term, a part of one, an argument, a keyword, a contrast, the response.
PLACES = [
    *("y ~ {}", "y ~ x + {}", "y ~ {} + x", "y ~ x:{}", "y ~ (x + {})**2", "y ~ 0 + {} * z"),
    *("y ~ ({} | g)", "y ~ (1 | {})", "y ~ (x | {} / g)", "y ~ x - {}", "y ~ `my x` + {}"),
    *("{} ~ x", "I({}) ~ x", "log({}) ~ x", "censored({}, won) ~ x", "p(won, {}) ~ x"),
    *("y[{}] ~ x", "y ~ x[{}]", "y ~ log({})", "y ~ np.log({})", "y ~ I({})", "y ~ I(x + {})"),
    *("y ~ I(x * ({}))", "y ~ where({}, x, 0)", "y ~ clip(x, 0, {})", "y ~ offset({})"),
    *("y ~ C({})", "y ~ C(x, {})", "y ~ C(x, Treatment({}))", "y ~ C(x, contrast={})"),
    *("y ~ C(x, Sum(omit={}))", "y ~ log({}, x)", "y ~ log(x={})", "y ~ scale({})"),
    *("y ~ I(x == {})", "y ~ {{}}", "y ~ x\n + {}", "y ~ log(exp(sqrt({})))", "y ~ {} / x"),
]
# Functions, by the harm that they would do.
WRITE = [
    f"np.savetxt('{CANARY}', x)",
    f"np.save('{CANARY}', x)",
    f"np.savez('{CANARY}', x)",
    f"np.memmap('{CANARY}', 'int8', 'w+', 0, 9)",
    f"np.lib.format.open_memmap('{CANARY}', 'w+')",
    f"x.to_csv('{CANARY}')",
    f"x.to_pickle('{CANARY}')",
    f"x.values.tofile('{CANARY}')",
    f"open('{CANARY}', 'w')",
    f"io.open('{CANARY}', 'w')",
    f"np.compat.os.mkdir('{CANARY}')",
    f"np.testing.os.system('touch {CANARY}')",
    f"np.lib.npyio.os.system('touch {CANARY}')",
    f"pathlib.Path('{CANARY}').touch()",
]
READ = [
    f"np.fromfile('{SECRET}', 'int8')",
    f"np.loadtxt('{SECRET}')",
    f"np.genfromtxt('{SECRET}')",
    f"np.load('{SECRET}', None, 1)",
    f"np.DataSource('{SECRET}')",
    f"pd.read_csv('{SECRET}')",
    f"open('{SECRET}')",
    f"open('{SECRET}').read()",
    f"linecache.getlines('{SECRET}')",
    "input('x')",
]
CODE = [
    *("exec('1')", "eval('x')", "compile('1', '', 'eval')", "__import__('os')", "breakpoint()"),
    *("getattr(x, 'values')", "setattr(x, 'a', 1)", "globals()", "locals()", "vars(x)", "dir()"),
    *("type(x)", "object()", "super()", "print(x)", "help(x)", "memoryview(x)", "map(eval, x)"),
    *("os.system('true')", "os.popen('true')", "subprocess.run('true')", "importlib.reload(np)"),
    *("np.f2py.compile('a')", "np.ctypeslib.load_library('c', '.')", "np.vectorize(eval)(x)"),
    *("np.frompyfunc(eval, 1, 1)(x)", "np.apply_along_axis(eval, 0, x)", "np.piecewise(x, 1, 1)"),
    *("np.log.at(x, 0)", "np.log.reduce(x)", "np.add.outer(x, x)", "np.random.seed(0)"),
    *(
        "pd.eval('x')",
        "x.apply(eval)",
        "x.map(eval)",
        "x.pipe(eval)",
        "x.eval('y')",
        "x.query('y')",
    ),
    *("torch.load('a')", "pickle.loads(x)", "socket.socket()", "urllib.request.urlopen('a')"),
    *("np.setbufsize(1)", "np.seterrcall(eval)", "np.errstate(all='ignore')", "np.log.__call__(x)"),
    *("x.__class__()", "np.__loader__.load_module('os')", "log.__globals__()", "I.__code__()"),
    *("numpy.log(x)", "np.np.log(x)", "np.emath.log(x)", "np.lib.scimath.sqrt(x)", "log.log(x)"),
    *("np.core.umath.log(x)", "np.ma.log(x)", "np.strings.lower(x)", "np.linalg.inv(x)"),
]
ALL_ROWS = [
    *("min(x)", "max(x)", "sum(x)", "len(x)", "mean(x)", "std(x)", "np.min(x)", "np.max(x)"),
    *("np.mean(x)", "np.median(x)", "np.std(x)", "np.sum(x)", "np.quantile(x, 0)", "np.sort(x)"),
    *("np.argsort(x)", "np.argmax(x)", "np.cumsum(x)", "np.diff(x, 1, 0)", "np.roll(x, 1)"),
    *("np.percentile(x, 0)", "np.unique(x)", "rank(x)", "shift(x)", "x.shift(1)", "x.rank()"),
    *(
        "x.mean()",
        "x.iloc(0)",
        "np.partition(x, 0)",
        "np.minimum.accumulate(x)",
        "np.add.reduce(x)",
    ),
    *("np.take(x, 0)", "np.where(x)", "np.clip(x)", "np.ptp(x)", "np.histogram(x)", "np.interp(x)"),
]
UNLISTED = [
    *("bs(x, df=4)", "cr(x, df=4)", "cc(x, df=4)", "tp(x, k=3)", "poly(x, 2)", "hsgp(x, m=9, c=2)"),
    *("ns(x, 3)", "s(x)", "te(x, z)", "weights(z)", "T(g)", "S(g)", "B(g)", "binary(g)"),
    *("np.center(x)", "np.I(x)", "np.C(x)", "np.offset(x)", "np.censored(x, z)", "Surv(x, z)"),
    *("factor(g)", "cbind(x, z)", "mo(x)", "me(x, z)", "ar(x)", "arma(x)", "np.power(x, 2)"),
]
PYTHON = [
    *("lambda x: x", "I(lambda: x)", "(lambda: open('a'))()", "[x for x in y]", "(x for x in y)"),
    *(
        "{x: 1}",
        "{'a': open('b')}",
        "[x]",
        "[1, 2]",
        "(x, z)",
        "x if z else y",
        "x or z",
        "x and z",
    ),
    *("not x", "x is None", "x in y", "x[0]", "x[0:1]", "x['a']", "x[-1]", "x[:, 0]", "x[...]"),
    *("f'{x}'", "f'{open(1)}'", "rb'x'", "'a' 'b'", "'''x'''", "b'x'", "'a' + 'b'", "'a' * 9"),
    *(
        "x := 3",
        "(x := open('a'))",
        "*x",
        "**x",
        "x; import os",
        "import os",
        "x = 3",
        "x == 3 = z",
    ),
    *(
        "...",
        "..",
        "x. z",
        ".x",
        "x..y()",
        "()",
        "(,)",
        "x,",
        "@x",
        "x @ z",
        "~x",
        "x & z",
        "x ^ 2",
    ),
    *("x << 2", "x >> 2", "x && z", "x || z", "!x", "x !", "x ? z : y", "$x", "x$y", "x -> z"),
    *("yield x", "await x", "return x", "raise x", "del x", "assert x", "None", "True", "False"),
    *("1e9 * x", "0x10 * x", "2j * x", "1_000 * x", "x z", "x 1", "1 x", "x(", "x)", "((x)", "{x"),
    *("x.__class__", "x.__dict__", "`x`.y(z)", "`log`(x)", "(log)(x)", "log(x)(z)", "'log'(x)"),
    *("log[x](x)", "I(C(x))", "log(offset(x))", "C(C(x))", "I(p(x, z))", "I(3)", "log(2)", "np"),
    *("x | z | g", "(x | z):g", "I(x | z)", "I(x:z)", "I(x ~ z)", "x ~ z", "I(0 < x < 1)"),
    *("I(-x**2)", "I(2**3**2)", "x**0", "(x + z)**99", "(x + z)**z", "3", "x + 2", "'x'"),
]
# Characters of which none stands outside quotes: no token, hidden, or another script's.
CHARACTERS = (
    "#\\;$?&^@_\0\x01\x07\x0b\x0c\x1b\x7f\x85\xa0\xad\u200b\u200e\u202e\u2028\u2060\ufeff\ud800"
    "\u00d7\u2212\u2044\u037e\uff08\uff0b\u0301\u00b2\u0663\u2460\U0001f600"
)
LIKE = {
    **dict(zip("aceopxyis", "\u0430\u0441\u0435\u043e\u0440\u0445\u0443\u0456\u0455", strict=True)),
    **{letter: chr(ord(letter) - ord("a") + 0xFF41) for letter in "bdfghklmnqrtuvwz"},
}
LISTED = ["log(x)", "np.exp(x)", "sqrt(x)", "scale(x)", "C(g)", "offset(x)", "where(x > 0, x, z)"]
LEGAL = ["y ~ x + log(z)", "y ~ x * g", "y ~ (1 | g) + x", "y ~ C(g):x", "log(y) ~ I(x**2) - 1"]


def hostile_formulas(seed: int, count: int) -> Iterator[str]:
    """Yield different hostile formulas of all kinds: every payload at least once where there are
    enough.
    """
    draw = random.Random(seed)
    payloads = [*WRITE, *READ, *CODE, *ALL_ROWS, *UNLISTED, *PYTHON]
    draw.shuffle(payloads)
    seen = set[str]()
    number = 0
    while len(seen) < count:
        formula = _hostile(draw, payloads[number % len(payloads)], other=number % 4 == 3)
        number += 1
        if formula not in seen:
            seen.add(formula)
            yield formula


def _hostile(draw: random.Random, payload: str, *, other: bool) -> str:
    """A payload in some place, or a formula that is hostile in another way."""
    if other:
        return draw.choice([_with_character, _look_alike, _too_large, _smuggled])(draw)
    if payload in PYTHON:
        places = ["y ~ {}", "y ~ x + {}", "y ~ {} + z", "y ~ g + {} + z"]
    else:
        places = PLACES
    return draw.choice(places).replace("{}", payload)


def _with_character(draw: random.Random) -> str:
    """A legal formula with a character that is none of a formula."""
    formula, character = draw.choice(LEGAL), draw.choice(CHARACTERS)
    # A digit of another script, or an underscore, would be a part of a name after a letter.
    at = draw.choice([at for at in range(len(formula) + 1) if not formula[at - 1 : at].isalnum()])
    return formula[:at] + character + formula[at:]


def _look_alike(draw: random.Random) -> str:
    """A listed function with a letter of another script, or of another width."""
    call = draw.choice(LISTED)
    end = call.index("(")
    places = [at for at in range(end) if call[at] in LIKE]
    if not places:
        call, places = "log(x)", [0, 1, 2]
        LIKE.setdefault("l", "\u0131")
    at = draw.choice([at for at in places if call[at] in LIKE] or [1])
    return draw.choice(PLACES[:6]).replace("{}", call[:at] + LIKE[call[at]] + call[at + 1 :])


def _too_large(draw: random.Random) -> str:
    """A formula that would take more than there is of time, memory or stack."""
    some, many = draw.randint(21, 60), draw.randint(1_100, 4_000)
    return draw.choice(
        [
            f"y ~ I({'**'.join('9' * draw.randint(3, 30))})",
            f"y ~ I(x + 9**{'9' * some})",
            f"y ~ I(x * (9**{draw.randint(17, 999)}))",
            f"y ~ I(x + {' * '.join(['99999'] * draw.randint(4, 25))})",
            f"y ~ I(x + 1 / {draw.choice(['0', '(1 - 1)', '0.0'])})",
            f"y ~ I(x * (0 - {some})**0.5)",
            f"y ~ {'9' * many}",
            f"y ~ I(x == {'9' * many})",
            f"y ~ {'(' * some}x{')' * some}",
            f"y ~ {'(' * many}x{')' * many}",
            f"y ~ {'log(' * some}x{')' * some}",
            f"y ~ {'{' * some}x{'}' * some}",
            f"y ~ {'(x + ' * some}x{')' * some}",
            f"y ~ {'-' * many}x",
            f"y ~ I({'- ' * some}x)",
            f"y ~ {' + '.join(f'x{number}' for number in range(many))}",
            f"y ~ I({' + '.join(f'x{number}' for number in range(many // 10))})",
            f"y ~ {'*'.join(f'x{number}' for number in range(some))}",
            f"y ~ {':'.join(f'x{number}' for number in range(some))}",
            f"y ~ {'/'.join(f'x{number}' for number in range(some))}",
            f"y ~ ({' + '.join(f'x{number}' for number in range(some + 40))})**{some % 7 + 2}",
            f"y ~ (1 | {'*'.join(f'x{number}' for number in range(some))})",
            f"y ~ {'x' * 20_001}",
            f"y ~ {' ' * 20_001}x",
            f"y ~ {'x + ' * 6_000}x",
            f"y ~ `{'x' * 25_000}`",
        ]
    )


def _smuggled(draw: random.Random) -> str:
    """A listed function with an argument that it does not have."""
    bad = draw.choice([*WRITE, *READ, *CODE, "x", "z", "'a'", "None", "g"])
    word = draw.choice(["out", "where", "dtype", "axis", "x", "data", "levels", "omit", "a"])
    return draw.choice(
        [
            f"y ~ log(x, {word}={bad})",
            f"y ~ np.exp(x, {word}={bad})",
            f"y ~ scale({word}={bad})",
            f"y ~ C(x, {word}={bad})",
            f"y ~ C(x, Treatment({word}={bad}))",
            f"y ~ C(x, Treatment({bad}, z))",
            f"y ~ C(x, log({bad}))",
            f"y ~ C(x, Sum, {bad})",
            f"y ~ offset({word}={bad})",
            f"y ~ where(x, z, {word}={bad})",
            f"p(won, {word}={bad}) ~ x",
            f"censored(y, won, {word}={bad}) ~ x",
            f"y ~ I(x, {word}={bad})",
            f"y ~ clip(x, min={bad}, max=3)",
        ]
    )


TOKENS = [
    *("x", "z", "g", "y", "won", "`my x`", "0", "1", "2", "3.5", "'a'", "np", "log", "np.log", "I"),
    *("C", "scale", "offset", "Treatment", "Sum", "where", "p", "open", "bs", "None", "censored"),
    *(
        "(",
        "(",
        "(",
        ")",
        ")",
        ")",
        "[",
        "]",
        "{",
        "}",
        ",",
        "+",
        "+",
        "-",
        "*",
        "/",
        "//",
        "%",
        "**",
    ),
    *(":", "|", "~", "~", "=", "==", "!=", "<", ">=", ".", "!", " ", " "),
]


def token_soup(seed: int, count: int) -> Iterator[str]:
    """Yield tokens in random order, after ``y ~``."""
    draw = random.Random(seed)
    for _ in range(count):
        yield "y ~ " + " ".join(draw.choices(TOKENS, k=draw.randint(1, 14)))
