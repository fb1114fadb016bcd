"""Sites whose every cell is a marker, asked in every way that a server can, so that a marker in a
letter is a cell that has left.

Numbers are 7135791.0, 7135792.0, ..., which are known as text, as numbers and as bytes; texts are
``PATIENT-0001-ann``, and so on. No column with markers is asked for as categories, whose levels may
travel, and no site has fewer than three rows, of which sums are not cells.
"""

from __future__ import annotations

import itertools
import logging
import random
import re
import struct
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple, cast
from unittest import mock

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import torch

import bayesfed as bf
from bayesfed.compress import unpack
from bayesfed.errors import ArgumentError, BayesfedError, DataError
from bayesfed.flower import Experiment, client_app
from bayesfed.flower.client_app import respond
from bayesfed.flower.letters import Answer, Hello, read_reply
from bayesfed.flower.site import Site
from tests.flower.flower_grid import FakeGrid, PlainMail
from tests.support.letters.texts import Message, messages

PACKAGE = str(Path(bf.__file__).parent)
FILES = tempfile.TemporaryDirectory()
COUNT = 60
FIRST = 7135791.0
NUMBERS = [FIRST + place for place in range(COUNT)]
TEXTS = [f"PATIENT-{place:04d}-ann" for place in range(COUNT)]
# Every way in which such a number or text may be written, down to three digits.
WRITTEN = re.compile(r"7,?135,?[78]\d\d|7\.1[34]\d*e\+?0?6|PATIENT-\d")
BYTES = {
    struct.pack(order + form, kind(number))
    for number in NUMBERS
    for order in "<>"
    for form, kind in (("d", float), ("f", float), ("q", int), ("i", int))
}
# First bytes of any of them, so that letters are searched once.
PATTERN = re.compile(b"|".join(map(re.escape, sorted(BYTES))))
ONE = pd.DataFrame(
    {
        "age": [50.0, 60.0, 70.0, 61.0, 52.0, 66.0],
        "bmi": [20.0, 25.0, 31.0, 25.5, 22.0, 27.0],
        "ward": ["east", "west"] * 3,
        "died": [0, 1, 1, 0, 1, 0],
        "events": [1, 2, 3, 1, 2, 5],
        "trials": [4, 5, 6, 4, 5, 6],
        "days": [1.5, 2.5, 3.5, 1.0, 2.0, 7.0],
        "stage": pd.Categorical(["I", "II", "III"] * 2, ["I", "II", "III"], ordered=True),
    }
)
ASKED = {
    "bernoulli": "died",
    "normal": "bmi",
    "student_t": "bmi",
    "poisson": "events",
    "negative_binomial": "events",
    "binomial": "p(events, trials)",
    "ordinal": "stage",
    "weibull": "censored(days, died)",
}
TERMS = (
    "1",
    "age",
    "age + ward",
    "log(age)",
    "(1 | site)",
    "age + offset(log(days))",
    "scale(age)",
)
COLUMNS = ("age", "bmi", "ward", "died", "events", "trials", "days", "stage")


def found_in(content: bytes) -> list[str]:
    """Return the markers in bytes: as text, and as the bytes of numbers."""
    hits = [hit.group() for hit in WRITTEN.finditer(content.decode("latin-1"))]
    return hits + [f"bytes {hit.group().hex()}" for hit in PATTERN.finditer(content)]


def found_in_letter(letter: bytes) -> list[str]:
    """Return the markers in a letter of a site: in its bytes, its fields and unpacked tensors."""
    hits, reply = found_in(letter), read_reply(letter)
    hits += found_in(repr(vars(reply)).encode())
    if isinstance(reply, Answer):
        if reply.packed:
            with suppress(BayesfedError):
                for leaf in unpack(reply.packed)[0].values():
                    hits += _near(leaf.double().flatten())
        hits += _near(torch.tensor([*reply.info.values()], dtype=torch.float64))
    return hits


def _near(values: torch.Tensor) -> list[str]:
    there = torch.tensor(NUMBERS, dtype=torch.float64)
    # One part in ten million tells two of them apart.
    close = (values[:, None] / there - 1).abs() < 5e-8
    return [f"number {float(value)}" for value in values[close.any(1)]]


def marked(kind: type = float, begin: int = 0, rows: int = 6) -> list[Any]:
    """Return cells of a column."""
    return [kind(number) for number in NUMBERS[begin : begin + rows]]


def texts(begin: int = 0, rows: int = 6) -> list[str]:
    """Return texts of a column."""
    return TEXTS[begin : begin + rows]


# Ways to fill a column with markers.
SPOILT: dict[str, Callable[[], Any]] = {
    "numbers": marked,
    "whole numbers": lambda: marked(int),
    "small": lambda: np.array(marked(int), np.int32),
    "texts": texts,
    "one text": lambda: [*marked()[:5], TEXTS[7]],
    "numbers as texts": lambda: [str(one) for one in marked()],
    "decimal commas": lambda: [f"{one:,.1f}".replace(".", ";") for one in marked()],
    "missing": lambda: [*marked()[:4], np.nan, np.nan],
    "missing texts": lambda: [*texts()[:4], None, None],
    "endless": lambda: [*marked()[:5], np.inf],
    "negative": lambda: [-one for one in marked()],
    "mixed": lambda: [*marked()[:3], *texts(3, 3)],
    "categories": lambda: pd.Categorical(texts()),
    "ordered": lambda: pd.Categorical(texts(), categories=texts(), ordered=True),
    "of numbers": lambda: pd.Categorical(marked()),
    "days": lambda: pd.to_datetime(marked(int), unit="s"),
    "spans": lambda: pd.to_timedelta(marked(int), unit="s"),
    "nullable": lambda: pd.array([*marked(int)[:5], None], dtype="Int64"),
    "strings": lambda: pd.array(texts(), dtype="string"),
    "complex": lambda: [complex(one, 1) for one in marked()],
    "lists": lambda: [[one] for one in marked()],
    "objects": lambda: pd.Series([{one} for one in texts()]),
    "bytes": lambda: [one.encode() for one in texts()],
    "huge": lambda: [int(one) ** 60 for one in marked()],
}


def frames() -> dict[str, Callable[[], Any]]:
    """Return frames of a site by what is wrong with them; a frame, or what is given for one."""

    def column(name: str, make: Callable[[], Any]) -> Callable[[], Any]:
        def made() -> Any:
            # All other numbers are markers too, so that none of them may be told.
            frame = ONE.assign(age=marked(begin=10), bmi=marked(begin=20), days=marked(begin=30))
            frame[name] = make()
            return frame

        return made

    found = {
        f"{kind} in {name}": column(name, make) for name in COLUMNS for kind, make in SPOILT.items()
    }

    def whole(change: Callable[[pd.DataFrame], Any]) -> Callable[[], Any]:
        return lambda: change(ONE.assign(age=marked(), bmi=marked(begin=10), days=marked(begin=20)))

    found |= {
        "no age": whole(lambda frame: frame.drop(columns="age")),
        "no response": whole(lambda frame: frame.drop(columns=["died", "bmi", "events", "days"])),
        "no heading": whole(lambda frame: frame.set_axis(texts(0, frame.shape[1]), axis=1)),
        "twice": whole(lambda frame: pd.concat([frame, frame["age"]], axis=1)),
        "no rows": whole(lambda frame: frame[:0]),
        "three rows": whole(lambda frame: frame[:3]),
        "an index twice": whole(lambda frame: frame.set_axis(texts()[:3] * 2)),
        "an index of markers": whole(lambda frame: frame.set_axis(texts())),
        "a list": marked,
        "a dictionary": lambda: {"age": marked(), "died": texts()},
        "an array": lambda: np.array(marked()),
        "a text": lambda: TEXTS[0],
        "nothing": lambda: None,
    }
    return found


def experiments() -> dict[str, tuple[Any, Any]]:
    """Return prepared regressions by formula and family, and the algorithm of each."""
    found = {}
    for family, response in ASKED.items():
        for term in TERMS:
            formula = f"{response} ~ {term}"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = bf.running.prepared(formula, {"basel": ONE, "bern": ONE}, cast(Any, family))
            found[f"{formula}, {family}"] = made, made.algorithm
    return found


def greeted(algorithm: Any, data: Callable[[str], Any], client: str = "basel") -> bytes:
    """Return a site's answer to a greeting."""
    with tempfile.TemporaryDirectory() as folder:
        site = Site(client, Experiment(algorithm=algorithm, data=data), folder)
        return site.handle(Hello().write())


def greetings(many: int | None = None, seed: int = 0) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield a site's answer to every formula and family over every frame; or so many of them, drawn
    by a seed.
    """
    known = experiments()
    pairs = [
        (asked, (what, frame))
        for asked, (what, frame) in itertools.product(known, frames().items())
        # A column that nobody asks for is not looked at.
        if " in " not in what or re.search(rf"\b{what.rpartition(' in ')[2]}\b", asked)
    ]
    if many is not None:
        pairs = random.Random(seed).sample(pairs, many)
    for asked, (what, frame) in pairs:
        made, algorithm = known[asked]

        def answer(made: Any = made, algorithm: Any = algorithm, frame: Any = frame) -> bytes:
            return greeted(algorithm, lambda client: made.design.rows(frame(), client))

        yield f"{asked}: {what}", answer


class Own(Exception):
    """An error of a user's own code."""


def noted(problem: Exception) -> Exception:
    """Return an error with a note."""
    problem.add_note(TEXTS[2])
    return problem


def raised() -> dict[str, Callable[[], BaseException]]:
    """Return what a data function, a model or a network of a site may raise."""
    number, text = NUMBERS[0], TEXTS[0]
    kinds = (ValueError, KeyError, RuntimeError, TypeError, OSError, UnicodeError, Own, IndexError)
    found: dict[str, Callable[[], BaseException]] = {
        kind.__name__: partial(kind, f"{text} {number}") for kind in kinds
    }
    found |= {
        "a number": lambda: KeyError(number),
        "an array": lambda: ValueError(np.array(marked())),
        "a note": lambda: noted(ValueError("no")),
        "a group": lambda: ExceptionGroup(text, [ValueError(number)]),
        "the end": lambda: SystemExit(text),
        "ours": lambda: DataError("column 'age'", "numbers", text, f"a column without {number}"),
        "ours as text": lambda: DataError(f"{text} {number}"),
        "an argument": lambda: ArgumentError("data", "rows", marked(), texts()),
        "a file": lambda: FileNotFoundError(2, "no such file", f"/{text}/stays.csv"),
        "a client": lambda: bf.errors.ClientError("basel", 0, "fit", f"{text} {number}", ""),
        "an import": lambda: ImportError(text, name=text, path=text),
    }
    return found


def raising(make: Callable[[], BaseException]) -> Callable[..., Any]:
    """Return a function that raises."""

    def function(*args: Any, **kwargs: Any) -> Any:
        raise make() from ValueError(TEXTS[9])

    return function


def files(folder: Path) -> dict[str, Callable[[], Any]]:
    """Return what readers of files say of files full of markers, in a folder named by one."""
    home = folder / TEXTS[5]
    home.mkdir(exist_ok=True)

    def table(text: str, **options: Any) -> Callable[[], Any]:
        def read() -> Any:
            path = home / "stays.csv"
            path.write_text(text)
            return bf.from_csv(path, **{"label": "died", **options})

        return read

    rows = [
        f"{one},{two},{three}" for one, two, three in zip(texts(), marked(), marked(), strict=True)
    ]
    good = [
        f"{one},{two},{place % 2}"
        for place, (one, two) in enumerate(zip(marked(), marked(), strict=True))
    ]
    head = "name,age,died"
    # What their types refuse is what is tried.
    dataset, torch_set = cast(Any, bf.Dataset), cast(Any, bf.data.from_torch)

    def encoded() -> Any:
        path = home / "encoded.csv"
        path.write_bytes(TEXTS[0].encode() + b"\xff\xfe")
        return bf.from_csv(path, label="died")

    def archived(options: Mapping[str, Any] | None = None, **arrays: Any) -> Any:
        path = home / "arrays.npz"
        np.savez(path, **arrays)
        return bf.data.from_npz(path, **(options or {}))

    wrong = [f"{TEXTS[0]},{TEXTS[1]}", *rows]
    spaced = np.array(texts())
    return {
        "texts": table("\n".join([head, *rows])),
        "no heading": table("\n".join(rows)),
        "no heading, label": table("\n".join(rows), label=TEXTS[0]),
        "numbers without heading": table("\n".join(good), label=str(NUMBERS[0])),
        "heading twice": table("\n".join([f"{TEXTS[0]},{TEXTS[0]},died", *good])),
        "ragged": table("\n".join([head, *wrong])),
        "empty": table(""),
        "labels": table("\n".join([head, *good]), classes=["x", "y"]),
        "clients": table("\n".join([head, *good]), client="name"),
        "delimiter": table("\n".join([head, *good]), delimiter=";"),
        "encoding": encoded,
        "no file": lambda: bf.from_csv(home / TEXTS[6], label="died"),
        "no archive": lambda: bf.data.from_npz(home / "stays.npz"),
        "texts in an archive": partial(archived, inputs=spaced, targets=spaced),
        "classes in an archive": partial(
            archived, {"classes": ["x"]}, inputs=np.ones((6, 2)), targets=spaced
        ),
        "wrong names in an archive": partial(archived, x=spaced, y=spaced),
        "odd rows in an archive": partial(archived, inputs=np.array(marked()), targets=np.ones(3)),
        "tensors": lambda: bf.Dataset(torch.tensor(marked()), torch.tensor(marked()[:3])),
        "texts of a frame": lambda: dataset(pd.DataFrame({"age": texts()}), texts()),
        "holes": lambda: dataset(pd.DataFrame({"age": [*marked()[:5], None]}), marked()),
        "classes": lambda: dataset(np.ones((6, 1)), np.array(texts()), classes=("x",)),
        "a torch set": lambda: torch_set([(one, None) for one in texts()]),
        "a torch set of labels": lambda: torch_set([(torch.ones(1), one) for one in texts()]),
    }


def line(inputs: torch.Tensor, targets: torch.Tensor | None = None) -> None:
    """A linear regression."""
    slope = pyro.sample("slope", dist.Normal(0.0, 10.0))
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Normal(slope * inputs[:, 0], 1.0), obs=targets)


def models() -> dict[str, Callable[..., Any]]:
    """Return models of a user that fail on a site's rows, and not on the server's."""

    def of(make: Callable[..., Any]) -> Callable[..., Any]:
        def model(inputs: torch.Tensor, targets: torch.Tensor | None = None) -> None:
            slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
            with pyro.plate("rows", len(inputs)):
                pyro.sample("y", make(slope, inputs), obs=targets)

        return model

    def told(slope: Any, inputs: torch.Tensor) -> Any:
        if inputs.numel() and float(inputs.max()) > 1e6:
            raise ValueError(f"odd rows {inputs.tolist()}, {TEXTS[0]}")
        return dist.Normal(slope * inputs[:, 0], 1.0)

    def ours(slope: Any, inputs: torch.Tensor) -> Any:
        if inputs.numel() and float(inputs.max()) > 1e6:
            raise DataError(
                "model", "small inputs", inputs.tolist(), f"below {float(inputs.max())}"
            )
        return dist.Normal(slope * inputs[:, 0], 1.0)

    def left(slope: Any, inputs: torch.Tensor) -> Any:
        if inputs.numel() and float(inputs.max()) > 1e6:
            sys.exit(TEXTS[0])
        return dist.Normal(slope * inputs[:, 0], 1.0)

    def prior(inputs: torch.Tensor, targets: torch.Tensor | None = None) -> None:
        slope = pyro.sample("slope", dist.Normal(inputs.mean(), 1.0))
        with pyro.plate("rows", len(inputs)):
            pyro.sample("y", dist.Normal(slope * inputs[:, 0], 1.0), obs=targets)

    return {
        "raises": of(told),
        "raises ours": of(ours),
        "leaves": of(left),
        "prior of rows": prior,
        "trials": of(
            lambda slope, x: dist.Binomial(x[:, 0].abs().round(), logits=slope + 0 * x[:, 0])
        ),
        "bounds": of(lambda slope, x: dist.Uniform(x[:, 0] + 1.0, x[:, 0] + 2.0 + slope.exp())),
        "counts": of(lambda slope, x: dist.Poisson((slope + 0 * x[:, 0]).exp())),
        "never": of(lambda slope, x: dist.Normal(slope.exp() ** 99, 1e-300 + 0 * x[:, 0])),
        "a mean": of(lambda slope, x: dist.Normal(slope * x[:, 0] - x.mean(), 1.0)),
        "singles": of(lambda slope, x: dist.Normal((slope * x[:, 0]).float() @ torch.ones(3), 1.0)),
        "shapes": of(lambda slope, x: dist.Normal(slope * x[:3, 0], 1.0)),
        "good": line,
    }


def datasets() -> dict[str, bf.Dataset]:
    """Return rows of a site by what is odd about them; all cells are markers."""
    inputs, rows = torch.tensor(marked(rows=12)).reshape(6, 2), torch.tensor(marked(begin=20))
    return {
        "plain": bf.Dataset(inputs, rows),
        "one column": bf.Dataset(inputs[:, :1], rows),
        "labels": bf.Dataset(inputs, rows.long()),
        "negative": bf.Dataset(-inputs, -rows),
        "wide targets": bf.Dataset(inputs, rows[:, None]),
        "single": bf.Dataset(inputs.float(), rows.float()),
        "three rows": bf.Dataset(inputs[:3], rows[:3]),
        "none": bf.Dataset(inputs[:0], rows[:0]),
    }


def methods() -> dict[str, Any]:
    """Return methods that a site may be asked to take a step of."""
    net, work = bf.mlp([2, 3, 3], bf.Key(0)), bf.Training(steps=2)
    return {f"model {name}": bf.federated_svi(model) for name, model in models().items()} | {
        "least_rows": bf.federated_svi(line, least_rows=1000),
        "fed_avg": bf.fed_avg(net, training=work),
        "fed_avg of numbers": bf.fed_avg(
            bf.mlp([2, 3, 1], bf.Key(0)), training=work, likelihood=bf.Normal(sd=1.0)
        ),
        "fed_avg of many": bf.fed_avg(bf.mlp([5, 3, 3], bf.Key(0)), training=work),
        "stc": bf.stc(net, share=0.1, training=work),
        "pvi": bf.federated_svi(
            line, pyro.infer.autoguide.AutoNormal, example=datasets()["plain"][:2], training=work
        ),
    }


class Recorded:
    """A grid in this process, and every letter that its nodes wrote."""

    def __init__(self, handlers: Mapping[int, Callable[[bytes], bytes]]) -> None:
        self.letters: list[bytes] = []

        def kept(handler: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
            def answer(letter: bytes) -> bytes:
                self.letters.append(handler(letter))
                return self.letters[-1]

            return answer

        self.grid = FakeGrid({node: kept(handler) for node, handler in handlers.items()})

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of `Flower`."""
        return {"mail": PlainMail(), "clock": self.grid.clock, "wait": self.grid.wait}


def run_of(algorithm: Any, data: Callable[[str], Any], rounds: int | None = 3) -> list[bytes]:
    """Return all letters of two sites with markers in a run, and the bytes of what the server
    wrote: checkpoints, records, its log and what it raised.
    """
    with tempfile.TemporaryDirectory() as there:
        folder, log = Path(there), StringIO()
        experiment = Experiment(algorithm=algorithm, data=data, rounds=rounds)
        handlers = {
            node: Site(name, experiment, folder / "sites").handle
            for node, name in ((7, "basel"), (8, "bern"))
        }
        recorded, out = Recorded(handlers), folder / "out"
        served = {"experiment": "x:y", "clients": 2, "out": str(out), "hello-s": 1.0}
        from bayesfed.flower.server_app import serve

        with (
            mock.patch("bayesfed.flower.experiment.load", return_value=experiment),
            redirect_stdout(log),
            _server_log(log),
            warnings.catch_warnings(record=True) as warned,
        ):
            warnings.simplefilter("always")
            try:
                serve(recorded.grid, served, **recorded.options)
            except Exception as problem:
                # Also what a model of the user raises at the server, of made-up rows.
                log.write(str(problem))
        written = [path.read_bytes() for path in out.rglob("*") if path.is_file()]
        # Warnings of the server's own steps; those of sites are on their own screens.
        log.write("".join(str(one.message) for one in warned if "expected" in str(one.message)))
        return [
            *recorded.letters,
            *(b"centre " + part for part in [*written, log.getvalue().encode()]),
        ]


@contextmanager
def _server_log(into: StringIO) -> Iterator[None]:
    """Write what the server logs, which is all but the log of sites."""
    handler = logging.StreamHandler(into)
    handler.addFilter(lambda record: record.name != "bayesfed.site")
    logger = logging.getLogger("bayesfed")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def roads() -> Iterator[tuple[str, Callable[[], list[bytes]]]]:
    """Yield every other road to the server by name: what comes of it as letters of a site, and as
    bytes that the server has, which begin with ``centre``.
    """
    plain = bf.federated_svi(line)
    for name, make in raised().items():
        yield f"data raises {name}", partial(_alone, greeted, plain, raising(make))
        yield f"a step raises {name}", partial(run_of, with_local(raising(make)), _plain_rows)
        yield f"a device raises {name}", partial(_alone, _device, make)
    # It is there for as long as this process, whenever a road is gone.
    for name, read in files(Path(FILES.name)).items():
        yield f"file, {name}", partial(_alone, greeted, plain, partial(_any, read))
    for name, algorithm in methods().items():
        for what, rows in datasets().items():
            yield f"{name}: {what}", partial(run_of, algorithm, partial(_same, rows))
    for name, node, asked in (
        ("no worker", {"socket": f"/tmp/{TEXTS[0]}.sock", "client": "basel"}, {}),
        ("no name", {"folder": TEXTS[0]}, {"experiment": "x:y"}),
        ("no module", {"client": "basel"}, {"experiment": "nothing_there:y"}),
        ("no secret", {"client": "basel", "secret-file": f"/{TEXTS[0]}"}, {"experiment": "x:y"}),
    ):
        yield f"app, {name}", partial(_alone, _respond_at_once, node, asked)
    yield "a memory that is damaged", partial(_alone, _damaged)


def _respond_at_once(node: dict[str, str], asked: dict[str, str]) -> bytes:
    """Answer a greeting without waiting for a worker that is being started."""
    with mock.patch.object(client_app, "WORKER_WAIT_S", 0.0):
        return respond(Hello().write(), node, asked)


def _alone(make: Callable[..., bytes], *args: Any) -> list[bytes]:
    return [make(*args)]


def _any(make: Callable[[], Any], client: str) -> Any:
    return make()


def _same(rows: bf.Dataset, client: str) -> bf.Dataset:
    return rows


def _plain_rows(client: str) -> bf.Dataset:
    return datasets()["plain"]


def with_local(fit: Callable[..., Any]) -> Any:
    """Return a method whose clients' step is a function."""
    from dataclasses import replace

    algorithm = bf.fed_avg(bf.mlp([2, 3, 3], bf.Key(0)), training=bf.Training(steps=1))
    (phase,) = algorithm.phases
    local = mock.Mock(spec=["kind", "fit"], kind=phase.local.kind, fit=fit)
    return replace(algorithm, phases=(replace(phase, local=local),))


def _device(make: Callable[[], BaseException]) -> bytes:
    experiment = Experiment(
        algorithm=bf.federated_svi(line), data=lambda c: datasets()["plain"], device=raising(make)
    )
    with tempfile.TemporaryDirectory() as folder:
        return Site("basel", experiment, folder).handle(Hello().write())


def _damaged() -> bytes:
    """Return the answer of a site whose memory is not one, in a folder named by a marker."""
    with tempfile.TemporaryDirectory() as there:
        folder = Path(there) / TEXTS[0]
        algorithm = bf.stc(bf.mlp([2, 3, 3], bf.Key(0)), share=0.1, training=bf.Training(steps=1))
        rows = bf.Dataset(torch.ones(6, 2), torch.tensor([0, 1, 2] * 2))
        experiment = Experiment(algorithm=algorithm, data=lambda client: rows)
        recorded = Recorded({7: Site("basel", experiment, folder).handle})
        pool = bf.flower.Flower(recorded.grid, 1, **recorded.options)

        def spoil(report: Any) -> None:
            for path in folder.rglob("*.memory"):
                path.write_bytes(f"{TEXTS[0]} {NUMBERS[0]}".encode())

        with suppress(BayesfedError):
            bf.run(algorithm, pool, rounds=2, callbacks=[spoil], progress=False)
        return recorded.letters[-1]


class Looked(NamedTuple):
    """What a call returned, the files and lines of the package in which messages were made
    meanwhile, and the log of the site.
    """

    result: Any
    made: set[tuple[str, int]]
    log: str


def look(call: Callable[[], Any]) -> Looked:
    """Make a call and look at what it does."""
    lines, log = set[tuple[str, int]](), StringIO()

    def made(kind: type[Any], *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(PACKAGE) and not name.startswith(f"{PACKAGE}/errors/"):
                lines.add((f"bayesfed{name.removeprefix(PACKAGE)}", frame.f_lineno))
                break
            frame = frame.f_back  # type: ignore[assignment]
        return super(BayesfedError, kind).__new__(kind, *args)

    handler, logger = logging.StreamHandler(log), logging.getLogger("bayesfed.site")
    level, before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        with (
            mock.patch.object(BayesfedError, "__new__", made, create=True),
            redirect_stderr(StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            result = call()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = before
    return Looked(result, lines, log.getvalue())


def provoked(lines: set[tuple[str, int]]) -> set[Message]:
    """Return the messages that were made at these lines."""
    return {
        message
        for message in messages()
        for file, line in lines
        if message.place.file == file and message.place.line <= line <= message.place.end
    }
