"""Messages of `bayesfed.models.random_fields`."""

import math

import networkx as nx
import torch

from bayesfed import FactorGraph, Independent
from bayesfed.inference import calibrate
from bayesfed.models.random_fields.clusters import Clusters
from bayesfed.models.random_fields.grid import Grid, Link
from bayesfed.models.random_fields.ising import Ising
from bayesfed.models.random_fields.sampling import ClusteredSupport
from bayesfed.models.random_fields.support_priors import MarkovGrid, Neighbourhood, Transition
from bayesfed.models.random_fields.whole import Inputs, Outputs

COMPLETE = ("bayesfed/models/random_fields",)
EDGES, COLOURS = torch.tensor([[0, 1], [1, 2]]), torch.tensor([0, 1, 0])


def field(**changes):
    """Return a chain of three variables."""
    given = {"field": torch.zeros(3), "edges": EDGES, "coupling": torch.ones(2)}
    return Ising(**{**given, "shape": (3,), "colours": COLOURS, **changes})


def hidden(graph):
    """Declare a graph over the four inputs of two units."""
    return Neighbourhood(graph).lower((2, 4))


def patched(patch):
    """Declare a patch over four inputs."""
    return MarkovGrid(patch=patch).lower((2, 4))


CASES = [
    (lambda: Grid((0, 3)), "Grid((784, 256))", lambda: Grid((784, 256))),
    (lambda: Grid((3, 3), row=0.5), "Link(0.8)", lambda: Grid((3, 3), row=Link(0.8))),
    (
        lambda: Grid((3, 3), row=0.5),
        "FactorGraph.grid for probabilities",
        lambda: FactorGraph.grid((3, 3), 0.6, 0.6),
    ),
    (lambda row: Grid((3, 3), row=row), Link(math.nan)),
    (
        lambda: Grid((3, 3)).energy(torch.zeros(2, 2)),
        "the model's shape",
        lambda: Grid((3, 3)).energy(torch.zeros(3, 3)),
    ),
    (
        lambda: field(field=torch.zeros(3, 1)),
        "flat tensors",
        field,
    ),
    (lambda: field(edges=EDGES + 2), "variables by number", field),
    (
        lambda: field(field=torch.tensor([math.nan, 0, 0])),
        "tables of finite weights",
        field,
    ),
    (
        lambda: field(edges=torch.tensor([[0, 1], [1, 0]])),
        "adding their couplings",
        lambda: field(edges=EDGES[:, :1], coupling=torch.tensor([2.0])),
    ),
    (
        lambda: field(colours=torch.zeros(3, dtype=torch.long)),
        "a proper colouring",
        field,
    ),
    (
        lambda: MarkovGrid(0.8, 0.8).lower((3, 3)),
        "a stay probability of at most 0.65",
        lambda: MarkovGrid(0.65, 0.65).lower((3, 3)),
    ),
    (
        lambda: MarkovGrid(Transition(0.6, 0.9), Transition(0.6, 0.9)).lower((9, 9)),
        "calibrate(density, cluster_size)",
        lambda: calibrate(0.2, 1.6).lower((9, 9)),
    ),
    (
        lambda: ClusteredSupport(Grid((3, 3))).expand([2]),
        "a site per layer",
        lambda: ClusteredSupport(Grid((3, 3))).expand([]),
    ),
    (
        lambda: Clusters(Independent().lower((1, 3)), (1, 3), (4, 3)),
        "Clusters(model, (M, 1), (M, 3)), a cluster a column",
        lambda: Clusters(Independent().lower((1, 3)), (4, 1), (4, 3)),
    ),
    (lambda prior: Inputs(prior).lower((2, 4)), Outputs()),
    (lambda row: MarkovGrid(row=row), 1.5),
    (lambda patch: MarkovGrid(patch=patch), (0, 3)),
    (lambda: patched((3, 3)), "one patch a layer", lambda: patched((2, 2))),
    (hidden, nx.path_graph(3)),
]
