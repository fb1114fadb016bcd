"""Messages of `bayesfed.federated.core` and of the layers."""

from dataclasses import dataclass, replace

import torch

import bayesfed as bf
from bayesfed.compress import Ternary
from bayesfed.federated import (
    Average,
    Digital,
    Exchange,
    FedAdam,
    Holding,
    Layer,
    Median,
    OverTheAir,
    Sum,
    feedback,
    layered,
)
from bayesfed.federated.clients.side import ClientSide
from bayesfed.federated.core import LocalOptions, Update
from bayesfed.federated.core.forms import Form
from bayesfed.federated.core.options import read_options
from bayesfed.federated.core.sums import PartialSum
from tests.federated.test_holding import listening
from tests.house.wrong_calls.given import DATA, KEY, ONE, StateOnly, avg, go, net, own, svi
from tests.security.test_local_privacy import Tells
from tests.support.recipes import adapted

COMPLETE = ("bayesfed/federated/core", "bayesfed/federated/layers")
TWO = {"w": torch.ones(2)}


@dataclass(frozen=True)
class Reading(Layer):
    """A layer that looks at every update."""

    owner: str = "reading"

    def admit(self, own, update, moment):
        """Take it."""
        return update


def private(algorithm=None, **changes):
    """Return a private method."""
    given = {"clip": 1.0, "noise": 1.0, "participants": 2, "key": KEY, **changes}
    return bf.private(avg() if algorithm is None else algorithm, **given)


def local(algorithm=None):
    """Return a method whose clients add noise."""
    return bf.local_privacy(avg() if algorithm is None else algorithm, clip=1.0, noise=1.0, key=KEY)


def phase(**changes):
    """Return the phase of FedAvg, with changes."""
    (made,) = avg().phases
    return replace(made, **changes)


def phases(*names):
    """Return a method with phases of these names."""
    return replace(avg(), phases=tuple(phase(name=name) for name in names))


def beside():
    """Run a phase without noise in a run of a private method."""
    made = private()
    replace(made, phases=(*made.phases, phase(name="more")))


def apart():
    """Run it after the private method, in a run of its own."""
    go(private())
    go(phases("more"))


def added(*updates):
    """Add updates of clients."""
    reducer = Sum()
    for number, update in enumerate(updates):
        reducer.add(str(number), update)


def delta(leaf=None, weight=1.0, kind="delta"):
    """Return an update."""
    return Update({"w": torch.ones(2) if leaf is None else leaf}, weight, kind)


def carried(size):
    """Carry the digits of a sum."""
    PartialSum(Form.of(delta()), {3: torch.full((3, 2), size)}).carried()


def read(**header):
    """Read the options of a message."""
    read_options(LocalOptions, header)


@dataclass(frozen=True)
class Pulled(LocalOptions):
    """Options with one more."""

    pull: float = 0.0


def visited(layer, message, memory=None):
    """Let a client with this layer answer."""
    return listening(layer).fit(message, memory or {}, DATA, KEY, LocalOptions()).memory


def remaining(width):
    """Send a leaf of another width than before, with what was left out of it."""
    memory = {"feedback/error/w": torch.ones(2)}
    visited(feedback(), {"w": torch.zeros(width)}, memory)


def changed(message):
    """Change a leaf that is not held, or send it whole."""
    visited(Holding(), message)


def exchanging(**options):
    """Return a method that sends changes in both directions."""
    layer = Exchange(codec=Ternary(0.1), **options)
    return bf.compose("changes", net(), ONE.fitting(net()), training=ONE, layers=(layer,))


def told(message):
    """Let a client answer its first message."""
    (only,) = exchanging().phases
    ClientSide.of(only).fit(message, {}, DATA, KEY, LocalOptions())


def within(algorithm):
    """Exchange changes around a method's step."""
    go(layered(algorithm, Exchange(codec=Ternary(0.1))))


def averaging():
    """Return a method that averages values."""
    return bf.compose("average", net(), ONE.fitting(net()), Average(), training=ONE)


def ways(wrap, wrong):
    """Return cases of a wrapper that refuses a method, and names others."""
    made = {
        "fed_avg": avg,
        "fed_paq": lambda: bf.fed_paq(net(), training=ONE),
        "fed_lora": lambda: bf.fed_lora(adapted()),
    }
    return [
        (lambda: wrap(wrong()), name, lambda make=make: wrap(make())) for name, make in made.items()
    ]


def optimised(algorithm):
    """Step by an optimiser at the server."""
    return bf.server_optimised(algorithm, FedAdam(0.01))


CASES = [
    (
        lambda: phase(owner="a", layers=(Reading("a"),)),
        "one name without a slash for each",
        lambda: phase(owner="a", layers=(Reading("b"),)),
    ),
    (lambda: phases("a", "a"), "Phase('train', ...)", lambda: phases("a", "train")),
    (beside, "the others in a run of their own, after it", apart),
    (
        lambda: added(delta(torch.ones(2, dtype=torch.bool))),
        "numbers 0 and 1",
        lambda: added(delta(torch.ones(2, dtype=torch.bool).float())),
    ),
    (
        lambda: added(delta(), delta(kind="value")),
        "one kind for all clients",
        lambda: added(delta(), delta()),
    ),
    (
        lambda: added(delta(), delta(weight=TWO)),
        "one view for all",
        lambda: added(delta(weight=TWO), delta(weight=TWO)),
    ),
    (
        lambda: added(delta(), delta(torch.ones(2).double())),
        "one type for all clients",
        lambda: added(delta(), delta()),
    ),
    (
        lambda: added(delta(torch.full((2,), 1e30))),
        "a smaller step",
        lambda: added(delta(torch.full((2,), 1e3))),
    ),
    (
        lambda: added(delta(weight={"w": torch.full((2,), 1e30)})),
        "or weight",
        lambda: added(delta(weight=TWO)),
    ),
    (
        lambda: added(delta(weight=1e30)),
        "the number of rows",
        lambda: added(delta(weight=float(len(DATA)))),
    ),
    (lambda: carried(1 << 61), "smaller weights", lambda: carried(1 << 51)),
    (
        lambda: delta(weight=TWO).number(),
        "a view that covers everything",
        lambda: delta(weight=2.0).number(),
    ),
    (
        lambda: delta(weight=0.0).mean(),
        "a client with data",
        lambda: delta(weight=1.0).mean(),
    ),
    *ways(private, lambda: bf.ensemble([avg(), avg()])),
    *ways(bf.equal_weights, svi),
    *ways(private, lambda: bf.robust(avg(), Median())),
    *ways(optimised, exchanging),
    *ways(optimised, lambda: own(server=StateOnly())),
    (
        lambda: bf.equal_weights(bf.equal_weights(avg())),
        "one 'weights'",
        lambda: bf.equal_weights(avg()),
    ),
    (
        lambda: bf.robust(avg(link=OverTheAir(snr_db=20.0)), Median()),
        "Digital()",
        lambda: bf.robust(avg(link=Digital()), Median()),
    ),
    (
        lambda: bf.robust(private(), Median()),
        "one of the two",
        lambda: (private(), bf.robust(avg(), Median())),
    ),
    (
        lambda: layered(private(), Reading()),
        "'private' as the outermost layer",
        lambda: private(layered(avg(), Reading())),
    ),
    (
        lambda: layered(local(), Tells()),
        "'local privacy' last",
        lambda: local(layered(avg(), Tells())),
    ),
    (lambda: read(step=2), "'steps'", lambda: read(steps=2)),
    (
        lambda: read(pull=2.0),
        "a record that extends LocalOptions, in the local's attribute `options`",
        lambda: read_options(Pulled, {"pull": 2.0}),
    ),
    (lambda: read(scale=float("inf")), "1.0", lambda: read(scale=1.0)),
    (
        lambda: told({"/exchange/start/seed": torch.tensor(1)}),
        "the server's own method",
        lambda: go(exchanging()),
    ),
    (
        lambda: within(optimised(averaging())),
        "a server that averages, such as Average",
        lambda: within(averaging()),
    ),
    (lambda: remaining(3), "one view a client", lambda: remaining(2)),
    (
        lambda: changed({"/held/change/w": torch.ones(2)}),
        "sending the whole leaf",
        lambda: changed({"w": torch.ones(2)}),
    ),
]
