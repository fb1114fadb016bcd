"""How belief is updated: closed-form blocks, sum-product on support graphs, turbo exchange, the local ELBO."""

from bayesfed.inference.blocks import MeanField, Structured, kl_divergence, support_evidence
from bayesfed.inference.elbo import MeanFieldElbo
from bayesfed.inference.graphs.factor_graph import FactorGraph
from bayesfed.inference.graphs.flat import TableGroup, Tables
from bayesfed.inference.infer import infer, log_z
from bayesfed.inference.inferred import Inferred
from bayesfed.inference.objectives import MaximumLikelihood, Objective, Proximal
from bayesfed.inference.transitions import calibrate, maximise
from bayesfed.inference.turbo import Exchange

__all__ = [
    "Exchange",
    "FactorGraph",
    "Inferred",
    "MaximumLikelihood",
    "MeanField",
    "MeanFieldElbo",
    "Objective",
    "Proximal",
    "Structured",
    "TableGroup",
    "Tables",
    "calibrate",
    "infer",
    "kl_divergence",
    "log_z",
    "maximise",
    "support_evidence",
]
