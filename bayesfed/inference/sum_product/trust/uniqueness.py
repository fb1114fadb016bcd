"""A sufficient condition for belief propagation to have one fixed point, and to reach it from every
start.

``A[I -> i, J -> j] = N_I(i, j)`` if factor I sends to i, j is another of its variables, and J
another factor of j. N_I(i, j) bounds by how much the message to i can follow the message from j;
for a pair of bits with coupling k it is tanh(|k| / 4). If the spectral radius of A is below 1,
messages contract. The radius is bounded from above by ``max (A x) / x`` (Collatz and Wielandt),
whatever the positive vector x; power iteration makes the bound tight.

References
----------
Mooij and Kappen, Sufficient conditions for convergence of the sum-product algorithm, IEEE Trans.
Inf. Theory 53 (2007), Corollary 3 and Theorem 5.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayesfed.inference.sum_product.graphs.flat import TableGroup, Tables
from bayesfed.inference.sum_product.methods.structure import learned
from bayesfed.models.random_fields.grid import Grid
from bayesfed.models.random_fields.ising import Ising
from bayesfed.models.random_fields.kept import kept

Model = Grid | Ising | Tables
# Power iterations, and for graphs with many messages.
STEPS, FEW, LARGE = 60, 4, 50_000
# Differences of entries from which N is not computed.
MOST = 2**24


def spectral_bound(model: Model) -> float:
    """Return an upper bound on the spectral radius of A: below 1, there is one fixed point.
    Computed once for each model that is not learned: what is learned changes in place.
    """
    return _bound(model) if learned(model) else _kept_bound(model)


@torch.no_grad()
def _bound(model: Model) -> float:
    if isinstance(model, Grid) and model.is_even():
        return _on_grid(model)
    return _radius(*_links(model))


_kept_bound = kept(_bound)


def _on_grid(grid: Grid) -> float:
    """Return the bound for one coupling a direction: x has one value for rows and one for
    columns.
    """
    # From how many messages of a row, and of a column, a message goes on: those along its line and
    # across it, at most.
    along, across = ([0, 1, 2][min(side - 1, 2)] for side in (grid.size[1], grid.size[0]))
    row, column = (math.tanh(strength) for strength in grid.strengths())
    matrix = torch.tensor(
        [[row * max(along - 1, 0), row * across], [column * along, column * max(across - 1, 0)]],
        dtype=torch.float64,
    )
    return float(torch.linalg.eigvals(matrix).abs().max())


def _links(model: Model) -> tuple[int, list[tuple[Tensor, Tensor]]]:
    """Return the number of variables, and for each group of factors their scopes ``(F, arity)`` and
    N ``(F, arity, arity)``.
    """
    if isinstance(model, Tables):
        return model.cards.numel(), [
            (group.scope.cpu(), _influence(group)[group.which.cpu()]) for group in model.groups
        ]
    ising = model.ising()
    strength = torch.zeros(ising.coupling.numel(), 2, 2, dtype=torch.float64)
    strength[:, 0, 1] = strength[:, 1, 0] = (
        ising.coupling.detach().cpu().double().abs() / 4
    ).tanh()
    return ising.field.numel(), [(ising.edges.cpu().T, strength)]


def _influence(group: TableGroup) -> Tensor:
    """Return N ``(T, arity, arity)`` of each table: ``tanh(log(ratio) / 4)`` with the largest ratio
    of t(ab) t(a'b') to t(a'b) t(ab').
    """
    tables = group.tables.detach().cpu().double()
    # In pieces, since each table is compared with itself state by state.
    entries = tables[0].numel() * max(tables.shape[1:])
    return torch.cat([_influence_of(piece) for piece in tables.split(max(1, MOST // entries))])


def _influence_of(tables: Tensor) -> Tensor:
    """Return N ``(T, arity, arity)`` of tables ``(T, *cards)``."""
    arity = tables.ndim - 1
    result = tables.new_zeros(len(tables), arity, arity)
    for i in range(arity):
        for j in range(arity):
            if i == j or tables.shape[1 + j] == 1:
                continue
            if tables[0].numel() * tables.shape[1 + i] > MOST:
                result[:, i, j] = 1.0  # No message follows another further.
                continue
            moved = (
                tables.movedim((1 + i, 1 + j), (1, 2)).flatten(3)
                if arity > 2
                else tables.movedim((1 + i, 1 + j), (1, 2))[..., None]
            )
            # [t, a, a', b]: how much more a weighs than a', given b, at most.
            # Where neither is possible the ratio is nothing; where only a is, it is infinite.
            more = (
                (moved[:, :, None] - moved[:, None])
                .nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
                .amax(-1)
            )
            turned = more.transpose(1, 2)
            # b and b' differ: the two largest of `more` and of `turned`, but for those at one b.
            (one, at), (other, there) = more.topk(2), turned.topk(2)
            total = one[..., :, None] + other[..., None, :]
            total[at[..., :, None] == there[..., None, :]] = -math.inf
            largest = (
                total.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
                .flatten(1)
                .amax(1)
            )
            result[:, i, j] = (largest / 4).clamp_min(0.0).tanh()
    return result


def _radius(count: int, links: list[tuple[Tensor, Tensor]]) -> float:
    vectors = [torch.ones(scope.shape, dtype=torch.float64) for scope, _ in links]
    total = sum(scope.numel() for scope, _ in links)
    best = math.inf
    for _ in range(FEW if total > LARGE else STEPS):
        received = torch.zeros(count, dtype=torch.float64)
        for (scope, _), vector in zip(links, vectors, strict=True):
            received.index_add_(0, scope.reshape(-1), vector.reshape(-1))
        images = [
            torch.einsum("fij,fj->fi", influence, (received[scope] - vector).clamp_min(0.0))
            for (scope, influence), vector in zip(links, vectors, strict=True)
        ]
        bound = max(
            (
                float((image / vector).max())
                for image, vector in zip(images, vectors, strict=True)
                if vector.numel()
            ),
            default=0.0,
        )
        settled, best = bound > best * (1 - 1e-4), min(best, bound)
        if settled or best == 0.0:
            break
        # A share of the old vector keeps all entries positive, and two-coloured graphs from
        # swinging.
        vectors = [
            image + 0.3 * best * vector for image, vector in zip(images, vectors, strict=True)
        ]
        scale = max(float(vector.max()) for vector in vectors)
        vectors = [vector / scale for vector in vectors]
        if min(float(vector.min()) for vector in vectors if vector.numel()) < 1e-200:
            break
    return best
