"""Snapshots of 0.2, whose leaves had no owners: `migrated` gives them the names that they have now.

A leaf of the state is found by what it was called before, from what the method's first state has:
``exchange/residual/mean/1.weight`` was ``1.weight.mean.residual``. A leaf of a memory is named anew
from the prefix that it had and from the leaves of the state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from bayesfed.errors import ArgumentError
from bayesfed.federated.core import Algorithm
from bayesfed.federated.engine.reports import Snapshot
from bayesfed.trees import Tree

# Kinds that were at the end of a name, with a dot; and leaves that had no kind.
_LAST = (
    *("mean", "sd", "support", "inclusion", "prior", "log_odds", "h", "precision", "rho"),
    *("before", "evidence", "messages", "prior_log_odds", "transitions"),
)
_BARE = ("model", "point", "run", "shared", "value")
# Prefixes of leaves of owners that had others.
_WAS = {"clients": "fed_be", "networks": "beta/network", "laplace/block": "laplace"}
# Leaves that a state has only after its first round: those of `fed_stack_lora`.
_GROWN = ("stack/", "delta/", "optimiser/")
# Settings that have kept their names.
_SAME = ("clients", "rows of clients", "sampler")


def kept(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that are comparable with those of 0.2."""
    return {name: text for name, text in settings.items() if name.partition(".")[0] in _SAME}


def migrated(snapshot: Snapshot, algorithm: Algorithm) -> Snapshot:
    """Return a snapshot of 0.2 with the names of leaves of now; of its settings, those that have
    kept their names.

    Raises
    ------
    ArgumentError
        If a leaf of the state is missing or left over, or answers are in flight.
    """
    old, found = dict(snapshot.state), dict[str, str]()
    for name in sorted(algorithm.initial, key=lambda name: name.startswith(_BARE)):
        was = next((was for was in _before(name) if was in old and was not in found), None)
        if was is None:
            raise _refused(f"no leaf that is {name!r} now")
        found[was] = name
    found |= {was: _grown(was) for was in old if was not in found and was.startswith(_GROWN)}
    if unknown := sorted(set(old) - set(found)):
        raise _refused(f"leaves {unknown} that are not of this method")
    if snapshot.in_flight:
        raise _refused("answers in flight")
    layers = {layer.owner for phase in algorithm.phases for layer in phase.layers}
    cores = {phase.owner for phase in algorithm.phases}
    core = f"{cores.pop()}/" if len(cores) == 1 else ""
    plain = {was: now.removeprefix(core) for was, now in found.items()}

    def renamed(memory: Mapping[str, object]) -> Iterator[tuple[str, str]]:
        for was in memory:
            head, _, rest = was.partition("/")
            if head in ("held", "feedback") and {"exchange", head} & layers:
                owner = "exchange" if "exchange" in layers else head
                kind = "held" if head == "held" else "error"
                yield was, f"{owner}/{kind}/{_after(rest, plain)}"
            elif head in layers:
                yield was, f"{head}/{_after(rest, plain)}"
            else:
                yield was, f"{core.lstrip('/')}{_after(was, plain)}"

    memories = {
        client: Tree({now: memory[was] for was, now in renamed(memory)})
        for client, memory in snapshot.memories.items()
    }
    state = {now: old[was] for was, now in found.items()}
    return replace(snapshot, state=state, memories=memories, settings=kept(snapshot.settings))


def _before(name: str) -> Iterator[str]:
    """Yield what a leaf of the state may have been called."""
    yield name
    head, _, rest = name.partition("/")
    kind, _, last = rest.partition("/")
    if head.startswith("member "):
        yield from (f"{head}/{was}" for was in _before(rest))
    elif head == "exchange":
        suffix = kind.replace("sum-", "sum-of-last-")
        yield from (f"{was}.{suffix}" for was in _before(last))
    elif head in ("svd", "stack"):
        yield f"{head}/{last}/{kind}"
    elif head in _BARE:
        yield from _before(rest)
    elif head in _LAST:
        yield f"{rest}.{head}"
    for now, was in _WAS.items():
        if name.startswith(f"{now}/"):
            yield f"{was}/{name.removeprefix(f'{now}/')}"


def _grown(was: str) -> str:
    head, _, rest = was.partition("/")
    name, _, kind = rest.rpartition("/")
    return (
        f"stack/{kind}/{name}" if head == "stack" else was.replace("optimiser/m/delta", "velocity")
    )


def _after(was: str, plain: Mapping[str, str]) -> str:
    """Return what a leaf of a memory is called now, without its owner, given names of the state."""
    if was in plain:
        return plain[was]
    if was in ("nll", "scores", "temperature"):
        return f"run/{was}"
    if was == "sd":
        return "shared/sd"
    name, _, kind = was.rpartition(".")
    if name and kind in _LAST:
        head, slash, rest = name.rpartition("/")
        return f"{head}{slash}{kind}/{rest}"
    head, slash, rest = was.partition("/")
    return f"{head}/{_after(rest, plain)}" if slash and rest in plain else was


def _refused(actual: str) -> ArgumentError:
    return ArgumentError("resume", "a snapshot of 0.2 of this method", actual, "a new run")
