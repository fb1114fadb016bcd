"""The round: seams, views, locals, servers, links, pools, the ledger and the one loop."""

from bayesfed.federated.adaptation import Adapt
from bayesfed.federated.air import OverTheAir
from bayesfed.federated.callbacks import Callback, accuracy, early_stop, elbo, evaluate, evidence, keep, progress, score
from bayesfed.federated.checkpoint import checkpoint, load, save
from bayesfed.federated.client import Reply, Task, answer
from bayesfed.federated.engine import Record, RoundReport, Snapshot, rounds
from bayesfed.federated.holding import Holding
from bayesfed.federated.ledger import Row, bits
from bayesfed.federated.links import Digital
from bayesfed.federated.locals import Adam, Descent, NaturalGradient, Optimiser, Sgd, constant, cosine, inverse
from bayesfed.federated.pools import ClientPool, InProcess
from bayesfed.federated.power import ChannelInversion, Gbma
from bayesfed.federated.protocols import (
    Algorithm,
    Arrival,
    Assignment,
    Fit,
    Link,
    Local,
    Model,
    Phase,
    Posterior,
    Predictor,
    Profile,
    Server,
    View,
)
from bayesfed.federated.riemannian import Retract, RiemannianSgd
from bayesfed.federated.samplers import Sampler, decaying, everyone, fraction, in_turn
from bayesfed.federated.sensing import Compressed
from bayesfed.federated.servers import Add, Average
from bayesfed.federated.sizes import Capacity, Sized, by_device, dynamic, fixed
from bayesfed.federated.ternary_step import TernaryStep
from bayesfed.federated.transmissions import Factors, Points, Tangents
from bayesfed.federated.turbo_step import TurboStep, ramp
from bayesfed.federated.update import Keep, Kind, Reducer, Sum, Update
from bayesfed.federated.views import Active, Whole

__all__ = [
    "Active",
    "Adam",
    "Adapt",
    "Add",
    "Algorithm",
    "Arrival",
    "Assignment",
    "Average",
    "Callback",
    "Capacity",
    "ChannelInversion",
    "ClientPool",
    "Compressed",
    "Descent",
    "Digital",
    "Factors",
    "Fit",
    "Gbma",
    "Holding",
    "InProcess",
    "Keep",
    "Kind",
    "Link",
    "Local",
    "Model",
    "NaturalGradient",
    "Optimiser",
    "OverTheAir",
    "Phase",
    "Points",
    "Posterior",
    "Predictor",
    "Profile",
    "Record",
    "Reducer",
    "Reply",
    "Retract",
    "RiemannianSgd",
    "RoundReport",
    "Row",
    "Sampler",
    "Server",
    "Sgd",
    "Sized",
    "Snapshot",
    "Sum",
    "Tangents",
    "Task",
    "TernaryStep",
    "TurboStep",
    "Update",
    "View",
    "Whole",
    "accuracy",
    "answer",
    "bits",
    "by_device",
    "checkpoint",
    "constant",
    "cosine",
    "decaying",
    "dynamic",
    "early_stop",
    "elbo",
    "evaluate",
    "everyone",
    "evidence",
    "fixed",
    "fraction",
    "in_turn",
    "inverse",
    "keep",
    "load",
    "progress",
    "ramp",
    "rounds",
    "save",
    "score",
]
