"""Messages of `bayesfed.running.experiments`: what a file says, and what is changed in it."""

import tempfile
from pathlib import Path

from bayesfed.cli.main import main
from bayesfed.running.experiments import experiment
from bayesfed.running.experiments.build import build, seeds
from bayesfed.running.experiments.sweeps import swept

FILES = ("build", "experiment", "kinds", "names", "own", "reader", "regressions", "scope")
COMPLETE = (
    *(f"bayesfed/running/experiments/{name}.py" for name in (*FILES, "sweeps", "words")),
    "bayesfed/running/scores.py",
)
RIGHT = """\
rounds = 1
seeds = [0]
data = { kind = "blobs", samples = 30 }
partition = { kind = "iid", clients = 2 }
net = { kind = "mlp", widths = [8, 3] }

[recipe]
kind = "fed_avg"
training = { steps = 1 }
"""
OWN = """\
from collections.abc import Mapping, Sequence

import bayesfed as bf
from torch import Tensor, nn


def plain(net: nn.Module, steps: int = 1) -> bf.federated.Algorithm:
    if steps == 13:
        raise ValueError("an unlucky number")
    return bf.fed_avg(net, training=bf.Training(steps=steps))


def number(net: nn.Module) -> bf.federated.Algorithm:
    return 3


def untyped(net, optimiser=None):
    return bf.fed_avg(net, training=bf.Training(steps=1))


def sized(sizes: tuple[bf.models.Share, ...]) -> bf.federated.Algorithm:
    return plain(bf.mlp([8, 3], bf.Key(0)))


def moved(updates: Sequence[Mapping[str, Tensor]]) -> bf.federated.Algorithm:
    return plain(bf.mlp([8, 3], bf.Key(0)))
"""
DATA, PARTITION, NET = RIGHT.splitlines()[2:5]
NET_AFTER = '[net]\nkind = "mlp"\nwidths = [8, 3]\n'
TRAINING = "training = { steps = 1 }\n"
RECIPE = 'kind = "fed_avg"'
SPLIT_MIX = """\
kind = "split_mix"
make = { kind = "mlp", widths = [8, 3] }
nets_of = [2, 1]
capacity = "fixed"
"""
CONFORMAL = 'scores = ["conformal"]\nseeds'
AIR = '\n[link]\nkind = "OverTheAir"\nsnr_db = 20\n'
# The recipes of one's own take no `training`.
NONE = ((TRAINING, ""),)
PLAIN = (("fed_avg", "mine.py:plain"), (TRAINING, "steps = 1\n"))
SIZED = (("fed_avg", "mine.py:sized"), (TRAINING, "sizes = [1.0, 0.5]\n"))
ADAM, TYPE = (TRAINING, 'optimiser = "Adam"\n'), "bf.federated.Optimiser | None"
# Of a layer of 64 by 16 half the rank is smaller.
WIDE = (("fed_avg", "fed_hm"), ("[8, 3]", "[8, 64, 16, 3]"))
HM = 'capacity = "fixed"\n'
SHARE = 'sampler = { kind = "fraction", share = 0.1 }\nseeds'
REAL = 'data = { kind = "from_csv", path = "rows.csv", label = "y", regression = true }'
NARROW = ("[8, 3]", "[1, 1]")
NORMAL = (TRAINING, 'likelihood = "Normal"\n')
DIRICHLET = 'partition = { kind = "dirichlet", clients = 2, alpha = 0.5 }'


def written(*changes, more="", own=OWN):
    """Write an experiment, with parts exchanged and more at its end, and a file beside it."""
    folder, text = Path(tempfile.mkdtemp()), RIGHT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    (folder / "mine.py").write_text(own)
    (folder / "rows.csv").write_text("x,y\n" + "1,0\n2,1\n" * 9)
    (folder / "header.csv").write_text("x,y\n")
    (folder / "semicolons.csv").write_text("x;y\n" + "1;0,5\n2;1,5\n" * 9)
    (folder / "mine.toml").write_text(text + more)
    return folder / "mine.toml"


def read(*changes, **more):
    """Build an experiment."""
    file = experiment.read(written(*changes, **more))
    return build(file, seeds(file)[0])


def case(old, wrong, tried, right, *, more="", also=()):
    """Return a case: what is written in place of a part of the experiment, before and after."""
    return (
        lambda: read(*also, (old, wrong), more=more),
        tried,
        lambda: read(*also, (old, right), more=more),
    )


def regression(more="", data="rows.csv", site="x", sign=","):
    """Build a regression by formula, from rows whose cells have a sign between them."""
    text = f'[regression]\nformula = "y ~ x"\ndata = "{data}"\nsite = "{site}"\n{more}'
    path = written()
    path.write_text(text)
    rows = path.with_name("rows.csv")
    rows.write_text(rows.read_text().replace(",", sign))
    return build(experiment.read(path), 0)


def beside(content, name="other.toml"):
    """Read another file beside an experiment."""
    path = written().with_name(name)
    if content is not None:
        path.write_bytes(content)
    experiment.read(path)


def sweep(*settings):
    """Build the experiments of a sweep."""
    return [build(file, 0) for file in swept(experiment.read(written()), settings)]


CASES = [
    (lambda: sweep("rounds=4", "rounds=8"), "--set rounds=4,8", lambda: sweep("rounds=4,8")),
    (lambda: sweep("recipe.bits"), "--set recipe.bits=4,8", lambda: sweep("rounds=4,8")),
    (
        lambda: sweep("recpie.kind=fed_avg,stc"),
        "--set recipe.kind=...",
        lambda: sweep("recipe.kind=fed_avg,stc"),
    ),
    case(DATA, "", 'data = "digits"', 'data = "digits"', also=(("[8, 3]", "[64, 10]"),)),
    # What is worked out of the parts.
    case("[0]", "[3, 3]", "[0, 1, 2]", "[0, 1, 2]"),
    case("rounds = 1", "rounds = 0", "rounds = 10", "rounds = 10"),
    case("seeds", "own_rows = 1.0\nseeds", "own_rows = 0.25", "own_rows = 0.25\nseeds"),
    case(
        "seeds",
        CONFORMAL,
        "own_rows = 0.25",
        f"own_rows = 0.25\n{CONFORMAL}",
    ),
    case(
        "seeds",
        'scores = ["calibration"]\nseeds',
        "no scores",
        "seeds",
        also=((DATA, REAL), NARROW, NORMAL),
    ),
    case(TRAINING, TRAINING, "likelihood=Normal()", NORMAL[1], also=((DATA, REAL), NARROW)),
    case(NET, NET, "leaving it out", "", also=((RECIPE, SPLIT_MIX), (TRAINING, ""))),
    case("fed_avg", "mine.py:plain", "or fed_avg", "fed_avg", more=AIR, also=NONE),
    case("[8, 3]", "[7, 3]", "widths = [8, 3]", "[8, 3]"),
    case("[8, 3]", "[8, 2]", "widths = [8, 3]", "[8, 3]"),
    case(
        "seeds",
        "pool = { workers = -1 }\nseeds",
        "workers=2",
        "pool = { workers = 2 }\nseeds",
    ),
    (lambda: regression(NET_AFTER), "leaving it out", regression),
    (lambda: regression(data="columns.csv"), "a CSV file with a line of names", regression),
    (lambda: regression(data="header.csv"), "a file whose rows follow", regression),
    (
        lambda: regression(data="semicolons.csv"),
        "delimiter = ';', decimal = ','",
        lambda: regression("delimiter = ';'\ndecimal = ','\n", data="semicolons.csv"),
    ),
    (lambda: regression(site="xx"), "'x'", regression),
    (
        lambda: regression("delimiter = '(a+)+'"),
        "delimiter = ';' or delimiter = '|'",
        lambda: [regression(f"delimiter = {sign!r}", sign=sign) for sign in ";|"],
    ),
    # Files.
    case("rounds = 1", "rounds = one", "numbers without", "rounds = 1"),
    case("rounds = 1", "rounds = 1\nrounds = 2", "every key and every [table] once", "rounds = 1"),
    (lambda: beside(None), "mine.toml", lambda: beside(RIGHT.encode())),
    (lambda: experiment.read(written().parent), "mine.toml", read),
    (lambda: beside(b"a = 1"), "mine.toml", lambda: beside(RIGHT.encode())),
    (lambda: beside("# é".encode("latin-1")), "in UTF-8", lambda: beside(RIGHT.encode())),
    # Keys.
    case("rounds = 1", "", "rounds = 10", "rounds = 10"),
    case("steps", "step", "`steps`", "steps"),
    case("steps = 1", 'steps = "1"', "1, without quotes", "steps = 1"),
    case(RECIPE, f"{RECIPE}\nrounds = 2", "`rounds` at the top of the file", RECIPE),
    case("seeds", "masked = true\nseeds", "`masked` below [recipe]", "seeds", more="masked = true"),
    case("[8, 3] }", "[8, 3] }\nnot = 1", "`net`", "[8, 3] }"),
    (
        lambda: read(("fed_avg", "mine.py:untyped"), ADAM),
        "a type of `optimiser` in the signature",
        lambda: read(
            ("fed_avg", "mine.py:untyped"),
            ADAM,
            own=OWN.replace("optimiser=", f"optimiser: {TYPE} ="),
        ),
    ),
    case(RECIPE, 'kind = "fed_prox"', "strength = 0.1", 'kind = "fed_prox"\nstrength = 0.1'),
    case(NET, "", '[net] with kind = "mlp"', NET),
    case('kind = "iid", clients', "clients", 'kind = "iid"', 'kind = "iid", clients'),
    case('"fed_avg"', '"fedavg"', '"fed_avg"', '"fed_avg"'),
    case('"fed_avg"', '"conjugate"', "one of these", '"fed_avg"'),
    (lambda: read(('"fed_avg"', '"zzz"')), "`bayesfed list`", lambda: main(["list"])),
    case(
        TRAINING,
        "training = { steps = 1, optimiser = 0.01 }",
        '{ kind = "Adam", learning_rate = 0.01 }',
        'training = { steps = 1, optimiser = { kind = "Adam", learning_rate = 0.01 } }',
    ),
    case(
        TRAINING,
        'codec = { kind = "Cast", bits = 12 }',
        '{ kind = "Cast", bits = 32 } in a file',
        'codec = { kind = "Cast", bits = 32 }',
    ),
    case("8, 3", '"8", 3', "8, without quotes", "8, 3"),
    case("[8, 3]", '"8"', "[8, 4]", "[8, 4]"),
    case("[8, 3] }", "[8, 3], key = 1 }", "leaving it out", "[8, 3] }"),
    case(TRAINING, HM, "ratios = [1.0, 0.5]", f"{HM}ratios = [1.0, 0.5]", also=WIDE),
    case(TRAINING, 'buffers = "means"', '"mean"', 'buffers = "mean"'),
    case("seeds", 'sampler = "fraction"\nseeds', "share = 0.1", SHARE),
    case("seeds", "pool = { worker = 1 }\nseeds", "`workers`", "pool = { workers = 1 }\nseeds"),
    case("seeds", "on_client_error = 1\nseeds", '"raise"', 'on_client_error = "raise"\nseeds'),
    # What the run knows.
    case(PARTITION, DIRICHLET, 'kind = "iid"', PARTITION, also=((DATA, REAL), NARROW, NORMAL)),
    case(PARTITION, 'partition = "by_domain"', 'kind = "iid"', PARTITION),
    case(NET, 'net = { kind = "cnn", channels = [2] }', "mlp", NET),
    case(NET, "", '[net] with kind = "mlp"', NET, also=SIZED),
    case(NET, "", '[net] with kind = "mlp"', NET, also=(("fed_avg", "mine.py:moved"), *NONE)),
    (
        lambda: read((DATA, REAL.replace("rows", "row")), NARROW),
        "paths begin at the folder of mine.toml",
        lambda: read((DATA, REAL), NARROW, NORMAL),
    ),
    (
        lambda: read((DATA, REAL.replace(" }", ', delimiter = ";;" }')), NARROW),
        "bayesfed list from_csv",
        lambda: main(["list", "from_csv"]),
    ),
    # Functions of one's own.
    case("fed_avg", "mime.py:plain", "mine.py", "mine.py:plain", also=NONE),
    (
        lambda: read(("fed_avg", "there/mime.py:plain")),
        "a path that begins at",
        lambda: read(("fed_avg", f"{written().parent}/mine.py:plain"), *NONE),
    ),
    case("fed_avg", "mine.py:plane", '"mine.py:plain"', "mine.py:plain", also=NONE),
    (
        lambda: read(("fed_avg", "mine.py:plain"), *NONE, own="1 / 0"),
        "which shows where",
        lambda: read(("fed_avg", "mine.py:plain"), *NONE),
    ),
    (
        lambda: read(("fed_avg", "mine.py:plain"), *NONE, own=""),
        "def plain(...)",
        lambda: read(("fed_avg", "mine.py:plain"), *NONE),
    ),
    case(
        "fed_avg", "mine.py:number", "a function that returns Algorithm", "mine.py:plain", also=NONE
    ),
    case("steps = 1", "steps = 13", "other arguments of plain", "steps = 12", also=PLAIN),
]
