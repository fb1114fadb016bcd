"""From the tables of a file to Python values: a table is checked against a signature, and the
callable is called with it.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from bayesfed.data.partition import Partition
from bayesfed.errors import BayesfedError
from bayesfed.errors.nearness import nearest
from bayesfed.keys import Key
from bayesfed.models import Likelihood, Share, channel_graph, shrunk_shares
from bayesfed.running.experiments import names, own, words
from bayesfed.running.experiments.experiment import ExperimentError, ExperimentFile, Place, Settings
from bayesfed.running.experiments.kinds import (
    LISTS,
    MAPPINGS,
    Kinds,
    forms,
    guides,
    implied,
    keys,
    kinds_of,
    said,
)
from bayesfed.running.experiments.scope import MISSING, Scope, given


class Misfit(Exception):
    """A value in a file that is not of the type that belongs there."""

    def __init__(self, path: Place, hint: Any, raw: Any) -> None:
        self.path, self.hint, self.raw = path, hint, raw


def _misfits(made_by: Any, table: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many keys of a table a callable does not know, and how many it lacks."""
    return len(table.keys() - keys(made_by)), len({*names.required(made_by)} - table.keys())


class Reader:
    """Reader of the values of an experiment file.

    Raises
    ------
    ExperimentError
        If keys at the top of the file are unknown or wrong.
    """

    def __init__(self, file: ExperimentFile, scope: Scope) -> None:
        self.file, self.scope = file, scope
        self._check_keys(Settings, file.tree, (), list(keys(Settings)))

    def section(self, name: str) -> Any:
        """Return the value of a key at the top, or its default.

        Raises
        ------
        ExperimentError
            If it is missing, or cannot be made.
        """
        if name in self.file.tree:
            return self._read(keys(Settings)[name], self.file.tree[name], (name,))
        default = names.parameters(Settings)[name].default
        if default is inspect.Parameter.empty:
            raise self._missing(name, Settings, ())
        return {} if repr(default) == "<factory>" else default

    def call(
        self,
        made_by: Callable[..., Any],
        table: Mapping[str, Any],
        path: Place,
        *,
        left: tuple[str, ...] = (),
    ) -> Any:
        """Call a callable with the keys of a table and what the run knows; with parameters `left`
        open, return it as a function that takes these by name.

        Raises
        ------
        ExperimentError
            If keys are unknown, missing or wrong, or the callable refuses its arguments.
        """
        self._check_keys(made_by, table, path, [one for one in keys(made_by) if one not in left])
        arguments = dict[str, Any]()
        # The likelihood first: what the run works out for other arguments may depend on it.
        for name, one in sorted(
            names.parameters(made_by).items(), key=lambda pair: pair[0] != "likelihood"
        ):
            value = MISSING if name in left else self._argument(name, one, table, path)
            if value is not MISSING:
                arguments[name] = value
            elif one.default is one.empty and name not in left:
                raise self._missing(name, made_by, path)
        if left:
            return partial(made_by, **arguments)
        with self._told(path, getattr(made_by, "__name__", "")):
            return made_by(**arguments)

    def _check_keys(
        self, made_by: Any, table: Mapping[str, Any], path: Place, known: Sequence[str]
    ) -> None:
        for name in table:
            if name not in known:
                parts = words.unknown(name, made_by, known, self.file.tree)
                raise self.file.error((*path, name), *parts)

    def _read(self, hint: Any, raw: Any, path: Place) -> Any:
        """Return what a file says as a value of a type; what is named in it is made."""
        try:
            return self._value(hint, raw, path)
        except Misfit as problem:
            raise self.file.error(problem.path, *words.wrong(problem.hint, problem.raw)) from None

    def _value(self, hint: Any, raw: Any, path: Place) -> Any:
        if raw == "none" and type(None) in names.members(hint):
            return None
        misfits = [Misfit(path, hint, raw)]
        for form in forms(hint):
            try:
                return self._of_form(form, raw, path)
            except Misfit as problem:
                misfits.append(problem)
        # The member of a union that got deepest into the value is meant.
        raise max(misfits, key=lambda one: len(one.path))

    def _of_form(self, form: Any, raw: Any, path: Place) -> Any:
        origin, inner = typing.get_origin(form), typing.get_args(form)
        if form is Any or (origin is Literal and raw in inner):
            return raw
        if form is Path and isinstance(raw, str):
            beside = self.file.path.parent / Path(raw).expanduser()
            return beside if beside.exists() else raw
        if type(raw) is form or (form is float and type(raw) is int):
            return form(raw)
        if isinstance(form, dict) and isinstance(raw, str | dict):
            return self._made(raw, form, path)
        if (
            isinstance(raw, dict)
            and origin in MAPPINGS
            and (inner[0] is str or all(map(str.isdecimal, raw)))
        ):
            key = inner[0]
            return {key(at): self._value(inner[1], one, (*path, at)) for at, one in raw.items()}
        if isinstance(raw, list) and origin in LISTS:
            each = (inner[0],) * len(raw) if origin is not tuple or ... in inner else inner
            if len(each) == len(raw):
                read = (self._value(each[i], one, (*path, i)) for i, one in enumerate(raw))
                return tuple(read) if origin is tuple else list(read)
        raise Misfit(path, form, raw)

    def _made(self, raw: Any, kinds: Kinds, path: Place) -> Any:
        made_by, table, kind = self._chosen(raw, kinds, path)
        if kind in kinds and names.is_itself(made_by, kinds[kind][1]):
            self._check_keys(made_by, table, path, ())
            return made_by
        value = self.call(made_by, table, path)
        if own.is_own(kind) and not any(names.fits(value, hint) for _, hint in kinds.values()):
            expected = " or ".join(dict.fromkeys(names.shown(hint) for _, hint in kinds.values()))
            raise self.file.error(
                path,
                f"{expected} from {kind}",
                words.shown(value),
                f"a function that returns {expected}",
            )
        return value

    def _chosen(self, raw: Any, kinds: Kinds, path: Place) -> tuple[Any, dict[str, Any], str]:
        """Return what ``kind`` names, the rest of the table, and the name."""
        listed = ", ".join(kinds)
        table = {"kind": raw} if isinstance(raw, str) else dict(raw)
        at = (*path, "kind") if isinstance(raw, dict) and "kind" in raw else path
        kind = table.pop("kind", next(iter(kinds)) if len(kinds) == 1 else None)
        if kind is None:
            near = min(kinds, key=lambda one: _misfits(kinds[one][0], table))
            raise self.file.error(
                at, f'kind = "...", one of {listed}', "no `kind`", f'kind = "{near}"'
            )
        if own.is_own(kind):
            with self._told(at):
                return own.load(kind, self.file.path.parent), table, kind
        if not isinstance(kind, str) or kind not in kinds:
            near = nearest(str(kind), kinds)
            hint = f'"{near}"' if near else "`bayesfed list`"
            if kind in list(names.public()):
                hint = f"one of these; {kind} is for another place, or for Python alone"
            raise self.file.error(at, f"one of {listed}", words.shown(kind), hint)
        return kinds[kind][0], table, kind

    def _argument(
        self, name: str, one: inspect.Parameter, table: Mapping[str, Any], path: Place
    ) -> Any:
        hint, optional, at = one.annotation, one.default is not one.empty, (*path, name)
        if name not in table:
            with self._told(path):
                known = given(self.scope, name, hint, path, optional=optional)
            way = implied(name, hint) if known is MISSING and not optional else None
            return self.call(way, {}, at) if way else known
        value = self._read(said(name, hint) or hint, table[name], at)
        if said(name, hint) and name != "model":
            with self._told(at):
                value = getattr(self, f"_{name}")(value, at)
        if isinstance(value, list | tuple) and name in ("ratios", "ranks", "nets", "nets_of"):
            self.scope.sizes = len(value)
        if Likelihood in names.members(hint):
            self.scope.likelihood = value
        return value

    # Parameters that a file writes in another way, those of `kinds.said`.

    def _sizes(self, alphas: list[float], path: Place) -> tuple[Share, ...]:
        net, sample = self.scope.network, self.scope.train.inputs[:1]
        return tuple(shrunk_shares(net, channel_graph(net, sample), sample, alphas))

    def _open(self, raw: Any, kinds: Kinds, left: tuple[str, ...], path: Place) -> Any:
        chosen, table, _ = self._chosen(raw, kinds, path)
        return self.call(chosen, table, path, left=left)

    def _split(self, raw: Any, path: Place) -> Callable[[Tensor, Key], Partition]:
        """Return a partition of a domain's rows: it takes their number, or their classes."""
        kinds = kinds_of(Partition)
        if "labels" in names.parameters(self._chosen(raw, kinds, path)[0]):
            made, labels = self._open(raw, kinds, ("labels", "key"), path), self.scope.labels
            return lambda rows, key: made(labels=labels[rows], key=key)
        made = self._open(raw, kinds, ("rows", "key"), path)
        return lambda rows, key: made(rows=len(rows), key=key)

    def _guide(self, raw: Any, path: Place) -> Any:
        return self._open(raw, guides(), ("model",), path)

    def _make(self, raw: Any, path: Place) -> Any:
        nets = kinds_of(nn.Module).items()
        kinds = {name: pair for name, pair in nets if "key" in names.parameters(pair[0])}
        made = self._open(raw, kinds, ("key",), path)
        return lambda key: made(key=key)

    # What is wrong, in the words of a file.

    @contextmanager
    def _told(self, path: Place, made_by: str = "") -> Iterator[None]:
        """Add the place in the file to errors; of a callable, to whatever it raises."""
        try:
            yield
        except ExperimentError:
            raise
        except BayesfedError as problem:
            told = problem.complaint
            hint = words.in_a_file(told.hint) if made_by and told else ""
            if hint and isinstance(problem.__cause__, FileNotFoundError):
                hint += (
                    f"; paths begin at the folder of {self.file.path.name}, or where the "
                    "command is run"
                )
            raise self.file.error(path, hint=hint, problem=problem) from problem
        except Exception as problem:
            if not made_by:
                raise
            raise self.file.error(
                path,
                "arguments that fit together",
                f"{type(problem).__name__}: {problem}",
                f"bayesfed list {made_by}"
                if made_by in names.public()
                else f"other arguments of {made_by}",
            ) from problem

    def _missing(self, name: str, made_by: Any, path: Place) -> ExperimentError:
        return self.file.error((*path, name), *words.missing(name, made_by))
