"""What is believed: supports, precisions, priors, likelihoods, the declared Pyro model and its guide."""

from bayesfed.models.belief import Belief, SiteBelief, guide
from bayesfed.models.clustered import ClusteredSupport
from bayesfed.models.compaction.compact import compact
from bayesfed.models.declared import Declared, Site, declare, weight_matrices
from bayesfed.models.grid import Grid, Link
from bayesfed.models.ising import Ising
from bayesfed.models.likelihoods import Categorical, Likelihood, Normal
from bayesfed.models.nets import alexnet, cnn, mlp, mobilenet
from bayesfed.models.precisions import BernoulliGamma, Gammas
from bayesfed.models.prior import GaussianWeight, Prior
from bayesfed.models.supports import Independent, MarkovGrid, Neighbourhood, Support, Transition

__all__ = [
    "Belief",
    "BernoulliGamma",
    "Categorical",
    "ClusteredSupport",
    "Declared",
    "Gammas",
    "GaussianWeight",
    "Grid",
    "Independent",
    "Ising",
    "Likelihood",
    "Link",
    "MarkovGrid",
    "Neighbourhood",
    "Normal",
    "Prior",
    "Site",
    "SiteBelief",
    "Support",
    "Transition",
    "alexnet",
    "cnn",
    "compact",
    "declare",
    "guide",
    "mlp",
    "mobilenet",
    "weight_matrices",
]
