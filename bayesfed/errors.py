"""Every error the package raises on purpose.

Each class is ours *and* the builtin a caller would catch without knowing us, so
`except ValueError` keeps working. A message says where, what was expected, what
was found, and what to try; `complain` lays those four parts out the same way everywhere.
"""

from __future__ import annotations


class Complaint(str):
    """Text of an error that carries its four parts: ``where``, ``expected``, ``actual``, ``hint``. Made by `complain`."""

    __slots__ = ("actual", "expected", "hint", "where")

    where: str
    expected: str
    actual: str
    hint: str


class BayesfedError(Exception):
    """Any error raised by bayesfed on purpose."""

    @property
    def complaint(self) -> Complaint | None:
        """The four parts of the message; None if it was not made by `complain`."""
        return next((part for part in self.args if isinstance(part, Complaint)), None)


class ArgumentError(BayesfedError, ValueError):
    """An argument outside its documented domain."""


class DataError(BayesfedError, ValueError):
    """A data set that cannot be used as it is."""


class PriorError(BayesfedError, ValueError):
    """A prior declaration that does not fit the network it is applied to."""


class RefusedError(BayesfedError, ValueError):
    """Something received that is not taken in; `field` is the word for what is wrong with it (`bayesfed.federated.engine.ledger.Row`)."""

    field = "payload"

    def __init__(self, text: str = "", *, field: str = "") -> None:
        super().__init__(text)
        if field:
            self.field = field


class WireError(RefusedError):
    """A message that is damaged, oversized or not ours."""

    field = "message"


class UpdateError(RefusedError):
    """Updates that may not be added, or that the server does not take."""


class PosteriorError(BayesfedError, ValueError):
    """Posteriors that cannot be fused by a rule, or natural parameters that no distribution has."""


class ClientError(BayesfedError, RuntimeError):
    """A client that failed; carries its name, the round and the stage, and the field of a message that was refused."""

    def __init__(self, client: str, round: int, stage: str, reason: str, field: str = "") -> None:
        super().__init__(client, round, stage, reason, field)
        self.client, self.round, self.stage, self.reason, self.field = client, round, stage, reason, field

    def __str__(self) -> str:
        return f"client {self.client!r}, round {self.round}, stage {self.stage!r}: {self.reason}"


class TooFewClientsError(ClientError):
    """A round with too few clients in its sum: it is not made, and the last snapshot or checkpoint is the run's."""


class CheckpointError(BayesfedError, ValueError):
    """A checkpoint or a client's memory that is damaged, cannot be written, or belongs to another run."""


class MissingExtraError(BayesfedError, ImportError):
    """An optional package that is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; try: pip install 'bayesfed[{extra}]'")


class OrderingWarning(UserWarning):
    """A support coupling strong enough that whole layers switch on or off together."""


class DensityWarning(UserWarning):
    """A support prior whose density is not the one its transitions suggest."""


class MultistableWarning(UserWarning):
    """Message passing with several fixed points: marginals depend on where it starts."""


class ConvergenceWarning(UserWarning):
    """Message passing stopped before its messages settled."""


class CheckpointWarning(UserWarning):
    """The newest checkpoint is damaged or unfinished, and an older one is used."""


class CacheWarning(UserWarning):
    """A file that was kept to save work is damaged, and is made again."""


def complain(where: str, *, expected: object, actual: object, hint: str) -> Complaint:
    """Lay out an error text: where, what was expected, what was found, what to try; the text carries these parts as attributes."""
    text = Complaint(f"{where}: expected {expected}, found {actual}; try {hint}")
    text.where, text.expected, text.actual, text.hint = where, str(expected), str(actual), hint
    return text
