"""How belief is updated: closed-form blocks, sum-product on support graphs, turbo exchange, the local ELBO."""

from bayesfed.inference.blocks import MeanField, Structured, kl_divergence, support_evidence
from bayesfed.inference.elbo import MeanFieldElbo
from bayesfed.inference.graphs import from_networkx, to_networkx
from bayesfed.inference.objectives import MaximumLikelihood, Objective, Proximal
from bayesfed.inference.sum_product import Messages, SumProduct, sum_product

__all__ = [
    "MaximumLikelihood",
    "MeanField",
    "MeanFieldElbo",
    "Messages",
    "Objective",
    "Proximal",
    "Structured",
    "SumProduct",
    "from_networkx",
    "kl_divergence",
    "sum_product",
    "support_evidence",
    "to_networkx",
]
