"""What `federated_svi` makes of its arguments: the local work where none is given, and checks of a
fusion rule.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

from bayesfed.algorithms.federated_svi.local import Elbo
from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.federated import Ivon, NaturalGradient, Training, inverse
from bayesfed.federated.training.local_work import check_own_steps
from bayesfed.inference.exact.form import check_one_tensor
from bayesfed.inference.variational import FittedGuide, Fusion, FusionKind, Runs
from bayesfed.models import BayesianNet


def work_of(training: Training | None, network: bool, fusion: Fusion | None) -> Training:
    """Return the local work, with the optimiser that suits model and rule where none is given."""
    work = training or (Training() if network else Training(batch_size=None))
    check_own_steps(work, "federated_svi")
    if work.optimiser is not None:
        return work
    # A falling rate averages the noise of the draws out over rounds.
    if network and (fusion is None or fusion.kind != "gradient"):
        return replace(work, optimiser=Ivon(), schedule=work.schedule if training else inverse(5))
    if fusion is None:
        return replace(
            work,
            optimiser=NaturalGradient(0.1),
            schedule=work.schedule if training else inverse(10),
        )
    return work


def check_fusion(fusion: Any) -> None:
    """Raise `ArgumentError` unless `fusion` has all that `Fusion` asks for, and a kind that the
    round knows, or None.
    """
    if fusion is None:
        return
    where = "federated_svi, fusion"
    if isinstance(fusion, type):
        actual = f"the class {fusion.__name__}"
        raise ArgumentError(where, "a fusion rule", actual, f"an instance, {fusion.__name__}()")
    lacks = [name for name in vars(Fusion) if not (name.startswith("_") or hasattr(fusion, name))]
    if lacks and lacks != ["kind"]:
        actual = f"{fusion!r}, which has no {', '.join(lacks)}"
        raise ArgumentError(
            where, "a fusion rule", actual, "PVI(damping=0.3), or SummedGradients()"
        )
    kinds = get_args(FusionKind)
    if lacks or fusion.kind not in kinds:
        actual = "none" if lacks else repr(fusion.kind)
        hint = f"""kind = "value" in {type(fusion).__name__}, if payloads are parameters"""
        raise ArgumentError(
            f"{where}, kind", f"what payloads mean, one of {list(kinds)}", actual, hint
        )


def check_suited(fusion: Fusion, scale: str, ivon: Ivon | None, elbo: Elbo | None) -> None:
    """Raise `ArgumentError` unless the optimiser suits the bound, and the scale the rule."""
    if ivon and elbo is not None:
        raise ArgumentError(
            "federated_svi, elbo", "none with Ivon", type(elbo).__name__, "NaturalGradient(0.1)"
        )
    if fusion.adds and scale != "local":
        raise ArgumentError(
            f"federated_svi, {type(fusion).__name__}",
            "scale 'local': it adds clients up",
            "'global', which would count every row once a client",
            "scale='local'",
        )


def exampled(example: Dataset | None, large: bool, model: Runs) -> Dataset:
    """Return the example, which a guide's fit needs, and a large network's default guide with N."""
    if example is not None:
        if not isinstance(model, BayesianNet):
            check_one_tensor(example)
        return example
    hint = "example=train[:2]; or the model alone"
    if large:
        hint = "example=train[:2], observations=the number of rows of all clients"
    raise ArgumentError("federated_svi", "an example for a guide's fit", "none", hint)


def unguarded(guide: Runs | FittedGuide | None, **given: object) -> Runs | None:
    """Return the guide; raise `ArgumentError` if it is fitted already, or what guards sites of a
    model alone is given to its fit.
    """
    if isinstance(guide, FittedGuide):
        hint = "the model and this posterior alone"
        raise ArgumentError("federated_svi, guide", "a guide to fit", "a fitted one", hint)
    for name, value in given.items():
        if value is not None:
            hint = f"leaving out {name}, or guide, fusion and training"
            raise ArgumentError(f"federated_svi, {name}", "a model alone", value, hint)
    return guide
