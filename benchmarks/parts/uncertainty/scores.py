"""What `uncertainty.py` scores: rows of the test set, corrupted ones, rows of no class, and
prediction sets of clients.
"""

from __future__ import annotations

import base64
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

import bayesfed as bf
from bayesfed.data import concatenated
from bayesfed.data.corrupted import STRENGTHS
from bayesfed.inference.evaluation.detection import (
    detection,
    scores_of_classes,
    uncertainties,
)

PART = 1000


def scores_of_probabilities(probabilities: Tensor, targets: Tensor) -> dict[str, float]:
    """Return the scores of one probability for each class ``(B, C)``, however it was made."""
    likely = probabilities.double().gather(1, targets[:, None])[:, 0].clamp_min(1e-300).log()
    scores = scores_of_classes(probabilities[None], targets)
    return {
        "nll": -float(likely.mean()),
        **{name: scores[name] for name in scores if name not in ("entropy", "mutual_information")},
    }


class Reading(Protocol):
    """What a trained network predicts."""

    @property
    def probabilities(self) -> Callable[[Tensor, int], Tensor]:
        """``(inputs, S) -> (S, B, C)``."""
        ...

    @property
    def logits(self) -> Callable[[Tensor], Tensor] | None:
        """``inputs -> (B, C)``."""
        ...

    @property
    def distance(self) -> Callable[[Tensor], Tensor] | None:
        """``inputs -> (B,)``."""
        ...


@dataclass(frozen=True)
class Sets:
    """Rows to score: the test set, its part that is corrupted, rows of every client like those held
    out, and its rows of the test set.
    """

    test: bf.Dataset
    corrupted: bf.Dataset
    clients: Mapping[str, bf.Dataset]
    of_test: Mapping[str, bf.Dataset]

    def covered(
        self, calibrated: bf.Result, held: bf.Dataset, level: float = 0.9
    ) -> dict[str, Any]:
        """Return coverage and size of prediction sets: of all rows, under label shift, and of
        clients by one threshold, their own, those by class.

        With all rows, also the mean coverage over draws of as many held-out rows: what one draw
        gives is this, with an sd that the rule has anyway.
        """
        shared, pooled = calibrated.model, concatenated(list(self.clients.values()))
        shares = torch.arange(1.0, 11.0)
        shifted = bf.data.label_shifted(pooled, shares, bf.Key(0, "shift"))
        sets = {
            "pooled": _held(shared, pooled, level),
            "test file": _held(shared, concatenated(list(self.of_test.values())), level),
            "redrawn": _redrawn(shared, concatenated([held, pooled]), len(held), level),
            "shifted, marginal": _held(shared, shifted, level),
            "shifted, weighted": _held(shared, shifted, level, shares),
        }
        for name, rows in self.clients.items():
            if len(rows) and name in calibrated.clients:
                sets[f"shared/{name}"] = _held(shared, rows, level)
                own: Any = calibrated.clients[name].model
                # A client that holds out no row has the threshold of all.
                sets[f"own/{name}"] = _held(own if own.histograms.any() else shared, rows, level)
                sets[f"by class/{name}"] = _held(shared, rows, level, by_class=True)
        return sets


def _held(
    model: Any,
    rows: bf.Dataset,
    level: float,
    shares: Tensor | None = None,
    *,
    by_class: bool = False,
) -> list[float]:
    member = model.sets(rows.inputs, level, shares=shares, by_class=by_class)
    return [
        len(rows),
        float(member.gather(1, rows.targets[:, None]).double().mean()),
        float(member.double().sum(1).mean()),
    ]


def _redrawn(
    model: Any, rows: bf.Dataset, count: int, level: float, draws: int = 200
) -> list[float]:
    """Return the number of rows, and mean and sd of the coverage where others of them are
    held out.
    """
    scores = 1 - model.probabilities(rows.inputs).double().gather(1, rows.targets[:, None])[:, 0]
    generator, found = bf.Key(0, "redrawn").generator(), []
    for _ in range(draws):
        order = torch.randperm(len(rows), generator=generator)
        limit = scores[order[:count]].sort().values[math.ceil((count + 1) * level) - 1]
        found.append(float((scores[order[count:]] <= limit).double().mean()))
    return [len(rows), statistics.fmean(found), statistics.stdev(found)]


def outsiders(images: bf.Dataset) -> dict[str, Tensor]:
    """Return inputs of no class: scikit-learn's digits at 28 x 28 pixels, and images flipped,
    inverted and of noise.
    """
    digits = bf.digits()[0].inputs.reshape(-1, 1, 8, 8)[: len(images)]
    larger = functional.interpolate(digits / digits.max(), size=(28, 28), mode="bilinear")[:, 0]
    made = bf.data.out_of_distribution(images, bf.Key(0, "outside"))
    return {"digits": larger, **{name: made[name] for name in ("flipped", "inverted", "noise")}}


def scored(
    reading: Reading, sets: Sets, held: bf.Dataset, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the scores of a reading, of the test set and held-out rows by `draws` draws, of the
    many other rows by `fewer_draws`.
    """
    many, few = settings["draws"], settings["fewer_draws"]
    drawn, labels = _drawn(reading, sets.test.inputs, many), sets.test.targets
    scores = dict(scores_of_probabilities(drawn.mean(0), labels))
    nll = -drawn.mean(0).double().gather(1, labels[:, None])[:, 0].clamp_min(1e-12).log()
    own = scores_of_probabilities(_drawn(reading, held.inputs, many).mean(0), held.targets)["nll"]
    by_severity: dict[str, list[float]] = {}
    for corruption in STRENGTHS:
        made = [bf.data.corrupted(sets.corrupted, corruption, severity) for severity in range(1, 6)]
        by_severity[corruption] = [
            scores_of_probabilities(_drawn(reading, one.inputs, few).mean(0), one.targets)["nll"]
            for one in made
        ]
    inside, areas = _uncertain(reading, sets.test.inputs, few), dict[str, dict[str, float]]()
    for name, rows in outsiders(sets.corrupted).items():
        outside = _uncertain(reading, rows, few)
        areas[name] = {kind: detection(inside[kind], outside[kind])["auroc"] for kind in inside}
    return {
        **scores,
        "held_nll": own,
        "corrupted": by_severity,
        "auroc": areas,
        "rows_nll": packed(nll),
    }


def _drawn(reading: Reading, inputs: Tensor, count: int) -> Tensor:
    return torch.cat([reading.probabilities(part, count) for part in inputs.split(PART)], 1)


def _uncertain(reading: Reading, inputs: Tensor, count: int) -> dict[str, Tensor]:
    given = uncertainties(
        _drawn(reading, inputs, count), reading.logits(inputs) if reading.logits else None
    )
    return given | ({"feature_density": reading.distance(inputs)} if reading.distance else {})


def packed(values: Tensor) -> str:
    """Return numbers as text, in 16 bits each."""
    return base64.b64encode(values.numpy().astype("<f2").tobytes()).decode()


def unpacked(text: str) -> np.ndarray:
    """Return the numbers of `packed`."""
    return np.frombuffer(base64.b64decode(text), "<f2").astype(float)
