"""Training on the manifold of fixed-rank weights: `RiemannianSgd`, a client's steps, and `Retract`,
the server's.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from bayesfed.algorithms.fed_rlr.encodings import Retraction, Transmission
from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError, DataError
from bayesfed.federated import Fit, Kind, LocalOptions
from bayesfed.federated.training.batches import batches
from bayesfed.geometry import FixedRank, Tangent, difference, distance, metric_retraction, norm
from bayesfed.geometry.thin import signed_qr
from bayesfed.inference.objectives.likelihood import check_data
from bayesfed.keys import Key, forked
from bayesfed.models import Likelihood, points, probes, tangents, with_points
from bayesfed.models.calling import functional_call
from bayesfed.models.low_rank.thin_layers import fixed_rank_layers
from bayesfed.trees import Shapes, Tree, besides, leaf_of


def free(tree: Tree, layers: Collection[str] | None = None) -> Tree:
    """Return the leaves that belong to no point: biases and dense weights."""
    held = {leaf_of(name, part) for name in points(tree, layers) for part in ("u", "s", "v")}
    return besides(tree, held)


def sent_shapes(
    tree: Tree, transmission: Transmission, layers: Collection[str] | None = None
) -> Shapes:
    """Return names and shapes of a client's payload, of a network with these layers of fixed rank:
    ``LAYER.part`` for each, since such a layer has no other leaves but its bias.
    """
    factors = {
        f"{name}.{part}": shape
        for name, point in points(tree, layers).items()
        for part, shape in transmission.shapes(point).items()
    }
    return factors | {name: tuple(leaf.shape) for name, leaf in free(tree, layers).items()}


@dataclass(frozen=True)
class RiemannianOptions(LocalOptions):
    """Options of a client of FedRLR.

    Parameters
    ----------
    pull
        Share of its distance to the broadcast model that a step takes back.
    """

    pull: float = 0.0


@dataclass(frozen=True)
class RiemannianSgd:
    """Take steps ``Theta <- R(-eta grad f - pull P_T(Theta - Theta_0))`` (17)-(19), without forming
    an ``M x N`` array.

    The pull is the gradient step of the consensus penalty ``mu / 2 ||Theta_0 - Theta||^2``, a
    Gaussian prior at the broadcast model (`Gaussian.around`). It acts on all leaves. Free leaves
    take plain SGD steps and travel as changes.

    Figures: ``consensus_gap``, the squared distance to the broadcast model, and ``off_tangent``,
    the share of the distance normal to the tangent space there. Tangent vectors lose that share
    unless the server's retraction is the orthographic one.

    It reads `RiemannianOptions`.

    Parameters
    ----------
    net
        The network, with layers of fixed rank.
    reset
        Begin every round at the broadcast model. False, as in the paper, continues from the
        client's own model in its memory.
    clip
        Largest norm of a step's gradient, Riemannian and free leaves together; longer gradients are
        scaled down.
    """

    net: nn.Module
    likelihood: Likelihood
    transmission: Transmission
    learning_rate: float
    steps: int
    batch_size: int | None
    retraction: Retraction = metric_retraction
    reset: bool = True
    clip: float = math.inf

    @property
    def options(self) -> type[LocalOptions]:
        """The record of options that it reads."""
        return RiemannianOptions

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers of fixed rank."""
        return tuple(fixed_rank_layers(self.net))

    @property
    def kind(self) -> Kind:
        """What the payload's numbers mean."""
        return self.transmission.kind

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Train; a client without rows says that nothing changed.

        Raises
        ------
        DataError
            If the data cannot be scored, or training diverged.
        """
        base = _settled(message, self.layers)
        own = memory if memory and not self.reset and len(data) else base
        losses = list[Tensor]()
        rate, steps = self.learning_rate * options.rate_factor, options.steps or self.steps
        pull = options.pull if isinstance(options, RiemannianOptions) else 0.0
        if len(data):
            # A network may draw from the global generators: dropout does.
            with forked(key.child("global")):
                check_data(self.net, self.likelihood, own, data)
                for batch in batches(
                    data, self.batch_size, steps, key.child("batches").generator()
                ):
                    own, score = self._step(own, base, batch, rate, pull)
                    losses.append(score)
        loss = float(torch.stack(losses).mean()) if losses else 0.0
        if loss - loss != 0:
            hint = "a smaller learning rate, or targets that are scaled to about 1"
            raise DataError("local Riemannian SGD", "a finite loss", loss, hint)
        begun, found = points(base, self.layers), points(own, self.layers)
        payload, gap, within = Tree(), 0.0, 0.0
        for name, point in begun.items():
            sent = self.transmission.send(point, found[name], key.child("send", name))
            payload |= {f"{name}.{part}": leaf for part, leaf in sent.items()}
            gap += float(distance(point, found[name])) ** 2
            within += float(norm(difference(point, found[name]))) ** 2
        payload |= {name: leaf - base[name] for name, leaf in free(own, self.layers).items()}
        info = {
            "samples": float(len(data)),
            "loss": loss,
            "nll": loss,
            "consensus_gap": gap,
            "off_tangent": max(0.0, 1 - within / gap) ** 0.5 if gap else 0.0,
        }
        return Fit(payload, {} if self.reset else dict(own if len(data) else memory), info)

    def _step(
        self, own: Tree, base: Tree, batch: Dataset, rate: float, pull: float
    ) -> tuple[Tree, Tensor]:
        here = points(own, self.layers)
        others = {n: leaf.detach().requires_grad_() for n, leaf in free(own, self.layers).items()}
        probe = probes(here)
        loss = self.likelihood.loss(
            functional_call(self.net, {**own, **others, **probe}, (batch.inputs,)), batch.targets
        )
        loss.backward()
        # What a batch does not reach has no gradient, and stays.
        gradients = {
            name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            for name, leaf in (others | probe).items()
        }
        with torch.no_grad():
            riemannian = tangents(here, gradients)
            rate = rate * self._shrunk(riemannian, [gradients[name] for name in others])
            moved, centres = dict[str, FixedRank](), points(base, self.layers) if pull else {}
            for name, gradient in riemannian.items():
                direction = -rate * gradient
                if pull:
                    direction = direction + pull * difference(here[name], centres[name])
                moved[name] = self._moved(name, here[name], direction)
            result = with_points(own, moved)
            for name, leaf in others.items():
                result[name] = leaf.detach() + -rate * gradients[name]
                if pull:
                    result[name] = result[name] + pull * (base[name] - leaf.detach())
        return result, loss.detach()

    def _shrunk(self, riemannian: Mapping[str, Tangent], free: Iterable[Tensor]) -> float:
        if math.isinf(self.clip):
            return 1.0
        size = sum(float(norm(gradient)) ** 2 for gradient in riemannian.values())
        size += sum(float(gradient.square().sum()) for gradient in free)
        return min(1.0, self.clip / max(math.sqrt(size), 1e-30))

    def _moved(self, name: str, point: FixedRank, direction: Tangent) -> FixedRank:
        try:
            return self.retraction(point, direction)
        except (ArgumentError, RuntimeError) as problem:
            raise DataError(f"local Riemannian SGD, layer {name!r}: {problem}") from None


def _settled(message: Tree, layers: Collection[str]) -> Tree:
    """Return a received tree with orthonormal u and v, as codecs that round do not leave them; the
    matrices are those received.

    Nothing that rounding did may look like a change to be sent back: ``u^T u s - s`` is of the
    core's size times the rounding.
    """
    found = {}
    for name, point in points(message, layers).items():
        (u, left), (v, right) = signed_qr(point.u), signed_qr(point.v)
        found[name] = FixedRank(u, left @ point.s @ right.mT, v)
    return with_points(message, found)
