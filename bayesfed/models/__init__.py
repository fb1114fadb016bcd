"""What is believed: supports, precisions, priors, likelihoods, the declared Pyro model and its guide."""

from bayesfed.models.adapter_prior import adapter_prior
from bayesfed.models.bayesian import BayesianNet, bayesian
from bayesfed.models.belief import Belief, SiteBelief, guide
from bayesfed.models.clustered import ClusteredSupport
from bayesfed.models.compaction.compact import compact
from bayesfed.models.costs import Cost, communication_bytes, computation_macs, costs, total_cost
from bayesfed.models.declared import Declared, Site, declare, weight_matrices
from bayesfed.models.elastic.graph import ChannelGraph
from bayesfed.models.elastic.shares import Share, shrunk_shares
from bayesfed.models.elastic.shrinking import shrunk, shrunk_shapes, shrunk_widths
from bayesfed.models.elastic.sorting import channel_order, permute_channels, sort_channels
from bayesfed.models.elastic.tracing import channel_graph
from bayesfed.models.factored_export import dense_or_thin
from bayesfed.models.factored_layers import FactoredConv2d, FactoredLinear, Unrolling
from bayesfed.models.factored_spectra import Spectrum, spectra, spectrum
from bayesfed.models.factored_trees import align, decay_gradients, factorise, frobenius_decay, unrollings
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
from bayesfed.models.hybrid import hybrid, hybrid_ranks, whole_first
from bayesfed.models.ising import Ising
from bayesfed.models.likelihoods import Categorical, Likelihood, Normal
from bayesfed.models.lora import adapters, linear_weights, lora, lora_rank, merged, resized
from bayesfed.models.lora_layers import LoraLinear, lora_scale
from bayesfed.models.nets import alexnet, cnn, mlp, mobilenet
from bayesfed.models.norms import untracked, with_statistics
from bayesfed.models.peft_loading import load_peft
from bayesfed.models.peft_saving import save_peft
from bayesfed.models.precisions import BernoulliGamma, Gammas
from bayesfed.models.prior import GaussianWeight, Prior
from bayesfed.models.residual import resnet18, resnet34
from bayesfed.models.sketch import Drawn, importance_sketch, random_sketch, slice_norms
from bayesfed.models.slice_normal import SliceNormal
from bayesfed.models.stacked import femnist_cnn, vgg9
from bayesfed.models.supports import Independent, MarkovGrid, Neighbourhood, Support, Transition
from bayesfed.models.text import TextClassifier, query_value, text_classifier
from bayesfed.models.weights import Gaussian, Horseshoe, Laplace, ProductGaussian, SpikeAndSlab, WeightPrior

__all__ = [
    "BayesianNet",
    "Belief",
    "BernoulliGamma",
    "Categorical",
    "ChannelGraph",
    "ClusteredSupport",
    "Cost",
    "Declared",
    "Drawn",
    "FactoredConv2d",
    "FactoredLinear",
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
    "LoraLinear",
    "MarkovGrid",
    "Neighbourhood",
    "Normal",
    "Prior",
    "ProductGaussian",
    "Share",
    "Site",
    "SiteBelief",
    "SliceNormal",
    "Spectrum",
    "SpikeAndSlab",
    "Support",
    "TextClassifier",
    "Transition",
    "Unrolling",
    "WeightPrior",
    "adapter_prior",
    "adapters",
    "alexnet",
    "align",
    "bayesian",
    "channel_graph",
    "channel_order",
    "cnn",
    "communication_bytes",
    "compact",
    "computation_macs",
    "costs",
    "decay_gradients",
    "declare",
    "dense",
    "dense_or_thin",
    "factorise",
    "femnist_cnn",
    "fixed_rank",
    "frobenius_decay",
    "guide",
    "hybrid",
    "hybrid_ranks",
    "importance_sketch",
    "layer_matrices",
    "linear_weights",
    "load_peft",
    "lora",
    "lora_rank",
    "lora_scale",
    "merged",
    "mlp",
    "mobilenet",
    "permute_channels",
    "points",
    "probes",
    "query_value",
    "random_sketch",
    "resized",
    "resnet18",
    "resnet34",
    "save_peft",
    "shrunk",
    "shrunk_shapes",
    "shrunk_shares",
    "shrunk_widths",
    "slice_norms",
    "sort_channels",
    "spectra",
    "spectrum",
    "tangents",
    "text_classifier",
    "total_cost",
    "unrollings",
    "untracked",
    "vgg9",
    "weight_matrices",
    "whole_first",
    "with_points",
    "with_statistics",
]
