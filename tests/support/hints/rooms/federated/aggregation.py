"""Messages of aggregation and of links."""

from dataclasses import replace

import torch

import bayesfed as bf
from bayesfed.federated import (
    Active,
    Average,
    Cell,
    Digital,
    Keep,
    Kept,
    Krum,
    Median,
    NormGate,
    Slice,
    Update,
    Whole,
)
from tests.house.wrong_calls.given import CLIENTS, DATA, KEY, ONE, Loc, avg, go, net, own
from tests.security.test_privacy_conditions import doubling, rephased

COMPLETE = ("bayesfed/federated/aggregation", "bayesfed/federated/links")
ZEROS = torch.zeros(3)
MASKS = {"site": torch.tensor([[True, False, True]])}


def sent(total=ZEROS, weight=1.0, kind="delta"):
    """Return an update of one leaf."""
    return Update({"w": total}, weight, kind)


def ruled(rule, *updates):
    """Put a rule in the place of the sum, the state being one leaf."""
    rule({f"client-{number}": one for number, one in enumerate(updates)}, {"w": ZEROS})


def private(link=None, net=net, **changes):
    """Run a private method with another link."""
    algorithm = bf.fed_avg(net(), training=ONE)
    made = bf.private(algorithm, clip=1.0, noise=1.0, participants=2, key=KEY, delta=None)
    go(rephased(made, link=link or Digital()), **changes)


class Far:
    """A local step that goes as far as double precision allows."""

    kind = "value"

    def fit(self, message, memory, data, key, options):
        far = 1e200 if int(data.targets[0]) == 0 and len(data) == 2 else 1.0
        return bf.federated.Fit({name: far + leaf for name, leaf in message.items()}, {}, {})


def clipped(**changes):
    """Run a private method with a client that moves by 1e200."""
    data = {"a": DATA[:2], "b": DATA[3:]}
    algorithm = bf.compose("own", net().double(), Far())
    made = bf.private(algorithm, clip=1.0, noise=1.0, participants=2, key=KEY, delta=None)
    go(made, data, **changes)


def lifted(spread):
    """Lift a payload with a standard deviation."""
    view = Active(MASKS, {"sd/site": (1, 3)}, ["sd/site"])
    view.lift({"sd/site": torch.tensor([1.0, spread])}, 1.0, "value")


def gated(view):
    """Lift a payload by a view in which zeros have no weight."""
    Kept(view).lift({"w": ZEROS}, 1.0, "delta")


def sliced(width):
    """Run a method of one's own with slices."""
    part = {name: tuple(leaf.shape) for name, leaf in bf.mlp([4, width], KEY).named_parameters()}
    Slice({name: tuple(leaf.shape) for name, leaf in net().named_parameters()}, part)


def viewed(view, link):
    """Run a method whose clients have views of their own."""
    shapes = bf.trees.shapes(bf.trees.parameters(net()))
    go(own(view=view(shapes), link=link))


def weighed(weight):
    """Run a method with weights of its own."""
    algorithm = avg()
    (phase,) = algorithm.phases

    def assign(*given):
        return replace(phase.assign(*given), weight=weight)

    go(replace(algorithm, phases=(replace(phase, assign=assign),)))


class Sender(Digital):
    """A link whose clients change header or leaves of what they send."""

    def __init__(self, leaf=lambda leaf: leaf, **meta):
        object.__setattr__(self, "changes", (leaf, meta))
        super().__init__()

    def pack(self, payload, codec, meta, key):
        leaf, more = self.changes
        payload = {name: leaf(one) for name, one in payload.items()}
        return bf.Cast(32).encode(payload, {**meta, **more}, key)


def linked(link, **changes):
    """Run FedAvg over a link."""
    go(avg(link=link), **changes)


def timed(make):
    """Run a method on devices."""
    devices = {name: bf.Device().figures() for name in CLIENTS}
    go(make(avg(link=Cell(1e6))), bf.InProcess(CLIENTS, devices=devices))


CASES = [
    (
        lambda: ruled(NormGate(), sent(weight=0.0)),
        "a client with data",
        lambda: ruled(NormGate(), sent()),
    ),
    (
        lambda: ruled(NormGate(), sent(torch.zeros(4), kind="value")),
        "a method that sends changes",
        lambda: ruled(NormGate(), sent(torch.zeros(4))),
    ),
    (clipped, "on_client_error='drop'", lambda: clipped(on_client_error="drop")),
    (
        lambda: private(doubling()),
        "the link Digital()",
        lambda: private(Digital()),
    ),
    (
        lambda: ruled(Median(), sent(), sent(weight={"w": ZEROS})),
        "one view for all",
        lambda: ruled(Median(), sent(), sent()),
    ),
    (
        lambda: ruled(Krum(1), *[sent()] * 3),
        "fewer byzantine or kept clients",
        lambda: ruled(Krum(0), *[sent()] * 3),
    ),
    (
        lambda: ruled(Krum(1), *[sent()] * 3),
        "more a round",
        lambda: ruled(Krum(1), *[sent()] * 5),
    ),
    (
        lambda: go(own(local=Loc(), server=Average())),
        "a local whose kind is 'value'",
        lambda: go(own(local=Loc(kind="value"), server=Average())),
    ),
    (lambda: lifted(0.0), "a standard deviation", lambda: lifted(1e-3)),
    (lambda: sliced(4), "a narrower network", lambda: sliced(2)),
    (
        lambda: gated(Whole({"w": (3,)})),
        "Slice",
        lambda: gated(Slice({"w": (4,)}, {"w": (3,)})),
    ),
    (lambda link: viewed(lambda shapes: Slice(shapes, shapes), link), bf.OverTheAir(snr_db=9.0)),
    (
        lambda: go(own(reducer=Keep, link=bf.OverTheAir(snr_db=9.0))),
        "Digital() for rules that need updates apart",
        lambda: go(own(reducer=Keep, server=Middle())),
    ),
    (bf.OverTheAir, "OverTheAir(snr_db=25.0)", lambda: bf.OverTheAir(snr_db=25.0)),
    (
        lambda: bf.OverTheAir(snr_db=20.0, noise_w=0.0),
        "power_w=1.0 alone",
        lambda: bf.OverTheAir(power_w=1.0, noise_w=0.0),
    ),
    (
        lambda: linked(Cell(1e6)),
        "timed(algorithm, macs)",
        lambda: timed(lambda algorithm: bf.timed(algorithm, 100.0)),
    ),
    (lambda: weighed(-1.0), "the number of rows", lambda: weighed(3.0)),
    (
        lambda: linked(Sender(lambda leaf: leaf.long())),
        "a cast first",
        lambda: linked(Sender(lambda leaf: leaf.long().float())),
    ),
    (
        lambda: linked(Sender(lambda leaf: leaf + 1e7)),
        "a smaller step",
        lambda: linked(Sender(lambda leaf: leaf + 1e-7)),
    ),
    (
        lambda: linked(Sender(round=7)),
        "this exchange's own message",
        lambda: linked(Sender(round=0)),
    ),
    (
        lambda: linked(Sender(weight=1e9)),
        "what a link packs",
        lambda: linked(Digital()),
    ),
]


class Middle:
    """A server that takes a client's update."""

    def step(self, state, reducer, round):
        return next(iter(reducer.updates.values())).mean(), {}
