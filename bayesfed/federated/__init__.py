"""The round: seams, views, locals, servers, links, pools, the ledger and the one loop."""

from bayesfed.federated.accounting import epsilon
from bayesfed.federated.adaptation import Adapt
from bayesfed.federated.air import OverTheAir
from bayesfed.federated.buffers import Buffered, Buffers
from bayesfed.federated.callbacks import Callback, accuracy, early_stop, elbo, evaluate, evidence, keep, progress, score
from bayesfed.federated.cells import Cell
from bayesfed.federated.changes import equal_weights
from bayesfed.federated.checkpoint import checkpoint, load, newest, save
from bayesfed.federated.client import Reply, Task, answer
from bayesfed.federated.cohorts import Cohorts
from bayesfed.federated.costs import Load, RoundCost, device_rate, round_cost, work_cycles
from bayesfed.federated.devices import Device
from bayesfed.federated.divergence import aggregation_weight, aggregation_weights, divergence_bound
from bayesfed.federated.engine import Record, RoundReport, Snapshot, rounds
from bayesfed.federated.fleets import fleet, jetsons, uniform_range
from bayesfed.federated.holding import Holding
from bayesfed.federated.ledger import Row, bits, channel_uses, energy_j, latency_s, macs
from bayesfed.federated.links import Digital
from bayesfed.federated.locals import Adam, Descent, NaturalGradient, Optimiser, Sgd, constant, cosine, inverse
from bayesfed.federated.memories import ClientMemory, InFolder, Slot
from bayesfed.federated.merging import Merge, Merging
from bayesfed.federated.moments import BatchMoments, PooledStatistics
from bayesfed.federated.planning import Infeasible, Plan, plan
from bayesfed.federated.pools import ClientPool, InProcess
from bayesfed.federated.power import ChannelInversion, Gbma
from bayesfed.federated.privacy import private
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
    Skip,
    View,
)
from bayesfed.federated.records import untimed
from bayesfed.federated.riemannian import Retract, RiemannianSgd
from bayesfed.federated.robustness import Rule, robust
from bayesfed.federated.rules import Median, TrimmedMean
from bayesfed.federated.samplers import Sampler, decaying, everyone, fraction, in_turn
from bayesfed.federated.selecting import Krum, NormGate
from bayesfed.federated.sensing import Compressed
from bayesfed.federated.servers import Add, Average, Sorted
from bayesfed.federated.sizes import Capacity, Sized, by_device, dynamic, fixed
from bayesfed.federated.sketch import Sketched, Slices
from bayesfed.federated.sketched_svi import SketchedSvi
from bayesfed.federated.stacking import Refactored, Stack, Unlike
from bayesfed.federated.ternary_step import TernaryStep
from bayesfed.federated.transmissions import Factors, Points, Tangents
from bayesfed.federated.turbo_step import TurboStep, ramp
from bayesfed.federated.update import Keep, Kind, Reducer, Sum, Update
from bayesfed.federated.views import Active, Kept, Slice, Whole
from bayesfed.federated.workloads import Planned, Planner, on_devices, planned_size

__all__ = [
    "Active",
    "Adam",
    "Adapt",
    "Add",
    "Algorithm",
    "Arrival",
    "Assignment",
    "Average",
    "BatchMoments",
    "Buffered",
    "Buffers",
    "Callback",
    "Capacity",
    "Cell",
    "ChannelInversion",
    "ClientMemory",
    "ClientPool",
    "Cohorts",
    "Compressed",
    "Descent",
    "Device",
    "Digital",
    "Factors",
    "Fit",
    "Gbma",
    "Holding",
    "InFolder",
    "InProcess",
    "Infeasible",
    "Keep",
    "Kept",
    "Kind",
    "Krum",
    "Link",
    "Load",
    "Local",
    "Median",
    "Merge",
    "Merging",
    "Model",
    "NaturalGradient",
    "NormGate",
    "Optimiser",
    "OverTheAir",
    "Phase",
    "Plan",
    "Planned",
    "Planner",
    "Points",
    "PooledStatistics",
    "Posterior",
    "Predictor",
    "Profile",
    "Record",
    "Reducer",
    "Refactored",
    "Reply",
    "Retract",
    "RiemannianSgd",
    "RoundCost",
    "RoundReport",
    "Row",
    "Rule",
    "Sampler",
    "Server",
    "Sgd",
    "Sized",
    "Sketched",
    "SketchedSvi",
    "Skip",
    "Slice",
    "Slices",
    "Slot",
    "Snapshot",
    "Sorted",
    "Stack",
    "Sum",
    "Tangents",
    "Task",
    "TernaryStep",
    "TrimmedMean",
    "TurboStep",
    "Unlike",
    "Update",
    "View",
    "Whole",
    "accuracy",
    "aggregation_weight",
    "aggregation_weights",
    "answer",
    "bits",
    "by_device",
    "channel_uses",
    "checkpoint",
    "constant",
    "cosine",
    "decaying",
    "device_rate",
    "divergence_bound",
    "dynamic",
    "early_stop",
    "elbo",
    "energy_j",
    "epsilon",
    "equal_weights",
    "evaluate",
    "everyone",
    "evidence",
    "fixed",
    "fleet",
    "fraction",
    "in_turn",
    "inverse",
    "jetsons",
    "keep",
    "latency_s",
    "load",
    "macs",
    "newest",
    "on_devices",
    "plan",
    "planned_size",
    "private",
    "progress",
    "ramp",
    "robust",
    "round_cost",
    "rounds",
    "save",
    "score",
    "uniform_range",
    "untimed",
    "work_cycles",
]
