"""Every error the package raises on purpose; `checks` has what tells a wrong argument where it is
given.

Each class also derives from the builtin that a caller would expect, so `except ValueError` keeps
working. A message says where the problem is, what was expected, what was found and what to try;
`complain` formats these four parts.

An error has two texts. ``str(error)`` is for the machine where it was raised. `public_text` is what
may leave a site for the server: the class, where, and what was expected. What was found, and what
to try, may hold cells of rows and stay in the site's log. So does all text of an error that is not
of this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# What a text for the server ends with.
SEE_LOG = "see the log of the site"


class LocalText(str):
    """Text of a message that stays on its machine, such as a path: `public_text` leaves it out."""

    __slots__ = ()


class Complaint(str):
    """Text of an error that carries its four parts: ``where``, ``expected``, ``actual``, ``hint``.
    Made by `complain`.
    """

    __slots__ = ("actual", "expected", "hint", "where")

    where: str
    expected: str
    actual: str
    hint: str


class BayesfedError(Exception):
    """Base class of all errors that bayesfed raises on purpose.

    Parameters
    ----------
    text
        The message, or where the problem is.
    *parts
        What was expected, what was found and what to try, as `complain` takes them.
    """

    def __init__(self, text: str = "", *parts: object) -> None:
        super().__init__(complain(text, *parts) if parts else text)

    @property
    def complaint(self) -> Complaint | None:
        """The four parts of the message; None if it was not made by `complain`."""
        return next((part for part in self.args if isinstance(part, Complaint)), None)

    @property
    def public_text(self) -> str:
        """The text that may leave a site: the class, where, and what was expected, which are made
        of names and rules. What was found and what to try may hold cells of rows.
        """
        kind, parts = type(self).__name__, self.complaint
        if parts is None:
            return f"{kind}; {SEE_LOG}"
        where = "" if isinstance(parts.where, LocalText) else f", {parts.where}"
        if isinstance(parts.expected, LocalText):
            return f"{kind}{where}; {SEE_LOG}"
        return f"{kind}{where}: expected {parts.expected}; {SEE_LOG}"


class ArgumentError(BayesfedError, ValueError):
    """An argument outside its documented domain."""


class KeywordError(ArgumentError, TypeError):
    """A keyword that a function does not have, or one that it needs and did not get."""


class NoNameError(ArgumentError, KeyError):
    """A name that a table does not have."""

    __str__ = BayesfedError.__str__


class DataError(BayesfedError, ValueError):
    """A data set that cannot be used."""


class PriorError(BayesfedError, ValueError):
    """A declared prior that does not fit the network it is applied to."""


class RefusedError(BayesfedError, ValueError):
    """Something received that is refused.

    Parameters
    ----------
    field
        A word for what is wrong with it, as in the rows of the ledger
        (`bayesfed.federated.engine.reports.Row`).
    """

    field = "payload"

    def __init__(self, text: str = "", *parts: object, field: str = "") -> None:
        super().__init__(text, *parts)
        if field:
            self.field = field


class WireError(RefusedError):
    """A message that is damaged, too large, or not in our format."""

    field = "message"


class UpdateError(RefusedError):
    """Updates that cannot be added, or that the server does not accept."""


class PosteriorError(BayesfedError, ValueError):
    """Posteriors that a rule cannot fuse, or natural parameters of no distribution."""


class ClientError(BayesfedError, RuntimeError):
    """A client that failed, with its name, the round, the stage, the reason and the field of a
    refused message.

    Parameters
    ----------
    client, round, stage
        Where it failed.
    reason
        What went wrong, in full.
    field
        Field of a refused message.
    public
        The reason that may leave the site (`public_text`); "" for failures that the server found.
    """

    def __init__(
        self,
        client: str,
        round: int,
        stage: str,
        reason: str,
        field: str = "",
        public: str = "",
    ) -> None:
        RuntimeError.__init__(self, client, round, stage, reason, field)
        self.public = public
        self.client = client
        self.round = round
        self.stage = stage
        self.reason = reason
        self.field = field

    def __str__(self) -> str:
        return f"{self._where}: {self.reason}"

    @property
    def _where(self) -> str:
        return f"client {self.client!r}, round {self.round}, stage {self.stage!r}"

    def without_rows(self) -> ClientError:
        """Return the error that may leave a site: with the public reason alone."""
        reason = self.public or SEE_LOG
        return type(self)(self.client, self.round, self.stage, reason, self.field, reason)

    @property
    def public_text(self) -> str:
        """The text that may leave a site: as this error's, with the public reason."""
        return f"{self._where}: {self.public or SEE_LOG}"


class TooFewClientsError(ClientError):
    """A round with too few clients in its sum. The round is not completed; the last snapshot or
    checkpoint is the state of the run.
    """


class CollapseError(BayesfedError, RuntimeError):
    """A run whose local fit fell apart in several rounds in a row. The last report has the snapshot
    to look at.
    """


class CheckpointError(BayesfedError, ValueError):
    """A checkpoint or a client's memory that is damaged, cannot be written, or belongs to another
    run.
    """


class RankError(BayesfedError, RuntimeError):
    """A process of a job over several ranks that is lost or does not answer, or an error of it that
    cannot be sent to the others.
    """


class MissingExtraError(BayesfedError, ImportError):
    """An optional package that is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; try: pip install 'bayesfed[{extra}]'")

    @property
    def public_text(self) -> str:
        """The text that may leave a site: all of it, since it is of packages alone."""
        return f"{type(self).__name__}: {self}"


def public_text(problem: BaseException) -> str:
    """Return the text of an error that may leave a site: `BayesfedError.public_text`, and of other
    errors, whose text may be anything, the name of their class.
    """
    if isinstance(problem, BayesfedError):
        return problem.public_text
    return f"{type(problem).__name__}; {SEE_LOG}"


def needs(module: str, extra: str, package: str = "") -> Any:
    """Import a module of an optional package.

    Raises
    ------
    MissingExtraError
        If it is not installed; the message names the package, by default the module.
    """
    try:
        import_module(module.partition(".")[0])
        return import_module(module)
    except ImportError as problem:
        raise MissingExtraError(package or module, extra) from problem


class OrderingWarning(UserWarning):
    """A support coupling so strong that whole layers switch on or off together."""


class DensityWarning(UserWarning):
    """A support prior whose density differs from the one that its transitions suggest."""


class MultistableWarning(UserWarning):
    """Message passing with several fixed points, so that marginals depend on the starting point."""


class UnverifiedWarning(UserWarning):
    """Message passing on a graph with cycles and strong couplings: nothing vouches for the
    marginals.
    """


class ConvergenceWarning(UserWarning):
    """Message passing that stopped before its messages converged, or a variational run that has not
    settled.
    """


class CollapseWarning(UserWarning):
    """A layer without active weights, or a round that undid what a network had learned and was
    taken back.
    """


class UndeterminedWarning(UserWarning):
    """A strength that its rows do not determine, or a run that ended before what it is for.

    A temperature at the end of its grid; a prior by the evidence of a network that fits exactly, or
    without held-out rows; SWAG before its models.
    """


class CheckpointWarning(UserWarning):
    """The newest checkpoint is damaged or incomplete, and an older one is used."""


class CacheWarning(UserWarning):
    """A damaged cache file, which is made again."""


def complain(where: str, expected: object, actual: object, hint: object) -> Complaint:
    """Lay out an error text: where, what was expected, what was found, what to try; the text
    carries these parts as attributes.
    """
    text = Complaint(f"{where}: expected {expected}, found {actual}; try {hint}")
    text.where, text.actual, text.hint = where, str(actual), str(hint)
    text.expected = expected if isinstance(expected, LocalText) else str(expected)
    return text
