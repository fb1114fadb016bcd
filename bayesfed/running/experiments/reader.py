"""From the tables of a file to Python values: pydantic checks a table against a signature, and the
callable is called with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from pydantic import ValidationError
from torch import Tensor, nn

from bayesfed.data.partition import Partition
from bayesfed.errors import BayesfedError
from bayesfed.keys import Key
from bayesfed.models import BayesianNet, Likelihood, Share, channel_graph, shrunk_shares
from bayesfed.running.experiments import names, own, words
from bayesfed.running.experiments.experiment import ExperimentError, ExperimentFile, Place, Settings
from bayesfed.running.experiments.kinds import (
    Table,
    guides,
    implied,
    keys,
    kinds_of,
    reader_of,
    said,
)
from bayesfed.running.experiments.scope import MISSING, Scope, given

Kinds = Mapping[str, tuple[Any, Any]]


class Reader:
    """Reader of the values of an experiment file.

    Raises
    ------
    ExperimentError
        If keys at the top of the file are unknown or wrong.
    """

    def __init__(self, file: ExperimentFile, scope: Scope) -> None:
        self.file, self.scope = file, scope
        self.top = self._checked(Settings, file.tree, (), ())

    def section(self, name: str) -> Any:
        """Return the value of a key at the top, or its default.

        Raises
        ------
        ExperimentError
            If it is missing, or cannot be made.
        """
        if name in self.top:
            return self._value(self.top[name], (name,))
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
        open, return it as a function of these.

        Raises
        ------
        ExperimentError
            If keys are unknown, missing or wrong, or the callable refuses its arguments.
        """
        checked, arguments = self._checked(made_by, table, path, left), dict[str, Any]()
        # The likelihood first: what the run works out for other arguments may depend on it.
        for name, one in sorted(
            names.parameters(made_by).items(), key=lambda pair: pair[0] != "likelihood"
        ):
            value = MISSING if name in left else self._argument(name, one, checked, path)
            if value is not MISSING:
                arguments[name] = value
            elif one.default is one.empty and name not in left:
                raise self._missing(name, made_by, path)
        if left:
            first = [*names.parameters(made_by)][: len(left)] == list(left)
            return (
                partial(made_by, **arguments)
                if first
                else lambda *rest: made_by(**arguments, **dict(zip(left, rest, strict=True)))
            )
        with self._told(path, getattr(made_by, "__name__", "")):
            return made_by(**arguments)

    def _checked(
        self, made_by: Any, table: Mapping[str, Any], path: Place, left: tuple[str, ...]
    ) -> dict[str, Any]:
        """Return the arguments that a table has for a callable; what is named by ``kind`` is not
        made yet.
        """
        reader = reader_of(made_by, left)
        try:
            return reader.validate_python(dict(table), context=self.file.path.parent)
        except ValidationError as problem:
            errors = problem.errors(include_url=False)
        if unknown := [
            str(error["loc"][0]) for error in errors if error["type"] == "extra_forbidden"
        ]:
            known = [one for one in keys(made_by) if one not in left]
            parts = words.unknown(unknown[0], made_by, known, self.file.tree)
            raise self.file.error((*path, unknown[0]), *parts)
        at, parts = words.wrong(reader.json_schema()["properties"], errors, table)
        raise self.file.error((*path, *at), *parts)

    def _value(self, checked: Any, path: Place) -> Any:
        """Return a checked value with everything made that is named in it."""
        if isinstance(checked, Table):
            return self._made(checked.raw, checked.kinds, path)
        if isinstance(checked, dict):
            return {name: self._value(one, (*path, name)) for name, one in checked.items()}
        if isinstance(checked, list | tuple):
            return type(checked)(
                self._value(one, (*path, place)) for place, one in enumerate(checked)
            )
        return checked

    def _made(self, raw: Any, kinds: Kinds, path: Place) -> Any:
        made_by, table, kind = self._chosen(raw, kinds, path)
        if kind in kinds and names.is_itself(made_by, kinds[kind][1]):
            if table:
                raise self.file.error(
                    (*path, next(iter(table))),
                    f"{kind} without keys",
                    list(table),
                    f'"{kind}"',
                )
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
        listed, first = ", ".join(kinds), next(iter(kinds))
        table = {"kind": raw} if isinstance(raw, str) else dict(raw)
        at = (*path, "kind") if isinstance(raw, dict) and "kind" in raw else path
        kind = table.pop("kind", first if len(kinds) == 1 else None)
        if kind is None:
            raise self.file.error(
                at,
                f'kind = "...", one of {listed}',
                "no `kind`",
                f'kind = "{first}"',
            )
        if own.is_own(kind):
            with self._told(at):
                return own.load(kind, self.file.path.parent), table, kind
        if not isinstance(kind, str) or kind not in kinds:
            near, python = (
                words.nearest(str(kind), kinds),
                isinstance(kind, str) and kind in names.public(),
            )
            hint = (
                f"one of these; {kind} is for another place, or for Python alone"
                if python
                else f'"{near}"'
                if near
                else "`bayesfed list`"
            )
            raise self.file.error(at, f"one of {listed}", words.shown(kind), hint)
        return kinds[kind][0], table, kind

    def _argument(
        self, name: str, one: inspect.Parameter, checked: Mapping[str, Any], path: Place
    ) -> Any:
        hint, optional, at = one.annotation, one.default is not one.empty, (*path, name)
        if name not in checked:
            with self._told(path):
                known = given(self.scope, name, hint, path, optional=optional)
            way = implied(name, hint) if known is MISSING and not optional else None
            return self.call(way, {}, at) if way else known
        value = self._value(checked[name], at)
        if said(name, hint):
            with self._told(at):
                value = getattr(self, f"_{name}")(value, at)
        if isinstance(value, list | tuple) and name in ("ratios", "ranks", "nets", "nets_of"):
            self.scope.sizes = len(value)
        if Likelihood in names.members(hint):
            self.scope.likelihood = value
        return value

    # Parameters that a file writes in another way, `kinds.SAID`.

    def _sizes(self, alphas: list[float], path: Place) -> tuple[Share, ...]:
        self.scope.used.add("net")
        net, sample = self.scope.network, self.scope.rows.inputs[:1]
        return tuple(shrunk_shares(net, channel_graph(net, sample), sample, alphas))

    def _split(self, raw: Any, path: Place) -> Callable[[Tensor, Key], Partition]:
        """Return a partition of a domain's rows: it takes their number, or their classes."""
        chosen, table, _ = self._chosen(raw, kinds_of(Partition), path)
        by_class = "labels" in names.parameters(chosen)
        made, labels = (
            self.call(chosen, table, path, left=("labels" if by_class else "rows", "key")),
            self.scope.labels if by_class else None,
        )
        return lambda rows, key: made(len(rows) if labels is None else labels[rows], key)

    def _guide(self, raw: Any, path: Place) -> Any:
        chosen, table, _ = self._chosen(
            raw, {name: (one, object) for name, one in guides().items()}, path
        )
        return self.call(chosen, table, path, left=("model",))

    def _make(self, raw: Any, path: Place) -> Any:
        kinds = {
            name: pair
            for name, pair in kinds_of(nn.Module).items()
            if "key" in names.parameters(pair[0])
        }
        chosen, table, _ = self._chosen(raw, kinds, path)
        return self.call(chosen, table, path, left=("key",))

    def _model(self, raw: Any, path: Place) -> Any:
        return self._made(raw, kinds_of(BayesianNet), path)

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
        except (
            TypeError,
            ValueError,
            RuntimeError,
            ArithmeticError,
            LookupError,
            OSError,
        ) as problem:
            if not made_by:
                raise
            actual = f"{type(problem).__name__}: {problem}"
            raise self.file.error(
                path,
                "arguments that fit together",
                actual,
                f"bayesfed list {made_by}",
            ) from problem

    def _missing(self, name: str, made_by: Any, path: Place) -> ExperimentError:
        return self.file.error((*path, name), *words.missing(name, made_by))
