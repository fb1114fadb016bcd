"""What is believed: supports, precisions, priors, likelihoods, the declared Pyro model and its guide."""

from bayesfed.models.bayesian import BayesianNet, bayesian
from bayesfed.models.belief import Belief, SiteBelief, guide
from bayesfed.models.clustered import ClusteredSupport
from bayesfed.models.compaction.compact import compact
from bayesfed.models.declared import Declared, Site, declare, weight_matrices
from bayesfed.models.fixed_rank import dense, fixed_rank, layer_matrices
from bayesfed.models.fixed_rank_layers import (
    FixedRankConv,
    FixedRankConv1d,
    FixedRankConv2d,
    FixedRankConv3d,
    FixedRankLayer,
    FixedRankLinear,
)
from bayesfed.models.fixed_rank_trees import points, probes, tangents, with_points
from bayesfed.models.grid import Grid, Link
from bayesfed.models.ising import Ising
from bayesfed.models.likelihoods import Categorical, Likelihood, Normal
from bayesfed.models.nets import alexnet, cnn, mlp, mobilenet
from bayesfed.models.precisions import BernoulliGamma, Gammas
from bayesfed.models.prior import GaussianWeight, Prior
from bayesfed.models.supports import Independent, MarkovGrid, Neighbourhood, Support, Transition
from bayesfed.models.weights import Gaussian, Horseshoe, Laplace, ProductGaussian, SpikeAndSlab, WeightPrior

__all__ = [
    "BayesianNet",
    "Belief",
    "BernoulliGamma",
    "Categorical",
    "ClusteredSupport",
    "Declared",
    "FixedRankConv",
    "FixedRankConv1d",
    "FixedRankConv2d",
    "FixedRankConv3d",
    "FixedRankLayer",
    "FixedRankLinear",
    "Gammas",
    "Gaussian",
    "GaussianWeight",
    "Grid",
    "Horseshoe",
    "Independent",
    "Ising",
    "Laplace",
    "Likelihood",
    "Link",
    "MarkovGrid",
    "Neighbourhood",
    "Normal",
    "Prior",
    "ProductGaussian",
    "Site",
    "SiteBelief",
    "SpikeAndSlab",
    "Support",
    "Transition",
    "WeightPrior",
    "alexnet",
    "bayesian",
    "cnn",
    "compact",
    "declare",
    "dense",
    "fixed_rank",
    "guide",
    "layer_matrices",
    "mlp",
    "mobilenet",
    "points",
    "probes",
    "tangents",
    "weight_matrices",
    "with_points",
]
