"""The round of federated learning and its seams, without any particular method.

From the lowest floor to the highest: `core` (the seams, as protocols and values); `aggregation` and
`training` (what servers and clients do); `links` (how payloads travel); `clients` (where clients
live); `engine` (the only round loop, its gate, ledger and checkpoints).
"""

import importlib

import lazy_loader

_own, _, __all__ = lazy_loader.attach_stub(__name__, __file__)

# Names that moved to the rooms of their methods or of the radio; they can still be imported from
# here.
_MOVED = {
    "bayesfed.algorithms.anycost_fl": [
        "aggregation_weight",
        "aggregation_weights",
        "divergence_bound",
    ],
    "bayesfed.algorithms.after_training.batch_statistics": ["BatchMoments", "PooledStatistics"],
    "bayesfed.algorithms.d_turbo_vbi": ["TurboStep", "ramp"],
    "bayesfed.algorithms.fed_rlr": [
        "Adapt",
        "Factors",
        "Points",
        "Retract",
        "RiemannianSgd",
        "Tangents",
    ],
    "bayesfed.algorithms.lora": [
        "Merge",
        "Merging",
        "Refactored",
        "SketchedSvi",
        "Sketched",
        "Slices",
        "Stack",
        "Unlike",
    ],
    "bayesfed.algorithms.wrappers": [
        "Planned",
        "Planner",
        "epsilon",
        "equal_weights",
        "on_devices",
        "planned_size",
        "private",
        "robust",
    ],
    "bayesfed.wireless": [
        "ChannelInversion",
        "Device",
        "Gbma",
        "Infeasible",
        "Load",
        "Plan",
        "RoundCost",
        "device_rate",
        "fleet",
        "plan",
        "round_cost",
        "work_cycles",
    ],
}
_HOME = {name: home for home, names in _MOVED.items() for name in names}


def __getattr__(name: str) -> object:
    return getattr(importlib.import_module(_HOME[name]), name) if name in _HOME else _own(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
