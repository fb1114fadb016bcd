"""What `uncertainty.py` scores: rows of the test set, corrupted ones, rows of no class, and prediction sets of clients."""

from __future__ import annotations

import base64
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
from bayesfed.inference.evaluation.detection import detection, scores_of_probabilities, uncertainties

PART = 1000


class Reading(Protocol):
    """What a trained network predicts."""

    @property
    def probabilities(self) -> Callable[[Tensor], Tensor]:
        """``inputs -> (S, B, C)``."""
        ...

    @property
    def logits(self) -> Callable[[Tensor], Tensor] | None:
        """``inputs -> (B, C)``."""
        ...


@dataclass(frozen=True)
class Sets:
    """Rows to score: the test set, the part of it that is corrupted, and the rows of every client."""

    test: bf.Dataset
    corrupted: bf.Dataset
    clients: Mapping[str, bf.Dataset]

    def covered(self, calibrated: bf.Result, level: float = 0.9) -> dict[str, Any]:
        """Return coverage and size of prediction sets: of all rows, of every client by the shared threshold and by its own, and under label shift."""
        shared, pooled = calibrated.model, concatenated(list(self.clients.values()))
        shares = torch.arange(1.0, 11.0)
        shifted = bf.label_shifted(pooled, shares, bf.Key(0, "shift"))
        sets = {
            "pooled": _held(shared, pooled, level),
            "shifted, marginal": _held(shared, shifted, level),
            "shifted, weighted": _held(shared, shifted, level, shares),
        }
        for name, rows in self.clients.items():
            if len(rows) and name in calibrated.clients:
                sets[f"shared/{name}"] = _held(shared, rows, level)
                sets[f"own/{name}"] = _held(calibrated.clients[name].model, rows, level)
        return sets


def _held(model: Any, rows: bf.Dataset, level: float, shares: Tensor | None = None) -> list[float]:
    member = model.sets(rows.inputs, level, shares=shares)
    return [len(rows), float(member.gather(1, rows.targets[:, None]).double().mean()), float(member.double().sum(1).mean())]


def outsiders(images: bf.Dataset) -> dict[str, Tensor]:
    """Return inputs of no class: scikit-learn's digits at 28 x 28 pixels, and images flipped, inverted and of noise."""
    digits = bf.digits()[0].inputs.reshape(-1, 1, 8, 8)[: len(images)]
    larger = functional.interpolate(digits / digits.max(), size=(28, 28), mode="bilinear")[:, 0]
    made = bf.out_of_distribution(images, bf.Key(0, "outside"))
    return {"digits": larger, **{name: made[name] for name in ("flipped", "inverted", "noise")}}


def scored(reading: Reading, sets: Sets, held: bf.Dataset) -> dict[str, Any]:
    """Return the scores of a reading."""
    drawn, labels = _drawn(reading, sets.test.inputs), sets.test.targets
    scores = dict(scores_of_probabilities(drawn.mean(0), labels))
    nll = -drawn.mean(0).double().gather(1, labels[:, None])[:, 0].clamp_min(1e-12).log()
    own = scores_of_probabilities(_drawn(reading, held.inputs).mean(0), held.targets)["nll"]
    by_severity: dict[str, list[float]] = {}
    for corruption in STRENGTHS:
        made = [bf.corrupted(sets.corrupted, corruption, severity) for severity in range(1, 6)]
        by_severity[corruption] = [scores_of_probabilities(_drawn(reading, one.inputs).mean(0), one.targets)["nll"] for one in made]
    inside, areas = _uncertain(reading, sets.test.inputs), dict[str, dict[str, float]]()
    for name, rows in outsiders(sets.corrupted).items():
        outside = _uncertain(reading, rows)
        areas[name] = {kind: detection(inside[kind], outside[kind])["auroc"] for kind in inside}
    return {**scores, "held_nll": own, "corrupted": by_severity, "auroc": areas, "rows_nll": packed(nll)}


def _drawn(reading: Reading, inputs: Tensor) -> Tensor:
    return torch.cat([reading.probabilities(part) for part in inputs.split(PART)], 1)


def _uncertain(reading: Reading, inputs: Tensor) -> dict[str, Tensor]:
    return uncertainties(_drawn(reading, inputs), reading.logits(inputs) if reading.logits else None)


def packed(values: Tensor) -> str:
    """Return numbers as text, in 16 bits each."""
    return base64.b64encode(values.numpy().astype("<f2").tobytes()).decode()


def unpacked(text: str) -> np.ndarray:
    """Return the numbers of `packed`."""
    return np.frombuffer(base64.b64decode(text), "<f2").astype(float)
