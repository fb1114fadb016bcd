"""Messages of secure sums."""

import tempfile
from dataclasses import replace

import numpy as np
import torch

import bayesfed as bf
from bayesfed.algorithms.wrappers.secure_sums import FixedPoint, Vault
from bayesfed.algorithms.wrappers.secure_sums.locals import shares
from bayesfed.algorithms.wrappers.secure_sums.primitives import Agreement, fresh
from bayesfed.algorithms.wrappers.secure_sums.sessions import Session
from bayesfed.algorithms.wrappers.secure_sums.sums import Letter
from bayesfed.algorithms.wrappers.secure_sums.unmasking import GatheredKeys
from bayesfed.federated import Digital, Median, OverTheAir, Profile, Skip, Slice, fraction
from bayesfed.federated.core import Update
from tests.security.test_secure import circle
from tests.support.recipes import adapted, net, rows

COMPLETE = ("bayesfed/algorithms/wrappers/secure_sums",)
CLIENTS = rows()
WORK = bf.Training(steps=1, batch_size=8)
RANGE = {"participants": 4, "largest": 8.0, "heaviest": 20.0}
POINT = FixedPoint(32, 3, 2.0, 5.0, (("a", (2,)),), "value")


def avg(**changes):
    """Return FedAvg."""
    return bf.fed_avg(net(), training=WORK, **changes)


def secure(algorithm=None, **changes):
    """Take secure sums of a method."""
    return bf.secure(avg() if algorithm is None else algorithm, **{**RANGE, **changes})


def go(algorithm=None, sampler=bf.federated.everyone, **changes):
    """Run a round without masks."""
    algorithm = secure(algorithm, **{"masks": False, **changes})
    return bf.run(algorithm, CLIENTS, rounds=1, sampler=sampler, progress=False)


def private(**changes):
    """Return a private method."""
    given = {"clip": 1.0, "noise": 1.0, "participants": 4, "key": bf.Key(0), **changes}
    return bf.private(avg(), **given)


def at_client():
    """Return a private method whose clients clip."""
    return private(at_client=True)


def clipped(bits):
    """Clip to a norm that is small beside the steps of integers of 32 bits."""
    secure(private(clip=1e-4, at_client=True), bits=bits)


def rephased(change):
    """Run phases of a private method that `secure` did not make, or those that it made."""
    made = secure(private(at_client=True, delta=1e-5), masks=False)
    phases = tuple(replace(phase) if change else phase for phase in made.phases)
    bf.run(replace(made, phases=phases), CLIENTS, rounds=1, progress=False)


def stochastic():
    """Return a method in which clients hold what they are sent the changes of."""
    return bf.stc(net(), share=0.2, training=WORK)


def hetero():
    """Return HeteroFL of two sizes, of which only clients of the run have one."""
    return bf.hetero_fl([net(), bf.mlp([6, 4, 3, 3], bf.Key(0))], capacity(), training=WORK)


def capacity():
    """Return the sizes of the clients."""
    return bf.fixed(sorted(CLIENTS), 2)


def leaving_out():
    """Return a method that leaves out all but the clients of the run."""
    algorithm = avg()
    (phase,) = algorithm.phases

    def assign(state, round, profile, key):
        known = profile.name in CLIENTS
        return phase.assign(state, round, profile, key) if known else Skip("not of this run")

    return replace(algorithm, phases=(replace(phase, assign=assign),))


def viewed(other):
    """Return a method that sends clients of the run other leaves than in an example."""
    algorithm = avg()
    (phase,) = algorithm.phases

    def assign(state, round, profile, key):
        planned = phase.assign(state, round, profile, key)
        shapes = {name: tuple(leaf.shape) for name, leaf in bf.trees.parameters(net()).items()}
        changes = {"view": Slice(shapes, shapes)} if other and profile.name in CLIENTS else {}
        return replace(planned, **changes)

    return replace(algorithm, phases=(replace(phase, assign=assign),))


def opened(folder=None):
    """Let another process open a session."""
    name = Vault(folder).add("client-0").name
    with Vault(folder).opened("client-0", name):
        pass


def asked(leaf):
    """Ask a client for shares."""
    one, others = Session.fresh(), [Session.fresh() for _ in range(3)]
    rows = torch.stack(
        [torch.frombuffer(bytearray(two.public), dtype=torch.uint8) for two in others]
    )
    shares(one, {"neighbours": rows.to(leaf), "threshold": torch.tensor(2)})


def agreed(public):
    """Agree on a key."""
    Agreement(fresh(), "trial").key(public)


def drawn():
    """Return a public key that was drawn at random."""
    return Agreement(fresh(), "trial").public


def keyed(*keys):
    """Gather the keys of clients."""
    reducer = GatheredKeys()
    for name, pair in enumerate(keys):
        sent = torch.frombuffer(bytearray(pair), dtype=torch.uint8)
        reducer.add(str(name), Update({"keys": sent}, 1.0, "value"))


def shared(places, threshold=3, session=None):
    """Share the secrets of a session among others."""
    own = SESSIONS[0].model_copy() if session is None else session
    own.share([SESSIONS[place].public for place in places], threshold)


def masked(*questions):
    """Mask vectors of a session, one after another."""
    own = SESSIONS[0].model_copy()
    for number, flags in questions:
        own.mask(np.full(6, number, dtype=np.uint32), [flag == "1" for flag in flags], 32)


def unmasked(*questions):
    """Ask a session for shares, once it has masked."""
    own = SESSIONS[0].model_copy()
    own.mask(np.zeros(6, dtype=np.uint32), [True] * 4, 32)
    for active, dropped in questions:
        own.open(active, dropped, BOXES[0])


def lifted(dtype):
    """Read the answer of a client."""
    Letter({}, {"keys": (64,)}).lift({"keys": torch.zeros(64, dtype=dtype)}, 1.0, "value")


SESSIONS, BOXES = circle()
SERVER = "the server of this run, of the same version"
ONE, OTHER = Session.fresh().public, Session.fresh().public
CASES = [
    (
        lambda: secure(participants=10**6),
        "bits=64",
        lambda: secure(participants=10**6, bits=64),
    ),
    (
        lambda: POINT.encode({"a": torch.zeros(2)}, 6.0),
        "a larger heaviest",
        lambda: replace(POINT, heaviest=6.0).encode({"a": torch.zeros(2)}, 6.0),
    ),
    (
        lambda: POINT.encode({"a": torch.zeros(2)}, 6.0),
        "equal_weights(algorithm)",
        lambda: go(bf.equal_weights(avg()), heaviest=1.0),
    ),
    (lambda: go(largest=0.01), "a larger largest", lambda: go(largest=8.0)),
    (opened, "vault=FOLDER beside participants=", lambda: opened(tempfile.mkdtemp())),
    (lambda: asked(torch.int64), SERVER, lambda: asked(torch.uint8)),
    (lambda: agreed(bytes(32)), "a key pair that was drawn at random", lambda: agreed(drawn())),
    (
        lambda: secure(dropouts=0.6, colluding=0.4),
        "dropouts=0.3, colluding=0.1",
        lambda: secure(dropouts=0.3, colluding=0.1),
    ),
    (clipped, 32),
    (lambda: rephased(True), "`secure` as the last step", lambda: rephased(False)),
    (lambda: secure(secure()), "fed_avg", secure),
    (lambda: secure(secure()), "fed_prox", lambda: secure(bf.fed_prox(net(), strength=0.1))),
    (lambda: secure(secure()), "fed_lora", lambda: secure(bf.fed_lora(adapted()))),
    (
        lambda: secure(avg(link=OverTheAir(snr_db=20.0))),
        "Digital()",
        lambda: secure(avg(link=Digital())),
    ),
    (
        lambda: secure(avg(link=Digital(max_norm=3.0))),
        "Digital()",
        lambda: secure(avg(link=Digital())),
    ),
    (
        lambda: secure(avg(link=Digital(max_norm=3.0))),
        "private(..., at_client=True)",
        lambda: secure(at_client()),
    ),
    (lambda: secure(private()), "private(..., at_client=True)", lambda: secure(at_client())),
    (
        lambda: secure(bf.robust(avg(), Median())),
        "fed_avg, fed_prox, fed_lora, without robust(...)",
        secure,
    ),
    (
        lambda: secure(stochastic()),
        "a method that sends whole values, such as fed_avg",
        secure,
    ),
    (
        lambda: secure(hetero()),
        "profile=Profile('client-000', 100), of one of the run",
        lambda: secure(hetero(), profile=Profile("client-0", 12)),
    ),
    (
        lambda: secure(leaving_out()),
        "profile=Profile('client-000', 100), of one of the run",
        lambda: secure(leaving_out(), profile=Profile("client-0", 12)),
    ),
    (
        lambda: secure(bf.fed_paq(net())),
        "plain floats up, such as fed_avg(net) without a codec",
        secure,
    ),
    (
        lambda: secure(bf.fed_hm(net(), [1.0, 0.5], capacity()), profile=Profile("client-0", 12)),
        "hetero_fl",
        lambda: secure(hetero(), profile=Profile("client-0", 12)),
    ),
    (lambda: shared([1, 2, 3]), SERVER, lambda: shared([1, 2, 3, 4])),
    (
        lambda: shared([1, 1], 2, Session.fresh()),
        SERVER,
        lambda: shared([1, 2], 2, Session.fresh()),
    ),
    (
        lambda: shared([1, 2], 1, Session.fresh()),
        SERVER,
        lambda: shared([1, 2], 2, Session.fresh()),
    ),
    (lambda: masked((0, "1111"), (1, "1111")), SERVER, lambda: masked((0, "1111"), (0, "1111"))),
    (lambda: masked((0, "1100")), SERVER, lambda: masked((0, "1110"))),
    (
        lambda: unmasked(([0, 1, 2], [3]), ([0, 1, 3], [2])),
        SERVER,
        lambda: unmasked(([0, 1, 2], [3]), ([0, 1, 2], [3])),
    ),
    (lambda: unmasked(([0, 1, 2], [2, 3])), SERVER, lambda: unmasked(([0, 1, 2], [3]))),
    (lambda: unmasked(([0, 1], [2, 3])), SERVER, lambda: unmasked(([0, 1, 2], [3]))),
    (
        lambda: lifted(torch.int32),
        "bayesfed of the same version",
        lambda: lifted(torch.uint8),
    ),
    (
        lambda: go(viewed(True)),
        "a method whose clients send the same leaves",
        lambda: go(viewed(False)),
    ),
    (lambda: go(heaviest=10.0), "heaviest=12", lambda: go(heaviest=12)),
    (
        lambda: go(heaviest=10.0),
        "equal_weights(algorithm)",
        lambda: go(bf.equal_weights(avg()), heaviest=10.0),
    ),
    (lambda: go(participants=3), "participants=4", lambda: go(participants=4)),
    (
        lambda: go(participants=3),
        "a sampler of fewer",
        lambda: go(participants=3, sampler=fraction(0.5)),
    ),
    (lambda: keyed(ONE, ONE), "keys drawn at random", lambda: keyed(ONE, OTHER)),
]
