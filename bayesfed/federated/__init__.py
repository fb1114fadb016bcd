"""The round: seams, views, locals, servers, links, pools, the ledger and the one loop."""

from bayesfed.federated.callbacks import Callback, accuracy, early_stop, elbo, evaluate, evidence, keep, progress, score
from bayesfed.federated.checkpoint import checkpoint, load, save
from bayesfed.federated.client import Reply, Task, answer
from bayesfed.federated.engine import Record, RoundReport, Snapshot, rounds
from bayesfed.federated.holding import Holding
from bayesfed.federated.ledger import Row, bits
from bayesfed.federated.links import Digital
from bayesfed.federated.locals import Adam, Descent, NaturalGradient, Optimiser, Sgd, constant, cosine, inverse
from bayesfed.federated.pools import ClientPool, InProcess
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
from bayesfed.federated.samplers import Sampler, decaying, everyone, fraction, in_turn
from bayesfed.federated.servers import Add, Average
from bayesfed.federated.ternary_step import TernaryStep
from bayesfed.federated.turbo_step import TurboStep, ramp
from bayesfed.federated.update import Keep, Kind, Reducer, Sum, Update
from bayesfed.federated.views import Active, Whole

__all__ = [
    "Active",
    "Adam",
    "Add",
    "Algorithm",
    "Arrival",
    "Assignment",
    "Average",
    "Callback",
    "ClientPool",
    "Descent",
    "Digital",
    "Fit",
    "Holding",
    "InProcess",
    "Keep",
    "Kind",
    "Link",
    "Local",
    "Model",
    "NaturalGradient",
    "Optimiser",
    "Phase",
    "Posterior",
    "Predictor",
    "Profile",
    "Record",
    "Reducer",
    "Reply",
    "RoundReport",
    "Row",
    "Sampler",
    "Server",
    "Sgd",
    "Snapshot",
    "Sum",
    "Task",
    "TernaryStep",
    "TurboStep",
    "Update",
    "View",
    "Whole",
    "accuracy",
    "answer",
    "bits",
    "checkpoint",
    "constant",
    "cosine",
    "decaying",
    "early_stop",
    "elbo",
    "evaluate",
    "everyone",
    "evidence",
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
