"""A data set: inputs and targets of equal length, checked once at construction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.data.arrays import as_targets, as_tensor
from bayesfed.data.packed import packed
from bayesfed.errors import DataError
from bayesfed.errors.checks import ITSELF, checked, checked_class, shown
from bayesfed.errors.plurals import plural
from bayesfed.trees import is_finite


@checked_class(inputs=ITSELF, targets=ITSELF)
@dataclass(frozen=True)
class Dataset:
    """Inputs and targets. An empty data set is legal: a client without data.

    Parameters
    ----------
    inputs
        Inputs ``(N, ...)``: a tensor, a NumPy array or a pandas frame. The fractions of arrays
        become float32, whole numbers stay whole; frames become float32. Nothing is scaled.
    targets
        Targets ``(N,)`` or ``(N, ...)``, in the same forms; integers of any width and booleans are
        class labels from 0, kept as int64; those by token or pixel may be negative where they do
        not count. Texts of an array or a series become class numbers, and
        their names the classes, sorted; of a pandas categorical in the order of its categories,
        also those without rows.
    classes
        Names of the classes in the order of their numbers, for reports. Empty: the classes have no
        names.
    domains
        N names of the domains that rows are from, for partitions (`within_domains`). Empty: the
        domains are unknown.

    Raises
    ------
    DataError
        If inputs or targets are no tensor, array or frame of numbers, the lengths differ, a value
        is NaN or infinite, a class label is negative, or a label or a row has no name although
        names are given.
    """

    inputs: Tensor
    targets: Tensor
    classes: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.inputs, Mapping | tuple):
            vars(self).update(inputs=packed(self.inputs, "Dataset inputs"))
        if not (isinstance(self.inputs, Tensor) and isinstance(self.targets, Tensor)):
            targets, classes = as_targets(self.targets, self.classes, "Dataset targets")
            inputs = as_tensor(self.inputs, "Dataset inputs")
            vars(self).update(inputs=inputs, targets=targets, classes=classes)
        vars(self).update(classes=tuple(self.classes), domains=tuple(self.domains))
        if self.inputs.is_complex() or self.targets.is_complex():
            actual = f"{self.inputs.dtype} and {self.targets.dtype}"
            raise DataError("Dataset", "real numbers", actual, "torch.view_as_real(values)")
        if not self.targets.is_floating_point():
            vars(self).update(targets=self.targets.long())
        if len(set(self.classes)) < len(self.classes):
            raise DataError("Dataset classes", "distinct names", list(self.classes), "one for each")
        if self.inputs.ndim == 0 or self.targets.ndim == 0 or len(self.inputs) != len(self.targets):
            raise DataError(
                "Dataset",
                "inputs and targets of one length",
                f"shapes {tuple(self.inputs.shape)} and {tuple(self.targets.shape)}",
                "the same rows of both",
            )
        for name, values in (("inputs", self.inputs), ("targets", self.targets)):
            if not is_finite(values):
                rows = (
                    (~torch.isfinite(values))
                    .reshape(len(values), -1)
                    .any(dim=1)
                    .nonzero()
                    .reshape(-1)
                )
                raise DataError(
                    f"Dataset {name}",
                    "finite values",
                    f"NaN or Inf in {plural(len(rows), 'row')}, first {int(rows[0])}",
                    "dropping or imputing those rows",
                )
        # Labels by token or pixel may say which places do not count; likelihoods look at them.
        if (
            self.targets.ndim == 1
            and not self.targets.is_floating_point()
            and len(self)
            and int(self.targets.min()) < 0
        ):
            raise DataError(
                "Dataset targets", "class labels from 0", int(self.targets.min()), "relabelling"
            )
        if self.classes and (
            self.targets.is_floating_point()
            or (len(self) and int(self.targets.max()) >= len(self.classes))
        ):
            fractions = self.targets.is_floating_point()
            actual = "numbers with fractions" if fractions else f"{int(self.targets.max())}"
            expected = f"labels from 0 to {len(self.classes) - 1}, as there are names"
            hint = "classes=()" if fractions else "a name for every class"
            raise DataError("Dataset targets", expected, actual, hint)
        if self.domains and len(self.domains) != len(self):
            raise DataError(
                "Dataset domains",
                f"a name for each of {plural(len(self), 'row')}",
                len(self.domains),
                "domains=()",
            )

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, rows: Tensor | slice) -> Dataset:
        try:
            if not isinstance(rows, slice) and (not isinstance(rows, Tensor) or rows.ndim != 1):
                raise IndexError("of another kind")
            # Rows of a checked data set need no second check, which would cost more than taking a
            # batch.
            domains = self._domains(rows) if self.domains else ()
            return unchecked(self.inputs[rows], self.targets[rows], self.classes, domains)
        except (IndexError, TypeError, ValueError, AttributeError) as problem:
            actual, hint = f"{shown(rows)}: {problem}", "data[:5], data[torch.tensor([0, 2])]"
            raise DataError("rows of a Dataset", "a slice or a tensor", actual, hint) from problem

    def _domains(self, rows: Tensor | slice) -> tuple[str, ...]:
        if isinstance(rows, slice):
            return self.domains[rows]
        places = rows.nonzero()[:, 0] if rows.dtype == torch.bool else rows
        return tuple(self.domains[place] for place in places.tolist())

    def to(self, device: torch.device | str) -> Dataset:
        """Return the data set with its tensors on `device`."""
        try:
            moved = self.inputs.to(device), self.targets.to(device)
        except (RuntimeError, AssertionError, TypeError) as problem:
            raise DataError("Dataset.to", "a device that is here", problem, "'cpu'") from problem
        return Dataset(*moved, self.classes, self.domains)


def unchecked(
    inputs: Tensor, targets: Tensor, classes: tuple[str, ...] = (), domains: tuple[str, ...] = ()
) -> Dataset:
    """Return a data set without checks, of rows that were checked before."""
    data = object.__new__(Dataset)
    vars(data).update(inputs=inputs, targets=targets, classes=classes, domains=domains)
    return data


def rows_of(data: Dataset, rows: Tensor) -> Dataset:
    """Return the rows of these numbers, which are there, as indexing does, but faster."""
    if not (data.inputs.is_contiguous() and data.targets.is_contiguous()):
        # Indexing keeps their layout.
        return data[rows]
    taken = data.inputs.index_select(0, rows), data.targets.index_select(0, rows)
    return unchecked(*taken, data.classes, data._domains(rows) if data.domains else ())


@checked()
def concatenated(parts: Sequence[Dataset]) -> Dataset:
    """Return the rows of all data sets as one, in order; with domains if every data set that has
    rows has domains.

    Raises
    ------
    DataError
        If there are no data sets, or their rows differ in shape, their targets in type or their
        classes in name.
    """
    shapes = {
        (tuple(part.inputs.shape[1:]), tuple(part.targets.shape[1:]), part.targets.dtype)
        for part in parts
    }
    if len(shapes) != 1:
        raise DataError(
            "concatenated",
            "sets with rows of one shape, and targets of one type",
            sorted(shapes, key=str),
            "at least one set, all of the same features",
        )
    named = sorted({part.classes for part in parts})
    if len(named) != 1:
        raise DataError(
            "concatenated",
            "sets with the same classes",
            named[:2],
            "classes=train.classes when reading",
        )
    domains = (
        tuple(name for part in parts for name in part.domains)
        if all(part.domains for part in parts if len(part))
        else ()
    )
    return Dataset(
        torch.cat([part.inputs for part in parts]),
        torch.cat([part.targets for part in parts]),
        named[0],
        domains,
    )
