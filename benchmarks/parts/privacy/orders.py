"""What is audited: `local_privacy` and `private` around every recipe, with every layer around them
and within; and three mechanisms that are broken on purpose, which an audit must find.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from parts.privacy.attack import DELTA, ROUNDS, Found, Probe, attack_sent, attack_sum

import bayesfed as bf
from bayesfed.compress import Coded, ErrorFeedback, TopK
from bayesfed.errors import BayesfedError
from bayesfed.federated import Layer, Moment, Sent, Traits, Update, Visit, layered
from bayesfed.federated.core import Algorithm, Fit, Info, Inner
from bayesfed.federated.engine.asynchronous.fed_buff import FedBuff
from bayesfed.inference.variational.fusion import MeanParameters
from bayesfed.keys import Key
from bayesfed.trees import Tree
from tests.support.recipes import (
    CLIENTS,
    Tiny,
    dropping,
    lines,
    on_fleet,
    rows,
    svi,
    tiny_recipes,
)

CLIP, LOCAL, CENTRAL = 0.05, 4.0, 2.0
Wrap = Callable[[Algorithm], Algorithm]
KINDS = ("local_privacy", "private")


@dataclass(frozen=True)
class Order:
    """What is put around and within a promise of privacy.

    Parameters
    ----------
    name
        Name of the order in tables.
    tiny
        Makes method and clients.
    within, around
        What goes around the method, and around its private form.
    options
        Of the run.
    private
        Further arguments of `private`.
    """

    name: str
    tiny: Callable[[], Tiny]
    within: Wrap = lambda algorithm: algorithm
    around: Wrap = lambda algorithm: algorithm
    options: tuple[tuple[str, Any], ...] = ()
    private: tuple[tuple[str, Any], ...] = ()

    def local(self, tiny: Tiny, noise: float, key: Key, delta: float | None) -> Algorithm:
        """Return the method under `local_privacy`."""
        within = self.within(tiny.algorithm)
        return self.around(bf.local_privacy(within, clip=CLIP, noise=noise, key=key, delta=delta))

    def central(
        self, tiny: Tiny, probe: Probe, noise: float, key: Key, delta: float | None
    ) -> Algorithm:
        """Return the method under `private`, with a probe just within."""
        probed = layered(self.within(tiny.algorithm), probe, one_phase=False)
        told = {"participants": CLIENTS, "key": key, "delta": delta, **dict(self.private)}
        return self.around(bf.private(probed, clip=CLIP, noise=noise, **told))

    def audited(self, kind: str) -> Found | str:
        """Return what the attack found, or why the order is refused."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                tiny, options = self.tiny(), dict(self.options)
                if kind == "local_privacy":
                    return attack_sent(partial(self.local, tiny), tiny, LOCAL, **options)
                return attack_sum(partial(self.central, tiny), tiny, CENTRAL, **options)
            except BayesfedError as problem:
                return reason_of(problem)


def reason_of(problem: BayesfedError) -> str:
    """Return what was expected, in the words of a refusal."""
    text = str(problem).split("expected ", 1)
    return text[-1].split(", found ")[0].split(" in phase ")[0]


def methods() -> list[Order]:
    """Return every recipe."""
    return [Order(f"`{name}`", make) for name, make in tiny_recipes().items()]


def layers() -> list[Order]:
    """Return every layer, around and within."""
    base = partial(on_fleet, plain())
    fed_buff = FedBuff(2, CLIENTS, seconds=lambda profile, cost: 1.0)
    feeds = bf.compose(
        "fed_avg", dropping(), WORK.fitting(dropping()), up=ErrorFeedback(Coded(TopK(0.5)))
    )
    around = {
        "robust": lambda one: bf.robust(one, bf.federated.Median()),
        "averaged": lambda one: bf.averaged(one, begin=0),
        "swag": lambda one: bf.swag(one, begin=0, rank=2),
        "mc_dropout": bf.mc_dropout,
        "server_optimised": lambda one: bf.server_optimised(one, bf.federated.FedAdam()),
        "equal_weights": bf.equal_weights,
        "personalised": lambda one: bf.personalised(one, steps=1),
        "timed": lambda one: bf.timed(one, 100.0),
        "ensemble": lambda one: bf.ensemble([one, plain()]),
        "ensemble of two": lambda one: bf.ensemble([one, one]),
        "laplace": bf.laplace,
        "secure": secure,
        "local_privacy": lambda one: bf.local_privacy(one, clip=1.0, noise=1.0, key=Key(7)),
        "private": lambda one: bf.private(
            one, clip=1.0, noise=1.0, participants=CLIENTS, key=Key(7)
        ),
    }
    at_client = (("at_client", True),)
    listed = list[Order]()
    for name, wrap in around.items():
        own = at_client if "secure" in name else ()
        listed += [
            Order(f"`{name}` around", base, around=wrap, private=own),
            Order(f"`{name}` within", base, within=wrap, private=own),
        ]
    return [
        *listed,
        Order("error feedback within", partial(Tiny, feeds, rows())),
        Order(
            "`federated_svi` of mean parameters",
            lambda: Tiny(svi(MeanParameters(), "global"), lines()),
        ),
        Order("`FedBuff`", base, options=(("asynchronous", fed_buff),)),
    ]


WORK = bf.Training(steps=2, batch_size=8)


def plain() -> Algorithm:
    """Return the method that layers are tried on."""
    return bf.fed_avg(dropping(), training=WORK)


def secure(algorithm: Algorithm) -> Algorithm:
    """Return a method under secure sums without masks."""
    profile = bf.federated.Profile("client-0", 12)
    return bf.secure(
        algorithm, participants=CLIENTS, largest=64.0, bits=64, masks=False, profile=profile
    )


@dataclass(frozen=True)
class Telling(Layer):
    """Say the mean of the rows beside what is sent, and claim not to."""

    owner: str = "telling"
    traits: ClassVar[Traits] = Traits(blind=True)

    def send(self, visit: Visit, fit: Fit) -> Sent:
        """Add a figure."""
        return Sent(fit._replace(info={"mean": float(visit.data.inputs.mean())}))


@dataclass(frozen=True)
class Noting(Layer):
    """Keep the norm of the sum before it has noise."""

    owner: str = "noting"

    def start(self, moment: Moment) -> Tree:
        """Return no sum."""
        return dict(list(moment.model.items())[:1])

    def step(
        self, own: Tree, moment: Moment, total: Update | None, inner: Inner
    ) -> tuple[Tree, Tree, Info]:
        """Note a leaf, and take the step."""
        model, info = inner(total)
        return ({name: total.total[name] for name in own} if total else own), model, info


def broken() -> Iterator[tuple[str, Found]]:
    """Yield what an audit finds of mechanisms that are broken."""
    tiny = on_fleet(plain())

    def weak(noise: float, key: Key, delta: float | None) -> Algorithm:
        return bf.local_privacy(plain(), clip=CLIP, noise=noise / 10, key=key, delta=delta)

    def telling(noise: float, key: Key, delta: float | None) -> Algorithm:
        made = bf.local_privacy(plain(), clip=CLIP, noise=noise, key=key, delta=delta)
        return layered(made, Telling())

    def noting(probe: Probe, noise: float, key: Key, delta: float | None) -> Algorithm:
        probed = layered(plain(), probe)
        told: dict[str, Any] = {"participants": CLIENTS, "key": key, "delta": delta}
        made = layered(bf.private(probed, clip=CLIP, noise=noise, **told), Noting())
        return replace(made, checks=())

    found = attack_sent(weak, tiny, LOCAL)
    yield (
        "a tenth of the noise",
        replace(found, printed=bf.algorithms.epsilon(LOCAL / 2, ROUNDS, DELTA)),
    )
    yield "a figure beside it", attack_sent(telling, tiny, LOCAL)
    yield "a sum that is kept", attack_sum(noting, tiny, CENTRAL)
