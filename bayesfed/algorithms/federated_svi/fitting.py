"""`GuideLocal`: what a client's rounds on a guide have in common, whatever takes the steps. A round
begins where the fusion rule says, and what is sent is what the rule makes of where it ends.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

from bayesfed.algorithms.federated_svi.moves import moves
from bayesfed.data import Dataset
from bayesfed.errors import DataError
from bayesfed.federated import Fit, Kind, LocalOptions
from bayesfed.inference.variational import LOCAL, Fused, Fusion, Start
from bayesfed.keys import Key
from bayesfed.trees import Tree, is_finite


@dataclass(frozen=True)
class GuideLocal(ABC):
    """A local step on a guide.

    Parameters of local latents stay in the client's memory, as ``local/NAME``.

    Parameters
    ----------
    fused
        The model and guide after their first run, and what the guide's parameters mean.
    fusion
        The fusion rule.
    steps, batch_size
        Local work of a round; None for all rows.
    """

    fused: Fused
    fusion: Fusion
    steps: int
    batch_size: int | None
    smaller: ClassVar[str]
    """What to try where the steps diverge."""

    @property
    def kind(self) -> Kind:
        """What the payload's numbers mean."""
        return self.fusion.kind

    @abstractmethod
    def run(
        self,
        start: Start,
        given: Tree,
        memory: Tree,
        data: Dataset,
        key: Key,
        options: LocalOptions,
    ) -> tuple[Tree, float]:
        """Return the guide's parameters after the steps on at least one row, or their mean
        gradients, and the mean loss.

        Parameters
        ----------
        start
            Where the round begins.
        given
            The message.
        memory, data, key, options
            As for `fit`.
        """

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Run the steps. A client without rows changes nothing and keeps its memory.

        Raises
        ------
        DataError
            If the rows do not fit the model, or the loss or a parameter is not finite after the
            steps.
        """
        fused, fusion = self.fused, self.fusion
        state = {
            name: message[name].to(leaf.dtype)
            for name, leaf in fusion.publish(fusion.initial(fused)).items()
        }
        if not len(data):
            unchanged = (
                {name: torch.zeros_like(leaf) for name, leaf in state.items()}
                if fusion.adds
                else state
            )
            return Fit(unchanged, dict(memory), {"samples": 0.0, "loss": 0.0})
        start = fusion.start(state, memory, fused, options.share)
        found, loss = self.run(start, message, memory, data, key, options)
        if not math.isfinite(loss) or not all(map(is_finite, found.values())):
            raise DataError("local steps", "a finite loss and parameters", loss, self.smaller)
        shared = {name: found[name] for name in fused.layout.shared}
        payload, kept = fusion.finish(shared, start, state, memory, fused)
        info = {"samples": float(len(data)), "loss": loss}
        if self.kind != "gradient" and (apart := moves(fused, start.parameters, shared)):
            info["apart"] = apart["moved"]
        own = {f"{LOCAL}{name}": found[name] for name in fused.layout.local}
        return Fit(payload, kept | own, info)
